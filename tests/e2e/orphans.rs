//! Whoever is killed, nothing is left: no process, no cgroup, no file, no shared memory. [`Running::wait`] looks.
//!
//! [`Running::wait`]: tests::Running::wait

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;
use tests::{
    Ended, HANG, Prun, Running, Scratch, built, eventually, kill_now, lives, name_of, parent_of, quoted, state_of,
};

/// How a rank may have started what must go with it. Each prints `ready` once all of it runs.
const FORMS: [(&str, &str); 6] = [
    ("the rank itself", "echo ready; exec sleep 300"),
    ("a child of a wrapper", "sleep 300 & echo ready; wait"),
    ("a child in a session of its own", "setsid sleep 300 & echo ready; wait"),
    ("a double fork", "( setsid sh -c 'sleep 300 & sleep 300' > /dev/null 2>&1 & ) ; echo ready; exec sleep 300"),
    (
        "a family that ignores SIGTERM",
        "trap '' TERM HUP INT; sh -c 'sleep 300 & sleep 300' & echo ready; while :; do sleep 300; done",
    ),
    ("a deep family", "sh -c 'sh -c \"sleep 300 & sleep 300\" & sleep 300 & wait' & echo ready; wait"),
];

/// A running job of that form, with the machine's cgroups and without.
fn jobs(script: &str) -> [Running; 2] {
    let job = || Prun::new().ranks(2).options(["--grace", "300ms"]).sh(script);
    let jobs = [job().start(), job().without_cgroup().start()];
    jobs.iter().for_each(|job| job.expect_output("ready", 2));
    jobs
}

/// Kills some of prun's processes in each form, and looks for what is left.
fn after_the_death_of(victims: impl Fn(&Running) -> Vec<i32>, check: impl Fn(&Ended)) {
    for (form, script) in FORMS {
        for job in jobs(script) {
            let victims = victims(&job);
            victims.into_iter().for_each(kill_now);
            let ended = job.wait();
            println!("{form}: exit {} after {:?}", ended.code(), ended.took);
            check(&ended);
        }
    }
}

/// prun itself was killed, so it says nothing more.
const KILLED: i32 = 1009;

// A11
#[test]
fn nothing_is_left_when_prun_is_killed() {
    after_the_death_of(|job| vec![job.pid()], |ended| assert_eq!(ended.code(), KILLED));
}

#[test]
fn nothing_is_left_when_rankd_is_killed_and_prun_says_so() {
    after_the_death_of(
        |job| vec![job.rankd()],
        |ended| _ = ended.expect_code(125).expect_message("prun: rankd was killed (SIGKILL) after "),
    );
}

#[test]
fn nothing_is_left_when_prun_and_rankd_are_killed_together() {
    after_the_death_of(|job| vec![job.rankd(), job.pid()], |ended| assert_eq!(ended.code(), KILLED));
}

#[test]
fn nothing_is_left_when_the_keeper_is_killed_and_prun_says_so() {
    after_the_death_of(
        |job| vec![job.keeper()],
        |ended| _ = ended.expect_code(125).expect_message("the keeper was killed"),
    );
}

#[test]
fn nothing_is_left_when_keeper_and_rankd_are_killed_together_and_prun_says_so() {
    after_the_death_of(
        |job| vec![job.keeper(), job.rankd()],
        |ended| {
            ended.expect_code(125).expect_message("killed");
        },
    );
}

#[test]
fn nothing_is_left_when_keeper_and_prun_are_killed_together() {
    // prun may have ended the job for its keeper's death before its own comes.
    after_the_death_of(
        |job| vec![job.keeper(), job.pid()],
        |ended| assert!([KILLED, 125].contains(&ended.code()), "{ended:?}"),
    );
}

#[test]
fn nothing_is_left_when_a_rank_is_killed_and_the_rank_is_named() {
    after_the_death_of(
        |job| vec![job.rank(1)],
        |ended| _ = ended.expect_code(137).expect_message("prun: rank 1 failed first (SIGKILL)"),
    );
}

/// Even the death of all three at once ends the ranks themselves; what they started is beyond reach then.
#[test]
fn the_ranks_themselves_end_even_when_prun_keeper_and_rankd_are_killed_together() {
    let job = Prun::new().ranks(2).sh("echo ready; exec sleep 300").start();
    job.expect_output("ready", 2);
    let ranks = [job.rank(0), job.rank(1)];
    [job.keeper(), job.rankd(), job.pid()].into_iter().for_each(kill_now);
    for rank in ranks {
        eventually("the end of a rank", || (!lives(rank)).then_some(()));
    }
    drop(job.wait_unchecked());
}

/// The first child of one of `processes` that has this parent.
fn child_of(job: &Running, parent: i32) -> i32 {
    eventually("a child", || job.all().into_iter().find(|&pid| parent_of(pid) == Some(parent)))
}

// A02 (a)
#[test]
fn a_wrapper_s_program_ends_with_the_job() {
    let scratch = Scratch::new();
    let wrapper =
        scratch.script("wrap.sh", "sleep 300 &\necho ready\n[ $PRUN_RANK = 1 ] && { read x < go; exit 3; }\nwait");
    assert!(tests::succeeds(&["mkfifo", &scratch.join("go").display().to_string()]));
    let job = Prun::new().ranks(2).program([wrapper]).dir(scratch.path()).start();
    job.expect_output("ready", 2);
    std::fs::write(scratch.join("go"), "x\n").expect("rank 1 reads");
    job.wait().expect_code(3).expect_message("rank 1 failed first (exit 3)");
}

// A02 (b)
#[test]
fn helpers_in_sessions_of_their_own_end_with_the_job() {
    for without in [false, true] {
        let job = Prun::new().ranks(2).sh("setsid sleep 300 & [ $PRUN_RANK = 1 ] && exit 3; wait");
        let ended = if without { job.without_cgroup() } else { job }.run();
        ended.expect_code(3);
    }
}

// A02 (c)
#[test]
fn a_daemon_that_a_rank_left_ends_with_the_job_and_is_named() {
    for without in [false, true] {
        let daemon =
            "( setsid sh -c 'exec sleep 300' > /dev/null 2>&1 < /dev/null & ); sleep 0.2; exit $(( PRUN_RANK * 3 ))";
        let job = Prun::new().ranks(2).sh(daemon);
        let ended = if without { job.without_cgroup() } else { job }.run();
        ended.expect_code(3).expect_message("rank 1 failed first (exit 3)");
    }
    let ended = Prun::new().ranks(1).sh("( setsid sleep 300 > /dev/null 2>&1 < /dev/null & ); sleep 0.2").run();
    ended.expect_code(0).expect_message("sleep (pid ");
}

#[test]
fn what_a_rank_left_is_ended_even_if_it_ignores_termination() {
    let ended = Prun::new().ranks(2).sh("(trap '' TERM; exec sleep 300) > /dev/null 2>&1 & exit 0").run();
    ended.expect_code(0).expect_message("were ended: sleep (pid ");
}

#[test]
fn what_keeps_forking_away_is_ended() {
    // Each process lives a moment and leaves a child: there is always one that no list has seen.
    let script = "f() { ( setsid sh -c '. ./hop.sh' & ) ; }; f; f; echo ready; exec sleep 300";
    for without in [false, true] {
        let scratch = Scratch::new();
        scratch.file("hop.sh", b"trap '' TERM\nsleep 0.02\n( setsid sh -c '. ./hop.sh' & )\n", 0o644);
        let job = Prun::new().ranks(1).options(["--grace", "300ms"]).sh(script).dir(scratch.path());
        let job = if without { job.without_cgroup() } else { job }.start();
        job.expect_output("ready", 1);
        job.signal(SIGTERM);
        job.wait().expect_code(143);
    }
}

// A11 (b): other children of whoever started prun are none of its business.
#[test]
fn bystanders_of_the_same_shell_live_on() {
    let script = format!(
        "sleep 300 > /dev/null 2>&1 & echo bystander $!; {} -n 2 sh -c 'sleep 300 & exit 1'; echo code $?; {} -n 2 sh -c 'kill -9 $PPID; sleep 300' ; echo code $?",
        quoted(built("prun")),
        quoted(built("prun"))
    );
    let output = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().expect("bash");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bystander: i32 = text
        .lines()
        .find_map(|line| line.strip_prefix("bystander "))
        .and_then(|pid| pid.parse().ok())
        .expect("its pid");
    assert_eq!(name_of(bystander).as_deref(), Some("sleep"), "{text}");
    assert!(lives(bystander));
    kill_now(bystander);
    assert!(text.contains("code 1\n") && text.contains("code 125\n"), "{text}");
}

// A11 (b): a parent that has other children, some of which have ended and wait for it.
#[test]
fn a_parent_s_other_children_and_descriptors_are_left_alone() {
    let python = r#"
import os, subprocess, sys
done = subprocess.Popen(["true"])
other = subprocess.Popen(["sleep", "300"], start_new_session=True)
before = sorted(os.listdir("/proc/self/fd"))
job = subprocess.run([sys.argv[1], "-n", "2", "sh", "-c", "exit 1"], capture_output=True)
after = sorted(os.listdir("/proc/self/fd"))
print(job.returncode, other.poll(), done.wait(), before == after)
other.kill()
"#;
    let output = Command::new("python3").args(["-c", python]).arg(built("prun")).output().expect("python3");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "1 None 0 True\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Zombies among the children of `parents` that nobody reaps.
fn lasting_zombies(parents: &[i32]) -> Vec<i32> {
    let zombies = || -> Vec<i32> {
        let pids = std::fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| state_of(pid) == Some('Z') && parent_of(pid).is_some_and(|parent| parents.contains(&parent)))
            .collect()
    };
    // Each is gone within a hang limit, however slow the machine is.
    let mut left = zombies();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !left.is_empty() && std::time::Instant::now() < deadline {
        left.retain(|&pid| state_of(pid) == Some('Z'));
        std::thread::sleep(Duration::from_millis(5));
    }
    left
}

// A12, outside a pid namespace
#[test]
fn orphans_are_reaped_while_the_job_runs_and_their_codes_are_not_the_job_s() {
    let script = "(sh -c 'exit 5') & (sleep 300 &) ; for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'exit 6' &); done; echo ready; read x < go; exit 0";
    let scratch = Scratch::new();
    let go = scratch.join("go");
    assert!(tests::succeeds(&["mkfifo", &go.display().to_string()]));
    let job = Prun::new().ranks(2).sh(script).dir(scratch.path()).start();
    job.expect_output("ready", 2);
    let ours = [job.pid(), job.keeper(), job.rankd()];
    assert_eq!(lasting_zombies(&ours), [] as [i32; 0]);
    let mut writer = std::fs::OpenOptions::new().read(true).write(true).open(&go).expect("the pipe");
    std::io::Write::write_all(&mut writer, b"x\nx\n").expect("room");
    job.wait().expect_code(0).expect_message("sleep (pid ");
}

// A12, as the first process of a pid namespace
#[test]
fn as_the_first_process_of_a_pid_namespace_prun_reaps_all_and_leaves_nothing() {
    if !tests::may_make_pid_namespaces() {
        println!("SKIP: this machine lets nobody make pid namespaces");
        return;
    }
    let script = "(sleep 0.1; exit 5) & (sleep 300 &) ; (setsid sleep 300 &); sleep 0.5; exit 0";
    let ended = Prun::new().under(["unshare", "-Upf", "--mount-proc"]).ranks(2).sh(script).run();
    ended.expect_code(0);
    let ended = Prun::new()
        .under(["unshare", "-Upf", "--mount-proc"])
        .ranks(2)
        .sh("sleep 300 & [ $PRUN_RANK = 1 ] && exit 4; wait")
        .run();
    ended.expect_code(4);
}

#[test]
fn nothing_is_left_in_a_pid_namespace_whoever_is_killed() {
    if !tests::may_make_pid_namespaces() {
        println!("SKIP: this machine lets nobody make pid namespaces");
        return;
    }
    for victim in ["rankd", "prun-keeper"] {
        let job = Prun::new()
            .under(["unshare", "-Upf", "--mount-proc"])
            .ranks(2)
            .options(["--grace", "300ms"])
            .sh("setsid sleep 300 & echo ready; wait")
            .start();
        job.expect_output("ready", 2);
        kill_now(job.process(victim));
        job.wait().expect_code(125);
    }
}

// B10
#[test]
fn a_grandchild_that_keeps_the_output_open_does_not_hold_up_the_end() {
    for redirection in ["", "2> /dev/null", "> /dev/null"] {
        let ended = Prun::new().ranks(1).sh(format!("sleep 300 {redirection} & echo done")).run();
        ended.expect_code(0).expect_message("sleep (pid ").expect_message("from rank 0");
        assert_eq!(ended.out(), "done\n");
        assert!(ended.took < HANG / 2, "{:?}", ended.took);
    }
}

#[test]
fn nothing_is_left_when_prun_is_killed_while_it_starts_many_ranks() {
    for started in [1usize, 20, 60] {
        let job = Prun::new().ranks(100).options(["--grace", "300ms"]).program(["sleep", "300"]).start();
        eventually("ranks", || (job.processes("sleep").len() >= started).then_some(()));
        kill_now(job.pid());
        assert_eq!(job.wait().code(), KILLED);
    }
}

#[test]
fn nothing_is_left_when_prun_is_killed_in_its_first_moments() {
    for pause_us in [0u64, 500, 1000, 2000, 3000, 4000, 6000, 9000, 14_000] {
        let job = Prun::new().ranks(4).program(["sleep", "300"]).start();
        std::thread::sleep(Duration::from_micros(pause_us));
        kill_now(job.pid());
        assert_eq!(job.wait().code(), KILLED);
    }
}

#[test]
fn a_killed_rank_s_wrapper_and_the_wrapper_s_killed_rank_are_both_named_by_their_rank() {
    let job = Prun::new().ranks(2).sh("sleep 300; exit $?").start();
    let rank = job.rank(1);
    kill_now(child_of(&job, rank));
    job.wait().expect_code(137).expect_message("rank 1 failed first (exit 137)");
}

/// What these tests stand on: both kinds of machine are really tried.
#[test]
fn a_job_says_whether_it_has_a_cgroup_of_its_own() {
    let has_cgroup = |prun: Prun| {
        let scratch = Scratch::new();
        prun.ranks(1).option("--json").option(scratch.join("events")).program(["true"]).run().expect_code(0);
        let text = scratch.read("events");
        let ready = text.lines().find(|line| line.contains("\"ready\"")).unwrap_or_else(|| panic!("{text}"));
        ready.contains("\"cgroup\":true")
    };
    if tests::may_mount() {
        assert!(!has_cgroup(Prun::new().without_cgroup()));
    }
    assert_eq!(has_cgroup(Prun::new()), tests::may_make_cgroups());
}
