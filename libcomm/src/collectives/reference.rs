//! The oracle: each collective in the plainest way, over all ranks' data at once. For tests, and to recompute results.

use crate::element::Element;
use crate::types::Op;

/// One element of each rank, reduced in their order with one rounding. Panics on none.
pub fn reduce_column<T: Element>(column: &[T], op: Op) -> T {
    let ranks = column.len() as u32;
    let column = || column.iter().copied();
    let fold = |f: fn(T::Acc, T::Acc) -> T::Acc| column().map(T::widen).reduce(f).map(T::narrow);
    let reduced = match op {
        Op::Sum => fold(T::sum),
        Op::Prod => fold(T::prod),
        Op::Min => fold(T::min),
        Op::Max => fold(T::max),
        Op::BitAnd => column().reduce(T::bit_and),
        Op::BitOr => column().reduce(T::bit_or),
        Op::BitXor => column().reduce(T::bit_xor),
        Op::All => column().map(T::truth).reduce(T::all),
        Op::Any => column().map(T::truth).reduce(T::any),
        Op::Avg => column().map(T::wide).reduce(T::wide_sum).map(|sum| T::mean(sum, ranks)),
    };
    reduced.expect("at least one rank")
}

/// What every rank has after an AllReduce of `sends`.
pub fn all_reduce<T: Element>(sends: &[Vec<T>], op: Op) -> Vec<T> {
    let element = |i: usize| reduce_column(&sends.iter().map(|send| send[i]).collect::<Vec<_>>(), op);
    (0..sends[0].len()).map(element).collect()
}

/// What rank `rank` has after a Scan: all up to itself.
pub fn scan<T: Element>(sends: &[Vec<T>], op: Op, rank: usize) -> Vec<T> {
    all_reduce(&sends[..=rank], op)
}

/// What rank `rank` has after an AllToAll of `sends`, with one part a rank.
pub fn all_to_all<T: Element>(sends: &[Vec<T>], rank: usize) -> Vec<T> {
    sends.iter().flat_map(|send| scatter(send, sends.len(), rank)).collect()
}

/// What rank `rank` of `ranks` has after a Scatter of the root's `send`.
pub fn scatter<T: Element>(send: &[T], ranks: usize, rank: usize) -> Vec<T> {
    let count = send.len() / ranks;
    send[rank * count..(rank + 1) * count].to_vec()
}

/// What rank `rank` has after a ReduceScatter of `sends`.
pub fn reduce_scatter<T: Element>(sends: &[Vec<T>], op: Op, rank: usize) -> Vec<T> {
    let count = sends[0].len() / sends.len();
    all_reduce(sends, op)[rank * count..(rank + 1) * count].to_vec()
}

/// What every rank has after an AllGather of `sends`.
pub fn all_gather<T: Element>(sends: &[Vec<T>]) -> Vec<T> {
    sends.concat()
}

/// What every rank has after a Broadcast.
pub fn broadcast<T: Element>(sends: &[Vec<T>], root: usize) -> Vec<T> {
    sends[root].clone()
}
