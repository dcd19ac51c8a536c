//! Who reads prun's standard input, and that every byte arrives once.

use std::fs::File;
use std::process::Command;

use tests::{Prun, Scratch, built, eventually, quoted};

/// So many numbered lines.
fn lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| format!("line {number:08} {}\n", "x".repeat(35)).into_bytes()).collect()
}

fn sum(bytes: &[u8]) -> String {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("bytes"), bytes).expect("a file");
    let output = Command::new("sha256sum")
        .stdin(File::open(scratch.join("bytes")).expect("our own"))
        .output()
        .expect("sha256sum");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Rank 0 gives the sum of its input, the others the number of bytes they got.
const SUM: &str = "if [ $PRUN_RANK = 0 ]; then sha256sum; else echo rank $PRUN_RANK: $(wc -c); fi";

// B04
#[test]
fn rank_0_gets_every_byte_of_a_file_or_pipe_and_the_others_none() {
    let scratch = Scratch::new();
    for count in [2064, 13_000] {
        let bytes = lines(count);
        std::fs::write(scratch.join("big"), &bytes).expect("a file");
        let expected = [sum(&bytes).trim_end().to_owned(), "rank 1: 0".to_owned()];
        let from_pipe = Prun::new().ranks(2).stdin_bytes(bytes).sh(SUM).run();
        let from_file = Prun::new().ranks(2).stdin(File::open(scratch.join("big")).expect("our own")).sh(SUM).run();
        for ended in [from_pipe, from_file] {
            ended.expect_code(0);
            assert_eq!(ended.sorted_lines(), expected);
        }
    }
}

// B04
#[test]
fn a_slow_reader_gets_everything_too() {
    let bytes = lines(2064);
    let python = "import os, time, hashlib\nh = hashlib.sha256(); n = 0\nwhile True:\n b = os.read(0, 1000)\n if not b: break\n h.update(b); n += b.count(b'\\n'); time.sleep(0.002)\nprint(h.hexdigest(), n)";
    for to in ["rank0", "all"] {
        let ended = Prun::new()
            .ranks(2)
            .options(["--stdin", to])
            .stdin_bytes(bytes.clone())
            .program(["python3", "-c", python])
            .run();
        ended.expect_code(0);
        let whole = format!("{} 2064", sum(&bytes).split(' ').next().unwrap_or_default());
        let seen = ended.out().lines().filter(|line| *line == whole).count();
        assert_eq!(seen, if to == "all" { 2 } else { 1 }, "{}", ended.out());
    }
}

// B04
#[test]
fn a_rank_that_does_not_read_harms_nobody() {
    for to in ["rank0", "all", "1"] {
        let ended = Prun::new().ranks(2).options(["--stdin", to]).stdin_bytes(lines(13_000)).program(["true"]).run();
        ended.expect_code(0);
        assert_eq!(ended.err(), "");
    }
}

// B04
#[test]
fn no_input_at_all_is_the_end_of_it() {
    let ended = Prun::new().ranks(2).sh("wc -c").run();
    assert_eq!(ended.expect_code(0).out(), "0\n0\n");
    let ended = Prun::new().under(["sh", "-c", "exec \"$@\" <&-", "sh"]).ranks(2).sh("wc -c").run();
    assert_eq!(ended.expect_code(0).out(), "0\n0\n");
}

#[test]
fn any_rank_or_all_or_none_can_be_the_reader() {
    let script = "echo $PRUN_RANK: $(cat)";
    let run = |to: &str| Prun::new().ranks(3).options(["--stdin", to]).stdin_bytes("text\n").sh(script).run();
    assert_eq!(run("2").expect_code(0).sorted_lines(), ["0:", "1:", "2: text"]);
    assert_eq!(run("all").expect_code(0).sorted_lines(), ["0: text", "1: text", "2: text"]);
    assert_eq!(run("none").expect_code(0).sorted_lines(), ["0:", "1:", "2:"]);
    assert_eq!(run("rank0").expect_code(0).sorted_lines(), ["0: text", "1:", "2:"]);
}

#[test]
fn all_get_every_byte_of_much_input() {
    let bytes = lines(13_000);
    let ended = Prun::new().ranks(3).options(["--stdin", "all"]).stdin_bytes(bytes.clone()).sh("sha256sum").run();
    assert_eq!(ended.expect_code(0).out(), sum(&bytes).repeat(3));
}

#[test]
fn a_loop_over_lines_keeps_the_lines_that_no_rank_read() {
    let scratch = Scratch::new();
    scratch.file("list", b"one\ntwo\nthree\n", 0o644);
    let body =
        format!("while read word; do {} -n 2 sh -c \"echo $word \\$PRUN_RANK\"; done < list", quoted(built("prun")));
    let output = Command::new("sh").args(["-c", &body]).current_dir(scratch.path()).output().expect("sh");
    let mut lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one 0", "one 1", "three 0", "three 1", "two 0", "two 1"]);
    // And from a pipe.
    let output = Command::new("sh")
        .args(["-c", &body.replace("< list", "").replace("while", "cat list | while")])
        .current_dir(scratch.path())
        .output()
        .expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 6);
}

#[test]
fn input_that_comes_later_reaches_a_rank_that_waits_for_it() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let job = Prun::new().ranks(2).stdin(reader).sh("echo ready; cat; echo end $PRUN_RANK").start();
    job.expect_output("end 1", 1);
    std::io::Write::write_all(&mut &writer, b"first\n").expect("room");
    job.expect_output("first", 1);
    std::io::Write::write_all(&mut &writer, b"second\n").expect("room");
    job.expect_output("second", 1);
    drop(writer);
    job.expect_output("end 0", 1);
    job.wait().expect_code(0);
}

#[test]
fn with_a_terminal_of_its_own_a_rank_still_gets_its_input_and_the_end() {
    let ended = Prun::new().ranks(2).options(["--pty"]).stdin_bytes("hello\n").sh("stty -echo; cat; echo end").run();
    ended.expect_code(0);
    assert_eq!(ended.out().matches("end\n").count(), 2, "{}", ended.out());
    assert!(ended.out().contains("hello\n"), "{}", ended.out());
}

#[test]
fn a_rank_killed_while_it_reads_ends_the_job() {
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let job = Prun::new().ranks(2).options(["--stdin", "all"]).stdin(reader).program(["cat"]).start();
    let rank = job.rank(0);
    eventually("a reading rank", || (tests::name_of(rank).as_deref() == Some("cat")).then_some(()));
    tests::kill_now(rank);
    job.wait().expect_code(137);
}
