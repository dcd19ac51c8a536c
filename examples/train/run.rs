//! The run: what the ranks tell each other, and what rank 0 tells the user.

use std::cell::Cell;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use comm::{Comm, Op};

use crate::checkpoint::{self, Checkpoint};
use crate::data::Data;
use crate::gradients::Gradients;
use crate::net::{Net, Tally};
use crate::options::Options;
use crate::share::share;
use crate::state::State;

/// How a run, or an epoch of it, that did not fail came to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// Nothing is left to do.
    Complete,
    /// A rank was asked to stop; at the end of a run, the checkpoint is saved.
    Interrupted,
}

/// The error of the other ranks when rank 0 failed at something that it does alone: they know of it, and
/// leave it to rank 0 to say what happened.
#[derive(Debug)]
pub struct RankZeroFailed;

impl std::error::Error for RankZeroFailed {}

impl Display for RankZeroFailed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("rank 0 failed, and says why")
    }
}

/// Trains until all epochs are complete or a rank finds `stop` set. Every rank calls it with the same options.
pub fn run(comm: &Comm, options: &Options, stop: &AtomicBool) -> Result<Ending> {
    let gradients = Gradients::new(Net::weights_len(options.settings.hidden) + State::TOLD)?;
    Run { comm, options, gradients, communication: Cell::default() }.train(stop)
}

struct Run<'a> {
    comm: &'a Comm,
    options: &'a Options,
    gradients: Gradients,
    /// Time spent inside calls of libcomm, waiting for other ranks included.
    communication: Cell<Duration>,
}

impl Run<'_> {
    fn train(&self, stop: &AtomicBool) -> Result<Ending> {
        let start = Instant::now();
        let data = Data::split(self.options.settings.seed);
        let mut state = self.first_state()?;
        self.check_place()?;
        self.say_what_is_to_come(&data, &state)?;
        while state.epoch < self.options.epochs {
            if self.epoch(&data, &mut state, stop)? == Ending::Interrupted {
                self.save(&state)?;
                self.say_where_it_stopped(&data, &state)?;
                return Ok(Ending::Interrupted);
            }
            state.end_epoch();
            let save_every = self.options.save_every;
            if save_every.is_some_and(|every| state.epoch.is_multiple_of(every)) {
                self.save(&state)?;
            }
        }
        self.conclude(&data, &state, start)?;
        Ok(Ending::Complete)
    }

    /// The steps of one epoch, or what is left of them.
    fn epoch(&self, data: &Data, state: &mut State, stop: &AtomicBool) -> Result<Ending> {
        let (start, communication_before) = (Instant::now(), self.communication.get());
        let order = data.order(state.settings.seed, state.epoch);
        let mut vote = Vec::new();
        loop {
            let batch = state.batch(&order);
            if batch.is_empty() {
                break;
            }
            let asked = stop.load(Ordering::Relaxed);
            state.contribution(data, batch, self.place(), asked, &mut vote);
            self.timed("sum the gradients", |comm| self.gradients.sum(comm, &mut vote))?;
            if state.advance(&vote, batch.len()) {
                return Ok(Ending::Interrupted);
            }
        }
        let held_out = self.judge(data, state)?;
        let took = start.elapsed();
        self.say(format_args!(
            "{:>5}  {:>7.4}  {:>7}  {:>8}  {:>6.3} s  {:>16}",
            state.epoch + 1,
            state.tally.loss / order.len() as f64,
            percent(state.tally.correct, order.len()),
            percent(held_out.correct, data.held_out().len()),
            took.as_secs_f64(),
            part_of(self.communication.get() - communication_before, took),
        ))?;
        Ok(Ending::Complete)
    }

    /// A new state, or the one that the checkpoint holds: rank 0 reads it and sends it to all, so that the file
    /// need not be within reach of the others.
    fn first_state(&self) -> Result<State> {
        if !self.options.resume {
            return Ok(State::new(self.options.settings.clone()));
        }
        let path = self.options.checkpoint.display();
        let mut bytes = self
            .on_rank_zero(|| {
                let bytes = fs::read(&self.options.checkpoint)
                    .map_err(|error| anyhow!("{error}\n  try: --checkpoint names another file"))?;
                self.check(&checkpoint::decode(&bytes)?)?;
                Ok(bytes)
            })
            .with_context(|| format!("cannot resume from {path}"))?
            .unwrap_or_default();
        let mut length = [bytes.len() as u64];
        self.timed("learn the size of the checkpoint", |comm| comm.broadcast(&mut length, 0))?;
        bytes.resize(length[0] as usize, 0);
        self.timed("get the checkpoint from rank 0", |comm| comm.broadcast(&mut bytes, 0))?;
        let Checkpoint { state, ranks } = checkpoint::decode(&bytes).context("what rank 0 sent is no checkpoint")?;
        self.say(format_args!("resumed from {path}: {} epochs and {} steps were complete", state.epoch, state.step))?;
        if ranks != self.comm.size() {
            self.say(format_args!(
                "note: saved by {ranks} ranks, now {}: the result is the same within rounding, not bit for bit",
                self.comm.size()
            ))?;
        }
        Ok(state)
    }

    /// Whether this run is the continuation of that one.
    fn check(&self, saved: &Checkpoint) -> Result<()> {
        let (saved, ours) = (&saved.state.settings, &self.options.settings);
        ensure!(saved == ours, "it was made with {saved}, this run has {ours}\n  try: --resume {saved}");
        Ok(())
    }

    /// Tells early that no checkpoint can be saved: an error if some were asked for, else a note.
    fn check_place(&self) -> Result<()> {
        let path = &self.options.checkpoint;
        let failed = self.on_rank_zero(|| match checkpoint::try_place(path) {
            Err(error) if self.options.save_every.is_some() => Err(error),
            other => Ok(other.err()),
        });
        let failed = failed.with_context(|| format!("cannot save {}", path.display()))?;
        if let Some(error) = failed.flatten() {
            self.say(format_args!("note: {} cannot be saved: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Has rank 0 write the checkpoint, after all ranks have shown that they hold the same weights. Returns on
    /// all ranks once the file is complete, so that none ends before it is.
    fn save(&self, state: &State) -> Result<()> {
        self.identical_hash(state)?;
        let path = &self.options.checkpoint;
        self.on_rank_zero(|| checkpoint::save(path, &checkpoint::encode(state, self.comm.size())?))
            .with_context(|| format!("cannot save {}", path.display()))?;
        Ok(())
    }

    /// Does on rank 0 what one rank must do for all. If that fails, rank 0 returns the error and the others
    /// [`RankZeroFailed`].
    fn on_rank_zero<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let done = (self.comm.rank() == 0).then(work).transpose();
        let mut failed = [u8::from(done.is_err())];
        self.timed("hear from rank 0", |comm| comm.broadcast(&mut failed, 0))?;
        match done {
            Ok(_) if failed != [0] => bail!(RankZeroFailed),
            done => done,
        }
    }

    /// How the held-out images are recognised, each rank judging its share.
    fn judge(&self, data: &Data, state: &State) -> Result<Tally> {
        let held_out = data.held_out();
        let (rank, size) = self.place();
        let tally = state.net.judge(data.images(&held_out[share(held_out.len(), rank, size)]));
        let mut sums = [tally.loss, tally.correct];
        self.timed("sum the results", |comm| comm.all_reduce_in_place(&mut sums, Op::Sum))?;
        Ok(Tally { loss: sums[0], correct: sums[1] })
    }

    /// The hash of the weights, which is the same on all ranks or an error.
    fn identical_hash(&self, state: &State) -> Result<u64> {
        let hash = state.net.hash();
        let mut hashes = vec![0; self.comm.size() as usize];
        self.timed("compare the weights", |comm| comm.all_gather(&[hash], &mut hashes))?;
        match odd_ones(&hashes).as_slice() {
            [] => Ok(hash),
            ranks => bail!(
                "the weights of ranks {ranks:?} are not those of rank 0 (hashes {hashes:016x?})\n  \
                 try: PRUN_VERIFY=every finds the call whose result was wrong"
            ),
        }
    }

    /// The last lines: time, proof of equal weights, accuracy, and the error if that is too low.
    fn conclude(&self, data: &Data, state: &State, start: Instant) -> Result<()> {
        let hash = self.identical_hash(state)?;
        let held_out = self.judge(data, state)?;
        let took = start.elapsed();
        let mut communication = [self.communication.get().as_secs_f64()];
        self.timed("average the times", |comm| comm.all_reduce_in_place(&mut communication, Op::Avg))?;
        let communication = Duration::from_secs_f64(communication[0]);
        let ranks = self.comm.size();
        self.say(format_args!(
            "time {:.2} s, of it {:.2} s ({}) in communication, waiting included (mean of {ranks} ranks)",
            took.as_secs_f64(),
            communication.as_secs_f64(),
            part_of(communication, took),
        ))?;
        self.say(format_args!(
            "weights are identical bit for bit on all ranks ({ranks} of {ranks}, FNV-1a {hash:016x})"
        ))?;
        let images = data.held_out().len();
        let accuracy = percent(held_out.correct, images);
        self.say(format_args!("held-out accuracy {accuracy} ({} of {images} images)", held_out.correct))?;
        let required = self.options.required_percent();
        let reached = held_out.correct * 100.0 >= required * images as f64;
        self.on_rank_zero(|| {
            ensure!(reached, "the held-out accuracy is {accuracy}, required are {required} %\n  try: more --epochs");
            Ok(())
        })?;
        Ok(())
    }

    fn say_what_is_to_come(&self, data: &Data, state: &State) -> Result<()> {
        self.say(format_args!(
            "{} images to learn from, {} held out; {} weights; ranks: {}; {}",
            data.training_len(),
            data.held_out().len(),
            state.net.weights.len(),
            self.comm.size(),
            state.settings,
        ))?;
        if let Gradients::OnGpu { gpu, .. } = self.gradients {
            self.say(format_args!("gradients are summed between the ranks' GPUs (this one's is {gpu})"))?;
        }
        self.say("epoch     loss  correct  held out      time  in communication")
    }

    fn say_where_it_stopped(&self, data: &Data, state: &State) -> Result<()> {
        self.say(format_args!(
            "stopped in epoch {} after step {} of {}; saved {}; --resume continues",
            state.epoch + 1,
            state.step,
            data.training_len().div_ceil(state.settings.batch),
            self.options.checkpoint.display(),
        ))
    }

    /// Prints a line, on rank 0 only.
    fn say(&self, line: impl Display) -> Result<()> {
        if self.comm.rank() == 0 {
            writeln!(io::stdout(), "{line}").context("cannot print")?;
        }
        Ok(())
    }

    /// Makes a call of libcomm and adds its time to the time in communication.
    fn timed<T, E>(&self, what: &'static str, call: impl FnOnce(&Comm) -> Result<T, E>) -> Result<T>
    where
        Result<T, E>: Context<T, E>,
    {
        let start = Instant::now();
        let result = call(self.comm);
        self.communication.set(self.communication.get() + start.elapsed());
        result.with_context(|| format!("cannot {what}"))
    }

    fn place(&self) -> (usize, usize) {
        (self.comm.rank() as usize, self.comm.size() as usize)
    }
}

/// The ranks whose hash is not rank 0's.
fn odd_ones(hashes: &[u64]) -> Vec<usize> {
    (0..hashes.len()).filter(|&rank| hashes[rank] != hashes[0]).collect()
}

fn percent(part: f64, whole: usize) -> String {
    format!("{:.1} %", 100.0 * part / whole as f64)
}

fn part_of(part: Duration, whole: Duration) -> String {
    format!("{:.0} %", 100.0 * part.as_secs_f64() / whole.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_whose_weights_differ_are_named() {
        assert_eq!(odd_ones(&[5, 5, 5]), Vec::<usize>::new());
        assert_eq!(odd_ones(&[5, 6, 5, 7]), [1, 3]);
    }
}
