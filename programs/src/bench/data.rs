//! What ranks send, and what must come of it.
//!
//! Data repeats after [`PERIOD`] elements, a prime, so that whatever is read a chunk, a page or a slot too early or too
//! late is wrong; rank r's begins `SHIFT` times r elements into the period. The right result repeats too, and is known
//! from the oracle's for one period, whatever the size. Sums of floats are whole numbers that the type holds exactly, in any
//! order; integers wrap.

use comm::{DataType, E4M3, E5M2, Element, Op, reference};
use half::{bf16, f16};

use super::collective::{Call, Collective};

/// Elements after which data repeats.
pub const PERIOD: usize = 4099;
/// How far the data of two neighbouring ranks is shifted.
const SHIFT: usize = 617;

/// A value of a type from a whole number; floats take `small`, integers `any`.
trait Sample: Element {
    fn sample(any: u64, small: i64) -> Self;
    /// The number up to which all whole numbers are exact, of floats.
    const EXACT: i64;
}

macro_rules! samples {
    ($($type:ty: $exact:expr, $make:expr;)*) => {$(
        impl Sample for $type {
            const EXACT: i64 = $exact;
            fn sample(any: u64, small: i64) -> Self { $make(any, small) }
        }
    )*};
}

samples! {
    f64: 1 << 50, |_, small| small as f64;
    f32: 1 << 24, |_, small| small as f32;
    f16: 1 << 11, |_, small| f16::from_f32(small as f32);
    bf16: 1 << 8, |_, small| bf16::from_f32(small as f32);
    E4M3: 1 << 4, |_, small| E4M3::from_f32(small as f32);
    E5M2: 1 << 3, |_, small| E5M2::from_f32(small as f32);
    i8: 0, |any, _| any as i8;
    u8: 0, |any, _| any as u8;
    i16: 0, |any, _| any as i16;
    u16: 0, |any, _| any as u16;
    i32: 0, |any, _| any as i32;
    u32: 0, |any, _| any as u32;
    i64: 0, |any, _| any as i64;
    u64: 0, |any, _| any;
}

/// Runs `$body` with `$T` the type that a [`DataType`] names.
macro_rules! with_sample {
    ($data_type:expr, $T:ident => $body:expr) => {
        match $data_type {
            DataType::F64 => {
                type $T = f64;
                $body
            }
            DataType::F32 => {
                type $T = f32;
                $body
            }
            DataType::F16 => {
                type $T = f16;
                $body
            }
            DataType::BF16 => {
                type $T = bf16;
                $body
            }
            DataType::I8 => {
                type $T = i8;
                $body
            }
            DataType::U8 => {
                type $T = u8;
                $body
            }
            DataType::I16 => {
                type $T = i16;
                $body
            }
            DataType::U16 => {
                type $T = u16;
                $body
            }
            DataType::I32 => {
                type $T = i32;
                $body
            }
            DataType::U32 => {
                type $T = u32;
                $body
            }
            DataType::I64 => {
                type $T = i64;
                $body
            }
            DataType::U64 => {
                type $T = u64;
                $body
            }
            DataType::E4M3 => {
                type $T = E4M3;
                $body
            }
            DataType::E5M2 => {
                type $T = E5M2;
                $body
            }
        }
    };
}

/// The bytes of [`PERIOD`] elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    bytes: Vec<u8>,
    element: usize,
}

impl Pattern {
    fn of<T: Element>(values: &[T]) -> Pattern {
        Pattern { bytes: values.iter().flat_map(|value| bytes_of(*value)).collect(), element: size_of::<T>() }
    }

    /// Writes it into `target`, from element `phase` of the period on.
    pub fn fill(&self, target: &mut [u8], phase: usize) {
        for (piece, source) in self.pieces(target.len(), phase) {
            target[piece].copy_from_slice(source);
        }
    }

    /// How many elements of `found` are not as [`fill`](Pattern::fill) would have them.
    pub fn wrong(&self, found: &[u8], phase: usize) -> u64 {
        let differ = |found: &[u8], wanted: &[u8]| {
            found.chunks(self.element).zip(wanted.chunks(self.element)).filter(|(a, b)| a != b).count() as u64
        };
        let of_piece = |(piece, wanted): (std::ops::Range<usize>, &[u8])| match &found[piece] {
            same if same == wanted => 0,
            other => differ(other, wanted),
        };
        self.pieces(found.len(), phase).map(of_piece).sum()
    }

    /// Ranges of a buffer of `length` bytes, each with what belongs there.
    fn pieces(&self, length: usize, phase: usize) -> impl Iterator<Item = (std::ops::Range<usize>, &[u8])> {
        let (mut at, mut from) = (0, phase % PERIOD * self.element);
        std::iter::from_fn(move || {
            let piece = (self.bytes.len() - from).min(length - at);
            let next = (at..at + piece, &self.bytes[from..from + piece]);
            (at, from) = (at + piece, 0);
            (piece != 0).then_some(next)
        })
    }
}

/// The element's bytes in memory. All these types are plain.
fn bytes_of<T: Element>(value: T) -> Vec<u8> {
    bytes(&[value]).to_vec()
}

#[expect(unsafe_code, reason = "plain numbers as bytes")]
fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A part of a buffer and what belongs there: `count` elements from part `part` on.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Which part of the buffer, in units of the call's count.
    pub part: usize,
    /// Whether it is the reduction, or data as it was sent.
    pub reduced: bool,
    /// Where in the period it begins.
    pub phase: usize,
}

/// Everything that this rank sends and must find.
#[derive(Debug)]
pub struct Expected {
    /// What all ranks send, from other places of the period.
    pub sent: Pattern,
    /// What a reduction makes of it, beginning where rank 0's data does.
    pub reduced: Option<Pattern>,
    /// Where in the period this rank's data begins.
    pub phase: usize,
}

impl Expected {
    /// For rank `rank` of `ranks`; the call's count and root do not matter.
    pub fn of(call: &Call, rank: usize, ranks: usize) -> Expected {
        with_sample!(call.data_type, T => Expected::typed::<T>(call, rank, ranks))
    }

    fn typed<T: Sample>(call: &Call, rank: usize, ranks: usize) -> Expected {
        let values: Vec<T> = (0..PERIOD).map(|at| value::<T>(at, call.op, ranks)).collect();
        let column = |rank: usize| (0..PERIOD).map(|at| values[(at + SHIFT * rank) % PERIOD]).collect::<Vec<T>>();
        let reducing = if call.collective == Collective::Scan { rank + 1 } else { ranks };
        let reduced = call.collective.reduces().then(|| {
            let columns: Vec<Vec<T>> = (0..reducing).map(column).collect();
            Pattern::of(&reference::all_reduce(&columns, call.op))
        });
        Expected { sent: Pattern::of(&values), reduced, phase: SHIFT * rank }
    }

    /// What belongs where in this rank's receive buffer; nothing where it has no result.
    pub fn wanted(&self, call: &Call, rank: usize, ranks: usize) -> Vec<Wanted> {
        let root = call.root as usize;
        let reduced = |phase| vec![Wanted { part: 0, reduced: true, phase }];
        let sent = |phase| vec![Wanted { part: 0, reduced: false, phase }];
        let from_all = |own: usize| {
            (0..ranks)
                .map(|from| Wanted { part: from, reduced: false, phase: SHIFT * from + own * call.count })
                .collect()
        };
        match call.collective {
            Collective::AllReduce | Collective::Scan => reduced(0),
            Collective::Reduce if rank == root => reduced(0),
            Collective::ReduceScatter => reduced(rank * call.count),
            Collective::Broadcast => sent(SHIFT * root),
            Collective::SendRecv => sent(SHIFT * ((rank + ranks - 1) % ranks)),
            Collective::Scatter => sent(SHIFT * root + rank * call.count),
            Collective::AllGather => from_all(0),
            Collective::Gather if rank == root => from_all(0),
            Collective::AllToAll => from_all(rank),
            Collective::Reduce | Collective::Gather | Collective::Barrier => Vec::new(),
        }
    }

    /// How many elements of a receive buffer are wrong.
    pub fn wrong(&self, call: &Call, rank: usize, ranks: usize, recv: &[u8]) -> u64 {
        let part = call.count * call.data_type.bytes();
        let of_part = |wanted: Wanted| {
            let found = &recv[wanted.part * part..(wanted.part + 1) * part];
            let pattern = if wanted.reduced { self.reduced.as_ref() } else { Some(&self.sent) };
            pattern.map_or(call.count as u64, |pattern| pattern.wrong(found, wanted.phase))
        };
        self.wanted(call, rank, ranks).into_iter().map(of_part).sum()
    }
}

/// Element `at` of the period.
fn value<T: Sample>(at: usize, op: Op, ranks: usize) -> T {
    let any = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
    if op == Op::Prod {
        // Ones of both signs, now and then a two: products stay exact, and repeated ones never become subnormal.
        let small = if any.is_multiple_of(13) { 2 } else { 1 - 2 * (any as i64 & 1) };
        return T::sample(any | 1, small);
    }
    let most = (T::EXACT / ranks as i64).clamp(1, 100);
    let small = any as i64 % (2 * most + 1) - most;
    // Zeros, too: truth is not all the same.
    T::sample(if any.is_multiple_of(5) { 0 } else { any }, small)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(collective: Collective, data_type: DataType, op: Op, count: usize) -> Call {
        Call { collective, data_type, op, root: 1, count }
    }

    #[test]
    fn a_filled_buffer_has_nothing_wrong_and_each_change_is_counted() {
        let expected = Expected::of(&call(Collective::AllReduce, DataType::F32, Op::Sum, 10_000), 1, 2);
        let mut buffer = vec![0u8; 4 * 10_000];
        expected.sent.fill(&mut buffer, 4000);
        assert_eq!(expected.sent.wrong(&buffer, 4000), 0);
        assert_eq!(expected.sent.wrong(&buffer, 4000 + PERIOD), 0);
        assert!(expected.sent.wrong(&buffer, 4001) > 9_000);
        for at in [0, 4 * 99 + 3, 4 * 9_999] {
            buffer[at] ^= 1;
        }
        assert_eq!(expected.sent.wrong(&buffer, 4000), 3);
    }

    #[test]
    fn every_operation_of_every_type_is_checked_against_the_oracle() {
        for data_type in DataType::ALL {
            for op in Op::ALL.into_iter().filter(|op| op.applies_to(data_type)) {
                let expected = Expected::of(&call(Collective::AllReduce, data_type, op, 1), 0, 3);
                let reduced = expected.reduced.unwrap();
                assert_eq!(reduced.bytes.len(), PERIOD * data_type.bytes());
                let distinct: std::collections::BTreeSet<&[u8]> = reduced.bytes.chunks(data_type.bytes()).collect();
                assert!(distinct.len() > 1, "{op} of {data_type} is always the same");
            }
        }
    }

    #[test]
    fn each_rank_knows_what_it_gets() {
        let at = |collective, rank| {
            let call = call(collective, DataType::I32, Op::Sum, 10);
            let wanted = Expected::of(&call, rank, 3).wanted(&call, rank, 3);
            wanted.iter().map(|wanted| (wanted.part, wanted.reduced, wanted.phase)).collect::<Vec<_>>()
        };
        assert_eq!(at(Collective::AllReduce, 2), [(0, true, 0)]);
        assert_eq!(at(Collective::Reduce, 0), []);
        assert_eq!(at(Collective::ReduceScatter, 2), [(0, true, 20)]);
        assert_eq!(at(Collective::Broadcast, 2), [(0, false, 617)]);
        assert_eq!(at(Collective::Scatter, 2), [(0, false, 637)]);
        assert_eq!(at(Collective::AllToAll, 2), [(0, false, 20), (1, false, 637), (2, false, 1254)]);
    }
}
