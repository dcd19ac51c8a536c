//! What C passes as numbers, as what it means.

use std::ffi::c_int;

use crate::comm::Comm;
use crate::error::CommError;
use crate::types::{DataType, Op, Operation};

/// An element type.
pub(super) fn data_type(number: c_int, operation: Operation) -> Result<DataType, CommError> {
    let known = u8::try_from(number).ok().and_then(DataType::from_number);
    known.ok_or_else(|| CommError::invalid(operation, format!("{number} is no comm_type_t")))
}

/// A reduction.
pub(super) fn op(number: c_int, operation: Operation) -> Result<Op, CommError> {
    let known = u8::try_from(number).ok().and_then(Op::from_number);
    known.ok_or_else(|| CommError::invalid(operation, format!("{number} is no comm_op_t")))
}

/// A rank; whether there is one of that number the call itself finds out.
pub(super) fn rank(number: c_int, name: &str, operation: Operation) -> Result<u32, CommError> {
    u32::try_from(number).map_err(|_| CommError::invalid(operation, format!("{name} {number} is no rank")))
}

/// A tag.
pub(super) fn tag(number: c_int, operation: Operation) -> Result<u32, CommError> {
    u32::try_from(number).map_err(|_| CommError::invalid(operation, format!("tag {number} is negative")))
}

/// One number for each rank.
///
/// # Safety
/// `numbers` is null or readable for as many as `comm` has ranks.
pub(super) unsafe fn per_rank<'a>(
    numbers: *const usize,
    comm: &Comm,
    operation: Operation,
) -> Result<&'a [usize], CommError> {
    if numbers.is_null() {
        return Err(CommError::invalid(operation, "counts is null"));
    }
    // SAFETY: the caller's, and not null.
    Ok(unsafe { std::slice::from_raw_parts(numbers, comm.size() as usize) })
}
