//! `PRUN_VERIFY=full`: results recomputed from what all ranks sent, in the plain way of `reference.rs`, and compared.
//!
//! Checksums find what changes on the way, and results that differ between ranks. What they cannot find is a rank that
//! reduces wrongly and hands its wrong share to all. So each rank keeps a copy of what it sends; after the call, chunk by
//! chunk, all put those copies into their slots, and each rank recomputes the part of the result that it has.
#![expect(unsafe_code, reason = "reads slots and results through pointers")]

use std::ops::Range;

use crate::collectives::reference::reduce_column;
use crate::collectives::{Sources, pieces};
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::{Piece, Region, Steps, bytes_at};
use crate::types::{DataType, Op};

/// What a rank sends, kept while the call writes its result.
pub(crate) struct Kept<T>(Option<Vec<T>>);

/// The part of the result that this rank has.
pub(crate) struct Part<T> {
    /// Which elements of what all send it is made of.
    pub(crate) elements: Range<usize>,
    pub(crate) result: *const T,
    /// The ranks that it is reduced over: these, from 0.
    pub(crate) ranks: u32,
}

impl<T: Element> Kept<T> {
    /// A copy if results are to be recomputed, else nothing.
    ///
    /// # Safety
    /// `send` is readable for `count` elements.
    pub(crate) unsafe fn of(steps: &Steps<'_>, send: *const T, count: usize) -> Kept<T> {
        let wanted = steps.recomputes() && count != 0;
        // SAFETY: the caller's.
        Kept(wanted.then(|| unsafe { std::slice::from_raw_parts(send, count) }.to_vec()))
    }

    /// Fails unless the part is what the ranks' data gives. All ranks call it.
    ///
    /// # Safety
    /// The part's result is readable for its elements.
    pub(crate) unsafe fn check(self, steps: &mut Steps<'_>, op: Op, part: Part<T>) -> Result<(), CommError> {
        let Some(kept) = self.0 else { return Ok(()) };
        let size = size_of::<T>();
        let mut column = Vec::with_capacity(part.ranks as usize);
        for (chunk, piece) in (0..).zip(pieces(kept.len(), steps.chunk_bytes() / size)) {
            let whole = Piece::whole(piece.len() * size);
            steps.reclaim()?;
            // SAFETY: inside the copy; the slot is reclaimed.
            unsafe { steps.put(whole, kept[piece.clone()].as_ptr().cast()) };
            steps.post()?;
            steps.await_all()?;
            let ours = piece.start.max(part.elements.start)..piece.end.min(part.elements.end);
            if ours.is_empty() {
                continue;
            }
            for rank in 0..part.ranks {
                // SAFETY: all have posted.
                unsafe { steps.check(rank, whole, steps.peer(rank, Region::Chunk, 0), chunk)? };
            }
            let sources = Sources::of(part.ranks, |rank| steps.peer(rank, Region::Chunk, 0).cast::<T>());
            for element in ours {
                // SAFETY: all have posted, and the result is the caller's.
                let found = unsafe {
                    column.clear();
                    column.extend(sources.iter().map(|source| source.add(element - piece.start).read()));
                    part.result.add(element - part.elements.start).read()
                };
                let wanted = reduce_column(&column, op);
                if !same(found, wanted) {
                    let element = (element - part.elements.start) as u64;
                    return Err(steps.result_is_wrong(chunk, element, bits(found), bits(wanted)));
                }
            }
        }
        steps.meet() // so that nobody returns success while another one has found an error
    }
}

/// The bits of an element, upper ones zero.
fn bits<T: Element>(value: T) -> u64 {
    let mut all = [0; 8];
    // SAFETY: an element is at most eight bytes, all of them initialized.
    all[..size_of::<T>()].copy_from_slice(unsafe { bytes_at((&raw const value).cast(), size_of::<T>()) });
    u64::from_le_bytes(all)
}

/// The same bits, or both no number: which of several NaNs comes out is the processor's choice.
fn same<T: Element>(found: T, wanted: T) -> bool {
    let (found, wanted) = (bits(found), bits(wanted));
    found == wanted || (is_nan(T::TYPE, found) && is_nan(T::TYPE, wanted))
}

fn is_nan(data_type: DataType, bits: u64) -> bool {
    match data_type {
        DataType::F64 => f64::from_bits(bits).is_nan(),
        DataType::F32 => f32::from_bits(bits as u32).is_nan(),
        DataType::F16 => half::f16::from_bits(bits as u16).is_nan(),
        DataType::BF16 => half::bf16::from_bits(bits as u16).is_nan(),
        DataType::E4M3 => bits & 0x7f == 0x7f,
        DataType::E5M2 => bits & 0x7f > 0x7c,
        _ => false,
    }
}
