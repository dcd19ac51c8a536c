//! A rank that uses libcomm, well or badly.
//!
//! | command | what each rank does |
//! | --- | --- |
//! | `reduce ROUNDS COUNT` | sums a vector so often and checks every element |
//! | `forever COUNT` | the same without end; prints `ready` after the first |
//! | `leave RANK ROUNDS` | as `forever`, but that rank leaves in order after so many |
//! | `absent RANK` | that rank ends with 0 without joining, the others join |
//! | `mismatch KIND` | makes calls that do not fit together, and expects errors |
//! | `late` | joins only once its standard input says so |
//! | `avg` | averages, and checks the quotients |
//!
//! A failed call is printed with the milliseconds that it took, and ends the rank with 9.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use comm::{Comm, CommError, Op};

/// The exit code of a rank whose call failed.
const CALL_FAILED: u8 = 9;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let rank: u32 = std::env::var("PRUN_RANK").unwrap_or_default().parse().unwrap_or(0);
    match words.as_slice() {
        ["reduce", rounds, count] => {
            let comm = join()?;
            let mut sums = Sums::new(&comm, count.parse()?);
            for _ in 0..rounds.parse::<u64>()? {
                if let Err(error) = sums.once()? {
                    return failed(rank, "all_reduce", sums.started, &error);
                }
            }
            comm.finalize()?;
            say(&format!("rank {rank} done"))?;
        }
        ["forever", count] => return forever(rank, count.parse()?, None),
        ["leave", leaver, rounds] => {
            let rounds = (leaver.parse::<u32>()? == rank).then(|| rounds.parse()).transpose()?;
            return forever(rank, 1000, rounds);
        }
        ["absent", absent] if absent.parse::<u32>()? == rank => {}
        ["absent", _] => {
            let started = Instant::now();
            let outcome = Comm::init().and_then(|comm| comm.barrier());
            if let Err(error) = outcome {
                return failed(rank, "init", started, &error);
            }
        }
        ["late"] => {
            io::stdin().read_line(&mut String::new())?;
            let comm = join()?;
            comm.barrier()?;
            say(&format!("rank {rank} joined"))?;
            comm.finalize()?;
        }
        ["mismatch", kind] => return mismatch(rank, kind),
        ["avg"] => {
            averages()?;
            say(&format!("rank {rank} done"))?;
        }
        _ => bail!("what shall {words:?} mean?"),
    }
    Ok(ExitCode::SUCCESS)
}

fn join() -> Result<Comm> {
    Comm::init().context("cannot join the job")
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn failed(rank: u32, call: &str, started: Instant, error: &CommError) -> Result<ExitCode> {
    say(&format!("rank {rank}: {call} failed after {} ms: {error}", started.elapsed().as_millis()))?;
    Ok(ExitCode::from(CALL_FAILED))
}

/// AllReduce of whole numbers, checked.
struct Sums<'a> {
    comm: &'a Comm,
    send: Vec<f32>,
    receive: Vec<f32>,
    /// When the last call began.
    started: Instant,
}

impl Sums<'_> {
    fn new(comm: &Comm, count: usize) -> Sums<'_> {
        let send = (0..count).map(|index| (index % 97) as f32 + comm.rank() as f32).collect();
        Sums { comm, send, receive: vec![0.0; count], started: Instant::now() }
    }

    /// The outer error is a wrong result.
    fn once(&mut self) -> Result<Result<(), CommError>> {
        self.receive.fill(f32::NAN);
        self.started = Instant::now();
        if let Err(error) = self.comm.all_reduce(&self.send, &mut self.receive, Op::Sum) {
            return Ok(Err(error));
        }
        let size = self.comm.size() as usize;
        let ranks = (size * (size - 1) / 2) as f32;
        for (index, &got) in self.receive.iter().enumerate() {
            let expected = size as f32 * (index % 97) as f32 + ranks;
            ensure!(got == expected, "element {index} is {got}, not {expected}");
        }
        Ok(Ok(()))
    }
}

fn forever(rank: u32, count: usize, rounds: Option<u64>) -> Result<ExitCode> {
    let comm = join()?;
    let mut sums = Sums::new(&comm, count);
    for round in 0.. {
        if rounds == Some(round) {
            let started = Instant::now();
            return match comm.finalize() {
                Ok(()) => {
                    say(&format!("rank {rank} left"))?;
                    Ok(ExitCode::SUCCESS)
                }
                Err(error) => failed(rank, "finalize", started, &error),
            };
        }
        if let Err(error) = sums.once()? {
            return failed(rank, "all_reduce", sums.started, &error);
        }
        if round == 0 {
            say(&format!("ready (pid {})", std::process::id()))?;
        }
    }
    unreachable!("the loop has no end");
}

/// Ranks call things that do not go together. Ends with 0 where that was found out and the next call refused.
fn mismatch(rank: u32, kind: &str) -> Result<ExitCode> {
    let comm = join()?;
    let floats = |count: usize, op: Op| comm.all_reduce(&vec![1f32; count], &mut vec![0f32; count], op);
    let started = Instant::now();
    let outcome = match (kind, rank) {
        ("count", 0) => floats(1000, Op::Sum),
        ("count", _) => floats(1001, Op::Sum),
        ("one", 0) => floats(1000, Op::Sum),
        ("one", _) => floats(1, Op::Sum),
        ("none", 0) => floats(1000, Op::Sum),
        ("none", _) => floats(0, Op::Sum),
        ("type", 0) => floats(1000, Op::Sum),
        ("type", _) => comm.all_reduce(&vec![1i64; 500], &mut vec![0i64; 500], Op::Sum),
        ("op", 0) => floats(1000, Op::Sum),
        ("op", _) => floats(1000, Op::Max),
        // One rank is a call ahead: its second call meets the others' first.
        ("ahead", 2) => comm.barrier(),
        ("ahead", _) => floats(1000, Op::Sum),
        // Legal: each rank may choose for itself.
        ("place", 0) => comm.all_reduce_in_place(&mut vec![1f32; 1000], Op::Sum),
        ("place", _) => floats(1000, Op::Sum),
        _ => bail!("no kind {kind}"),
    };
    let Err(error) = outcome else {
        comm.finalize()?;
        say(&format!("rank {rank} fits"))?;
        return Ok(ExitCode::SUCCESS);
    };
    say(&format!("rank {rank}: found after {} ms: {error}", started.elapsed().as_millis()))?;
    let again = comm.barrier();
    say(&format!(
        "rank {rank}: then: {}",
        again.err().map_or_else(|| "nothing wrong".to_owned(), |error| error.to_string())
    ))?;
    Ok(ExitCode::from(CALL_FAILED))
}

fn averages() -> Result<()> {
    let comm = join()?;
    let size = comm.size();
    for count in [4usize, 10] {
        let mut mean = vec![f32::NAN; count];
        comm.all_reduce(&vec![comm.rank() as f32; count], &mut mean, Op::Avg)?;
        let expected = (size - 1) as f32 / 2.0;
        ensure!(mean.iter().all(|&got| got == expected), "{count} elements: {mean:?}, not {expected}");
    }
    // Sums of -7 and 7, cut towards zero.
    for (first, others) in [(-7i32, 0i32), (7, 0)] {
        let mut mean = [i32::MAX; 3];
        comm.all_reduce(&[if comm.rank() == 0 { first } else { others }; 3], &mut mean, Op::Avg)?;
        ensure!(mean == [first / size as i32; 3], "{mean:?}");
    }
    comm.finalize()?;
    Ok(())
}
