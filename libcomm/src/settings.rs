//! What a rank is told by its environment, read once.

use std::time::Duration;

use crate::choose::{Algorithm, Protocol};
use crate::device::plan::Path;
use crate::env;
use crate::error::CommError;
use crate::fault::Fault;
use crate::verify::Verify;

/// What a rank is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// [`env::RANK`].
    pub rank: u32,
    /// [`env::SIZE`].
    pub size: u32,
    /// [`env::LOCAL_RANK`].
    pub local_rank: u32,
    /// [`env::JOB_ID`].
    pub job_id: String,
    /// [`env::TIMEOUT_MS`].
    pub timeout: Option<Duration>,
    /// [`env::USABLE_CPUS`].
    pub usable_cpus: Option<usize>,
    /// [`env::VERIFY`].
    pub verify: Verify,
    /// [`env::ALGO`].
    pub algorithm: Option<Algorithm>,
    /// [`env::REPRODUCIBLE`] is `invariant`.
    pub invariant: bool,
    /// [`env::PROTO`], on the host.
    pub protocol: Option<Protocol>,
    /// [`env::PROTO`], between GPUs.
    pub path: Option<Path>,
    /// [`env::P2P`].
    pub peer_to_peer: bool,
    /// [`env::LINK_HEALTH`]; 100 where nothing is known.
    pub link_health: u32,
    /// [`env::RING`]: every rank once.
    pub ring: Option<Vec<u32>>,
    /// [`env::FAULT`].
    pub fault: Option<Fault>,
    /// The number of the first call on device memory, odd and the same on all ranks: tests begin where numbers wrap around.
    pub first_device_call: u64,
}

impl Settings {
    /// Those of rank `rank` of `size`, all else as it is by default.
    pub fn of(job_id: &str, rank: u32, size: u32) -> Settings {
        Settings {
            rank,
            size,
            local_rank: rank,
            job_id: job_id.to_owned(),
            timeout: None,
            usable_cpus: None,
            verify: Verify::Off,
            algorithm: None,
            invariant: false,
            protocol: None,
            path: None,
            peer_to_peer: true,
            link_health: 100,
            ring: None,
            fault: None,
            first_device_call: 1,
        }
    }

    /// From the environment; a program that no launcher started is alone.
    pub(crate) fn from_env() -> Result<(Settings, bool), CommError> {
        let launched = [env::RANK, env::SIZE, env::JOB_ID].iter().any(|name| env::text(name).is_some());
        let mut settings = match launched {
            true => Settings::of(&job_id()?, env::required(env::RANK)?, env::required(env::SIZE)?),
            false => Settings::of("alone", 0, 1),
        };
        if let Some(local_rank) = env::number(env::LOCAL_RANK)?.filter(|_| launched) {
            settings.local_rank = u32::try_from(local_rank).unwrap_or(u32::MAX);
        }
        if settings.rank >= settings.size || settings.local_rank != settings.rank {
            let value = format!("{} with {}={}", settings.rank, env::SIZE, settings.size);
            let wanted = "a rank below the size, the same as the local rank";
            return Err(CommError::Environment { name: env::RANK, value, wanted });
        }
        settings.timeout = env::number(env::TIMEOUT_MS)?.filter(|ms| *ms != 0).map(Duration::from_millis);
        settings.usable_cpus = env::number(env::USABLE_CPUS)?.map(|cpus| cpus as usize);
        settings.verify = choice(env::VERIFY, "off, every or full", Verify::parse)?.unwrap_or_default();
        settings.algorithm = choice(env::ALGO, ALGORITHMS, Algorithm::parse)?;
        settings.invariant = choice(env::REPRODUCIBLE, "rank or invariant", rank_or_invariant)?.unwrap_or(false);
        if let Some((protocol, path)) = choice(env::PROTO, PROTOCOLS, protocol_and_path)? {
            (settings.protocol, settings.path) = (protocol, path);
        }
        settings.peer_to_peer = choice(env::P2P, "on or off", on_or_off)?.unwrap_or(true);
        settings.link_health = env::number(env::LINK_HEALTH)?.map_or(100, |health| health.min(100) as u32);
        let size = settings.size;
        settings.ring = choice(env::RING, "each rank of the job once, with commas", |text| order_of(text, size))?;
        settings.fault = env::text(env::FAULT).map(|text| Fault::parse(&text)).transpose()?;
        Ok((settings, launched))
    }
}

const ALGORITHMS: &str = "one_shot, two_shot, ring, chain, hierarchical or hierarchical:N";
const PROTOCOLS: &str = "ll or simple on the host, ll, push, copy, ring, zero-copy, staged or nccl between GPUs";

/// What a name means on the host and between GPUs; one that neither knows is refused.
fn protocol_and_path(name: &str) -> Option<(Option<Protocol>, Option<Path>)> {
    match (Protocol::parse(name), Path::parse(name)) {
        (None, None) => None,
        known => Some(known),
    }
}

fn rank_or_invariant(text: &str) -> Option<bool> {
    match text {
        "rank" => Some(false),
        "invariant" => Some(true),
        _ => None,
    }
}

/// An order of all ranks, as `0,1,3,2`.
fn order_of(text: &str, ranks: u32) -> Option<Vec<u32>> {
    let order: Vec<u32> = text.split(',').map(|rank| rank.trim().parse().ok()).collect::<Option<_>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..ranks).then_some(order)
}

fn on_or_off(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn job_id() -> Result<String, CommError> {
    env::text(env::JOB_ID).ok_or(CommError::MissingVariable { name: env::JOB_ID })
}

fn choice<T>(
    name: &'static str,
    wanted: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, CommError> {
    let Some(value) = env::text(name) else { return Ok(None) };
    match parse(&value) {
        Some(choice) => Ok(Some(choice)),
        None => Err(CommError::Environment { name, value, wanted }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_every_rank_once() {
        assert_eq!(order_of("0,2, 1", 3), Some(vec![0, 2, 1]));
        for wrong in ["0,1", "0,1,1", "0,1,3", "0,1,2,3", "", "a,b,c"] {
            assert_eq!(order_of(wrong, 3), None, "{wrong}");
        }
    }

    #[test]
    fn a_protocol_means_what_host_and_gpus_know_of_it_and_others_are_refused() {
        assert_eq!(protocol_and_path("simple"), Some((Some(Protocol::Simple), None)));
        let both = protocol_and_path("ll").unwrap();
        assert!(both.0 == Some(Protocol::Ll) && both.1.is_some());
        assert_eq!(protocol_and_path("ring").unwrap().0, None);
        for unknown in ["tree", "LL", ""] {
            assert_eq!(protocol_and_path(unknown), None, "{unknown}");
        }
    }
}
