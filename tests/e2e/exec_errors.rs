//! A program that cannot be started is explained once, with the shell's exit code.

use std::fs;
use std::path::Path;

use tests::{Ended, Prun, Scratch};

fn start(directory: &Path, program: &str) -> Ended {
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    Prun::new().ranks(2).program([program]).dir(directory).env("PATH", path).run()
}

/// Runs `name` by its relative and absolute path and through PATH.
fn start_in_each_way(scratch: &Scratch, name: &str) -> [Ended; 3] {
    let absolute = scratch.join(name).display().to_string();
    [start(scratch.path(), &format!("./{name}")), start(scratch.path(), &absolute), start(scratch.path(), name)]
}

#[track_caller]
fn expect_one_error(ended: &Ended, code: i32, part: &str) {
    ended.expect_code(code).expect_message(part).expect_message("try: ");
    assert_eq!(ended.err().lines().filter(|line| line.starts_with("error: ")).count(), 1, "not once:\n{}", ended.err());
    assert_eq!(ended.err().matches("cause: ").count(), 1, "not once:\n{}", ended.err());
}

// A08
#[test]
fn a_missing_interpreter_is_named() {
    let scratch = Scratch::new();
    scratch.file("b.sh", b"#!/bin/nonexistent\necho hi\n", 0o755);
    for ended in start_in_each_way(&scratch, "b.sh") {
        expect_one_error(&ended, 127, "/bin/nonexistent");
    }
}

// A08
#[test]
fn windows_line_ends_are_shown() {
    let scratch = Scratch::new();
    scratch.file("crlf.sh", b"#!/bin/sh\r\necho hi\r\n", 0o755);
    expect_one_error(&start(scratch.path(), "./crlf.sh"), 127, "/bin/sh\\r");
}

// A08
#[test]
fn a_missing_program_is_127_and_one_that_may_not_run_is_126() {
    let scratch = Scratch::new();
    scratch.file("e.sh", b"#!/bin/sh\necho hi\n", 0o644);
    expect_one_error(&start(scratch.path(), "./nosuch"), 127, "./nosuch");
    expect_one_error(&start(scratch.path(), "nosuch-anywhere"), 127, "nosuch-anywhere");
    expect_one_error(&start(scratch.path(), "./e.sh"), 126, "not executable");
    expect_one_error(&start(scratch.path(), "e.sh"), 126, "not executable");
    expect_one_error(&start(scratch.path(), "/tmp"), 126, "directory");
    expect_one_error(&start(scratch.path(), "./e.sh/x"), 127, "not a directory");
}

// A09
#[test]
fn a_text_without_a_first_line_for_the_kernel_runs_as_in_a_shell() {
    let scratch = Scratch::new();
    scratch.file("a.sh", b"echo hi $1\n", 0o755);
    scratch.file("g", b"", 0o755);
    for ended in start_in_each_way(&scratch, "a.sh") {
        ended.expect_code(0);
        assert_eq!(ended.out(), "hi\nhi\n");
    }
    for ended in start_in_each_way(&scratch, "g") {
        ended.expect_code(0);
        assert_eq!(ended.out(), "");
    }
}

// A09
#[test]
fn a_damaged_or_foreign_binary_is_never_fed_to_a_shell() {
    let scratch = Scratch::new();
    let noise: Vec<u8> = (0..300u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect();
    scratch.file("f.bin", &noise, 0o755);
    for ended in start_in_each_way(&scratch, "f.bin") {
        expect_one_error(&ended, 126, "exec format error");
    }
    // The head of a program for 64-bit ARM, or for x86 where this is ARM.
    let machine = if cfg!(target_arch = "aarch64") { 62u8 } else { 183 };
    let mut foreign = vec![0u8; 120];
    foreign[..20].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, machine, 0]);
    foreign[20] = 1;
    scratch.file("foreign", &foreign, 0o755);
    for ended in start_in_each_way(&scratch, "foreign") {
        expect_one_error(&ended, 126, "exec format error");
        ended.expect_message(if machine == 183 { "aarch64" } else { "x86_64" });
    }
}

#[test]
fn when_a_later_rank_cannot_start_the_first_ones_are_ended() {
    let ended = Prun::new().options(["-n", "2", "sleep", "300", ":", "-n", "1", "./nosuch"]).run();
    ended.expect_code(127).expect_message("./nosuch").expect_message("rank 2 could not be started");
}

#[test]
fn a_directory_that_ranks_cannot_enter_is_named() {
    let scratch = Scratch::new();
    let ended = Prun::new().ranks(2).option("--wdir").option(scratch.join("gone")).program(["true"]).run();
    expect_one_error(&ended, 125, "gone");
}

#[test]
fn a_file_that_is_still_being_written_is_named_so() {
    let scratch = Scratch::new();
    fs::copy("/bin/true", scratch.join("busy")).expect("a copy");
    let open = fs::OpenOptions::new().append(true).open(scratch.join("busy")).expect("our own");
    let ended = start(scratch.path(), "./busy");
    drop(open);
    // Some kernels run a file that is open for writing.
    if ended.code() != 0 {
        expect_one_error(&ended, 126, "open for writing");
    }
}
