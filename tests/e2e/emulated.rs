//! libcomm's paths between GPUs on a machine that has none: the cases of `prun selftest` on emulated GPUs
//! (`tests/emulator`), whose kernels are the same sources, compiled for this CPU.
//!
//! What real GPUs do differently is not tried here: their order of memory accesses, their speed, and what the driver does
//! with launches that wait for each other. `prun selftest` tries that.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tests::{Ended, Prun, built};

/// The folder with the emulated driver, made once.
fn driver() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("emulator/build.sh");
        let made = Command::new(script).arg(&folder).status().expect("a shell");
        assert!(made.success(), "the emulator cannot be made");
        folder
    })
}

/// Kernels that wait keep CPUs busy, so that cases wait for each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a case may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(400);

/// Runs a case with that many ranks; what they printed. The options are those of its job in `launcher/src/selftest/cases.rs`.
fn case(word: &str, ranks: u32, options: &[&str]) -> Ended {
    let _alone = alone();
    let path = format!("LD_LIBRARY_PATH={}", driver().display());
    let mut job = Prun::new()
        .ranks(ranks)
        .options(["--map-by", "none", "-x", &path])
        .options(options)
        .without_env("CUDA_VISIBLE_DEVICES")
        .without_env("PRUN_P2P")
        .without_env("PRUN_PROTO")
        .program([built("prun").as_os_str(), OsStr::new("@selftest-rank"), OsStr::new(word)])
        .start();
    let deadline = Instant::now() + LIMIT;
    while !job.has_ended() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    job.wait()
}

/// All of its parts went well, and there was at least one; the job ends with that code.
fn goes_well(word: &str, ranks: u32, options: &[&str], code: i32) {
    let ended = case(word, ranks, options);
    ended.expect_code(code);
    let out = ended.out();
    assert!(out.contains("ok   ") && !out.contains("FAIL"), "{out}");
}

fn passes(word: &str, ranks: u32, options: &[&str]) {
    goes_well(word, ranks, options, 0);
}

/// The same with two ranks, one of which dies in it.
fn passes_though_killed(word: &str, options: &[&str]) {
    goes_well(word, 2, options, 128 + 9);
}

/// Emulated threads change over by instructions of this CPU.
fn skipped() -> bool {
    let skip = !cfg!(target_arch = "x86_64");
    if skip {
        println!("SKIP: the emulator is for x86-64");
    }
    skip
}

#[test]
fn two_gpus_types_operations_paths_lengths_graphs_streams() {
    if !skipped() {
        passes("pair", 2, &[]);
    }
}

#[test]
fn the_same_through_the_hosts_memory() {
    if !skipped() {
        passes("pair", 2, &["-x", "PRUN_P2P=off"]);
    }
}

#[test]
fn ranks_that_share_a_gpu() {
    if !skipped() {
        passes("pair", 2, &["-x", "EMULATED_GPUS=1"]);
        passes("pair", 4, &["-x", "EMULATED_GPUS=2"]);
    }
}

#[test]
fn calls_that_differ_are_told_to_both() {
    if !skipped() {
        passes("mismatch", 2, &[]);
        passes("mismatch-graph", 2, &[]);
        passes("stale", 2, &[]);
    }
}

#[test]
fn damaged_data_is_found_and_a_late_rank_harms_nothing() {
    if !skipped() {
        passes("damaged", 2, &["--verify", "-x", "PRUN_FAULT=flip:rank=1,call=3,chunk=17,bit=8000"]);
        passes("damaged", 2, &["--verify", "-x", "PRUN_FAULT=flip:rank=0,call=3,chunk=2,bit=5,stage=result"]);
        let dropped = ["-x", "PRUN_FAULT=drop:rank=0,call=3,chunk=17", "-x", "PRUN_COMM_TIMEOUT_MS=5000"];
        passes("damaged", 2, &[&["--verify"], &dropped[..]].concat());
        passes("refused", 2, &["-x", "PRUN_FAULT=refuse:rank=1"]);
        passes("late", 2, &[]);
    }
}

#[test]
#[ignore = "minutes: make soak"]
fn many_ranks_and_trials() {
    if skipped() {
        return;
    }
    passes("pair", 2, &["--verify"]);
    passes("pair", 4, &["-x", "EMULATED_GPUS=4"]);
    passes("virtual", 1, &[]);
    passes("mismatches", 1, &[]);
    // Each warp has one unit at most, as on a real GPU: where it has several, who lost one stops sending, and the time of either
    // may end first.
    passes("faults", 1, &["-x", "EMULATED_MULTIPROCESSORS=64"]);
    for protocol in ["ll", "copy", "ring", "zero-copy"] {
        passes_though_killed("killed", &["-x", &format!("PRUN_PROTO={protocol}")]);
    }
    passes_though_killed("killed", &["-x", "PRUN_P2P=off"]);
    passes_though_killed("killed-graph", &[]);
}
