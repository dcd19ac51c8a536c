//! The proof, at set-up, that what one rank's GPU writes arrives at the other's: by stores of kernels, and by the copy engine
//! where calls go by it. The owner of the memory looks, since a link that loses data tells nobody else.
#![expect(unsafe_code, reason = "launches and copies on addresses")]

use std::time::Duration;

use kernels::args::{self, Args};

use super::Device;
use super::setup::Exchange;
use crate::cuda::CudaError;
use crate::error::CommError;
use crate::fault::{Fault, Kind, Stage};
use crate::shm::mailbox::Exchanged;

/// How long the kernels of the proof may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Bytes that each pair writes, each way at once.
const BYTES: u64 = 1 << 20;
/// Of these, what the copy engine sends back.
const COPIED: u64 = 256 << 10;

impl Device {
    /// Proves the way with all ranks; why it is not to be used, if any of them says so.
    pub(super) fn prove_together(
        &mut self,
        fault: Option<Fault>,
        exchange: &mut Exchange<'_, ()>,
    ) -> Result<Option<String>, CommError> {
        let stored = self.prove_stores().and_then(|()| self.send_back());
        let refused = agree(stored, exchange)?;
        if refused.is_some() || !self.has_copies() {
            return Ok(refused);
        }
        // All have copied before any of them looks.
        agree(self.prove_copies(fault), exchange)
    }

    /// Writes a pattern to every peer and checks what came, both ways at once.
    fn prove_stores(&mut self) -> Result<(), String> {
        let common = self.common.as_ref().ok_or("the kernels are not loaded")?;
        let stream = self.streams[0].get();
        let args = Args {
            count: self.proof_bytes(),
            recv: self.arena.address() + args::PROOF_AT,
            limit_ns: LIMIT.as_nanos() as u64,
            signature: u64::MAX >> 1, // nobody else's; the highest bit is no part of one
            ..self.template
        };
        // SAFETY: the arguments hold arenas of ours and the peers'.
        unsafe { common.prove.launch(8, 512, stream, &args) }.map_err(text)?;
        stream.synchronize(self.context.driver()).map_err(text)?;
        let mut count = [0u64];
        self.arena.read(args::PROOF_AT as usize, &mut count).map_err(text)?;
        verdict(count[0], self.proof_bytes(), "wrote")
    }

    /// Whether calls go by the copy engine at all.
    fn has_copies(&self) -> bool {
        !self.machine.in_host && self.machine.ranks == 2 && self.machine.arena.copy_slot_bytes >= COPIED
    }

    /// Has the copy engine bring the peer, into its slots, some of what came from there.
    fn send_back(&self) -> Result<(), String> {
        if !self.has_copies() {
            return Ok(());
        }
        let (layout, peer) = (&self.machine.arena, self.template.rank ^ 1);
        let came = layout.bulk_at + self.first_call % 2 * layout.bulk_bytes + u64::from(peer) * self.proof_bytes();
        let to = self.template.arena[peer as usize] + layout.copy_at;
        let (stream, driver) = (self.streams[0].get(), self.context.driver());
        // SAFETY: both arenas have that layout; nothing else is in the slots before the first call.
        unsafe { driver.copy_device_async(to, self.arena.address() + came, COPIED as usize, stream.raw()) }
            .map_err(text)?;
        stream.synchronize(driver).map_err(text)
    }

    /// Whether that is what this rank had written there; the slots are again as they were.
    fn prove_copies(&self, fault: Option<Fault>) -> Result<(), String> {
        let (at, rank) = (self.machine.arena.copy_at as usize, self.template.rank);
        let mut words = vec![0u64; COPIED as usize / 8];
        self.arena.read(at, &mut words).map_err(text)?;
        self.arena.fill_words(at, COPIED as usize, args::ABSENT).map_err(text)?;
        if fault.is_some_and(|fault| fault.call == 0 && fault.kind == Kind::Flip && fault.stage == Stage::Result) {
            words[0] ^= 1;
        }
        let wrong = words.iter().zip(0u64..).filter(|(word, place)| **word != pattern(rank, rank ^ 1, *place)).count();
        verdict(wrong as u64, COPIED, "copied")
    }

    /// As much as there is room for, from all peers at once.
    fn proof_bytes(&self) -> u64 {
        let room = self.machine.arena.bulk_bytes / u64::from(self.machine.ranks);
        BYTES.min(room / 4096 * 4096)
    }
}

/// Word `place` of what rank `from` writes to rank `to`, as `kernels/device/common.cu` has it.
fn pattern(from: u32, to: u32, place: u64) -> u64 {
    let word = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(from) << 32) ^ u64::from(to);
    let word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 32)
}

fn text(error: CudaError) -> String {
    error.to_string()
}

fn verdict(wrong: u64, bytes: u64, did: &str) -> Result<(), String> {
    match wrong {
        0 => Ok(()),
        wrong => Err(format!("of {} words that the peers {did}, {wrong} did not arrive as they were", bytes / 8)),
    }
}

/// Swaps verdicts: the first that is against it, if any is.
fn agree(proven: Result<(), String>, exchange: &mut Exchange<'_, ()>) -> Result<Option<String>, CommError> {
    let mut read = |_: u32, bytes: &[u8]| match bytes[0] {
        0 => Ok(()),
        _ => Err(String::from_utf8_lossy(&bytes[1..]).trim_end_matches('\0').to_owned()),
    };
    let mut blob = [0u8; 128];
    if let Err(why) = &proven {
        blob[0] = 1;
        let length = why.len().min(127);
        blob[1..=length].copy_from_slice(&why.as_bytes()[..length]);
    }
    Ok(match exchange(&blob, &mut read)? {
        Exchanged::All(_) => None,
        Exchanged::Fallback(refusal) => Some(format!("rank {}: {}", refusal.peer, refusal.why)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::mailbox::Refusal;

    type Open<'a> = dyn FnMut(u32, &[u8]) -> Result<(), String> + 'a;

    #[test]
    fn the_pattern_tells_ranks_directions_and_places_apart() {
        let mut words = Vec::new();
        for (from, to) in [(0, 1), (1, 0), (0, 2), (7, 6)] {
            words.extend((0..100).map(|place| pattern(from, to, place)));
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 400);
    }

    #[test]
    fn one_verdict_against_it_is_everyones() {
        let mut all_well = |blob: &[u8], open: &mut Open<'_>| {
            assert_eq!(blob[0], 0);
            open(1, blob).unwrap();
            Ok(Exchanged::All(vec![None, Some(())]))
        };
        assert_eq!(agree(Ok(()), &mut all_well).unwrap(), None);
        let why = "of 8 words that the peers copied, 1 did not arrive as they were";
        assert_eq!(verdict(1, 64, "copied"), Err(why.into()));
        let mut lost = |blob: &[u8], open: &mut Open<'_>| {
            let why = open(1, blob).unwrap_err();
            Ok(Exchanged::Fallback(Refusal { rank: 0, peer: 1, why }))
        };
        assert_eq!(agree(Err(why.into()), &mut lost).unwrap(), Some(format!("rank 1: {why}")));
    }
}
