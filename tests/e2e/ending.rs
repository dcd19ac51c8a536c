//! How a job ends when it was told how: limits, warnings, restarts, going on after a failure.

use std::time::Duration;

use nix::sys::signal::Signal::{SIGINT, SIGTERM};
use tests::{Prun, Scratch, built, eventually, lives};

#[test]
fn the_time_limit_ends_the_job_with_124() {
    let ended = Prun::new().ranks(2).options(["--timeout", "500ms"]).program(["sleep", "300"]).run();
    ended
        .expect_code(124)
        .expect_message("the time limit of 0.50 s is over")
        .expect_message("ranks 0-1 were then stopped (SIGTERM)");
    assert!(ended.took >= Duration::from_millis(500));
}

#[test]
fn the_time_limit_kills_ranks_that_ignore_it() {
    let ended = Prun::new()
        .ranks(2)
        .options(["--timeout", "300ms", "--grace", "300ms"])
        .sh("trap '' TERM; while :; do sleep 0.1; done")
        .run();
    ended.expect_code(124).expect_message("were killed");
}

#[test]
fn a_job_that_is_done_before_its_limit_is_done() {
    let ended = Prun::new().ranks(2).options(["--timeout", "10m"]).program(["true"]).run();
    ended.expect_code(0);
    assert_eq!(ended.err(), "");
}

#[test]
fn a_warning_comes_before_the_limit() {
    let job = Prun::new()
        .ranks(2)
        .options(["--timeout", "4s", "--signal", "USR1@3s"])
        .program([built("witness").as_os_str(), "--exit-on".as_ref(), "SIGTERM=0".as_ref()])
        .start();
    job.expect_output("ready", 2);
    job.expect_output("got SIGUSR1", 2);
    let ended = job.wait();
    ended.expect_code(124);
    let text = ended.out();
    assert_eq!(text.matches("got SIGTERM").count(), 2);
    assert!(text.find("got SIGUSR1") < text.find("got SIGTERM"), "{text}");
}

#[test]
fn a_rank_that_ends_well_on_the_warning_gives_0() {
    let ended = Prun::new()
        .ranks(2)
        .options(["--timeout", "60s", "--signal", "USR1@59s"])
        .program([built("witness").as_os_str(), "--exit-on".as_ref(), "SIGUSR1=0".as_ref()])
        .run();
    ended.expect_code(0);
}

#[test]
fn with_keep_going_the_others_finish_and_the_first_failure_gives_the_code() {
    for option in ["--keep-going", "--kill-on-fail=no"] {
        let scratch = Scratch::new();
        assert!(tests::succeeds(&["mkfifo", &scratch.join("go").display().to_string()]));
        let script = "[ $PRUN_RANK = 1 ] && exit 3; read x < go; echo $PRUN_RANK done";
        let job = Prun::new().ranks(3).option(option).dir(scratch.path()).sh(script).start();
        let rankd = job.rankd();
        let keep = [job.rank(0), job.rank(2)];
        eventually("the end of rank 1", || {
            let all = job.all();
            let children: Vec<_> = all.iter().filter(|&&pid| tests::parent_of(pid) == Some(rankd)).collect();
            (children.len() == 2).then_some(())
        });
        assert!(keep.into_iter().all(lives));
        let mut go = std::fs::OpenOptions::new().read(true).write(true).open(scratch.join("go")).expect("the pipe");
        std::io::Write::write_all(&mut go, b"x\nx\n").expect("room");
        let ended = job.wait();
        ended.expect_code(3).expect_message("rank 1 failed first (exit 3)");
        assert_eq!(ended.sorted_lines(), ["0 done", "2 done"]);
    }
}

#[test]
fn no_grace_kills_at_once() {
    let ended = Prun::new()
        .ranks(2)
        .options(["--grace", "0"])
        .sh("trap '' TERM; [ $PRUN_RANK = 0 ] && exit 3; while :; do :; done")
        .run();
    ended.expect_code(3);
}

#[test]
fn a_failed_job_is_started_again_as_often_as_asked() {
    let scratch = Scratch::new();
    let script = "echo start $PRUN_RESTART_COUNT rank $PRUN_RANK job $PRUN_JOB_ID; [ $PRUN_RANK = 1 ] && [ $PRUN_RESTART_COUNT -lt 2 ] && exit 5; exit 0";
    let ended = Prun::new()
        .ranks(2)
        .options(["--max-restarts", "3", "-o", "logs", "--tee"])
        .dir(scratch.path())
        .sh(script)
        .run();
    ended
        .expect_code(0)
        .expect_message("starting again in 1 s (restart 1 of 3)")
        .expect_message("starting again in 2 s (restart 2 of 3)");
    for start in 0..3 {
        assert!(ended.out().contains(&format!("start {start} rank 1")), "{}", ended.out());
    }
    // Every start is a job of its own, and the files hold all of them.
    let jobs: std::collections::BTreeSet<_> =
        ended.out().lines().filter_map(|line| Some(line.split_once(" job ")?.1.to_owned())).collect();
    assert_eq!(jobs.len(), 3, "{jobs:?}");
    assert_eq!(scratch.read("logs/rank-1.out").lines().count(), 3);
}

#[test]
fn after_the_last_restart_the_failure_is_the_result() {
    let ended =
        Prun::new().ranks(2).options(["--max-restarts", "1"]).sh("[ $PRUN_RANK = 0 ] && exit 6; sleep 300").run();
    ended.expect_code(6);
    assert_eq!(ended.err().matches("rank 0 failed first (exit 6)").count(), 2, "{}", ended.err());
}

#[test]
fn a_restart_is_not_made_for_an_interrupt_nor_during_one() {
    let job = Prun::new().ranks(2).options(["--max-restarts", "5"]).sh("echo ready; exec sleep 300").start();
    job.expect_output("ready", 2);
    job.signal(SIGTERM);
    let ended = job.wait();
    ended.expect_code(143);
    assert!(!ended.err().contains("starting again"), "{}", ended.err());
    let job = Prun::new().ranks(2).options(["--max-restarts", "5"]).sh("exit 5").start();
    job.expect_message("starting again in 2 s");
    job.signal(SIGINT);
    job.wait().expect_code(130).expect_message("not started again: stopped by SIGINT");
}

#[test]
fn restarts_work_with_input_and_terminals_of_their_own() {
    let ended = Prun::new()
        .ranks(2)
        .options(["--max-restarts", "1", "--pty", "--stdin", "all"])
        .stdin_bytes("word\n")
        .sh("[ $PRUN_RESTART_COUNT = 0 ] && exit 1; echo second")
        .run();
    ended.expect_code(0);
    assert_eq!(ended.out().matches("second").count(), 2);
}
