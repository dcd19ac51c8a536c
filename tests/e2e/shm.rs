//! Ranks that use libcomm: nothing they share has a name, mistakes become errors, and a death is told to all.

use std::process::Command;

use nix::sys::signal::Signal::SIGTERM;
use tests::{Prun, Running, Scratch, built, kill_now};

/// A rank's call failed; see the program `member`.
const CALL_FAILED: i32 = 9;

fn member(ranks: u32, words: &[&str]) -> Prun {
    let program = [built("member").into_os_string()].into_iter().chain(words.iter().map(Into::into));
    Prun::new().ranks(ranks).program(program)
}

/// The line of each rank that begins with `rank N` and then this.
fn lines_of<'a>(text: &'a str, after_rank: &str) -> Vec<&'a str> {
    text.lines()
        .filter(|line| {
            line.strip_prefix("rank ")
                .and_then(|rest| rest.split_once(after_rank))
                .is_some_and(|(rank, _)| rank.parse::<u32>().is_ok())
        })
        .collect()
}

#[test]
fn examples_run_and_check_their_results() {
    for (program, arguments) in
        [("hello", &[][..]), ("ring", &[]), ("allreduce", &["--count", "100003", "--iterations", "3"])]
    {
        for ranks in [1, 2, 5] {
            let words = [built(program).into_os_string()].into_iter().chain(arguments.iter().map(Into::into));
            Prun::new().ranks(ranks).program(words).run().expect_code(0);
        }
    }
}

#[test]
fn the_training_job_learns_to_read_digits_with_the_same_weights_everywhere() {
    let scratch = Scratch::new();
    // It checks its weights by itself, and ends with 1 if it recognises fewer.
    let words =
        [built("train").into_os_string()].into_iter().chain(["--epochs", "3", "--require", "90"].map(Into::into));
    let ended = Prun::new().ranks(4).dir(scratch.path()).program(words).run();
    ended.expect_code(0);
    assert_eq!(ended.out().matches(" %\n").count(), 3, "{}", ended.out());
}

#[test]
fn an_interrupted_training_saves_and_resumes() {
    let scratch = Scratch::new();
    let train = || [built("train").into_os_string(), "--epochs".into(), "100000".into()];
    let job = Prun::new().ranks(2).dir(scratch.path()).program(train()).start();
    job.expect_output(" %\n", 3);
    job.signal(SIGTERM);
    let ended = job.wait();
    ended.expect_code(143);
    assert!(scratch.join("train.checkpoint").exists(), "{}", ended.err());
    let job = Prun::new().ranks(2).dir(scratch.path()).program(train().into_iter().chain(["--resume".into()])).start();
    job.expect_output(" %\n", 3);
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}

// A04
#[test]
fn a_rank_that_ends_before_joining_makes_the_others_joining_fail() {
    let ended = member(2, &["absent", "1"]).options(["--grace", "60s"]).run();
    ended.expect_code(CALL_FAILED);
    let lines = ended.out();
    assert!(lines.starts_with("rank 0: init failed after "), "{lines}");
    assert!(lines.contains("rank 1 exited (status 0) before joining"), "{lines}");
}

fn ms(line: &str) -> u64 {
    line.split_once(" after ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no time: {line}"))
}

/// Ranks in the middle of AllReduce after AllReduce.
fn in_the_middle(ranks: u32, options: &[&str]) -> Running {
    let job = member(ranks, &["forever", "5000"]).options(options.iter().copied()).start();
    job.expect_output("ready", ranks as usize);
    job
}

#[test]
fn when_a_rank_is_killed_the_others_calls_name_it() {
    for victim in [0, 3] {
        // Nothing but the error ends the survivors.
        let job = in_the_middle(4, &["--keep-going"]);
        kill_now(job.rank(victim));
        let ended = job.wait();
        ended.expect_code(137).expect_message(&format!("rank {victim} failed first (SIGKILL)"));
        let text = ended.out();
        let survivors = lines_of(&text, ": all_reduce failed after ");
        assert_eq!(survivors.len(), 3, "{text}");
        for line in survivors {
            assert!(line.contains(&format!("rank {victim} ")), "{line}");
            assert!(ms(line) < 10_000, "{line}");
        }
    }
}

#[test]
fn the_last_calls_of_each_rank_are_shown_when_a_job_dies() {
    let job = in_the_middle(3, &[]);
    kill_now(job.rank(1));
    let ended = job.wait();
    ended
        .expect_code(137)
        .expect_message("last libcomm calls:")
        .expect_message("rank 1: call ")
        .expect_message(" allreduce sum f32 x 5000");
}

// A11 (a), in an AllReduce
#[test]
fn nothing_is_left_when_prun_or_rankd_is_killed_in_an_allreduce() {
    for victim in ["prun", "rankd", "prun-keeper"] {
        let job = in_the_middle(4, &["--grace", "300ms"]);
        kill_now(if victim == "prun" { job.pid() } else { job.process(victim) });
        job.wait();
    }
}

// D05
#[test]
fn a_rank_that_leaves_while_the_others_go_on_makes_their_calls_fail_by_name() {
    let ended = member(4, &["leave", "3", "10"]).options(["--keep-going"]).run();
    ended.expect_code(CALL_FAILED);
    let text = ended.out();
    // Leaving is a call like any other: the one that leaves alone learns that the others do not.
    assert!(text.contains("rank 3 left\n") || text.contains("rank 3: finalize failed after "), "{text}");
    let failed = lines_of(&text, ": all_reduce failed after ");
    assert_eq!(failed.len(), 3, "{text}");
    assert!(
        failed.iter().all(|line| line.contains("rank 3 has left") || line.contains("rank 3 made call 11 finalize")),
        "{text}"
    );
    assert!(!ended.err().contains("SIGBUS") && !ended.err().contains("SIGSEGV"), "{}", ended.err());
}

// E03
#[test]
fn calls_that_do_not_fit_together_are_errors_that_name_both() {
    for (kind, ranks, parts) in [
        ("count", 2, ["x 1000", "x 1001"]),
        ("one", 2, ["x 1000", "x 1"]),
        ("none", 2, ["x 1000", "x 0"]),
        ("type", 2, ["f32 x 1000", "i64 x 500"]),
        ("op", 2, ["sum", "max"]),
        ("ahead", 3, ["allreduce", "barrier"]),
        ("count", 4, ["x 1000", "x 1001"]),
    ] {
        let ended = member(ranks, &["mismatch", kind]).options(["--keep-going"]).run();
        ended.expect_code(CALL_FAILED);
        let text = ended.out();
        let found = lines_of(&text, ": found after ");
        assert_eq!(found.len(), ranks as usize, "{kind}: {text}");
        for line in found {
            assert!(parts.iter().all(|part| line.contains(part)), "{kind}: {line}");
        }
        let then = lines_of(&text, ": then: the communicator cannot be used any more: ");
        assert_eq!(then.len(), ranks as usize, "{kind}: {text}");
    }
}

// E03, what stays legal
#[test]
fn in_place_on_one_rank_and_not_on_another_is_no_mismatch() {
    let ended = member(3, &["mismatch", "place"]).run();
    ended.expect_code(0);
    assert_eq!(lines_of(&ended.out(), " fits").len(), 3, "{}", ended.out());
}

// E11
#[test]
fn an_average_is_over_the_ranks() {
    for ranks in [2, 4] {
        let ended = member(ranks, &["avg"]).run();
        ended.expect_code(0);
        assert_eq!(lines_of(&ended.out(), " done").len(), ranks as usize);
    }
}

// D01
#[test]
fn a_small_full_read_only_or_missing_shared_memory_directory_does_not_matter() {
    if !tests::may_mount() {
        println!("SKIP: this machine lets nobody mount");
        return;
    }
    let scratch = Scratch::new();
    let dev = scratch.join("dev").display().to_string();
    let without = format!(
        "mkdir {dev}; mount -t tmpfs none {dev}; for f in null zero full random urandom; do : > {dev}/$f; mount --bind /dev/$f {dev}/$f; done; mount --rbind {dev} /dev; ! test -e /dev/shm"
    );
    for change in [
        "mount -t tmpfs -o size=8m none /dev/shm",
        "mount -t tmpfs -o nr_inodes=3 none /dev/shm; touch /dev/shm/a /dev/shm/b",
        "mount -t tmpfs -o ro none /dev/shm",
        &without,
    ] {
        let script = format!("{change} && exec \"$@\"");
        // 16 MiB for each rank.
        let ended = member(4, &["reduce", "2", "4194304"]).under(["unshare", "-m", "sh", "-c", &script, "sh"]).run();
        ended.expect_code(0);
    }
}

// D03
#[test]
fn two_jobs_of_one_program_in_one_place_do_not_meet() {
    for round in 0..6 {
        let umask = if round % 2 == 0 { "umask 000; exec \"$@\"" } else { "umask 077; exec \"$@\"" };
        let start = || member(2, &["reduce", "50", "2000"]).under(["sh", "-c", umask, "sh"]).start();
        let jobs = [start(), start()];
        for job in jobs {
            let ended = job.wait();
            ended.expect_code(0);
            assert_eq!(ended.sorted_lines(), ["rank 0 done", "rank 1 done"]);
        }
    }
}

// D04
#[test]
fn two_jobs_in_pid_namespaces_of_their_own_do_not_meet() {
    if !tests::may_make_pid_namespaces() {
        println!("SKIP: this machine lets nobody make pid namespaces");
        return;
    }
    let start = || {
        member(2, &["forever", "2000"]).under(["unshare", "-Upf", "--mount-proc"]).options(["--grace", "300ms"]).start()
    };
    let (first, second) = (start(), start());
    first.expect_output("ready", 2);
    second.expect_output("ready", 2);
    // The same few numbers on both sides, as each sees them (a thread of prun takes its own before or after the ranks).
    for job in [&first, &second] {
        let output = job.output_so_far();
        let pids = output.lines().filter_map(|line| line.trim_end_matches(')').rsplit(' ').next()?.parse::<u32>().ok());
        assert!(pids.clone().count() == 2 && pids.clone().all(|pid| pid < 20), "{output}");
    }
    // One ends; the other does not notice.
    kill_now(first.process("rankd"));
    first.wait().expect_code(125);
    let mut second = second;
    assert!(!second.has_ended());
    let before: Vec<_> = second.all();
    assert!(before.len() >= 5, "{before:?}");
    kill_now(second.rank(0));
    second.wait().expect_code(137).expect_message("rank 0 failed first");
}

#[test]
fn a_wrapper_that_closed_the_descriptor_still_gets_the_segment() {
    let scratch = Scratch::new();
    let close = scratch.script("close.sh", "eval \"exec $PRUN_SEGMENT_FD<&-\"; exec \"$@\"");
    let reuse = scratch.script("reuse.sh", "eval \"exec $PRUN_SEGMENT_FD< /dev/null\"; exec \"$@\"");
    for wrapper in [close, reuse] {
        let words =
            [wrapper.into_os_string(), built("member").into_os_string(), "reduce".into(), "5".into(), "1000".into()];
        let ended = Prun::new().ranks(3).program(words).run();
        ended.expect_code(0);
    }
}

#[test]
fn two_programs_of_a_rank_can_use_the_segment_one_after_another() {
    let member = tests::quoted(built("member"));
    let ended = Prun::new().ranks(3).sh(format!("{member} reduce 5 1000 && {member} avg && {member} reduce 2 7")).run();
    ended.expect_code(0);
    assert_eq!(lines_of(&ended.out(), " done").len(), 9, "{}", ended.out());
}

#[test]
fn a_program_alone_without_prun_is_a_world_of_one() {
    let mut command = Command::new(built("member"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PRUN_")) {
        command.env_remove(name);
    }
    let output = command.args(["reduce", "3", "1000"]).output().expect("member");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), "rank 0 done\n"));
}

#[test]
fn a_stall_is_told_with_each_rank_s_last_call_and_the_job_goes_on() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // The others wait in their barrier for rank 0, which waits for its input.
    let job = member(3, &["late"]).options(["--stall-timeout", "300ms"]).stdin(reader).start();
    job.expect_message("no libcomm call moved for ");
    std::io::Write::write_all(&mut &writer, b"go\n").expect("room");
    drop(writer);
    let ended = job.wait();
    ended.expect_code(0);
    assert_eq!(lines_of(&ended.out(), " joined").len(), 3, "{}", ended.out());
}

fn status(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(built("prun")).arg("status").args(arguments).output().expect("prun is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn status_shows_a_running_job_and_for_whom_its_ranks_wait() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let scratch = tests::Scratch::new();
    let events = scratch.join("events");
    // As above: ranks 1 and 2 wait for rank 0, which waits for its input.
    let job = member(3, &["late"]).options(["--json", events.to_str().expect("text")]).stdin(reader).start();
    let id = tests::eventually("the job's id", || {
        let text = std::fs::read_to_string(&events).ok()?;
        let start: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
        Some(start["job"].as_str()?.to_owned())
    });
    let shown = tests::eventually("two ranks that wait for rank 0", || {
        let (code, text, _) = status(&[&id]);
        let waits = |line: &&str| line.contains("waits to join") && line.contains("rank 0");
        (code == Some(0) && text.lines().filter(waits).count() == 2).then_some(text)
    });
    assert!(shown.starts_with(&format!("job {id}, 3 ranks")), "{shown}");
    let (_, listed, _) = status(&[]);
    let line = listed.lines().find(|line| line.starts_with(&id)).unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains(" 3 "), "{line}");
    let (_, json, _) = status(&[&id[..12], "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("one line of JSON");
    assert_eq!((&json["job"], json["ranks"].as_array().map(Vec::len)), (&id.clone().into(), Some(3)));

    std::io::Write::write_all(&mut &writer, b"go\n").expect("room");
    drop(writer);
    job.wait().expect_code(0);
    let (code, _, error) = status(&[&id]);
    assert_eq!(code, Some(125), "{error}");
    assert!(error.contains(&format!("error: no running job has the id '{id}'")), "{error}");
}

#[test]
fn time_in_which_a_job_is_stopped_is_no_stall() {
    let job = in_the_middle(2, &["--stall-timeout", "600ms"]);
    job.signal(nix::sys::signal::Signal::SIGTSTP);
    tests::eventually("a stopped prun", || (tests::state_of(job.pid()) == Some('T')).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    job.signal(nix::sys::signal::Signal::SIGCONT);
    tests::eventually("a running rank", || (tests::state_of(job.rank(0)) != Some('T')).then_some(()));
    job.signal(SIGTERM);
    let ended = job.wait();
    ended.expect_code(143);
    assert!(!ended.err().contains("moved"), "{}", ended.err());
}
