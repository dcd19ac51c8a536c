//! Broadcast between GPUs: every path, root, odd lengths and alignments; calls in a row beside AllReduce, and in graphs.
#![expect(unsafe_code, reason = "buffers of the device")]

use anyhow::{Context as _, ensure};
use comm::{CommError, DataType, Element, Op, Path};

use super::rank::{MOST, Rank, Sample, data};

/// All paths; where one cannot take a message, another does.
pub(super) const PATHS: [(&str, Option<Path>); 4] =
    [("auto", None), ("ll", Some(Path::Ll)), ("push", Some(Path::Push)), ("ring", Some(Path::Ring))];

pub(super) const COUNTS: [usize; 8] = [1, 2, 3, 7, 1000, 4097, 70_001, 3_000_001];

impl Rank<'_> {
    /// One path: all roots, and types of each size.
    pub(super) fn broadcasts(&self, path: Option<Path>, counts: &[usize]) -> anyhow::Result<()> {
        for (turn, &count) in counts.iter().enumerate() {
            for root in 0..self.comm.size() {
                let offset = (turn + root as usize) % 4;
                let what = || format!("{count} elements from rank {root}, offset {offset}");
                self.one_broadcast::<f32>(count, root, path, offset).with_context(what)?;
                self.one_broadcast::<u8>(count, root, path, offset).with_context(what)?;
                self.one_broadcast::<f64>(count, root, path, offset).with_context(what)?;
            }
        }
        Ok(())
    }

    fn one_broadcast<T: Sample>(
        &self,
        count: usize,
        root: u32,
        path: Option<Path>,
        offset: usize,
    ) -> anyhow::Result<()> {
        let (at, bytes) = (offset * size_of::<T>(), count * size_of::<T>());
        let sent = data::<T>(root, count, 77);
        // Poison, also behind the end.
        self.buffer.write(at, &vec![0xa5u8; bytes + 32])?;
        if self.comm.rank() == root {
            self.buffer.write(at, &sent)?;
        }
        // Under compute-sanitizer a copy to the GPU waits for the kernels on it, which wait for the others.
        self.comm.barrier()?;
        self.put_broadcast::<T>(at, count, root, path)?;
        self.stream.get().synchronize(self.context.driver())?;
        self.comm.async_error()?;
        let mut found = vec![T::sample(0); count];
        self.buffer.read(at, &mut found)?;
        let wrong = found.iter().zip(&sent).position(|(a, b)| !a.same(*b));
        ensure!(wrong.is_none(), "{} {wrong:?} is wrong", T::TYPE);
        let mut behind = [0u8; 32];
        self.buffer.read(at + bytes, &mut behind)?;
        ensure!(behind == [0xa5; 32], "{}: wrote behind the end", T::TYPE);
        Ok(())
    }

    fn put_broadcast<T: Element>(
        &self,
        at: usize,
        count: usize,
        root: u32,
        path: Option<Path>,
    ) -> Result<(), CommError> {
        let buffer = (self.buffer.address() + at as u64) as *mut _;
        let stream = self.stream.get().raw();
        // SAFETY: inside the buffer, which lives until the stream was waited for.
        unsafe {
            match path {
                None => self.comm.broadcast_stream_raw(buffer, count, T::TYPE, root, stream),
                path => self.comm.broadcast_tuned(buffer, count, T::TYPE, root, stream, path),
            }
        }
    }

    /// Hundreds of calls without waiting, so that a root could run ahead, with an AllReduce now and then: what each call
    /// brought is added up on the way.
    pub(super) fn broadcasts_in_a_row(&self) -> anyhow::Result<()> {
        const COUNT: usize = 50_000;
        const ROUNDS: u32 = 300;
        let (comm, stream, base) = (self.comm, self.stream.get(), self.buffer.address());
        let add = (base + MOST as u64) as *mut _;
        self.buffer.write(MOST, &vec![0f32; COUNT])?;
        for rank in 0..comm.size() {
            let value = if rank == comm.rank() { 1.0 + rank as f32 } else { -7.0 };
            self.buffer.write(4 * COUNT * rank as usize, &vec![value; COUNT])?;
        }
        let paths = [None, Some(Path::Ll), Some(Path::Push), Some(Path::Ring)];
        for round in 0..ROUNDS {
            let root = round / 3 % comm.size();
            let (count, path) = ([COUNT, 3, 1000][round as usize % 3], paths[round as usize / 5 % 4]);
            self.put_broadcast::<f32>(4 * COUNT * root as usize, count, root, path)?;
            if round % 7 == 0 {
                // SAFETY: inside the buffer.
                unsafe { comm.all_reduce_stream_raw(add, add, COUNT, DataType::F32, Op::Max, stream.raw())? };
            }
        }
        stream.synchronize(self.context.driver())?;
        comm.async_error()?;
        for root in 0..comm.size() {
            let mut found = vec![0f32; COUNT];
            self.buffer.read(4 * COUNT * root as usize, &mut found)?;
            let wrong = found.iter().position(|x| *x != 1.0 + root as f32);
            ensure!(wrong.is_none(), "element {wrong:?} from rank {root} is wrong");
        }
        Ok(())
    }

    /// Captured beside an AllReduce and replayed with other data each time, eager calls between.
    pub(super) fn broadcast_graphs(&self) -> anyhow::Result<()> {
        let counts = [256usize, 200_000, 5_000_000];
        let base = self.buffer.address();
        let graphs = (0..3)
            .map(|i| {
                self.capture(|| {
                    self.put_broadcast::<f32>(0, counts[i], i as u32 % self.comm.size(), None)?;
                    // SAFETY: inside the buffer.
                    unsafe {
                        let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
                        let stream = self.stream.get().raw();
                        self.comm.all_reduce_stream_raw(send, recv, counts[i], DataType::F32, Op::Max, stream)?;
                    }
                    self.put_broadcast::<f32>(0, counts[(i + 1) % 3].min(counts[i]), 0, None)?;
                    Ok(())
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        for round in 0..30u64 {
            let i = round as usize % 3;
            let root = i as u32 % self.comm.size();
            self.buffer.write(0, &data::<f32>(self.comm.rank(), counts[i], round))?;
            self.buffer.fill(MOST, 4 * counts[i], 0xff)?;
            graphs[i].launch(self.stream.get())?;
            self.put_broadcast::<f32>(0, counts[i], root, None)?;
            graphs[i].launch(self.stream.get())?;
            self.stream.get().synchronize(self.context.driver())?;
            self.comm.async_error()?;
            let right = data::<f32>(root, counts[i], round);
            for at in [0, MOST] {
                let mut found = vec![0f32; counts[i]];
                self.buffer.read(at, &mut found)?;
                let wrong = found.iter().zip(&right).position(|(a, b)| a != b);
                ensure!(wrong.is_none(), "round {round}: element {wrong:?} of {} at {at}", counts[i]);
            }
        }
        Ok(())
    }
}
