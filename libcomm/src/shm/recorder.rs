//! The flight recorder: each rank's last calls, in the segment, so that they outlive the rank.
//!
//! A record is written by its rank alone and read by rankd at any moment. While a slot of the ring is being
//! reused its sequence number is 0; the reader takes a record whose sequence number was the same before and after.

use super::View;
use super::atomic::{Acquire, Relaxed, Release, fence};
use super::layout::RECORDS;
use crate::signature::Signature;
use serde::{Deserialize, Serialize};

/// Up to so many elements, the times of a call are those of the kernel's last tick.
pub(crate) const SHORT_CALL: u64 = 1024;

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallState {
    /// It has not returned.
    Running,
    /// It returned with success.
    Done,
    /// It returned an error.
    Failed,
}

/// One recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Which of the rank's calls it is, all its communicators together.
    pub(crate) sequence: u64,
    pub(crate) signature: Signature,
    pub(crate) state: CallState,
    pub(crate) generation: u32,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
}

const STATE_SHIFT: u32 = 24;

impl View<'_> {
    /// Notes that `rank` starts a call, its `sequence`th in this generation.
    pub(crate) fn record_start(&self, rank: u32, generation: u32, sequence: u64, signature: &Signature, now_ns: u64) {
        let block = &self.ranks[rank as usize];
        let record = &block.records.0[sequence as usize % RECORDS];
        record.sequence.store(0, Relaxed);
        fence(Release); // the old record is gone before any word of the new one can be seen
        record.kind.store(signature.kind_word(), Relaxed);
        record.count.store(signature.count, Relaxed);
        record.started.store(now_ns, Relaxed);
        record.ended.store(0, Relaxed);
        record.generation.store(u64::from(generation), Relaxed);
        record.number.store(signature.number, Relaxed);
        record.communicator.store(signature.communicator_word(), Relaxed);
        record.sequence.store(sequence, Release);
        self.record_activity(rank);
    }

    /// Notes how that call ended.
    pub(crate) fn record_end(&self, rank: u32, sequence: u64, signature: &Signature, state: CallState, now_ns: u64) {
        let block = &self.ranks[rank as usize];
        let record = &block.records.0[sequence as usize % RECORDS];
        record.ended.store(now_ns, Relaxed);
        record.kind.store(signature.kind_word() | (state as u64) << STATE_SHIFT, Release);
        self.record_activity(rank);
    }

    /// Notes that `rank` goes on, where no step of the job's communicator shows it.
    pub(crate) fn record_activity(&self, rank: u32) {
        let activity = &self.ranks[rank as usize].activity.0;
        activity.store(activity.load(Relaxed) + 1, Release);
    }

    /// The calls of `rank` that are still there, oldest first.
    pub(crate) fn recorded(&self, rank: u32) -> Vec<Recorded> {
        let records = &self.ranks[rank as usize].records.0;
        let mut calls: Vec<Recorded> = records
            .iter()
            .filter_map(|record| {
                let sequence = record.sequence.load(Acquire);
                let kind = record.kind.load(Acquire);
                let count = record.count.load(Relaxed);
                let (started_ns, ended_ns) = (record.started.load(Relaxed), record.ended.load(Relaxed));
                let generation = record.generation.load(Relaxed) as u32;
                let (number, communicator) = (record.number.load(Relaxed), record.communicator.load(Relaxed));
                fence(Acquire);
                if sequence == 0 || record.sequence.load(Relaxed) != sequence {
                    return None;
                }
                let state = match (kind >> STATE_SHIFT) as u8 {
                    0 => CallState::Running,
                    1 => CallState::Done,
                    _ => CallState::Failed,
                };
                let signature = Signature::from_words([number, kind & !(0xff << STATE_SHIFT), count])?;
                let signature = signature.with_communicator_word(communicator);
                Some(Recorded { sequence, signature, state, generation, started_ns, ended_ns })
            })
            .collect();
        calls.sort_by_key(|call| (call.generation, call.sequence));
        calls
    }
}
