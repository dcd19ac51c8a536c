//! Who sends what to whom: one file a collective, one file an algorithm. How the bytes travel is the protocol's
//! business.

pub(crate) mod all_gather;
pub(crate) mod all_gather_v;
pub(crate) mod all_reduce;
pub(crate) mod all_to_all;
pub(crate) mod broadcast;
pub(crate) mod recompute;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;
#[doc(hidden)]
pub mod reference;
pub(crate) mod rooted;
pub(crate) mod scan;

use std::ops::{Deref, Range};

/// One address a rank, without an allocation where there are few.
pub(crate) enum Sources<T> {
    Few([*const T; FEW], usize),
    Many(Vec<*const T>),
}

const FEW: usize = 16;

impl<T> Sources<T> {
    pub(crate) fn of(ranks: u32, source: impl Fn(u32) -> *const T) -> Sources<T> {
        let count = ranks as usize;
        if count > FEW {
            return Sources::Many((0..ranks).map(source).collect());
        }
        let mut few = [std::ptr::null(); FEW];
        few.iter_mut().zip(0..ranks).for_each(|(place, rank)| *place = source(rank));
        Sources::Few(few, count)
    }

    /// The same, `elements` further on.
    pub(crate) fn at(&self, elements: usize) -> Sources<T> {
        Sources::of(self.len() as u32, |rank| self[rank as usize].wrapping_add(elements))
    }
}

impl<T> Deref for Sources<T> {
    type Target = [*const T];

    fn deref(&self) -> &[*const T] {
        match self {
            Sources::Few(few, count) => &few[..*count],
            Sources::Many(many) => many,
        }
    }
}

/// The pieces of `count` elements, `piece` at a time.
pub(crate) fn pieces(count: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count.div_ceil(piece)).map(move |number| piece_at(count, piece, number))
}

/// Piece `number` of them; empty behind the end.
pub(crate) fn piece_at(count: usize, piece: usize, number: usize) -> Range<usize> {
    let start = count.min(number * piece);
    start..count.min(start + piece)
}

/// Rank `rank`'s share of `count` elements of `bytes` bytes each: equal shares that begin at multiples of 64
/// bytes, so that no two ranks write one cache line; the last ones are shorter, or empty.
pub(crate) fn share(count: usize, bytes: usize, ranks: u32, rank: u32) -> Range<usize> {
    let share = count.div_ceil(ranks as usize).next_multiple_of(64 / bytes);
    piece_at(count, share, rank as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_all_elements_once_and_begin_at_lines(
            count in 0usize..5000, bytes in prop::sample::select(vec![1usize, 2, 4, 8]), ranks in 1u32..70,
        ) {
            let mut next = 0;
            for rank in 0..ranks {
                let share = share(count, bytes, ranks, rank);
                prop_assert_eq!(share.start, next);
                prop_assert!(share.is_empty() || (share.start * bytes).is_multiple_of(64));
                next = share.end;
            }
            prop_assert_eq!(next, count);
        }

        #[test]
        fn pieces_cover_all_elements_once(count in 0usize..5000, piece in 1usize..600) {
            let mut next = 0;
            for range in pieces(count, piece) {
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty());
                next = range.end;
            }
            prop_assert_eq!(next, count);
        }
    }
}
