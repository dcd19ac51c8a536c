//! AllReduce: everyone gets the reduction of all.

mod one_shot;
mod ring;
mod two_shot;

use crate::choose::Algorithm;
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::Steps;
use crate::types::Op;

/// # Safety
/// `send` is readable and `recv` writable for `count` elements, aligned to the element, and they are the same or
/// do not overlap.
#[expect(unsafe_code, reason = "user memory comes as pointers")]
pub(crate) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    algorithm: Algorithm,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    // SAFETY: the caller's, passed on.
    unsafe {
        match algorithm {
            Algorithm::OneShot => one_shot::run(steps, send, recv, count, op)?,
            Algorithm::TwoShot => two_shot::run(steps, send, recv, count, op)?,
            Algorithm::Ring => ring::run(steps, send, recv, count, op)?,
        }
        steps.compare_results(recv.cast(), count * size_of::<T>())
    }
}
