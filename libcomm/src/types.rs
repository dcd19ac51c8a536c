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
    /// The root gets the reduction of all.
    Reduce = 8,
    /// The root gets everyone's data.
    Gather = 9,
    /// Everyone gets their part of the root's data.
    Scatter = 10,
    /// Everyone gets their part of everyone's data.
    AllToAll = 11,
    /// Each rank gets the reduction of all up to itself.
    Scan = 12,
    /// Everyone gets everyone's data, of which each may have another amount.
    AllGatherV = 13,
    /// Data for one rank.
    Send = 14,
    /// Data from one rank.
    Recv = 15,
    /// Both at once.
    SendRecv = 16,
    /// New communicators are made of parts of one.
    Split = 17,
    /// A new communicator is made with the same ranks.
    Dup = 18,
    /// Memory of the GPUs is registered, or no longer.
    Register = 19,
}

impl Operation {
    /// From its number in shared memory.
    pub(crate) fn from_number(number: u8) -> Option<Operation> {
        use Operation::*;
        const ALL: [Operation; 19] = [
            Barrier,
            AllReduce,
            Broadcast,
            AllGather,
            ReduceScatter,
            Exchange,
            Finalize,
            Reduce,
            Gather,
            Scatter,
            AllToAll,
            Scan,
            AllGatherV,
            Send,
            Recv,
            SendRecv,
            Split,
            Dup,
            Register,
        ];
        ALL.into_iter().find(|o| *o as u8 == number)
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
            Operation::Reduce => "reduce",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::AllToAll => "alltoall",
            Operation::Scan => "scan",
            Operation::AllGatherV => "allgatherv",
            Operation::Send => "send",
            Operation::Recv => "recv",
            Operation::SendRecv => "sendrecv",
            Operation::Split => "split",
            Operation::Dup => "dup",
            Operation::Register => "register",
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
    /// `int16_t`.
    I16 = 11,
    /// `uint16_t`.
    U16 = 12,
    /// 8-bit float of 4 bits of exponent and 3 of mantissa, to 448, without infinity; added up in `f32`.
    E4M3 = 13,
    /// 8-bit float of 5 bits of exponent and 2 of mantissa, to 57344; added up in `f32`.
    E5M2 = 14,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 14] = {
        use DataType::*;
        [F64, F32, F16, BF16, I8, U8, I32, U32, I64, U64, I16, U16, E4M3, E5M2]
    };

    /// Those that GPUs reduce.
    pub const ON_DEVICE: [DataType; 10] = {
        use DataType::*;
        [F64, F32, F16, BF16, I8, U8, I32, U32, I64, U64]
    };

    /// Whether it is a whole number.
    pub const fn is_integer(self) -> bool {
        use DataType::*;
        matches!(self, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64)
    }

    /// Bytes of one element, which is also its alignment.
    pub const fn bytes(self) -> usize {
        match self {
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F16 | DataType::BF16 | DataType::I16 | DataType::U16 => 2,
            DataType::I8 | DataType::U8 | DataType::E4M3 | DataType::E5M2 => 1,
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
            DataType::I16 => "i16",
            DataType::U16 => "u16",
            DataType::E4M3 => "e4m3",
            DataType::E5M2 => "e5m2",
        })
    }
}

/// How elements are combined.
///
/// Integers wrap in `Sum` and `Prod`. `Avg` is the true sum over the number of ranks: integers are summed without
/// overflow and the quotient is cut towards zero, floats are divided in their accumulator before the one rounding.
/// `Min` and `Max` of floats give NaN where any rank has one; of zeros of both signs they give the one that comes first in
/// the order of the ranks. A `Sum` of zeros is -0 only where all are. 8-bit floats become their largest number, with its
/// sign, where the result is greater.
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
    /// Bit by bit, 1 where all have 1. Integers only, as all that follow.
    BitAnd = 6,
    /// Bit by bit, 1 where any has 1.
    BitOr = 7,
    /// Bit by bit, 1 where an odd number of ranks has 1.
    BitXor = 8,
    /// 1 where all are other than 0, else 0.
    All = 9,
    /// 1 where any is other than 0, else 0.
    Any = 10,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 10] = {
        use Op::*;
        [Sum, Prod, Min, Max, Avg, BitAnd, BitOr, BitXor, All, Any]
    };

    /// Whether elements of that type can be combined so: bits and truth are of integers only.
    pub const fn applies_to(self, data_type: DataType) -> bool {
        matches!(self, Op::Sum | Op::Prod | Op::Min | Op::Max | Op::Avg) || data_type.is_integer()
    }

    /// Whether GPUs do it.
    pub const fn is_on_device(self) -> bool {
        (self as u8) <= Op::Avg as u8
    }

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
            Op::BitAnd => "band",
            Op::BitOr => "bor",
            Op::BitXor => "bxor",
            Op::All => "land",
            Op::Any => "lor",
        })
    }
}
