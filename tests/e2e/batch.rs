//! Batch systems: the examples and `prun script` under a real Slurm, and under stand-ins for PBS, Torque, LSF and SGE.

mod slurm;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use slurm::{Slurm, example};
use tests::{Prun, Scratch, built, eventually, marked, new_mark};

/// Ranks that say who they are and save when they are warned: with code 9, since there is more to do.
const SAVES: &str = "trap 'echo saved; sleep 1; exit 9' USR1; echo ready; while :; do sleep 0.05; done";

#[test]
fn jobs_under_a_real_slurm() {
    let slurm = Slurm::start();
    // The slow one first: Slurm looks at time limits every 30 s. The others run beside it.
    let save = Scratch::script_in(&slurm, "saves", SAVES);
    let warned =
        slurm.submit(&["--time=1", "--signal=B:USR1@60", "--output=warned.out", &example("requeue.sbatch"), &save]);
    let limited = limited_script(&slurm);
    let limited = slurm.submit(&[&limited]);

    an_example_gets_its_ranks_from_its_tasks(&slurm);
    an_array_is_a_job_for_each_element(&slurm);
    two_jobs_run_at_once_and_scancel_ends_one_without_leftovers(&slurm);
    steps_and_allocations(&slurm);
    a_script_that_prun_writes_passes_every_byte(&slurm);
    a_sweep_goes_on_when_its_job_is_submitted_again(&slurm);

    // The warning reaches the ranks through prun; they save, and the script queues itself again.
    let text = slurm.file_with("warned.out", "saved");
    assert_eq!(text.matches("saved").count(), 2, "{text}");
    slurm.until("the job is queued again", |slurm| slurm.field(&warned, "Restarts").eq("1").then_some(()));
    slurm.until("it waits for its turn", |slurm| slurm.field(&warned, "JobState").eq("PENDING").then_some(()));
    // The other was warned through what prun wrote, did not care, and keeps running.
    let text = slurm.file_with("limited.out", "warned 0");
    assert!(text.contains("warned"), "{text}");
    slurm.says(&["scancel", &limited]);
    let text = slurm.file_with("limited.out", "terminated");
    assert!(!text.contains("SIGKILL"), "{text}");
}

#[test]
#[ignore = "Slurm's shortest limit is a minute, and it looks every 30 s: make soak"]
fn the_time_limit_leaves_ranks_time_to_save_and_nothing_behind() {
    let slurm = Slurm::start();
    let saves = Scratch::script_in(
        &slurm,
        "saves",
        "trap 'sleep 1; echo saved; exit 0' TERM; setsid sleep 300 & echo ready; while :; do sleep 0.05; done",
    );
    let mark = new_mark();
    let export = format!("--export=ALL,PRUN_TEST_MARK={mark}");
    let job = slurm.submit(&[&export, "--time=1", "--output=limit.out", &example("job.sbatch"), &saves]);
    slurm.until_after(std::time::Duration::from_secs(150), "the limit ends the job", |slurm| {
        slurm.field(&job, "JobState").eq("TIMEOUT").then_some(())
    });
    let text = fs::read_to_string(slurm.path().join("limit.out")).expect("its output");
    assert_eq!(text.matches("saved").count(), 2, "{text}");
    eventually("nothing is left", || marked(&mark).is_empty().then_some(()));
}

/// Made by prun: 1 minute, warned 60 s before its end, which is at once.
fn limited_script(slurm: &Slurm) -> String {
    let program = "trap 'echo warned $PRUN_RANK' USR1; trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let made = slurm
        .command(&[
            &prun(),
            "script",
            "--slurm",
            "--time",
            "1m",
            "--warn",
            "USR1@60",
            "--directive=--output=limited.out",
            "--to",
            "limited.sh",
            "-n",
            "2",
            "--",
            "sh",
            "-c",
            program,
        ])
        .status();
    assert!(made.expect("prun").success());
    slurm.path().join("limited.sh").display().to_string()
}

fn prun() -> String {
    built("prun").display().to_string()
}

fn an_example_gets_its_ranks_from_its_tasks(slurm: &Slurm) {
    let hello = Scratch::script_in(slurm, "hello", "echo hello $PRUN_RANK of $PRUN_SIZE; exit $1");
    let job = slurm.submit(&["--output=hello.out", "--ntasks=3", &example("job.sbatch"), &hello, "0"]);
    let failing = slurm.submit(&["--output=failing.out", &example("job.sbatch"), &hello, "7"]);
    assert_eq!(slurm.ended(&job), ("COMPLETED".into(), "0:0".into()));
    assert_eq!(
        lines(&slurm.file_with("hello.out", "[2]")),
        ["[0] hello 0 of 3", "[1] hello 1 of 3", "[2] hello 2 of 3"]
    );
    assert_eq!(slurm.ended(&failing), ("FAILED".into(), "7:0".into()));
}

fn an_array_is_a_job_for_each_element(slurm: &Slurm) {
    let hello = Scratch::script_in(slurm, "element", "echo rank $PRUN_RANK element $1 of $SLURM_ARRAY_JOB_ID");
    let job = slurm.submit(&["--output=array-%a.out", &example("array.sbatch"), &hello]);
    for element in 0..3 {
        let name = format!("array-{element}.out");
        slurm.file_with(&name, "[0]"); // either rank may be the first
        let text = slurm.file_with(&name, "[1]");
        let expected = [0, 1].map(|rank| format!("[{rank}] rank {rank} element {element} of {job}"));
        assert_eq!(lines(&text), expected);
    }
}

fn two_jobs_run_at_once_and_scancel_ends_one_without_leftovers(slurm: &Slurm) {
    let body = "trap 'echo asked; exit 0' TERM; setsid sleep 300 & echo ready; while :; do sleep 0.05; done";
    let waits = Scratch::script_in(slurm, "waits", body);
    let marks = [new_mark(), new_mark()];
    let jobs = [0, 1].map(|at| {
        let export = format!("--export=ALL,PRUN_TEST_MARK={}", marks[at]);
        slurm.submit(&[&export, &format!("--output=both-{at}.out"), &example("job.sbatch"), &waits])
    });
    for at in 0..2 {
        slurm.until("both ranks are ready", |slurm| {
            let text = fs::read_to_string(slurm.path().join(format!("both-{at}.out"))).unwrap_or_default();
            (text.matches("ready").count() == 2).then_some(())
        });
    }
    assert_eq!(jobs.each_ref().map(|job| slurm.field(job, "JobState")), ["RUNNING", "RUNNING"]);
    slurm.says(&["scancel", &jobs[0]]);
    slurm.file_with("both-0.out", "asked");
    slurm.ended(&jobs[0]);
    eventually("nothing is left of the cancelled job", || marked(&marks[0]).is_empty().then_some(()));
    assert!(!marked(&marks[1]).is_empty(), "the other job goes on");
    // Only the batch shell is signalled here, and that is prun.
    slurm.says(&["scancel", "--batch", "--signal=TERM", &jobs[1]]);
    assert_eq!(slurm.ended(&jobs[1]).1, "143:0");
    eventually("nothing is left of the other job", || marked(&marks[1]).is_empty().then_some(()));
}

fn steps_and_allocations(slurm: &Slurm) {
    let count = "echo rank $PRUN_RANK of $PRUN_SIZE slurm=$SLURM_PROCID";
    let step = slurm.says(&["srun", "-n1", "-c2", &prun(), "-n2", "sh", "-c", count]);
    assert_eq!(lines(&step), ["rank 0 of 2 slurm=", "rank 1 of 2 slurm="]);
    let allocation = slurm.says(&["salloc", "-Q", "-n3", &prun(), "sh", "-c", count]);
    assert_eq!(lines(&allocation).len(), 3, "{allocation}");
    let status = slurm
        .command(&["salloc", "-Q", "-n1", &prun(), "sh", "-c", "exit 5"])
        .stderr(Stdio::null())
        .status()
        .expect("salloc");
    assert_eq!(status.code(), Some(5));
}

/// The words that are hardest to pass on, and a program that prints what it got, in hexadecimal.
fn hard_words() -> Vec<OsString> {
    let words: [&[u8]; 9] =
        [b"a b", b"", b"*", b"\"", b"it's", b"x\xff", b"$HOME`id`\\", b"-n", b"two\n#BSUB -n 9\nlines\n"];
    words.map(|bytes| OsString::from_vec(bytes.to_vec())).to_vec()
}

fn expected_hex(words: &[OsString]) -> String {
    words
        .iter()
        .map(|word| word.as_encoded_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
        .collect()
}

fn hex_program(path: &std::path::Path) {
    let text = "#!/usr/bin/env python3\nimport os, sys\nopen('words', 'w').write(''.join(os.fsencode(word).hex() + '\\n' for word in sys.argv[1:]))\n";
    fs::write(path, text).expect("a writable directory");
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our file");
}

// A15: prun's script passes the same bytes, and the directory is kept.
fn a_script_that_prun_writes_passes_every_byte(slurm: &Slurm) {
    let directory = slurm.path().join("my dir");
    fs::create_dir(&directory).expect("a directory");
    hex_program(&directory.join("my prog"));
    let made = slurm
        .command(&[&prun(), "script", "--slurm", "--to", "script", "-n", "1", "--", "./my prog"])
        .args(hard_words())
        .current_dir(&directory)
        .status();
    assert!(made.expect("prun").success());
    let job = slurm.submit(&["--output=quoting.out", "my dir/script"]);
    assert_eq!(
        slurm.ended(&job),
        ("COMPLETED".into(), "0:0".into()),
        "{}",
        fs::read_to_string(slurm.path().join("quoting.out")).unwrap_or_default()
    );
    assert_eq!(fs::read_to_string(directory.join("words")).expect("the program ran here"), expected_hex(&hard_words()));
}

fn a_sweep_goes_on_when_its_job_is_submitted_again(slurm: &Slurm) {
    let experiment = "program = ['sh', '-c', 'sleep 0.0{a}']\n[job]\nranks = 1\n[parameters]\na = [1, 2]\n[trials]\nrepeat = 20\nwarmup = 0\n";
    fs::write(slurm.path().join("exp.toml"), experiment).expect("a file");
    let submit = || slurm.submit(&["--output=sweep.out", &example("sweep.sbatch"), "exp.toml", "exp.sweep"]);
    let trials =
        || fs::read_to_string(slurm.path().join("exp.sweep/results.jsonl")).unwrap_or_default().lines().count();
    let first = submit();
    slurm.until("some trials are done", |_| (trials() > 5).then_some(()));
    slurm.says(&["scancel", &first]);
    slurm.ended(&first);
    assert!(trials() < 41, "it was cancelled too late to show anything");
    let second = submit();
    let ended = slurm.ended(&second);
    let text = fs::read_to_string(slurm.path().join("sweep.out")).unwrap_or_default();
    assert_eq!(ended, ("COMPLETED".into(), "0:0".into()), "{text}");
    assert_eq!(trials(), 41);
}

/// What ranks wrote. prun's own remark is that this node has fewer CPUs than Slurm was told.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("prun: Slurm gave")).collect();
    lines.sort_unstable();
    lines
}

/// Writes a program into Slurm's directory.
trait ScriptIn {
    fn script_in(slurm: &Slurm, name: &str, body: &str) -> String;
}

impl ScriptIn for Scratch {
    fn script_in(slurm: &Slurm, name: &str, body: &str) -> String {
        let path = slurm.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a writable directory");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our file");
        path.display().to_string()
    }
}

/// A stand-in for a batch system's command.
fn fake(name: &str, scratch: &Scratch) -> Command {
    let mut command = Command::new([env!("CARGO_MANIFEST_DIR"), "fakes", name].iter().collect::<std::path::PathBuf>());
    command.current_dir(scratch.path()).env("PRUN", built("prun")).stdin(Stdio::null());
    command
}

#[test]
fn the_examples_for_pbs_torque_lsf_and_sge_run_under_stand_ins() {
    for (system, script) in [("pbs", "job.pbs"), ("torque", "job.torque"), ("sge", "job.sge"), ("lsf", "job.lsf")] {
        let scratch = Scratch::new();
        let hello =
            scratch.script("hello", "echo $PRUN_RANK of $PRUN_SIZE > rank-$PRUN_RANK; until [ -s rank-0 ] && [ -s rank-1 ]; do sleep 0.01; done; exit 6").display().to_string();
        let mut command = match system {
            "lsf" => fake("bsub", &scratch),
            _ => fake("qsub", &scratch),
        };
        match system {
            "lsf" => command.env("PROGRAM", &hello).stdin(fs::File::open(example(script)).expect("the example")),
            "sge" => command.args([&example(script), &hello]),
            _ => command.args(["-v", &format!("PROGRAM={hello}"), &example(script)]),
        };
        let output = command.env("FAKE_SYSTEM", system).output().expect("python3");
        assert_eq!(output.status.code(), Some(6), "{system}: {}", String::from_utf8_lossy(&output.stderr));
        let said = [0, 1].map(|rank| scratch.read(format!("rank-{rank}")));
        assert_eq!(said, ["0 of 2\n", "1 of 2\n"], "{system}");
    }
}

// A15 for the others, whose commands copy the script first.
#[test]
fn scripts_for_pbs_torque_and_lsf_pass_every_byte() {
    for system in ["pbs", "torque", "lsf"] {
        let scratch = Scratch::new();
        let directory = scratch.join("my dir");
        fs::create_dir(&directory).expect("a directory");
        hex_program(&directory.join("my prog"));
        let made = Command::new(built("prun"))
            .args(["script", &format!("--{system}"), "--to", "script", "-n", "1", "--", "./my prog"])
            .args(hard_words())
            .current_dir(&directory)
            .status();
        assert!(made.expect("prun").success());
        let script = directory.join("script");
        let output = match system {
            "lsf" => fake("bsub", &scratch).stdin(fs::File::open(&script).expect("written")).output(),
            _ => fake("qsub", &scratch).env("FAKE_SYSTEM", system).arg(&script).output(),
        };
        let output = output.expect("python3");
        assert!(output.status.success(), "{system}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(
            fs::read_to_string(directory.join("words")).expect("the program ran here"),
            expected_hex(&hard_words()),
            "{system}"
        );
    }
}

// Ranks that ignore SIGTERM are gone, by prun, before PBS and LSF send SIGKILL after 10 s.
#[test]
fn grace_ends_before_the_batch_system_kills() {
    for (variable, value) in [("PBS_JOBID", "1.server"), ("LSB_JOBID", "1")] {
        let job = Prun::new()
            .ranks(1)
            .option("--grace=1m")
            .env(variable, value)
            .sh("trap '' TERM; echo ready; while :; do sleep 0.1; done")
            .start();
        job.expect_output("ready", 1);
        job.signal(nix::sys::signal::Signal::SIGTERM);
        let asked = std::time::Instant::now();
        let ended = job.wait();
        let took = asked.elapsed().as_secs_f64();
        assert!((7.0..9.9).contains(&took), "{variable}: {took:.1} s");
        ended.expect_code(143).expect_message("--grace 1m is shortened to 8s");
    }
}

// C11: prun sees that one CPU for two ranks is not what the job has, and says so. C13 and C09 are the readers' tests.
#[test]
fn a_step_bound_to_one_core_is_said() {
    let slurm =
        |prun: Prun| prun.env("SLURM_JOB_ID", "1").env("SLURM_CPUS_ON_NODE", "2").env("SLURM_CPUS_PER_TASK", "2");
    let ended = slurm(Prun::new().ranks(2).under(["taskset", "-c", "0"]))
        .program(["grep", "Cpus_allowed_list", "/proc/self/status"])
        .run();
    ended.expect_code(0);
    let widened = ended.out().lines().all(|line| !line.ends_with("\t0"));
    assert!(widened || ended.err().contains("--cpu-bind=none"), "{}{}", ended.out(), ended.err());
}
