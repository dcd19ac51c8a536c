//! What a rank called, in three words: what the ranks compare before any data counts, and what errors quote.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::types::{DataType, Op, Operation};

/// One call as its rank made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// Number of the call in its communicator, from 1; of a message, its number between the two ranks.
    pub number: u64,
    /// What was called.
    pub operation: Operation,
    /// Element type, where data moves.
    pub data_type: Option<DataType>,
    /// Reduction, where there is one.
    pub op: Option<Op>,
    /// Root, where there is one; of a message, the other rank.
    pub root: Option<u32>,
    /// Elements, as the caller counts them.
    pub count: u64,
    /// The communicator, 0 for the job's own.
    pub communicator: u32,
    /// The tag of a message.
    pub tag: Option<u32>,
}

impl Signature {
    /// Operation, type, op and root in one word. The upper 32 bits are root + 1; byte 3 is left to the recorder.
    pub(crate) fn kind_word(&self) -> u64 {
        let data_type = self.data_type.map_or(0, |t| t as u64);
        let op = self.op.map_or(0, |op| op as u64);
        let root = self.root.map_or(0, |root| u64::from(root) + 1);
        self.operation as u64 | data_type << 8 | op << 16 | root << 32
    }

    /// From its words; `None` for words that no libcomm writes.
    pub(crate) fn from_words([number, kind, count]: [u64; 3]) -> Option<Signature> {
        let operation = Operation::from_number(kind as u8)?;
        let data_type = DataType::from_number((kind >> 8) as u8);
        let op = Op::from_number((kind >> 16) as u8);
        let root = ((kind >> 32) as u32).checked_sub(1);
        Some(Signature { number, operation, data_type, op, root, count, communicator: 0, tag: None })
    }

    /// The communicator and the tag in one word. Tags are below 2^31.
    pub(crate) fn communicator_word(&self) -> u64 {
        u64::from(self.communicator) | self.tag.map_or(0, |tag| (u64::from(tag) + 1) << 32)
    }

    /// With what such a word says.
    pub(crate) fn with_communicator_word(self, word: u64) -> Signature {
        Signature { communicator: word as u32, tag: ((word >> 32) as u32).checked_sub(1), ..self }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_message = matches!(self.operation, Operation::Send | Operation::Recv | Operation::SendRecv);
        let what = if is_message { "message" } else { "call" };
        write!(f, "{what} {} {}", self.number, self.operation)?;
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        if let Some(data_type) = self.data_type {
            write!(f, " {data_type} x {}", self.count)?;
        }
        if let Some(root) = self.root {
            let to = matches!(self.operation, Operation::Send | Operation::SendRecv);
            write!(f, " {} rank {root}", if to { "to" } else { "from" })?;
        }
        if let Some(tag) = self.tag {
            write!(f, " with tag {tag}")?;
        }
        match self.communicator {
            0 => Ok(()),
            communicator => write!(f, " on communicator {communicator}"),
        }
    }
}
