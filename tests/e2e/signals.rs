//! Which signals end the job, which are passed on, and what ranks start with. prun itself dies of none.

use nix::sys::signal::Signal::{self, *};
use tests::{Ended, Prun, Running, Scratch, built, eventually, parent_of, quoted, state_of, status_field};

/// Two ranks that tell what they get, both ready.
fn witnesses(options: &[&str]) -> Running {
    let witness = built("witness").into_os_string();
    let words = [witness].into_iter().chain(options.iter().map(Into::into));
    let job = Prun::new().ranks(2).options(["--grace", "60s"]).program(words).start();
    job.expect_output("ready (pid ", 2);
    job
}

fn ends_with(signal: Signal, code: i32) -> Ended {
    let exit = format!("{signal}=0");
    let job = witnesses(&["--exit-on", &exit]);
    job.signal(signal);
    job.expect_output(&format!("got {signal}"), 2);
    let ended = job.wait();
    ended.expect_code(code).expect_message(&format!("stopped by {signal}"));
    ended
}

#[test]
fn an_interrupt_ends_the_job_with_130() {
    ends_with(SIGINT, 130);
}

#[test]
fn a_termination_ends_the_job_with_143() {
    ends_with(SIGTERM, 143);
}

#[test]
fn a_hangup_ends_the_job_with_129() {
    ends_with(SIGHUP, 129);
}

#[test]
fn a_quit_ends_the_job_with_131() {
    ends_with(SIGQUIT, 131);
}

#[test]
fn every_other_signal_reaches_each_rank_and_ends_nothing() {
    let mut job = witnesses(&["--exit-on", "SIGTERM=0"]);
    for signal in [SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH, SIGCONT, SIGVTALRM, SIGPROF, SIGIO, SIGPWR] {
        job.signal(signal);
        job.expect_output(&format!("got {signal}\n"), 2);
    }
    for number in [libc::SIGRTMIN(), 40, libc::SIGRTMAX()] {
        job.signal_number(number);
        job.expect_output(&format!("got {number}\n"), 2);
    }
    // Of prun's own pipes and sockets: nobody means the ranks.
    job.signal(SIGPIPE);
    job.signal(SIGURG);
    job.signal(SIGCHLD);
    assert!(!job.has_ended());
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

#[test]
fn a_second_interrupt_kills_ranks_that_ignore_the_first() {
    let job = witnesses(&[]);
    job.signal(SIGINT);
    job.expect_output("got SIGINT", 2);
    job.signal(SIGINT);
    let ended = job.wait();
    ended.expect_code(130).expect_message("stopped by SIGINT").expect_message("were killed");
}

#[test]
fn five_quick_interrupts_end_the_job_once() {
    // Some of the five may come together and count as one: then the grace period does it.
    let job = Prun::new().ranks(2).options(["--grace", "1s"]).program([built("witness")]).start();
    job.expect_output("ready (pid ", 2);
    for _ in 0..5 {
        job.signal(SIGINT);
    }
    job.wait().expect_code(130);
}

#[test]
fn an_interrupt_and_then_a_termination_kill() {
    let job = witnesses(&[]);
    job.signal(SIGINT);
    job.expect_output("got SIGINT", 2);
    job.signal(SIGTERM);
    job.wait().expect_code(130);
}

#[test]
fn an_ignored_interrupt_becomes_a_termination_and_then_a_kill() {
    let script = "trap '' INT; trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done";
    let job = Prun::new().ranks(2).options(["--grace", "2s"]).sh(script).start();
    job.expect_output("ready", 2);
    job.signal(SIGINT);
    job.expect_output("got TERM", 2);
    job.wait().expect_code(130).expect_message("ranks 0-1 did not end within 2 s and were killed");
}

// A03
#[test]
fn ranks_that_ignore_termination_are_killed_after_the_grace_period_and_the_first_failure_stays_the_cause() {
    let script = "[ $PRUN_RANK = 0 ] && { read x < go; exit 7; }; trap '' TERM; echo ready; while :; do :; done";
    let scratch = Scratch::new();
    let go = scratch.join("go");
    assert!(tests::succeeds(&["mkfifo", &go.display().to_string()]));
    let job = Prun::new().ranks(8).options(["--grace", "500ms"]).sh(script).dir(scratch.path()).start();
    job.expect_output("ready", 7);
    std::fs::write(&go, "x\n").expect("rank 0 reads");
    let ended = job.wait();
    ended
        .expect_code(7)
        .expect_message("rank 0 failed first (exit 7)")
        .expect_message("ranks 1-7 did not end within 0.50 s and were killed");
}

#[test]
fn a_termination_ends_a_job_whose_ranks_are_stopped() {
    let job = Prun::new().ranks(2).sh("echo ready; exec sleep 300").start();
    job.expect_output("ready", 2);
    let ranks = [job.rank(0), job.rank(1)];
    for rank in ranks {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(rank), SIGSTOP).expect("a rank");
        eventually("a stopped rank", || (state_of(rank) == Some('T')).then_some(()));
    }
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

#[test]
fn signals_reach_what_a_wrapper_started_too() {
    let scratch = Scratch::new();
    let wrapper = scratch.script(
        "wrap.sh",
        &format!("trap 'wait' USR1 TERM; {} --exit-on SIGTERM=0 & wait; wait; wait", quoted(built("witness"))),
    );
    let job = Prun::new().ranks(2).program([wrapper]).start();
    job.expect_output("ready (pid", 2);
    job.signal(SIGUSR1);
    job.expect_output("got SIGUSR1", 2);
    job.signal(SIGTERM);
    job.expect_output("got SIGTERM", 2);
    job.wait().expect_code(143);
}

#[test]
fn a_signal_in_the_first_moment_is_not_lost() {
    // Blocked from its first instruction on or not yet running: either way TERM ends it and leaves nothing.
    for pause_us in [0u64, 200, 1000, 3000, 5000, 8000, 12_000, 20_000] {
        let job = Prun::new().ranks(4).bare().program(["sleep", "300"]).start();
        std::thread::sleep(std::time::Duration::from_micros(pause_us));
        job.signal(SIGTERM);
        let code = job.wait().code();
        assert!(code == 143 || code == 1000 + SIGTERM as i32, "{code}");
    }
}

/// Signals 32 and 33 belong to the C library, which lets nobody change them and hands them on as it likes.
const OF_THE_C_LIBRARY: u64 = 0b11 << 31;

/// `SigBlk`, `SigIgn` and `SigCgt` of rank 0, which is a program that installs nothing.
fn masks(job: &Running) -> Vec<u64> {
    let rank = job.rank(0);
    eventually("the rank's own program", || (tests::name_of(rank).as_deref() == Some("sleep")).then_some(()));
    ["SigBlk", "SigIgn", "SigCgt"]
        .map(|field| {
            u64::from_str_radix(&status_field(rank, field).expect("a mask"), 16).expect("hex") & !OF_THE_C_LIBRARY
        })
        .to_vec()
}

#[test]
fn ranks_start_with_default_dispositions_and_an_empty_mask() {
    let job = Prun::new().ranks(1).program(["sleep", "300"]).start();
    assert_eq!(masks(&job), [0, 0, 0]);
    job.signal(SIGTERM);
    job.wait().expect_code(143);
    // Nor do they inherit what a shell ignores for its background commands, or a parent's mask.
    let python = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM}); os.execv(sys.argv[1], sys.argv[1:])";
    let job = Prun::new().ranks(1).under(["python3", "-c", python]).program(["sleep", "300"]).start();
    assert_eq!(masks(&job), [0, 0, 0]);
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

#[test]
fn nohup_keeps_hangups_ignored_in_prun_and_its_ranks() {
    let mut job = Prun::new().ranks(1).under(["nohup"]).program(["sleep", "300"]).start();
    assert_eq!(masks(&job), [0, 1, 0], "only SIGHUP, which is bit 0");
    let rank = job.rank(0);
    job.signal(SIGHUP);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(rank), SIGHUP).expect("a rank");
    // Signals are dealt with in order, so the answer to this one comes after the hangup was taken or ignored.
    job.signal(SIGCONT);
    assert!(!job.has_ended() && tests::lives(rank));
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

#[test]
fn an_interrupt_is_passed_on_even_where_a_shell_made_prun_ignore_it() {
    // `prun … &` in a script ignores SIGINT; the job must still have a way to be asked.
    let job = Prun::new()
        .ranks(2)
        .under(["sh", "-c", "trap '' INT; exec \"$@\"", "sh"])
        .program([built("witness").as_os_str(), "--exit-on".as_ref(), "SIGTERM=0".as_ref()])
        .start();
    job.expect_output("ready (pid", 2);
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

#[test]
fn asking_rankd_itself_to_end_ends_the_job_in_order() {
    let job = witnesses(&["--exit-on", "SIGTERM=0"]);
    let rankd = job.rankd();
    assert_eq!(parent_of(rankd), Some(job.keeper()));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(rankd), SIGTERM).expect("rankd");
    job.wait().expect_code(143).expect_message("rankd was asked to end (SIGTERM)");
}
