//! Test hook: one bit damaged on purpose, to prove that verification finds it.
//!
//! `PRUN_FAULT=flip:rank=1,call=3,chunk=0,bit=17,stage=chunk` makes rank 1 flip bit 17 of chunk 0 of its third
//! call. `stage` says where: `chunk`, its data after it was copied into the slot, before anyone reads it;
//! `reduced`, the share that it reduced and hands on; `result`, the data in its own receive buffer after the last
//! step. In a ring, a chunk is a block of one share a rank. A bit beyond the data counts from its start again. Never set it in a job that matters.

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
}

/// Which bit to flip, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose data.
    pub rank: u32,
    /// In which of its calls, from 1.
    pub call: u64,
    /// In which chunk of that call, from 0.
    pub chunk: u64,
    /// Which bit of it.
    pub bit: u64,
    /// Where.
    pub stage: Stage,
}

const WANTED: &str = "flip:rank=R,call=C,chunk=K,bit=B,stage=chunk|reduced|result";

impl Fault {
    /// From the variable's text.
    pub fn parse(text: &str) -> Result<Fault, CommError> {
        parse(text).ok_or_else(|| CommError::Environment {
            name: crate::env::FAULT,
            value: text.to_owned(),
            wanted: WANTED,
        })
    }

    /// Flips its bit in `bytes`.
    pub(crate) fn strike(&self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.bit % (8 * bytes.len() as u64);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

fn parse(text: &str) -> Option<Fault> {
    let mut fault = Fault { rank: 0, call: 1, chunk: 0, bit: 0, stage: Stage::Chunk };
    for field in text.strip_prefix("flip:")?.split(',') {
        let (name, value) = field.split_once('=')?;
        match name {
            "rank" => fault.rank = value.parse().ok()?,
            "call" => fault.call = value.parse().ok()?,
            "chunk" => fault.chunk = value.parse().ok()?,
            "bit" => fault.bit = value.parse().ok()?,
            "stage" => {
                fault.stage = match value {
                    "chunk" => Stage::Chunk,
                    "reduced" => Stage::Reduced,
                    "result" => Stage::Result,
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
        assert_eq!(fault, Fault { rank: 1, call: 3, chunk: 0, bit: 17, stage: Stage::Result });
        for wrong in ["", "flip", "flip:rank=x", "flip:stage=nowhere", "flop:rank=1", "flip:colour=1"] {
            assert!(Fault::parse(wrong).is_err(), "{wrong}");
        }
    }
}
