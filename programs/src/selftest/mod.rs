//! What `prun selftest` runs in each rank. A case is a word; the launcher's table says with how many ranks and options.
//!
//! Each part of a case prints a line that begins with `ok` or, on any rank where it went wrong, with `FAIL`.

mod arithmetic;
mod beside;
mod broadcast;
mod damage;
mod faults;
mod host;
mod memory;
mod mismatches;
mod pair;
mod peer_access;
mod rank;
mod registered;
mod right;
mod sanitize;
mod virtual_ranks;

use std::time::Instant;

use anyhow::bail;
use comm::cuda::{Context, Driver};
use comm::{Comm, Op, Path, Verify};
use half::bf16;

use rank::Rank;

/// prun, started as a rank of `prun selftest`, has this first argument; the second is a case. No program has this name.
pub const WORD: &str = "@selftest-rank";

/// What a word stands for.
enum Case {
    /// What joins by itself, as often as it wants.
    Alone(fn() -> anyhow::Result<bool>),
    /// Parts on the host.
    OnHost(fn(&Comm) -> bool, After),
    /// Parts on a GPU.
    OnGpu(fn(&Rank<'_>) -> bool, After),
    /// One part on a GPU, with its title.
    Part(&'static str, fn(&Rank<'_>) -> anyhow::Result<()>, After),
}

/// What becomes of the communicator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The ranks leave it together.
    Left,
    /// It failed, as it was meant to.
    Failed,
}

use After::{Failed, Left};
use Case::{Alone, OnGpu, OnHost, Part};

const CASES: [(&str, Case); 20] = [
    ("virtual", Alone(virtual_ranks::run)),
    ("sanitize", Alone(|| sanitize::run(Verify::Off))),
    ("sanitize-verify", Alone(|| sanitize::run(Verify::Every))),
    ("peer-access", Alone(peer_access::run)),
    ("faults", Alone(|| Ok(trials("trials with damaged data", faults::run()?)))),
    ("mismatches", Alone(|| Ok(trials("trials of calls that differ", mismatches::run()?)))),
    ("host", OnHost(host::differential, Left)),
    ("host-mismatch", OnHost(host::mismatch, Failed)),
    ("host-killed", OnHost(host::killed, Failed)),
    ("pair", OnGpu(everything, Left)),
    ("start", Part("set up, and one call", one_call, Left)),
    ("late", Part("a late rank", pair::late, Left)),
    ("refused", Part("a pair that cannot", pair::refused, Left)),
    ("mismatch", Part("mismatched calls name both", |rank| pair::mismatch(rank, false), Failed)),
    ("mismatch-graph", Part("mismatched replays name both", |rank| pair::mismatch(rank, true), Failed)),
    ("stale", Part("a replay after deregistering", registered::stale, Failed)),
    ("damaged", Part("damaged data", damage::damaged, Failed)),
    ("killed", Part("a killed rank", |rank| pair::killed(rank, false), Failed)),
    ("killed-graph", Part("a rank killed between replays", |rank| pair::killed(rank, true), Failed)),
    ("killed-nccl", Part("a rank killed in NCCL's calls", beside::killed_nccl, Failed)),
];

fn case(word: &str) -> Option<&'static Case> {
    CASES.iter().find(|(known, _)| *known == word).map(|(_, case)| case)
}

/// Whether there is such a case.
pub fn is_case(word: &str) -> bool {
    case(word).is_some()
}

/// Runs this rank's part of a case: prun's exit code.
pub fn run(word: &str) -> u8 {
    let done = match case(word) {
        None => Err(anyhow::anyhow!("there is no such case")),
        Some(Alone(body)) => body(),
        Some(case) => Comm::init().map_err(anyhow::Error::from).and_then(|comm| in_job(case, comm)),
    };
    u8::from(!done.unwrap_or_else(|error| {
        println!("FAIL {word}: {error:#}");
        false
    }))
}

fn in_job(case: &Case, comm: Comm) -> anyhow::Result<bool> {
    let rank = || Rank::new(&comm, comm.local_rank() % Context::devices(Driver::get()?)?);
    let (ok, after) = match case {
        Alone(body) => return body(),
        OnHost(body, after) => (body(&comm), after),
        OnGpu(body, after) => (body(&rank()?), after),
        Part(title, body, after) => {
            let rank = rank()?;
            (part(&comm, title, || body(&rank)), after)
        }
    };
    if ok && *after == Left {
        comm.finalize()?;
    }
    Ok(ok)
}

/// Says how many trials there were, and whether all went as they should.
fn trials(what: &str, (trials, failed): (usize, usize)) -> bool {
    println!("{} {} of {trials} {what}", if failed == 0 { "ok  " } else { "FAIL" }, trials - failed);
    failed == 0
}

fn one_call(rank: &Rank<'_>) -> anyhow::Result<()> {
    rank.call::<f32>(1000, Op::Sum, None, false, 0)
}

/// All types, operations, paths, odd lengths and alignments, in place and not; graphs between eager calls; streams that
/// take turns.
fn everything(rank: &Rank<'_>) -> bool {
    let comm = rank.comm;
    // The first call says which way the data goes.
    let mut ok = part(comm, "set up, and one call", || one_call(rank));
    ok &= part(comm, "the way that the data goes", || goes_as_it_should(comm));
    let paths = match (comm.is_staged(), comm.size()) {
        (true, _) => &PATHS[..1], // where the host reduces there is one path only
        (false, 2) => PATHS,
        _ => PATHS_OF_MORE,
    };
    ok &= all_types(rank, paths, COUNTS);
    ok &= broadcasts(rank);
    if let Some(why) = comm.detour() {
        println!("rank {}: through the host: {why}", comm.rank());
    }
    if comm.is_staged() {
        return ok & part(comm, "long calls, graphs, streams", || Err(NotHere("the host reduces".into()).into()));
    }
    for (name, path) in paths {
        ok &= part(comm, &format!("{name}: 3 000 001 elements"), || {
            rank.all_ops::<f32>(*path, BIG)?;
            rank.all_ops::<bf16>(*path, BIG)
        });
    }
    if comm.size() == 2 {
        ok &= part(comm, "words that look like no data", || rank.words_of_no_data(&[Path::Push, Path::Copy]));
        ok &= part(comm, "more copies than room", || rank.many_copies());
    }
    ok &= part(comm, "graphs between eager calls", || rank.graphs());
    ok &= part(comm, "a graph of two streams", || rank.graph_of_two_streams());
    ok &= part(comm, "broadcasts in graphs", || rank.broadcast_graphs());
    ok &= part(comm, "two streams take turns", || rank.streams());
    ok &= part(comm, "two streams in opposite order, 2000 calls", || rank.opposite_streams());
    ok &= part(comm, "a second communicator beside", || rank.second_communicator());
    if comm.size() == 2 {
        if comm.detour().is_none() {
            ok &= part(comm, "registered memory", || rank.registered(&[1, 7, 1000, 70_001]));
            ok &= part(comm, "registered memory in graphs", || rank.registered_graphs());
        }
        ok &= part(comm, "NCCL in another stream", || rank.beside_nccl());
        ok &= part(comm, "sums beyond the range", || arithmetic::overflow(rank));
        ok &= part(comm, "memory of every kind", || memory::kinds(rank));
        ok &= part(comm, "the runtime's last error", || memory::runtime(rank));
    }
    ok
}

/// Data goes through the host only where it must: results are right either way, and nothing else tells.
fn goes_as_it_should(comm: &Comm) -> anyhow::Result<()> {
    let alone = Context::devices(Driver::get()?)? >= comm.size();
    let is_off = std::env::var(comm::env::P2P).is_ok_and(|value| value == "off");
    match wrong_way(comm.detour(), alone, is_off) {
        Some(why) => bail!("{why}"),
        None => Ok(()),
    }
}

/// What is wrong with going through the host, or not, where every rank has a GPU `alone` and peers' memory may be mapped
/// unless that is `off`.
fn wrong_way(through_host: Option<&str>, alone: bool, is_off: bool) -> Option<String> {
    match through_host {
        Some(why) if alone && !is_off => Some(format!("data goes through the host: {why}")),
        None if is_off => Some("data does not go through the host, although it should".into()),
        _ => None,
    }
}

/// On as many paths as there are; where the host moves the data, on one.
fn broadcasts(rank: &Rank<'_>) -> bool {
    let staged = rank.comm.is_staged();
    let mut ok = true;
    for (name, path) in &broadcast::PATHS[..if staged { 1 } else { 4 }] {
        let title = format!("{} ranks, broadcast, {name}: roots, lengths", rank.comm.size());
        ok &= part(rank.comm, &title, || rank.broadcasts(*path, &broadcast::COUNTS));
    }
    if !staged {
        ok &= part(rank.comm, "300 broadcasts in a row", || rank.broadcasts_in_a_row());
    }
    ok
}

fn all_types(rank: &Rank<'_>, paths: &[(&str, Option<Path>)], counts: &[usize]) -> bool {
    let mut ok = true;
    for (name, path) in paths {
        let title = format!("{} ranks, {name}: types, ops, lengths", rank.comm.size());
        ok &= part(rank.comm, &title, || rank.all_types(*path, counts));
    }
    ok
}

/// Runs a part and prints how it went: once for all ranks, or on each where it failed.
fn part(comm: &Comm, title: &str, body: impl FnOnce() -> anyhow::Result<()>) -> bool {
    let began = Instant::now();
    match body() {
        Err(error) if error.is::<NotHere>() => {
            if comm.rank() == 0 {
                println!("skip {title}: {error}");
            }
            true
        }
        Err(error) => {
            println!("FAIL {title}, rank {}: {error:#}", comm.rank());
            false
        }
        Ok(()) => {
            if comm.rank() == 0 {
                println!("ok   {title} ({} ms)", began.elapsed().as_millis());
            }
            true
        }
    }
}

/// Why a part is not tried, on any rank: this machine does not have what it takes.
#[derive(Debug)]
struct NotHere(String);

impl std::fmt::Display for NotHere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotHere {}

/// prun ends the others when a rank is gone; a case wants to see what the library says first.
#[expect(unsafe_code, reason = "signals")]
fn outlive() {
    // SAFETY: ignoring runs no code of ours.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

/// Ends this rank as `kill -9` would.
#[expect(unsafe_code, reason = "signals")]
fn die() {
    // SAFETY: no preconditions.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

const COUNTS: &[usize] = &[1, 2, 3, 7, 33, 1000, 4097, 70_001];
const BIG: &[usize] = &[3_000_001];

/// Of two ranks.
const PATHS: &[(&str, Option<Path>)] = &[
    ("auto", None),
    ("ll", Some(Path::Ll)),
    ("push", Some(Path::Push)),
    ("copy", Some(Path::Copy)),
    ("ring", Some(Path::Ring)),
];
const PATHS_OF_MORE: &[(&str, Option<Path>)] = &[("auto", None), ("ll", Some(Path::Ll)), ("ring", Some(Path::Ring))];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_stands_for_two_cases() {
        let mut words: Vec<_> = CASES.iter().map(|(word, _)| *word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), CASES.len());
        assert_eq!(run("no case"), 1);
    }

    #[test]
    fn a_detour_is_wrong_only_where_every_rank_has_a_gpu_of_its_own() {
        let why = Some("rank 1 cannot map rank 0's memory: no");
        assert!(wrong_way(why, true, false).is_some_and(|wrong| wrong.ends_with("memory: no")));
        assert_eq!(wrong_way(None, true, false), None);
        assert_eq!(wrong_way(why, false, false), None);
        assert_eq!(wrong_way(why, true, true), None);
        assert!(wrong_way(None, true, true).is_some());
    }
}
