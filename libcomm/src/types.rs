//! What is moved and how it is combined: operations, element types, reductions.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Operation {
    /// Everyone waits for everyone.
    Barrier = 1,
    /// Everyone gets the reduction of all.
    AllReduce = 2,
    /// Everyone gets the root's data.
    Broadcast = 3,
    /// Everyone gets everyone's data.
    AllGather = 4,
    /// Everyone gets their share of the reduction of all.
    ReduceScatter = 5,
    /// Handles are swapped through the mailbox.
    Exchange = 6,
    /// The communicator is left together.
    Finalize = 7,
}

impl Operation {
    /// From its number in shared memory.
    pub(crate) fn from_number(number: u8) -> Option<Operation> {
        use Operation::*;
        [Barrier, AllReduce, Broadcast, AllGather, ReduceScatter, Exchange, Finalize]
            .into_iter()
            .find(|o| *o as u8 == number)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operation::Barrier => "barrier",
            Operation::AllReduce => "allreduce",
            Operation::Broadcast => "broadcast",
            Operation::AllGather => "allgather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Exchange => "exchange",
            Operation::Finalize => "finalize",
        })
    }
}

/// The type of an element, as the C interface names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum DataType {
    /// `f64`, C's `double`.
    F64 = 1,
    /// `f32`, C's `float`.
    F32 = 2,
    /// IEEE half precision; added up in `f32`.
    F16 = 3,
    /// bfloat16; added up in `f32`.
    BF16 = 4,
    /// `int8_t`.
    I8 = 5,
    /// `uint8_t`.
    U8 = 6,
    /// `int32_t`.
    I32 = 7,
    /// `uint32_t`.
    U32 = 8,
    /// `int64_t`.
    I64 = 9,
    /// `uint64_t`.
    U64 = 10,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 10] = {
        use DataType::*;
        [F64, F32, F16, BF16, I8, U8, I32, U32, I64, U64]
    };

    /// Bytes of one element, which is also its alignment.
    pub const fn bytes(self) -> usize {
        match self {
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I8 | DataType::U8 => 1,
        }
    }

    /// From its number in the C interface and in shared memory.
    pub fn from_number(number: u8) -> Option<DataType> {
        DataType::ALL.into_iter().find(|t| *t as u8 == number)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DataType::F64 => "f64",
            DataType::F32 => "f32",
            DataType::F16 => "f16",
            DataType::BF16 => "bf16",
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
        })
    }
}

/// How elements are combined.
///
/// Integers wrap in `Sum` and `Prod`. `Avg` is the true sum over the number of ranks: integers are summed without
/// overflow and the quotient is cut towards zero, floats are divided in their accumulator before the one rounding.
/// `Min` and `Max` of floats give NaN where any rank has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Op {
    /// Added up.
    Sum = 1,
    /// Multiplied.
    Prod = 2,
    /// The least.
    Min = 3,
    /// The greatest.
    Max = 4,
    /// The mean over the ranks.
    Avg = 5,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg];

    /// From its number in the C interface and in shared memory.
    pub fn from_number(number: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|op| *op as u8 == number)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Sum => "sum",
            Op::Prod => "prod",
            Op::Min => "min",
            Op::Max => "max",
            Op::Avg => "avg",
        })
    }
}
