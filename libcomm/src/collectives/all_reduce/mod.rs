//! AllReduce: everyone gets the reduction of all.

mod chain;
mod hierarchical;
mod inline;
mod ll;
mod one_shot;
mod pair;
mod ring;
mod two_shot;
mod zero_copy;

use crate::choose::{Algorithm, Protocol, choose};
use crate::collectives::recompute::{Kept, Part};
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::{INLINE_BYTES, Steps};
use crate::types::Op;

/// From here on results are written past the caches: they and what is sent do not fit a core's own, and what is not
/// fetched before it is overwritten need not be fetched.
const STREAMING_BYTES: usize = 1 << 20;

fn is_streaming(bytes: usize) -> bool {
    bytes >= STREAMING_BYTES
}

/// # Safety
/// `send` is readable and `recv` writable for `count` elements, aligned to the element, and they are the same or
/// do not overlap.
#[expect(unsafe_code, reason = "user memory comes as pointers")]
pub(crate) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    algorithm: Option<Algorithm>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    // SAFETY: the caller's, passed on.
    unsafe {
        let bytes = count * size_of::<T>();
        let protocol = steps.protocol();
        if protocol == Some(Protocol::Ll) && !steps.verifies() && !steps.has_fault() {
            return ll::run(steps, send, recv, count, op);
        }
        let algorithm = match protocol {
            // Through slots, and not in the post or from where it lies.
            Some(Protocol::Simple) => Some(choose(algorithm, &*steps, bytes, T::TYPE, op)),
            _ => algorithm,
        };
        let small = bytes <= INLINE_BYTES && steps.size() as usize <= inline::RANKS;
        if small && bytes != 0 && algorithm.is_none() && !steps.verifies() && !steps.has_fault() {
            return inline::run(steps, send, recv, count, op);
        }
        let may_skip = algorithm.is_none() && !steps.verifies() && !steps.has_fault() && steps.size() > 1;
        if may_skip && bytes >= zero_copy::LEAST_BYTES && zero_copy::run(steps, send, recv, count, op)? {
            return Ok(());
        }
        let kept = Kept::of(steps, send, count);
        let small = bytes <= inline::CHECKED_BYTES && steps.size() as usize <= inline::RANKS;
        match choose(algorithm, &*steps, bytes, T::TYPE, op) {
            _ if small && bytes != 0 && algorithm.is_none() && steps.verifies() => {
                inline::run_checked(steps, send, recv, count, op)?;
            }
            Algorithm::OneShot => one_shot::run(steps, send, recv, count, op)?,
            // Checksums are of slots, and faults are made there.
            Algorithm::Chain if !steps.verifies() && !steps.has_fault() => chain::run(steps, send, recv, count, op)?,
            Algorithm::TwoShot | Algorithm::Chain => two_shot::run(steps, send, recv, count, op)?,
            Algorithm::Ring => ring::run(steps, send, recv, count, op)?,
            Algorithm::Hierarchical { .. } => match steps.domains() {
                Some(domains) => hierarchical::run(steps, domains, send, recv, count, op)?,
                None => two_shot::run(steps, send, recv, count, op)?,
            },
        }
        steps.compare_results(recv.cast(), count * size_of::<T>())?;
        kept.check(steps, op, Part { elements: 0..count, result: recv, ranks: steps.size() })
    }
}
