//! Every collective, type, op, count, number of ranks, in place and not, aligned to a line and to no more than the
//! element, against the plain reference, three calls in a row, with guards around the buffers.

mod common;

use comm::{Algorithm, Comm, DataType, E4M3, E5M2, Element, Op, Protocol, Settings, Verify, reference};
use common::{CHUNK, ranks_with};
use half::{bf16, f16};

/// A type whose values the test can make and compare to the bit.
trait Sample: Element + PartialEq + std::fmt::Debug {
    /// A value from a small number.
    fn from_small(value: i32) -> Self;
    fn bits(self) -> u64;
    const GUARD: u8 = 0xa5;
}

macro_rules! samples {
    ($($type:ty, $from:expr, $bits:expr;)*) => {$(
        impl Sample for $type {
            fn from_small(value: i32) -> $type { $from(value) }
            fn bits(self) -> u64 { $bits(self) }
        }
    )*};
}

samples! {
    f64, f64::from, f64::to_bits;
    f32, |v| v as f32, |x: f32| u64::from(x.to_bits());
    f16, |v| f16::from_f32(v as f32), |x: f16| u64::from(x.to_bits());
    bf16, |v| bf16::from_f32(v as f32), |x: bf16| u64::from(x.to_bits());
    i8, |v| v as i8, |x| x as u8 as u64;
    u8, |v| v as u8, |x| x as u64;
    i32, |v| v, |x| x as u32 as u64;
    u32, |v| v as u32, |x| x as u64;
    i64, i64::from, |x| x as u64;
    u64, |v| v as u64, |x| x;
    i16, |v| v as i16, |x| x as u16 as u64;
    u16, |v| v as u16, |x| x as u64;
    E4M3, |v| E4M3::from_f32(v as f32), |x: E4M3| u64::from(x.0);
    E5M2, |v| E5M2::from_f32(v as f32), |x: E5M2| u64::from(x.0);
}

/// What rank `rank` sends in call `call`. For sums and the like, values that add up exactly in any order and type; for
/// products, ones and twos.
fn value<T: Sample>(op: Op, call: usize, rank: u32, i: usize) -> T {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) << 40) ^ ((call as u64) << 50);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    T::from_small(match op {
        Op::Prod => [1, 1, 2, 1][mixed as usize % 4],
        Op::All => (mixed % 9) as i32,
        Op::Any => (mixed % 9) as i32 / 8,
        _ if matches!(T::TYPE, DataType::E4M3 | DataType::E5M2) => (mixed % 3) as i32 - 1,
        _ => (mixed % 13) as i32 - 6,
    })
}

fn sends<T: Sample>(op: Op, call: usize, ranks: u32, count: usize) -> Vec<Vec<T>> {
    (0..ranks).map(|rank| (0..count).map(|i| value(op, call, rank, i)).collect()).collect()
}

/// A buffer with guard bytes on both sides, at an address that is aligned to the element, and if wanted to no more.
struct Guarded<T> {
    bytes: Vec<u64>,
    offset: usize,
    count: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Sample> Guarded<T> {
    fn new(count: usize, misaligned: bool) -> Guarded<T> {
        let offset = 64 + if misaligned { size_of::<T>() } else { 0 };
        let words = (offset + count * size_of::<T>() + 64).div_ceil(8);
        let guard = u64::from_ne_bytes([T::GUARD; 8]);
        Guarded { bytes: vec![guard; words], offset, count, element: std::marker::PhantomData }
    }

    fn of(values: &[T], misaligned: bool) -> Guarded<T> {
        let mut new = Guarded::new(values.len(), misaligned);
        new.slice().copy_from_slice(values);
        new
    }

    #[expect(unsafe_code, reason = "any aligned bytes are elements of these types")]
    fn slice(&mut self) -> &mut [T] {
        let start = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: inside `bytes`, which `new` made long enough, at a multiple of the element's size.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.offset).cast(), self.count) }
    }

    #[expect(unsafe_code, reason = "looks at all bytes")]
    fn assert_guards(&self) {
        // SAFETY: exactly the bytes of `bytes`.
        let all = unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), 8 * self.bytes.len()) };
        let end = self.offset + self.count * size_of::<T>();
        assert!(all[..self.offset].iter().chain(&all[end..]).all(|byte| *byte == T::GUARD), "a guard was overwritten");
    }
}

fn assert_same<T: Sample>(found: &[T], wanted: &[T], what: &str) {
    assert_eq!(found.len(), wanted.len());
    if let Some(i) = (0..found.len()).find(|i| found[*i].bits() != wanted[*i].bits()) {
        panic!("{what}: element {i} of {} is {:?}, wanted {:?}", found.len(), found[i], wanted[i]);
    }
}

/// The counts that matter: none, fewer than ranks, odd, and around each edge of a chunk.
fn counts<T>(ranks: u32) -> Vec<usize> {
    let chunk = CHUNK / size_of::<T>();
    let edge = CHUNK / 64 / ranks as usize * 64 / size_of::<T>();
    let mut counts = vec![0, 1, 2, 3, 17, 61, chunk - 1, chunk, chunk + 1, edge - 1, edge, edge + 1, 3 * chunk + 5];
    counts.sort();
    counts.dedup();
    counts
}

/// The ops of a type, with the counts to try: fewer for those whose ways are the same as a sum's.
fn cases<T: Element>(ranks: u32) -> impl Iterator<Item = (Op, usize)> {
    Op::ALL.into_iter().filter(|op| op.applies_to(T::TYPE)).flat_map(move |op| {
        let few = !matches!(op, Op::Sum | Op::Avg);
        counts::<T>(ranks)
            .into_iter()
            .filter(move |count| !few || [1, 17, CHUNK / size_of::<T>() + 1].contains(count))
            .map(move |count| (op, count))
    })
}

fn what<T: Element>(name: &str, comm: &Comm, op: Op, count: usize) -> String {
    format!("{name} {op} {} x {count} on rank {} of {}", T::TYPE, comm.rank(), comm.size())
}

fn all_reduces<T: Sample>(comm: &Comm) {
    for (op, count) in cases::<T>(comm.size()) {
        for variant in 0..4 {
            let (in_place, misaligned) = (variant & 1 != 0, variant & 2 != 0);
            for call in 0..3 {
                let all = sends::<T>(op, call, comm.size(), count);
                let own = &all[comm.rank() as usize];
                let wanted = reference::all_reduce(&all, op);
                let mut send = Guarded::of(own, misaligned);
                let mut recv = Guarded::<T>::new(count, !misaligned);
                match in_place {
                    true => comm.all_reduce_in_place(send.slice(), op).unwrap(),
                    false => comm.all_reduce(send.slice(), recv.slice(), op).unwrap(),
                }
                let what = what::<T>("allreduce", comm, op, count);
                assert_same(if in_place { send.slice() } else { recv.slice() }, &wanted, &what);
                if !in_place {
                    assert_same(send.slice(), own, "send");
                }
                send.assert_guards();
                recv.assert_guards();
            }
        }
    }
}

fn reduce_scatters<T: Sample>(comm: &Comm) {
    let (ranks, me) = (comm.size(), comm.rank() as usize);
    for (op, count) in cases::<T>(ranks) {
        for variant in 0..4 {
            let (in_place, misaligned) = (variant & 1 != 0, variant & 2 != 0);
            for call in 0..3 {
                let all = sends::<T>(op, call, ranks, count * ranks as usize);
                let wanted = reference::reduce_scatter(&all, op, me);
                let mut send = Guarded::of(&all[me], misaligned);
                let mut recv = Guarded::<T>::new(count, !misaligned);
                let what = what::<T>("reduce_scatter", comm, op, count);
                match in_place {
                    true => {
                        comm.reduce_scatter_in_place(send.slice(), op).unwrap();
                        assert_same(&send.slice()[me * count..(me + 1) * count], &wanted, &what);
                        assert_same(&send.slice()[..me * count], &all[me][..me * count], "the rest");
                    }
                    false => {
                        comm.reduce_scatter(send.slice(), recv.slice(), op).unwrap();
                        assert_same(recv.slice(), &wanted, &what);
                        assert_same(send.slice(), &all[me], "send");
                    }
                }
                send.assert_guards();
                recv.assert_guards();
            }
        }
    }
}

fn all_gathers<T: Sample>(comm: &Comm) {
    let (ranks, me) = (comm.size(), comm.rank() as usize);
    for count in counts::<T>(ranks) {
        for variant in 0..4 {
            let (in_place, misaligned) = (variant & 1 != 0, variant & 2 != 0);
            for call in 0..3 {
                let all = sends::<T>(Op::Sum, call, ranks, count);
                let wanted = reference::all_gather(&all);
                let mut send = Guarded::of(&all[me], misaligned);
                let mut recv = Guarded::<T>::new(count * ranks as usize, !misaligned);
                match in_place {
                    true => {
                        recv.slice()[me * count..(me + 1) * count].copy_from_slice(&all[me]);
                        comm.all_gather_in_place(recv.slice()).unwrap();
                    }
                    false => comm.all_gather(send.slice(), recv.slice()).unwrap(),
                }
                assert_same(recv.slice(), &wanted, &what::<T>("allgather", comm, Op::Sum, count));
                assert_same(send.slice(), &all[me], "send");
                send.assert_guards();
                recv.assert_guards();
            }
        }
    }
}

fn broadcasts<T: Sample>(comm: &Comm) {
    for count in counts::<T>(comm.size()) {
        for misaligned in [false, true] {
            for call in 0..3 {
                let root = (call as u32 + count as u32) % comm.size();
                let all = sends::<T>(Op::Sum, call, comm.size(), count);
                let mut buffer = Guarded::of(&all[comm.rank() as usize], misaligned);
                comm.broadcast(buffer.slice(), root).unwrap();
                let wanted = reference::broadcast(&all, root as usize);
                assert_same(buffer.slice(), &wanted, &what::<T>("broadcast", comm, Op::Sum, count));
                buffer.assert_guards();
            }
        }
    }
}

/// Runs a test of one type for all.
macro_rules! for_all_types {
    ($test:ident, $comm:expr) => {{
        $test::<f64>($comm);
        $test::<f32>($comm);
        $test::<f16>($comm);
        $test::<bf16>($comm);
        $test::<i8>($comm);
        $test::<u8>($comm);
        $test::<i32>($comm);
        $test::<u32>($comm);
        $test::<i64>($comm);
        $test::<u64>($comm);
        $test::<i16>($comm);
        $test::<u16>($comm);
        $test::<E4M3>($comm);
        $test::<E5M2>($comm);
    }};
}

fn on_one_to_eight_ranks(change: impl Fn(&mut Settings) + Sync, test: impl Fn(&Comm) + Sync) {
    for n in 1..=8 {
        ranks_with(n, CHUNK, &change, |comm| {
            test(&comm);
            comm.finalize().unwrap();
        });
    }
}

fn forced(algorithm: Algorithm) -> impl Fn(&mut Settings) {
    move |settings| settings.algorithm = Some(algorithm)
}

#[test]
fn allreduce_one_shot_equals_the_reference() {
    on_one_to_eight_ranks(forced(Algorithm::OneShot), |comm| for_all_types!(all_reduces, comm));
}

#[test]
fn allreduce_two_shot_equals_the_reference() {
    on_one_to_eight_ranks(forced(Algorithm::TwoShot), |comm| for_all_types!(all_reduces, comm));
}

#[test]
fn allreduce_chain_equals_the_reference() {
    on_one_to_eight_ranks(forced(Algorithm::Chain), |comm| for_all_types!(all_reduces, comm));
}

#[test]
fn allreduce_ring_equals_the_reference() {
    on_one_to_eight_ranks(forced(Algorithm::Ring), |comm| for_all_types!(all_reduces, comm));
}

/// Groups of two to four ranks, as if each had a cache of its own.
#[test]
fn allreduce_by_groups_equals_the_reference() {
    for (n, group) in [(4, 2), (6, 3), (6, 2), (8, 4), (9, 3)] {
        for verify in [Verify::Off, Verify::Every] {
            let change = |settings: &mut Settings| {
                settings.algorithm = Some(Algorithm::Hierarchical { group });
                settings.verify = verify;
            };
            ranks_with(n, CHUNK, change, |comm| {
                all_reduces::<f32>(&comm);
                all_reduces::<bf16>(&comm);
                all_reduces::<u8>(&comm);
                comm.finalize().unwrap();
            });
        }
    }
}

#[test]
fn allreduce_by_each_named_protocol_equals_the_reference() {
    for protocol in [Protocol::Ll, Protocol::Simple] {
        for n in [1, 2, 3, 5] {
            let change = |settings: &mut Settings| settings.protocol = Some(protocol);
            ranks_with(n, CHUNK, change, |comm| {
                all_reduces::<f32>(&comm);
                all_reduces::<i16>(&comm);
                comm.finalize().unwrap();
            });
        }
    }
}

#[test]
fn reduce_scatter_equals_the_reference() {
    on_one_to_eight_ranks(|_| {}, |comm| for_all_types!(reduce_scatters, comm));
}

#[test]
fn allgather_and_broadcast_equal_the_reference() {
    on_one_to_eight_ranks(
        |_| {},
        |comm| {
            for_all_types!(all_gathers, comm);
            for_all_types!(broadcasts, comm);
        },
    );
}

/// The collectives with a root and the like, in turns of root, with the results of all three calls looked at.
fn others<T: Sample>(comm: &Comm) {
    let (ranks, me) = (comm.size() as usize, comm.rank() as usize);
    for (op, count) in cases::<T>(comm.size()) {
        for call in 0..3 {
            let root = (call + count) as u32 % comm.size();
            let misaligned = call == 1;
            let all = sends::<T>(op, call, comm.size(), count);
            let at_root = |length: usize| if comm.rank() == root { length } else { 0 };
            let mut send = Guarded::of(&all[me], misaligned);
            let mut recv = Guarded::<T>::new(at_root(count), !misaligned);
            comm.reduce(send.slice(), recv.slice(), op, root).unwrap();
            if comm.rank() == root {
                assert_same(recv.slice(), &reference::all_reduce(&all, op), &what::<T>("reduce", comm, op, count));
            }
            recv.assert_guards();
            let mut recv = Guarded::<T>::new(count, !misaligned);
            comm.scan(send.slice(), recv.slice(), op).unwrap();
            assert_same(recv.slice(), &reference::scan(&all, op, me), &what::<T>("scan", comm, op, count));
            recv.assert_guards();
            assert_same(send.slice(), &all[me], "send");
            if op != Op::Sum {
                continue; // the others do not compute
            }
            let mut recv = Guarded::<T>::new(at_root(count * ranks), misaligned);
            comm.gather(send.slice(), recv.slice(), root).unwrap();
            if comm.rank() == root {
                assert_same(recv.slice(), &reference::all_gather(&all), &what::<T>("gather", comm, op, count));
            }
            recv.assert_guards();
            let wide = sends::<T>(op, call, comm.size(), count * ranks);
            let mut send = Guarded::of(&wide[me], misaligned);
            let mut recv = Guarded::<T>::new(count, misaligned);
            comm.scatter(if comm.rank() == root { send.slice() } else { &[] }, recv.slice(), root).unwrap();
            let wanted = reference::scatter(&wide[root as usize], ranks, me);
            assert_same(recv.slice(), &wanted, &what::<T>("scatter", comm, op, count));
            recv.assert_guards();
            let mut recv = Guarded::<T>::new(count * ranks, !misaligned);
            comm.all_to_all(send.slice(), recv.slice()).unwrap();
            assert_same(recv.slice(), &reference::all_to_all(&wide, me), &what::<T>("alltoall", comm, op, count));
            recv.assert_guards();
            // Rank r sends count / 2 x r elements.
            let counts: Vec<usize> = (0..ranks).map(|rank| count / 2 * rank).collect();
            let parts: Vec<Vec<T>> = wide.iter().zip(&counts).map(|(send, count)| send[..*count].to_vec()).collect();
            let mut recv = Guarded::<T>::new(counts.iter().sum(), misaligned);
            comm.all_gather_v(&parts[me], recv.slice(), &counts).unwrap();
            assert_same(recv.slice(), &reference::all_gather(&parts), &what::<T>("allgatherv", comm, op, count));
            recv.assert_guards();
        }
    }
}

#[test]
fn reduce_scan_gather_scatter_alltoall_and_allgatherv_equal_the_reference() {
    on_one_to_eight_ranks(|_| {}, |comm| for_all_types!(others, comm));
}

/// The same in place, at addresses that are aligned to a line and to the element alone.
#[expect(unsafe_code, reason = "one buffer to send from and to receive in")]
fn others_in_place<T: Sample>(comm: &Comm) {
    let (ranks, me) = (comm.size() as usize, comm.rank() as usize);
    for count in counts::<T>(comm.size()) {
        for call in 0..3 {
            let root = (call + count) as u32 % comm.size();
            let (at_root, misaligned, op) = (comm.rank() == root, call == 1, Op::Sum);
            let all = sends::<T>(op, call, comm.size(), count);
            let what = |name: &str| what::<T>(&format!("{name} in place"), comm, op, count);

            let mut own = Guarded::of(&all[me], misaligned);
            let address = own.slice().as_mut_ptr().cast();
            // SAFETY: the buffer has `count` elements; only the root's is written to.
            unsafe { comm.reduce_raw(address, address, count, T::TYPE, op, root) }.unwrap();
            let wanted = if at_root { reference::all_reduce(&all, op) } else { all[me].clone() };
            assert_same(own.slice(), &wanted, &what("reduce"));
            own.assert_guards();

            let mut own = Guarded::of(&all[me], misaligned);
            let address = own.slice().as_mut_ptr().cast();
            // SAFETY: as above.
            unsafe { comm.scan_raw(address, address, count, T::TYPE, op) }.unwrap();
            assert_same(own.slice(), &reference::scan(&all, op, me), &what("scan"));
            own.assert_guards();

            // The root's own part lies where it is to come; the others' buffers are apart.
            let mut own = Guarded::of(&all[me], misaligned);
            let mut whole = Guarded::<T>::new(if at_root { count * ranks } else { 0 }, misaligned);
            let (mut send, recv) = (own.slice().as_mut_ptr(), whole.slice().as_mut_ptr());
            if at_root {
                whole.slice()[me * count..(me + 1) * count].copy_from_slice(&all[me]);
                send = recv.wrapping_add(me * count);
            }
            // SAFETY: `send` has `count` elements and the root's `recv` those of all ranks.
            unsafe { comm.gather_raw(send.cast(), recv.cast(), count, T::TYPE, root) }.unwrap();
            if at_root {
                assert_same(whole.slice(), &reference::all_gather(&all), &what("gather"));
            }
            whole.assert_guards();

            let wide = sends::<T>(op, call, comm.size(), count * ranks);
            let wanted = reference::scatter(&wide[root as usize], ranks, me);
            let mut whole = Guarded::of(&wide[me], misaligned);
            let mut own = Guarded::<T>::new(count, misaligned);
            let send = whole.slice().as_mut_ptr();
            let recv = if at_root { send.wrapping_add(me * count) } else { own.slice().as_mut_ptr() };
            // SAFETY: the root's `send` has the parts of all ranks, and `recv` one.
            unsafe { comm.scatter_raw(send.cast(), recv.cast(), count, T::TYPE, root) }.unwrap();
            let found = if at_root { &whole.slice()[me * count..(me + 1) * count] } else { own.slice() };
            assert_same(found, &wanted, &what("scatter"));
            own.assert_guards();
            whole.assert_guards();

            // Rank r has count / 2 x r elements.
            let counts: Vec<usize> = (0..ranks).map(|rank| count / 2 * rank).collect();
            let before: usize = counts[..me].iter().sum();
            let parts: Vec<Vec<T>> = wide.iter().zip(&counts).map(|(send, count)| send[..*count].to_vec()).collect();
            let mut whole = Guarded::<T>::new(counts.iter().sum(), misaligned);
            whole.slice()[before..before + counts[me]].copy_from_slice(&parts[me]);
            let recv = whole.slice().as_mut_ptr();
            // SAFETY: `recv` has all elements, this rank's at their place.
            unsafe { comm.all_gather_v_raw(recv.wrapping_add(before).cast(), recv.cast(), &counts, T::TYPE) }.unwrap();
            assert_same(whole.slice(), &reference::all_gather(&parts), &what("allgatherv"));
            whole.assert_guards();
        }
    }
}

#[test]
fn reduce_scan_gather_scatter_and_allgatherv_in_place_equal_the_reference() {
    on_one_to_eight_ranks(|_| {}, |comm| for_all_types!(others_in_place, comm));
}

/// Numbers whose sum depends on the order and on each rounding, of any size.
fn rough(rank: u32, i: usize) -> f32 {
    let mixed =
        (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb);
    let magnitude = 2f32.powi((mixed >> 59) as i32 % 9 - 4);
    ((mixed >> 24) as u32 as f32 / u32::MAX as f32 - 0.5) * magnitude
}

fn rough_sums<T: Sample>(comm: &Comm, made: impl Fn(f32) -> T) {
    for count in counts::<T>(comm.size()) {
        for op in [Op::Sum, Op::Prod, Op::Avg] {
            let all: Vec<Vec<T>> =
                (0..comm.size()).map(|rank| (0..count).map(|i| made(rough(rank, i))).collect()).collect();
            let mut data = Guarded::of(&all[comm.rank() as usize], count % 2 == 1);
            comm.all_reduce_in_place(data.slice(), op).unwrap();
            assert_same(data.slice(), &reference::all_reduce(&all, op), &what::<T>("rough allreduce", comm, op, count));
        }
    }
}

#[test]
fn floats_are_reduced_in_the_order_of_the_ranks_with_one_rounding() {
    for algorithm in [None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot)] {
        on_one_to_eight_ranks(
            move |settings| settings.algorithm = algorithm,
            |comm| {
                rough_sums(comm, f64::from);
                rough_sums(comm, |x| x);
                rough_sums(comm, f16::from_f32);
                rough_sums(comm, bf16::from_f32);
                rough_sums(comm, E4M3::from_f32);
            },
        );
    }
}

/// Buffers from `alloc` on all ranks, on some, and at odd places in them.
fn allocated<T: Sample>(comm: &Comm) {
    for count in [1, 17, 4096, 5000, 70_001] {
        for variant in 0..4 {
            for call in 0..3 {
                let all = sends::<T>(Op::Sum, call, comm.size(), count);
                let own = &all[comm.rank() as usize];
                let wanted = reference::all_reduce(&all, Op::Sum);
                let what = what::<T>("allreduce of allocated", comm, Op::Sum, count);
                let mut send = comm.alloc::<T>(count + 2).unwrap();
                let mut recv = comm.alloc::<T>(count + 2).unwrap();
                send[1..=count].copy_from_slice(own);
                match variant {
                    0 => comm.all_reduce(&send[1..=count], &mut recv[1..=count], Op::Sum).unwrap(),
                    1 => comm.all_reduce_in_place(&mut send[1..=count], Op::Sum).unwrap(),
                    2 if comm.rank() == 0 => comm.all_reduce(own, &mut recv[1..=count], Op::Sum).unwrap(),
                    2 => comm.all_reduce(&send[1..=count], &mut recv[1..=count], Op::Sum).unwrap(),
                    _ if comm.rank().is_multiple_of(2) => {
                        comm.all_reduce_in_place(&mut send[1..=count], Op::Sum).unwrap()
                    }
                    _ => comm.all_reduce(&send[1..=count], &mut recv[1..=count], Op::Sum).unwrap(),
                }
                let in_place = variant == 1 || variant == 3 && comm.rank().is_multiple_of(2);
                let result = if in_place { &send } else { &recv };
                assert_same(&result[1..=count], &wanted, &what);
                assert_eq!(result[0].bits() | result[count + 1].bits(), 0, "{what}: a neighbour was written");
            }
        }
    }
}

#[test]
fn allreduce_of_allocated_buffers_equals_the_reference() {
    for n in [1, 2, 3, 4, 7] {
        ranks_with(
            n,
            CHUNK,
            |_| {},
            |comm| {
                allocated::<f32>(&comm);
                allocated::<i8>(&comm);
                allocated::<bf16>(&comm);
                comm.finalize().unwrap();
            },
        );
    }
}

#[test]
fn allreduce_as_chosen_equals_the_reference() {
    on_one_to_eight_ranks(|_| {}, |comm| for_all_types!(all_reduces, comm));
}

#[test]
fn large_results_past_the_caches_equal_the_reference() {
    for n in [2, 3] {
        ranks_with(
            n,
            64 * 1024,
            |_| {},
            |comm| {
                for count in [1 << 18, (1 << 18) + 1, 700_001] {
                    let all = sends::<f32>(Op::Sum, 0, n, count);
                    let mut send = Guarded::of(&all[comm.rank() as usize], true);
                    let mut recv = Guarded::<f32>::new(count, false);
                    comm.all_reduce(send.slice(), recv.slice(), Op::Sum).unwrap();
                    let wanted = reference::all_reduce(&all, Op::Sum);
                    assert_same(recv.slice(), &wanted, "out of place");
                    comm.all_reduce_in_place(send.slice(), Op::Sum).unwrap();
                    assert_same(send.slice(), &wanted, "in place");
                    send.assert_guards();
                    recv.assert_guards();
                }
            },
        );
    }
}

#[test]
fn verification_changes_no_result() {
    for (n, level) in [1, 2, 3, 5].into_iter().flat_map(|n| [(n, Verify::Every), (n, Verify::Full)]) {
        let verify = |settings: &mut Settings| settings.verify = level;
        ranks_with(n, CHUNK, verify, |comm| {
            all_reduces::<f32>(&comm);
            others::<f32>(&comm);
            all_reduces::<i8>(&comm);
            reduce_scatters::<bf16>(&comm);
            all_gathers::<u8>(&comm);
            broadcasts::<f64>(&comm);
            comm.finalize().unwrap();
        });
        let ring = |settings: &mut Settings| {
            verify(settings);
            settings.algorithm = Some(Algorithm::Ring);
        };
        ranks_with(n, CHUNK, ring, |comm| all_reduces::<f16>(&comm));
    }
}
