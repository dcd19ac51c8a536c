//! Test hook: one piece of data damaged on purpose, to prove that verification finds it.
//!
//! `PRUN_FAULT=flip:rank=1,call=3,chunk=0,bit=17,stage=chunk` makes rank 1 flip bit 17 of chunk 0 of its third
//! call. `stage` says where: `chunk`, its data after it was copied into the slot, before anyone reads it;
//! `reduced`, the share that it reduced and hands on; `result`, the data in its own receive buffer after the last
//! step; `reduction`, a result of its own arithmetic before anyone has made a checksum of it, as if it had reduced wrongly,
//! which only `PRUN_VERIFY=full` can find; `message`, a piece of a message (`comm_send`) in its cell, where `call` is the
//! number of the message between its two ranks. In a ring, a chunk is a block of one share a rank. A bit beyond the data counts
//! from its start again.
//!
//! On GPUs a chunk has 4096 bytes and calls are those on device memory, and `stage=chunk` strikes what arrives at that
//! rank, before it is used (`reduced` is the same); call 0 is the proof of the paths, in which `stage=result` strikes what the
//! copy engine brings. There, three more are known:
//! `drop:rank=1,call=3,chunk=0` loses 8 or 16 bytes that rank 1 sends (or a chunk of the copy engine's),
//! `delay:rank=1,call=3,ms=50` makes rank 1 late, and `refuse:rank=1` has it fail to map its peers' memory. Kernels that
//! can do so are loaded only where this variable is set, or verification is on.
//!
//! `kill:rank=1,call=3,step=2` makes rank 1 kill itself in its third call on the host, before it posts that call's step 2,
//! from 0, to prove that the others learn of it whatever they are in. Never set any of these in a job that matters.

use crate::error::CommError;

/// Where the bit is flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Data on its way to be reduced, or to be copied.
    Chunk,
    /// A reduced share on its way to the others.
    Reduced,
    /// The result in the receive buffer.
    Result,
    /// What a rank has reduced, before it is a result or a share. On the host only.
    Reduction,
    /// A piece of a message between two ranks. On the host only.
    Message,
}

/// What is done to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A bit is flipped.
    Flip,
    /// Data is never stored at the peer. On GPUs only.
    Drop,
    /// The rank does not map its peers' memory. On GPUs only.
    Refuse,
    /// The rank is late by so many milliseconds. On GPUs only.
    Delay(u64),
    /// The rank ends before it posts the step that `chunk` says. On the host only.
    Kill,
}

/// What to damage, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: Kind,
    /// Whose data.
    pub rank: u32,
    /// In which of its calls, from 1.
    pub call: u64,
    /// In which chunk of that call, from 0; of an end, in which step.
    pub chunk: u64,
    /// Which bit of it.
    pub bit: u64,
    /// Where.
    pub stage: Stage,
}

const WANTED: &str = "flip:rank=R,call=C,chunk=K,bit=B,stage=chunk|reduced|result|reduction|message, drop:rank=R,call=C,chunk=K, \
     delay:rank=R,call=C,ms=M, refuse:rank=R or kill:rank=R,call=C,step=S";

impl Fault {
    /// From the variable's text.
    pub fn parse(text: &str) -> Result<Fault, CommError> {
        parse(text).ok_or_else(|| CommError::Environment {
            name: crate::env::FAULT,
            value: text.to_owned(),
            wanted: WANTED,
        })
    }

    /// Ends this process, as a kill from outside does, if `step` is the one.
    pub(crate) fn maybe_kill(&self, step: u64) {
        if self.kind == Kind::Kill && self.chunk == step {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }

    /// Flips its bit in `bytes`.
    pub(crate) fn strike(&self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.bit % (8 * bytes.len() as u64);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

/// Bytes of a chunk, as a GPU's faults count them.
const DEVICE_CHUNK: u64 = 4096;

/// The same as kernels have it. Their first call is the proof of the path.
impl From<Fault> for kernels::args::Fault {
    fn from(fault: Fault) -> kernels::args::Fault {
        use kernels::args;
        let (kind, delay_ns) = match fault.kind {
            Kind::Flip if fault.stage == Stage::Result => (args::FAULT_FLIP_RESULT, 0),
            Kind::Flip => (args::FAULT_FLIP, 0),
            Kind::Drop => (args::FAULT_DROP, 0),
            Kind::Refuse | Kind::Kill => (0, 0),
            Kind::Delay(ms) => (args::FAULT_DELAY, ms.saturating_mul(1_000_000)),
        };
        let byte = fault.chunk.saturating_mul(DEVICE_CHUNK).saturating_add(fault.bit / 64 * 8);
        args::Fault { kind, bit: (fault.bit % 64) as u32, epoch: fault.call + 1, at: byte, delay_ns }
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (kind, fields) = text.split_once(':')?;
    let kind = match kind {
        "flip" => Kind::Flip,
        "drop" => Kind::Drop,
        "refuse" => Kind::Refuse,
        "delay" => Kind::Delay(0),
        "kill" => Kind::Kill,
        _ => return None,
    };
    let mut fault = Fault { kind, rank: 0, call: 1, chunk: 0, bit: 0, stage: Stage::Chunk };
    for field in fields.split(',') {
        let (name, value) = field.split_once('=')?;
        match name {
            "rank" => fault.rank = value.parse().ok()?,
            "call" => fault.call = value.parse().ok()?,
            "chunk" if fault.kind != Kind::Kill => fault.chunk = value.parse().ok()?,
            "step" if fault.kind == Kind::Kill => fault.chunk = value.parse().ok()?,
            "bit" => fault.bit = value.parse().ok()?,
            "ms" => match &mut fault.kind {
                Kind::Delay(ms) => *ms = value.parse().ok()?,
                _ => return None,
            },
            "stage" => {
                fault.stage = match value {
                    "chunk" => Stage::Chunk,
                    "reduced" => Stage::Reduced,
                    "result" => Stage::Result,
                    "reduction" => Stage::Reduction,
                    "message" => Stage::Message,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_form_is_read_and_others_are_refused() {
        let fault = Fault::parse("flip:rank=1,call=3,chunk=0,bit=17,stage=result").unwrap();
        assert_eq!(fault, Fault { kind: Kind::Flip, rank: 1, call: 3, chunk: 0, bit: 17, stage: Stage::Result });
        let late = Fault::parse("delay:rank=1,call=2,ms=50").unwrap();
        assert_eq!(late, Fault { kind: Kind::Delay(50), rank: 1, call: 2, chunk: 0, bit: 0, stage: Stage::Chunk });
        assert_eq!(Fault::parse("drop:chunk=4").unwrap().kind, Kind::Drop);
        let kill = Fault::parse("kill:rank=2,call=1,step=4").unwrap();
        assert_eq!(kill, Fault { kind: Kind::Kill, rank: 2, call: 1, chunk: 4, bit: 0, stage: Stage::Chunk });
        assert!(Fault::parse("kill:chunk=1").is_err() && Fault::parse("flip:step=1").is_err());
        for wrong in ["", "flip", "drop:ms=4", "flip:rank=x", "flip:stage=nowhere", "flop:rank=1", "flip:colour=1"] {
            assert!(Fault::parse(wrong).is_err(), "{wrong}");
        }
    }
}
