//! One way of moving data between two GPUs: how fast it is in each direction and in both at once, how long a word
//! takes, and whether what arrived is what was sent.

use std::time::{Duration, Instant};

use kernels::probe::{BLOCKS, ProbeArgs, THREADS};

use super::{Gpu, Probe, fresh_seed, median, since};
use crate::cuda::memory::copy_async;
use crate::cuda::{CudaError, Event, HostBuffer};

/// How data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A kernel of the one writes into the other's memory.
    Stores,
    /// The copy engine of the one does.
    Copy,
    /// Through pinned memory of the host.
    Host,
}

impl By {
    /// For people and files.
    pub fn name(self) -> &'static str {
        match self {
            By::Stores => "stores",
            By::Copy => "copy",
            By::Host => "host",
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Of which way.
    pub by: By,
    /// GB/s from the first to the second.
    pub there_gb_s: f64,
    /// GB/s from the second to the first.
    pub back_gb_s: f64,
    /// GB/s of the slower direction with both at once.
    pub both_gb_s: f64,
    /// µs that one word takes. Stores: half the time of a word there and back.
    pub us: f64,
    /// Words of 8 bytes that did not arrive as they were sent.
    pub wrong: u64,
}

/// Transfers in a row that are timed together, so that those of both directions run at the same time.
const IN_A_ROW: usize = 4;
/// Rounds of a ping.
const PINGS: u64 = 200;
/// How long all of them may take.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// Words that are copied one after the other to see how long one takes.
const WORDS: usize = 50;
/// Pieces in which data goes through the host, and how many are on their way.
const PIECE: usize = 4 << 20;
const PIECES: usize = 4;

impl Probe {
    pub(super) fn measure(&self, by: By, one: &Gpu, other: &Gpu) -> Result<Figures, CudaError> {
        // GPUs that rest need a moment to come to their clocks.
        if by != By::Host {
            self.directly(by, &[(one, other), (other, one)], &[0, 0])?;
        }
        let (there, wrong_there) = self.moved(by, &[(one, other)])?;
        let (back, wrong_back) = self.moved(by, &[(other, one)])?;
        let (both, wrong_both) = self.moved(by, &[(one, other), (other, one)])?;
        let us = match by {
            By::Stores => self.ping(one, other)?,
            By::Copy => self.word_by_copy(one, other)?,
            By::Host => self.word_by_host(one, other)?,
        };
        let gb_s = |time: Duration| self.effort.bytes as f64 / time.as_secs_f64() / 1e9;
        Ok(Figures {
            by,
            there_gb_s: gb_s(there),
            back_gb_s: gb_s(back),
            both_gb_s: gb_s(both),
            us,
            wrong: wrong_there + wrong_back + wrong_both,
        })
    }

    /// Moves the pattern along `ways` at the same time: how long the slowest takes, and how many words are wrong.
    fn moved(&self, by: By, ways: &[(&Gpu, &Gpu)]) -> Result<(Duration, u64), CudaError> {
        let bytes = self.effort.bytes;
        let (mut times, mut wrong) = (Vec::new(), 0);
        for _ in 0..self.effort.runs {
            let seeds: Vec<u64> = ways.iter().map(|_| fresh_seed()).collect();
            for ((from, to), &seed) in ways.iter().zip(&seeds) {
                to.target.fill(0, bytes, 0xff)?;
                if by != By::Stores {
                    from.fill(from.source.address(), bytes, seed)?;
                }
            }
            times.push(match by {
                By::Host => self.through_host(ways)?,
                _ => self.directly(by, ways, &seeds)?,
            });
            for ((_, to), &seed) in ways.iter().zip(&seeds) {
                wrong += to.wrong(bytes, seed)?;
            }
        }
        Ok((median(times), wrong))
    }

    /// By stores or the copy engine: the time of one of several transfers in a row, by the device's own clock.
    fn directly(&self, by: By, ways: &[(&Gpu, &Gpu)], seeds: &[u64]) -> Result<Duration, CudaError> {
        let bytes = self.effort.bytes;
        let mut events = Vec::new();
        for ((from, to), &seed) in ways.iter().zip(seeds) {
            let _bound = from.context.bind()?;
            let (begin, end) = (Event::timed(from.context)?, Event::timed(from.context)?);
            let stream = from.streams[0].get();
            begin.record(stream)?;
            for _ in 0..IN_A_ROW {
                let args = ProbeArgs { to: to.target.address(), count: bytes as u64 / 8, seed, ..ProbeArgs::default() };
                let (target, source) = (to.target.address(), from.source.address());
                match by {
                    // SAFETY: the target has that length, peer access is enabled, and it is waited for below.
                    By::Stores => unsafe { from.write.launch(BLOCKS, THREADS, stream, &args) }?,
                    // SAFETY: as above, and the source is as long.
                    _ => unsafe { copy_async(from.context, target, source, bytes, stream) }?,
                }
            }
            end.record(stream)?;
            events.push((begin, end));
        }
        let mut slowest = Duration::ZERO;
        for (begin, end) in &events {
            end.synchronize()?;
            let milliseconds = f64::from(end.milliseconds_since(begin)?).max(1e-6);
            slowest = slowest.max(Duration::from_secs_f64(milliseconds / 1e3 / IN_A_ROW as f64));
        }
        Ok(slowest)
    }

    /// Through pinned memory, piece by piece, each GPU's copy engines working at the same time; by the host's clock.
    fn through_host(&self, ways: &[(&Gpu, &Gpu)]) -> Result<Duration, CudaError> {
        let bytes = self.effort.bytes;
        let mut lanes = ways.iter().map(|(from, to)| Lane::new(from, to)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        for (number, at) in (0..bytes).step_by(PIECE).enumerate() {
            for lane in &mut lanes {
                lane.send(number, at, PIECE.min(bytes - at))?;
            }
        }
        for lane in &lanes {
            lane.wait()?;
        }
        Ok(since(start))
    }

    /// Half the time of a word there and back, in µs; infinite if the peer stays silent.
    fn ping(&self, one: &Gpu, other: &Gpu) -> Result<f64, CudaError> {
        let seed = fresh_seed();
        for (own, peer, first) in [(one, other, 1), (other, one, 0)] {
            let _bound = own.context.bind()?;
            let args = ProbeArgs {
                to: peer.flag(),
                from: own.flag(),
                result: own.result_at(),
                count: PINGS,
                seed,
                limit_ns: PING_LIMIT.as_nanos() as u64,
                first,
            };
            // SAFETY: flags and results are words of ours, peer access is enabled, and both are waited for below.
            unsafe { own.ping.launch(1, 32, own.streams[0].get(), &args) }?;
        }
        for own in [one, other] {
            let _bound = own.context.bind()?;
            own.streams[0].get().synchronize(self.driver)?;
        }
        let worst = one.result()?.max(other.result()?);
        Ok(if worst == u64::MAX { f64::INFINITY } else { worst as f64 / (PINGS - 1) as f64 / 2.0 / 1e3 })
    }

    /// A word by the copy engine, of many in a row.
    fn word_by_copy(&self, one: &Gpu, other: &Gpu) -> Result<f64, CudaError> {
        let _bound = one.context.bind()?;
        let (begin, end) = (Event::timed(one.context)?, Event::timed(one.context)?);
        let stream = one.streams[0].get();
        begin.record(stream)?;
        for _ in 0..WORDS {
            // SAFETY: both are longer than a word, and waited for below.
            unsafe { copy_async(one.context, other.target.address(), one.source.address(), 8, stream) }?;
        }
        end.record(stream)?;
        end.synchronize()?;
        Ok(f64::from(end.milliseconds_since(&begin)?) * 1e3 / WORDS as f64)
    }

    /// A word from one GPU to the host and on to the other.
    fn word_by_host(&self, one: &Gpu, other: &Gpu) -> Result<f64, CudaError> {
        let mut lane = Lane::new(one, other)?;
        lane.send(0, 0, 8)?;
        lane.wait()?;
        let start = Instant::now();
        for number in 0..WORDS {
            lane.send(number, 0, 8)?;
            lane.wait()?;
        }
        Ok(since(start).as_secs_f64() * 1e6 / WORDS as f64)
    }
}

/// Pinned memory between two GPUs: a piece is filled by the one and emptied by the other.
struct Lane<'a> {
    from: &'a Gpu,
    to: &'a Gpu,
    pieces: Vec<(HostBuffer, Event, Event)>,
}

impl<'a> Lane<'a> {
    fn new(from: &'a Gpu, to: &'a Gpu) -> Result<Lane<'a>, CudaError> {
        let piece = || Ok((HostBuffer::new(from.context, PIECE)?, Event::new(from.context)?, Event::new(to.context)?));
        Ok(Lane { from, to, pieces: (0..PIECES).map(|_| piece()).collect::<Result<_, CudaError>>()? })
    }

    /// Puts the bytes at `at` on their way as piece `number`.
    fn send(&mut self, number: usize, at: usize, bytes: usize) -> Result<(), CudaError> {
        let (host, filled, emptied) = &self.pieces[number % PIECES];
        let (out, into) = (self.from.streams[0].get(), self.to.streams[1].get());
        let at = at as u64;
        {
            let _bound = self.from.context.bind()?;
            if number >= PIECES {
                out.wait(emptied)?;
            }
            // SAFETY: source and piece are that long; the piece is written again only once it was emptied.
            unsafe { copy_async(self.from.context, host.device(), self.from.source.address() + at, bytes, out) }?;
            filled.record(out)?;
        }
        let _bound = self.to.context.bind()?;
        into.wait(filled)?;
        // SAFETY: target and piece are that long, and the piece was filled.
        unsafe { copy_async(self.to.context, self.to.target.address() + at, host.device(), bytes, into) }?;
        emptied.record(into)
    }

    fn wait(&self) -> Result<(), CudaError> {
        let _bound = self.to.context.bind()?;
        self.to.streams[1].get().synchronize(self.to.context.driver())
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // The pieces go with it, and a copy may still be on its way after an error.
        for gpu in [self.from, self.to] {
            let _ = gpu.context.synchronize();
        }
    }
}
