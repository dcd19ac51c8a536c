//! What `prun selftest` runs in each rank. A case is a word; the launcher's table says with how many ranks and options.
//!
//! Each part of a case prints a line that begins with `ok` or, on any rank where it went wrong, with `FAIL`.

mod arithmetic;
mod beside;
mod broadcast;
mod faults;
mod host;
mod memory;
mod pair;
mod peer_access;
mod rank;
mod registered;
mod right;
mod sanitize;
mod virtual_ranks;

use std::time::Instant;

use anyhow::bail;
use comm::cuda::{Context, Driver};
use comm::{Comm, Op, Path, Verify};
use half::bf16;

use rank::Rank;

/// prun, started as a rank of `prun selftest`, has this first argument; the second is a case. No program has this name.
pub const WORD: &str = "@selftest-rank";

/// Runs this rank's part of a case: prun's exit code.
pub fn run(case: &str) -> u8 {
    let done = match case {
        "virtual" => virtual_ranks::run(),
        "sanitize" => sanitize::run(Verify::Off),
        "sanitize-verify" => sanitize::run(Verify::Every),
        "peer-access" => peer_access::run(),
        "faults" => faults::run().map(|(trials, failed)| {
            println!(
                "{} {} of {trials} trials with damaged data",
                if failed == 0 { "ok  " } else { "FAIL" },
                trials - failed
            );
            failed == 0
        }),
        _ => Comm::init().map_err(anyhow::Error::from).and_then(|comm| in_job(case, comm)),
    };
    u8::from(!done.unwrap_or_else(|error| {
        println!("FAIL {case}: {error:#}");
        false
    }))
}

fn in_job(case: &str, comm: Comm) -> anyhow::Result<bool> {
    let (ok, leaves) = match case {
        "host" => (host::differential(&comm), true),
        "host-mismatch" => (host::mismatch(&comm), false),
        "host-killed" => (host::killed(&comm), false),
        "pair" | "mismatch" | "mismatch-graph" | "killed" | "killed-graph" | "late" | "start" | "refused"
        | "damaged" | "killed-nccl" => {
            let rank = Rank::new(&comm, comm.local_rank() % Context::devices(Driver::get()?)?)?;
            on_gpu(case, &rank)
        }
        _ => bail!("there is no such case"),
    };
    if ok && leaves {
        comm.finalize()?;
    }
    Ok(ok)
}

/// Whether it went well, and whether the ranks leave together.
fn on_gpu(case: &str, rank: &Rank<'_>) -> (bool, bool) {
    match case {
        "pair" => (everything(rank), true),
        "start" => (part(rank.comm, "set up, and one call", || rank.call::<f32>(1000, Op::Sum, None, false, 0)), true),
        "mismatch" => (part(rank.comm, "mismatched calls name both", || pair::mismatch(rank, false)), false),
        "mismatch-graph" => (part(rank.comm, "mismatched replays name both", || pair::mismatch(rank, true)), false),
        "refused" => (part(rank.comm, "a pair that cannot", || pair::refused(rank)), true),
        "damaged" => (part(rank.comm, "damaged data", || pair::damaged(rank)), false),
        "killed-nccl" => (part(rank.comm, "a rank killed in NCCL's calls", || beside::killed_nccl(rank)), false),
        "killed" => (part(rank.comm, "a killed rank", || pair::killed(rank, false)), false),
        "killed-graph" => (part(rank.comm, "a rank killed between replays", || pair::killed(rank, true)), false),
        _ => (part(rank.comm, "a late rank", || pair::late(rank)), true),
    }
}

/// All types, operations, paths, odd lengths and alignments, in place and not; graphs between eager calls; streams that
/// take turns.
fn everything(rank: &Rank<'_>) -> bool {
    let comm = rank.comm;
    // The first call says which way the data goes.
    let mut ok = part(comm, "set up, and one call", || rank.call::<f32>(1000, Op::Sum, None, false, 0));
    // Where the host reduces there is one path only.
    ok &= all_types(rank, if comm.is_staged() { &PATHS[..1] } else { PATHS }, COUNTS);
    ok &= broadcasts(rank);
    if let Some(why) = comm.staged_because() {
        println!("rank {}: through the host: {why}", comm.rank());
    }
    if comm.is_staged() {
        return ok & part(comm, "long calls, graphs, streams", || Err(NotHere("the host reduces".into()).into()));
    }
    for (name, path) in PATHS {
        ok &= part(comm, &format!("{name}: 3 000 001 elements"), || {
            rank.all_ops::<f32>(*path, BIG)?;
            rank.all_ops::<bf16>(*path, BIG)
        });
    }
    ok &= part(comm, "words that look like no data", || rank.words_of_no_data(&[Path::Push, Path::Copy]));
    ok &= part(comm, "more copies than room", || rank.many_copies());
    ok &= part(comm, "graphs between eager calls", || rank.graphs());
    ok &= part(comm, "broadcasts in graphs", || rank.broadcast_graphs());
    ok &= part(comm, "two streams take turns", || rank.streams());
    ok &= part(comm, "two streams in opposite order, 2000 calls", || rank.opposite_streams());
    ok &= part(comm, "a second communicator beside", || rank.second_communicator());
    if comm.size() == 2 {
        if comm.staged_because().is_none() {
            ok &= part(comm, "registered memory", || rank.registered(&[1, 7, 1000, 70_001]));
            ok &= part(comm, "registered memory in graphs", || rank.registered_graphs());
        }
        ok &= part(comm, "NCCL in another stream", || rank.beside_nccl());
        ok &= part(comm, "sums beyond the range", || arithmetic::overflow(rank));
        ok &= part(comm, "memory of every kind", || memory::kinds(rank));
        ok &= part(comm, "the runtime's last error", || memory::runtime(rank));
    }
    ok
}

/// On as many paths as there are; where the host moves the data, on one.
fn broadcasts(rank: &Rank<'_>) -> bool {
    let staged = rank.comm.is_staged();
    let mut ok = true;
    for (name, path) in &broadcast::PATHS[..if staged { 1 } else { 4 }] {
        let title = format!("{} ranks, broadcast, {name}: roots, lengths", rank.comm.size());
        ok &= part(rank.comm, &title, || rank.broadcasts(*path, &broadcast::COUNTS));
    }
    if !staged {
        ok &= part(rank.comm, "300 broadcasts in a row", || rank.broadcasts_in_a_row());
    }
    ok
}

fn all_types(rank: &Rank<'_>, paths: &[(&str, Option<Path>)], counts: &[usize]) -> bool {
    let mut ok = true;
    for (name, path) in paths {
        let title = format!("{} ranks, {name}: types, ops, lengths", rank.comm.size());
        ok &= part(rank.comm, &title, || rank.all_types(*path, counts));
    }
    ok
}

/// Runs a part and prints how it went: once for all ranks, or on each where it failed.
fn part(comm: &Comm, title: &str, body: impl FnOnce() -> anyhow::Result<()>) -> bool {
    let began = Instant::now();
    match body() {
        Err(error) if error.is::<NotHere>() => {
            if comm.rank() == 0 {
                println!("skip {title}: {error}");
            }
            true
        }
        Err(error) => {
            println!("FAIL {title}, rank {}: {error:#}", comm.rank());
            false
        }
        Ok(()) => {
            if comm.rank() == 0 {
                println!("ok   {title} ({} ms)", began.elapsed().as_millis());
            }
            true
        }
    }
}

/// Why a part is not tried, on any rank: this machine does not have what it takes.
#[derive(Debug)]
struct NotHere(String);

impl std::fmt::Display for NotHere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotHere {}

/// prun ends the others when a rank is gone; a case wants to see what the library says first.
#[expect(unsafe_code, reason = "signals")]
fn outlive() {
    // SAFETY: ignoring runs no code of ours.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

/// Ends this rank as `kill -9` would.
#[expect(unsafe_code, reason = "signals")]
fn die() {
    // SAFETY: no preconditions.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

const COUNTS: &[usize] = &[1, 2, 3, 7, 33, 1000, 4097, 70_001];
const BIG: &[usize] = &[3_000_001];

const PATHS: &[(&str, Option<Path>)] = &[
    ("auto", None),
    ("ll", Some(Path::Ll)),
    ("push", Some(Path::Push)),
    ("copy", Some(Path::Copy)),
    ("ring", Some(Path::Ring)),
];
