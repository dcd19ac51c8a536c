//! At a terminal: Ctrl-C, Ctrl-Z, a shell's job control, and ranks with terminals of their own.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::{Prun, Running, Scratch, Terminal, built, eventually, name_of, quoted, state_of};

fn is_stopped(pid: i32) -> bool {
    state_of(pid) == Some('T')
}

fn wait_until_stopped(pid: i32) {
    eventually("a stopped process", || is_stopped(pid).then_some(()));
}

/// Stopped, or (as a shell that just starts a command) held up by a child that is.
fn stands_still(pid: i32) -> bool {
    matches!(state_of(pid), Some('T' | 'D'))
}

/// All ranks stand still by the time prun itself is stopped; one that had to be forced may take a moment to show it.
fn wait_until_all_are_stopped(job: &Running, ranks: &[i32]) {
    wait_until_stopped(job.pid());
    eventually("ranks that stand still", || ranks.iter().all(|&rank| stands_still(rank)).then_some(()));
    assert!(is_stopped(job.pid()));
}

fn wait_until_running(pid: i32) {
    eventually("a running process", || (!is_stopped(pid)).then_some(()));
}

/// Ranks that ignore the interrupt and burn CPU.
const STUBBORN: &str = "trap '' INT; echo ready; while :; do :; done";

fn on_terminal(prun: Prun, ready: usize) -> (Running, Terminal) {
    let (job, terminal) = prun.start_on_terminal();
    job.expect_output("ready", ready);
    (job, terminal)
}

#[test]
fn ctrl_c_ends_ranks_that_do_not_mind() {
    let (job, terminal) = on_terminal(Prun::new().ranks(4).sh("echo ready; exec sleep 300"), 4);
    terminal.interrupt();
    job.wait().expect_code(130).expect_message("stopped by SIGINT");
}

// A01
#[test]
fn ctrl_c_twice_ends_ranks_that_ignore_it() {
    let (job, terminal) = on_terminal(Prun::new().ranks(4).sh(STUBBORN), 4);
    terminal.interrupt();
    // The second only counts as one once the first was taken.
    std::thread::sleep(Duration::from_millis(300));
    terminal.interrupt();
    job.wait().expect_code(130);
}

// A01
#[test]
fn ctrl_c_five_times_ends_ranks_that_ignore_it() {
    let (job, terminal) = on_terminal(Prun::new().ranks(4).options(["--grace", "2s"]).sh(STUBBORN), 4);
    for _ in 0..5 {
        terminal.interrupt();
    }
    job.wait().expect_code(130);
}

// A01
#[test]
fn ctrl_c_five_times_ends_ranks_that_do_not_mind() {
    let (job, terminal) = on_terminal(Prun::new().ranks(4).sh("echo ready; while :; do :; done"), 4);
    for _ in 0..5 {
        terminal.interrupt();
    }
    job.wait().expect_code(130);
}

// A06
#[test]
fn ctrl_z_stops_the_ranks_and_then_prun_and_both_go_on_afterwards() {
    let script = "i=0; while :; do i=$((i+1)); echo tick $i; [ $i = 1 ] && echo ready; sleep 0.05; done";
    let (job, terminal) = on_terminal(Prun::new().ranks(2).sh(script), 2);
    let ranks = [job.rank(0), job.rank(1)];
    for _ in 0..3 {
        terminal.suspend();
        wait_until_all_are_stopped(&job, &ranks);
        job.signal(Signal::SIGCONT);
        wait_until_running(job.pid());
        ranks.into_iter().for_each(wait_until_running);
        let ticks = job.output_so_far().matches("tick").count();
        job.expect_output("tick", ticks + 4);
    }
    terminal.interrupt();
    job.wait().expect_code(130);
}

// A06
#[test]
fn ranks_that_ignore_ctrl_z_are_stopped_all_the_same() {
    let (job, terminal) = on_terminal(Prun::new().ranks(2).sh("trap '' TSTP; echo ready; while :; do :; done"), 2);
    let ranks = [job.rank(0), job.rank(1)];
    terminal.suspend();
    wait_until_all_are_stopped(&job, &ranks);
    job.signal(Signal::SIGCONT);
    ranks.into_iter().for_each(wait_until_running);
    terminal.interrupt();
    job.wait().expect_code(130);
}

// A06
#[test]
fn time_while_stopped_counts_toward_no_limit() {
    let limit = Duration::from_secs(3);
    let (job, terminal) =
        on_terminal(Prun::new().ranks(1).options(["--timeout", "3s"]).sh("echo ready; exec sleep 300"), 1);
    terminal.suspend();
    wait_until_stopped(job.pid());
    let stop = Duration::from_secs(4);
    std::thread::sleep(stop);
    job.signal(Signal::SIGCONT);
    let ended = job.wait();
    ended.expect_code(124);
    assert!(ended.took >= limit + stop - Duration::from_millis(500), "{:?}", ended.took);
}

// A06
#[test]
fn a_termination_ends_a_job_that_ctrl_z_stopped() {
    let (job, terminal) = on_terminal(Prun::new().ranks(2).sh("echo ready; exec sleep 300"), 2);
    terminal.suspend();
    wait_until_stopped(job.pid());
    job.signal(Signal::SIGTERM);
    // prun sees it once it runs again, as any stopped program does.
    job.signal(Signal::SIGCONT);
    job.wait().expect_code(143);
}

// A06: the launch window.
#[test]
fn a_stop_at_any_moment_of_the_start_hangs_nothing() {
    let delays_ms = (0..=60).step_by(3).chain((70..=500).step_by(86));
    for delay in delays_ms {
        let job = Prun::new().ranks(2).bare().sh("sleep 0.05").start();
        std::thread::sleep(Duration::from_millis(delay));
        let pid = Pid::from_raw(job.pid());
        // It may have ended; until it is waited for, its number stays its own.
        let _ = kill(pid, Signal::SIGTSTP);
        std::thread::sleep(Duration::from_millis(20));
        let mut job = job;
        // A stop that is still on its way would outlive one SIGCONT, for prun as for any program.
        eventually("the end of a job that is continued", || {
            let _ = kill(pid, Signal::SIGCONT);
            std::thread::sleep(Duration::from_millis(5));
            job.has_ended().then_some(())
        });
        job.wait().expect_code(0);
    }
}

#[test]
fn a_shell_with_job_control_stops_continues_and_interrupts_a_job() {
    let script = scratch_ticker();
    let (terminal, slave) = Terminal::open();
    let copy = || slave.try_clone().expect("a descriptor");
    let mut shell = Command::new("setsid");
    shell.args(["--ctty", "bash", "--norc", "--noprofile", "-i"]).env("PS1", "$ ").env("TERM", "dumb");
    shell.stdin(copy()).stdout(copy()).stderr(copy());
    let mark = tests::new_mark();
    shell.env("PRUN_TEST_MARK", &mark);
    let mut shell = shell.spawn().expect("bash");
    drop(slave);
    let screen = terminal.screen();
    screen.expect("$ ", 1);
    terminal.keys(&format!("{} -n 2 {}\n", quoted(built("prun")), quoted(script.join("tick.sh"))));
    screen.expect("tick 2", 2);
    terminal.suspend();
    screen.expect("Stopped", 1);
    let ticks = screen.count("tick ");
    terminal.keys("fg\n");
    screen.expect("tick ", ticks + 4);
    terminal.suspend();
    screen.expect("Stopped", 2);
    // In the background it goes on too, and may write.
    let ticks = screen.count("tick ");
    terminal.keys("bg\n");
    screen.expect("tick ", ticks + 4);
    terminal.keys("fg\n");
    let ticks = screen.count("tick ");
    screen.expect("tick ", ticks + 4);
    terminal.interrupt();
    screen.expect("stopped by SIGINT", 1);
    terminal.keys("echo code-$?-\n");
    screen.expect("code-130-", 1);
    terminal.keys("exit\n");
    shell.wait().expect("our child");
    tests::assert_nothing_left(&mark);
}

fn scratch_ticker() -> Scratch {
    let scratch = Scratch::new();
    scratch.script("tick.sh", "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done");
    scratch
}

#[test]
fn what_is_typed_reaches_rank_0_and_ctrl_d_ends_its_input() {
    let (job, terminal) = on_terminal(
        Prun::new().ranks(2).sh(
            "echo ready; while read line; do echo rank $PRUN_RANK got $line; done; echo rank $PRUN_RANK saw the end",
        ),
        2,
    );
    job.expect_output("rank 1 saw the end", 1);
    terminal.keys("hello\n");
    job.expect_output("rank 0 got hello", 1);
    terminal.keys("\x04");
    job.expect_output("rank 0 saw the end", 1);
    job.wait().expect_code(0);
}

#[test]
fn a_hangup_of_the_terminal_ends_the_job() {
    let (job, terminal) = on_terminal(Prun::new().ranks(2).sh("echo ready; exec sleep 300"), 2);
    drop(terminal);
    let keep_open = job.pid();
    // The reader of the test holds the terminal open too, so the hangup itself is sent by hand.
    kill(Pid::from_raw(keep_open), Signal::SIGHUP).expect("prun is ours");
    job.wait().expect_code(129);
}

// B08
#[test]
fn ranks_see_no_terminal_unless_they_are_given_one() {
    let show = "import sys; print('tty', sys.stdout.isatty(), sys.stderr.isatty(), flush=True)";
    let (job, _terminal) = Prun::new().ranks(1).program(["python3", "-c", show]).start_on_terminal();
    job.expect_output("tty False False", 1);
    job.wait().expect_code(0);
    let ended = Prun::new().ranks(2).option("--pty").program(["python3", "-c", show]).run();
    ended.expect_code(0);
    assert_eq!(ended.out(), "tty True True\ntty True True\n");
    let ended = Prun::new().ranks(2).option("--pty=1").program(["python3", "-c", show]).run();
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), ["tty False False", "tty True True"]);
}

// B08: what is written is seen at once, while the rank goes on.
#[test]
fn with_a_terminal_of_its_own_a_rank_s_output_is_live() {
    let python = "import time; print('start'); time.sleep(300)";
    let job = Prun::new().ranks(2).option("--pty").program(["python3", "-c", python]).start();
    job.expect_output("start\n", 2);
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143);
    let job = Prun::new().ranks(2).env("PYTHONUNBUFFERED", "1").program(["python3", "-c", python]).start();
    job.expect_output("start\n", 2);
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143);
}

// B08
#[test]
fn no_escape_code_comes_that_a_rank_did_not_write() {
    let (job, _terminal) = Prun::new()
        .ranks(2)
        .option("-l")
        .env("TERM", "xterm-256color")
        .env("NO_COLOR", "1")
        .sh("echo $TERM $NO_COLOR; ls --color=auto -d /")
        .start_on_terminal();
    let ended = job.wait();
    ended.expect_code(0);
    assert!(
        ended.out().contains("[0] xterm-256color 1") && ended.out().contains("[1] xterm-256color 1"),
        "{}",
        ended.out()
    );
    assert!(!ended.stdout.contains(&0x1b), "{:?}", ended.out());
    let scratch = Scratch::new();
    let ended = Prun::new()
        .ranks(1)
        .options(["-o", "logs"])
        .dir(scratch.path())
        .sh("printf '\\033[1mbold\\n'; ls --color=auto -d /")
        .run();
    ended.expect_code(0);
    assert_eq!(scratch.read("logs/rank-0.out"), "\u{1b}[1mbold\n/\n");
}

#[test]
fn a_rank_s_terminal_has_the_size_of_the_user_s_and_follows_it() {
    let script = "trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.02; done";
    let (job, terminal) = on_terminal(Prun::new().ranks(2).option("--pty").sh(script), 2);
    job.expect_output("24 80", 2);
    terminal.resize(40, 132);
    job.expect_output("40 132", 2);
    terminal.interrupt();
    job.wait().expect_code(130);
}

#[test]
fn nothing_is_left_with_terminals_either() {
    let (job, _terminal) = on_terminal(
        Prun::new().ranks(2).options(["--pty", "--grace", "300ms"]).sh("setsid sleep 300 & echo ready; wait"),
        2,
    );
    let rankd = job.rankd();
    assert_eq!(name_of(rankd).as_deref(), Some("rankd"));
    tests::kill_now(rankd);
    job.wait().expect_code(125);
    let (job, _terminal) = on_terminal(
        Prun::new().ranks(2).options(["--pty", "--grace", "300ms"]).sh("setsid sleep 300 & echo ready; wait"),
        2,
    );
    tests::kill_now(job.pid());
    job.wait();
}
