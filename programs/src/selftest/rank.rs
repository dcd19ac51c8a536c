//! Values, buffers and one checked call of the GPU cases.
#![expect(unsafe_code, reason = "buffers of the device")]

use anyhow::{Context as _, ensure};
use comm::cuda::{Context, DeviceBuffer, Driver, Graph, Stream};
use comm::{Comm, Element, Op, Path, Plan};
use half::{bf16, f16};

use super::right::first_wrong;

/// Values of a type that no operation makes ambiguous, and that overflow where the type can.
pub(super) trait Sample: Element + PartialEq {
    /// What one rounding may change, as a part of the value. Integers are never rounded.
    const EPSILON: f64;

    fn sample(seed: u64) -> Self;
    fn same(self, other: Self) -> bool;
    fn real(self) -> f64;
}

macro_rules! floats {
    ($($type:ty: $make:expr, $epsilon:expr;)*) => {$(
        impl Sample for $type {
            const EPSILON: f64 = $epsilon;
            fn sample(seed: u64) -> Self { $make(signed(seed)) }
            fn same(self, other: Self) -> bool { self.to_bits() == other.to_bits() }
            fn real(self) -> f64 { f64::from(self) }
        }
    )*};
}

macro_rules! integers {
    ($($type:ty: $make:expr;)*) => {$(
        impl Sample for $type {
            const EPSILON: f64 = 0.0;
            fn sample(seed: u64) -> Self { $make(seed) }
            fn same(self, other: Self) -> bool { self == other }
            fn real(self) -> f64 { self as f64 }
        }
    )*};
}

fn signed(seed: u64) -> f64 {
    (seed % 2001) as f64 / 16.0 - 62.5
}

floats! {
    f64: |x| x, f64::EPSILON;
    f32: |x| x as f32, f32::EPSILON as f64;
    f16: f16::from_f64, 1.0 / 1024.0;
    bf16: bf16::from_f64, 1.0 / 128.0;
}

integers! {
    i8: |seed: u64| (seed % 251) as i8;
    u8: |seed: u64| (seed % 251) as u8;
    i32: |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as i32;
    u32: |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    i64: |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
    u64: |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
}

/// What `rank` sends.
pub(super) fn data<T: Sample>(rank: u32, count: usize, salt: u64) -> Vec<T> {
    (0..count as u64)
        .map(|i| T::sample((i + 1).wrapping_mul(2_654_435_761).wrapping_add(u64::from(rank) * 977 + salt)))
        .collect()
}

/// A rank with a stream and a buffer on its GPU.
pub(super) struct Rank<'a> {
    pub(super) comm: &'a Comm,
    pub(super) context: Context,
    pub(super) stream: Stream,
    pub(super) buffer: DeviceBuffer,
    /// Whether the ranks meet between their copies and the call. Under compute-sanitizer a copy to the GPU waits for the
    /// kernels on it, which wait for the others.
    pub(super) meets: bool,
}

/// Bytes of each half of the buffer: what is sent, and what is received.
pub(super) const MOST: usize = 40 << 20;

impl Rank<'_> {
    pub(super) fn new(comm: &Comm, device: u32) -> anyhow::Result<Rank<'_>> {
        let context = Context::primary(Driver::get()?, device)?;
        let buffer = DeviceBuffer::new(context, 2 * MOST)?;
        Ok(Rank { comm, context, stream: Stream::new(context)?, buffer, meets: false })
    }

    /// One call; `offset` elements off the allocation's start. The right result is the oracle's, bit for bit, but for what a
    /// ring rounds; and all ranks have the same bits.
    pub(super) fn call<T: Sample>(
        &self,
        count: usize,
        op: Op,
        path: Option<Path>,
        in_place: bool,
        offset: usize,
    ) -> anyhow::Result<()> {
        let sends: Vec<Vec<T>> = (0..self.comm.size()).map(|rank| data(rank, count, op as u64)).collect();
        self.call_on(&sends, op, path, in_place, offset, &|_| ())
    }

    /// The same on the ranks' data, with a plan that was changed.
    pub(super) fn call_on<T: Sample>(
        &self,
        sends: &[Vec<T>],
        op: Op,
        path: Option<Path>,
        in_place: bool,
        offset: usize,
        change: &dyn Fn(&mut Plan),
    ) -> anyhow::Result<()> {
        let (size, count) = (self.comm.size(), sends[0].len());
        let bytes = count * size_of::<T>();
        let send_at = offset * size_of::<T>();
        let recv_at = if in_place { send_at } else { MOST + 2 * offset * size_of::<T>() };
        // Poison, also behind the end.
        if !in_place {
            self.buffer.write(recv_at, &vec![0xa5u8; bytes + 64])?;
        }
        self.buffer.write(send_at, &sends[self.comm.rank() as usize])?;
        let before = self.read_bytes(recv_at + bytes)?;
        if self.meets {
            self.comm.barrier()?;
        }
        // SAFETY: inside the buffer, waited for below.
        unsafe {
            let base = self.buffer.address();
            let (send, recv) = ((base + send_at as u64) as *const _, (base + recv_at as u64) as *mut _);
            let stream = self.stream.get().raw();
            match path {
                None => self.comm.all_reduce_stream_raw(send, recv, count, T::TYPE, op, stream)?,
                path => self.comm.all_reduce_tuned(send, recv, count, T::TYPE, op, stream, path, change)?,
            }
        }
        self.stream.get().synchronize(self.context.driver())?;
        self.comm.async_error()?;
        let mut result = vec![T::sample(0); count];
        self.buffer.read(recv_at, &mut result)?;
        ensure!(self.read_bytes(recv_at + bytes)? == before, "wrote behind the end");
        // Rings of more than two round at each hop; unless another path is forced, they take what is too long for lines.
        let rounds = !T::TYPE.is_integer() && size > 2 && (path == Some(Path::Ring) || bytes >= 128 << 10);
        let wrong = first_wrong(sends, op, &result, rounds);
        let hash = result.iter().zip(1u64..).fold(0u64, |hash, (x, i)| {
            // SAFETY: plain data.
            let bytes = unsafe { std::slice::from_raw_parts((&raw const *x).cast::<u8>(), size_of::<T>()) };
            bytes.iter().fold(hash ^ i, |h, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(*b))
        });
        let mut hashes = [hash, !hash];
        self.comm.all_reduce_in_place(&mut hashes, Op::Min)?;
        ensure!(wrong.is_none(), "element {wrong:?} of {count} is wrong");
        ensure!(hashes == [hash, !hash], "the ranks' results differ");
        Ok(())
    }

    /// A graph of what `calls` puts into the stream.
    pub(super) fn capture(&self, calls: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Graph> {
        self.stream.get().begin_capture(self.context.driver())?;
        let made = calls();
        let graph = self.stream.get().end_capture(self.context);
        made?;
        Ok(graph?)
    }

    /// Whether the context still works.
    pub(super) fn is_usable(&self) -> anyhow::Result<()> {
        self.buffer.fill(0, 1 << 20, 7)?;
        let mut back = vec![0u8; 1 << 20];
        self.buffer.read(0, &mut back)?;
        ensure!(back.iter().all(|byte| *byte == 7), "the context is of no use any more");
        Ok(())
    }

    fn read_bytes(&self, at: usize) -> anyhow::Result<[u8; 32]> {
        let mut bytes = [0; 32];
        self.buffer.read(at, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn all_ops<T: Sample>(&self, path: Option<Path>, counts: &[usize]) -> anyhow::Result<()> {
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg] {
            for (n, count) in counts.iter().enumerate() {
                for in_place in [false, true] {
                    let offset = n % 3;
                    let what = || format!("{} {op} x {count}, in place {in_place}, offset {offset}", T::TYPE);
                    self.call::<T>(*count, op, path, in_place, offset).with_context(what)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn all_types(&self, path: Option<Path>, counts: &[usize]) -> anyhow::Result<()> {
        self.all_ops::<f32>(path, counts)?;
        self.all_ops::<f64>(path, counts)?;
        self.all_ops::<f16>(path, counts)?;
        self.all_ops::<bf16>(path, counts)?;
        self.all_ops::<i8>(path, counts)?;
        self.all_ops::<u8>(path, counts)?;
        self.all_ops::<i32>(path, counts)?;
        self.all_ops::<u32>(path, counts)?;
        self.all_ops::<i64>(path, counts)?;
        self.all_ops::<u64>(path, counts)
    }
}
