//! `prun sweep`: every trial once whatever kills it, figures and warnings that are right, and files that tools read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::{Prun, Running, Scratch, assert_nothing_left, built, eventually};

/// `prun sweep` in this directory; the words behind it follow.
fn sweep<const N: usize>(scratch: &Scratch, words: [&str; N]) -> Prun {
    Prun::new().option("sweep").options(words).dir(scratch.path())
}

/// The trials of a results file: every line parses, and none comes twice.
fn trials(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.ends_with('\n'), "the last line is whole");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let keys: BTreeSet<String> = lines[1..].iter().map(|line| line["key"].to_string()).collect();
    assert_eq!(keys.len(), lines.len() - 1, "no trial is there twice");
    lines[1..].to_vec()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn trials_are_interleaved_and_end_in_a_table_and_files_that_parse() {
    let scratch = Scratch::new();
    let ended = sweep(
        &scratch,
        [
            "-n",
            "1,2",
            "-p",
            "word=a,b c",
            "-r",
            "4",
            "-w",
            "1",
            "-o",
            "r",
            "--csv",
            "t.csv",
            "--json",
            "t.json",
            "--svg",
            "t.svg",
            "--html",
            "t.html",
            "--",
            "sh",
            "-c",
            "echo \"$PRUN_RANK {word}\"; [ $PRUN_RANK = 0 ] && echo '{n}{word}' >> order; exit 0",
        ],
    )
    .run();
    ended.expect_code(0).expect_message("prun: 20 of 20 trials").expect_message("prun: results are in r");
    let order = scratch.read("order");
    let round = "1a\n1b c\n2a\n2b c\n";
    assert_eq!(order, round.repeat(5));
    assert!(ended.out().starts_with("sh: 4 combinations, 20 trials; wall_s\n\n  n  word  trials "), "{}", ended.out());
    assert!(ended.out().contains("word compared"), "{}", ended.out());
    let trials = trials(&scratch.join("r/results.jsonl"));
    assert_eq!(trials.len(), 20);
    let one = trials
        .iter()
        .find(|trial| trial["key"]["variant"] == 3 && trial["key"]["warmup"] == false)
        .expect("n=2 word=b c");
    assert_eq!(one["parameters"].to_string(), r#"{"n":"2","word":"b c"}"#);
    assert_eq!((&one["state"], one["ranks"].as_array().map(Vec::len)), (&Value::from("done"), Some(2)));
    assert!(one["ranks"][0]["max_rss_kib"].as_u64() > Some(100) && one["wall_s"].as_f64() > Some(0.0));
    assert!(
        one["setting"]["kernel"].is_string() && one["before"]["load"].is_number() && one["program"]["path"].is_string()
    );
    let directory = scratch.join("r").join(one["directory"].as_str().expect("a path"));
    let mut said: Vec<String> =
        fs::read_to_string(directory.join("stdout")).expect("kept").lines().map(String::from).collect();
    said.sort();
    assert_eq!(said, ["0 b c", "1 b c"]);
    assert_eq!(scratch.read("t.csv").lines().count(), 21);
    assert_eq!(json(&scratch.read("t.json"))["rows"].as_array().map(Vec::len), Some(4));
    assert!(scratch.read("t.svg").starts_with("<svg") && scratch.read("t.html").starts_with("<!doctype html>"));
    // The command can be typed again: what is written down is what ran.
    let words: Vec<&str> = one["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    let again = Prun::new().options(&words[1..]).dir(scratch.path()).run();
    again.expect_code(0);
    assert_eq!(again.sorted_lines(), ["0 b c", "1 b c"]);
}

#[test]
fn an_experiment_file_says_what_flags_can_say_and_flags_win() {
    let scratch = Scratch::new();
    let text = r#"
name = "x"
program = ["printf", 'size {size} took {us} us\n{"rate": {size}}\n']
[job]
ranks = 1
env = { A = "{size}" }
[parameters]
size = "1..4*2"
us = [10, 20, 40]
[trials]
repeat = 2
warmup = 0
order = "random"
[figures.us]
regex = 'took (\d+) us'
unit = "us"
[figures.rate]
json = "rate"
better = "higher"
[report]
metric = "us"
"#;
    scratch.file("x.toml", text.as_bytes(), 0o644);
    let ended = sweep(&scratch, ["x.toml", "--zip", "size,us", "-r", "5", "--json", "-"]).run();
    ended.expect_code(0);
    let summary = json(&ended.out());
    let medians: Vec<f64> = summary["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["description"]["median"].as_f64())
        .collect();
    assert_eq!(medians, [10.0, 20.0, 40.0]);
    assert_eq!(summary["rows"][2]["others"]["rate"], 4.0);
    assert_eq!(summary["rows"][2]["description"]["count"], 5);
    let dry = sweep(&scratch, ["x.toml", "--dry-run"]).run();
    dry.expect_code(0);
    assert!(dry.out().contains("prun -n1 -x A=4 -- printf "), "{}", dry.out());
}

/// Kills a sweep with SIGKILL at so many moments and lets it go on each time.
fn killed_and_resumed(times: u64) {
    let scratch = Scratch::new();
    // Each start of a program leaves a line; a finished trial is never started again.
    let words = [
        "-n",
        "1,2",
        "-p",
        "a=x,y,z",
        "-r",
        "10",
        "-w",
        "1",
        "-o",
        "r",
        "--resume",
        "-q",
        "--",
        "sh",
        "-c",
        "sleep 0.0$PRUN_RANK; exit 0",
    ];
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut finished = BTreeSet::new();
    for _ in 0..times {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let job = sweep(&scratch, words).start();
        std::thread::sleep(Duration::from_millis(random % 250));
        let mark = job.mark().to_owned();
        job.signal(Signal::SIGKILL);
        job.wait_unchecked();
        assert_nothing_left(&mark);
        let path = scratch.join("r/results.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let whole: BTreeSet<String> = text
            .lines()
            .skip(1)
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|trial| format!("{} {}", trial["key"], trial["started"]))
            .collect();
        assert!(whole.is_superset(&finished), "a finished trial is lost or was done again");
        finished = whole;
    }
    sweep(&scratch, words).run().expect_code(0);
    let trials = trials(&scratch.join("r/results.jsonl"));
    assert_eq!(trials.len(), 66);
    assert!(trials.iter().all(|trial| trial["state"] == "done"));
    let now: BTreeSet<String> = trials.iter().map(|trial| format!("{} {}", trial["key"], trial["started"])).collect();
    assert!(now.is_superset(&finished));
}

#[test]
fn a_sweep_that_is_killed_goes_on_where_it_was() {
    killed_and_resumed(8);
}

#[test]
#[ignore = "50 kills take half a minute: make soak"]
fn fifty_kills_lose_and_repeat_nothing() {
    killed_and_resumed(50);
    println!("50 kills at random moments: 66 of 66 trials, none twice, every line parses");
}

// As `scancel` does it: every process of the job is signalled, and a rank may be the first.
#[test]
fn a_rank_that_died_with_its_sweep_is_no_failed_trial() {
    for (signal, first) in [(Signal::SIGTERM, "rank"), (Signal::SIGTERM, "its child"), (Signal::SIGINT, "rank")] {
        let scratch = Scratch::new();
        let program = "echo $$ > pid; if [ ! -e go ]; then sleep 300 & echo $! > child; wait $!; fi";
        let words = ["-n", "1", "-r", "3", "-w", "0", "-o", "r", "--resume", "--", "sh", "-c", program];
        let job = sweep(&scratch, words).start();
        let file = if first == "rank" { "pid" } else { "child" };
        eventually("the rank waits", || {
            fs::read_to_string(scratch.join("child")).ok().filter(|text| text.ends_with('\n'))
        });
        let pid = fs::read_to_string(scratch.join(file)).expect("written").trim().parse().expect("a number");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("the rank runs");
        // Its prun is about to end: the sweep sees that first, or the signal.
        eventually("the trial's result", || {
            let events = fs::read_to_string(scratch.join("r/trials/0000/r0000/events.jsonl")).unwrap_or_default();
            events.contains("\"result\"").then_some(())
        });
        job.signal(signal);
        job.wait().expect_code(128 + signal as i32).expect_message("interrupted after 0 trials; --resume goes on");
        scratch.file("go", b"", 0o644);
        sweep(&scratch, words).run().expect_code(0);
        let states: Vec<_> =
            trials(&scratch.join("r/results.jsonl")).iter().map(|trial| trial["state"].clone()).collect();
        assert_eq!(states, ["done"; 3], "{signal} first to {first}");
    }
}

#[test]
fn ctrl_c_ends_the_trial_at_once_and_keeps_what_is_done() {
    let scratch = Scratch::new();
    let words = [
        "-n",
        "2",
        "-r",
        "6",
        "-w",
        "0",
        "-o",
        "r",
        "--resume",
        "--",
        "sh",
        "-c",
        "trap '' INT; echo x >> begun; if [ $(wc -l < begun) -gt 4 ] && [ ! -e go ]; then sleep 300; fi",
    ];
    let job = sweep(&scratch, words).start();
    eventually("the third trial", || {
        fs::read_to_string(scratch.join("begun")).ok().filter(|text| text.lines().count() >= 5)
    });
    job.signal(Signal::SIGINT);
    job.expect_message("ending the trials that run");
    job.signal(Signal::SIGINT); // the rank ignores it; a second one kills
    let ended = job.wait();
    ended.expect_code(130).expect_message("interrupted after 2 trials; --resume goes on");
    scratch.file("go", b"", 0o644);
    sweep(&scratch, words).run().expect_code(0);
    assert_eq!(trials(&scratch.join("r/results.jsonl")).len(), 6);
    // Without --resume nothing is overwritten, and another experiment does not go on with it.
    let again = sweep(&scratch, ["-n", "2", "-o", "r", "--", "true"]).run();
    again.expect_code(125).expect_message("holds 6 trials already").expect_message("try: --resume");
    let other = sweep(&scratch, ["-n", "2", "-o", "r", "--resume", "--", "true"]).run();
    other.expect_code(125).expect_message("the program or its arguments changed");
}

#[test]
fn only_failures_of_prun_and_the_machine_are_tried_again() {
    let scratch = Scratch::new();
    // The first start of each trial kills rankd, which no program's own failure does.
    let script = "if [ ! -e {a} ]; then touch {a}; kill -9 $PPID; sleep 10; fi; echo ok";
    let ended =
        sweep(&scratch, ["-n", "1", "-p", "a=x,y", "-r", "1", "-w", "0", "-o", "r", "--", "sh", "-c", script]).run();
    ended.expect_code(0).expect_message("a=x: starting it again");
    let done = trials(&scratch.join("r/results.jsonl"));
    assert!(
        done.iter().all(|trial| trial["state"] == "done" && trial["retried"].as_array().map(Vec::len) == Some(1)),
        "{done:?}"
    );

    // A rank's own 125 is its own.
    let ended = sweep(
        &scratch,
        [
            "-n",
            "1",
            "-p",
            "code=0,125",
            "-r",
            "2",
            "-w",
            "0",
            "-o",
            "s",
            "--",
            "sh",
            "-c",
            "echo x >> count-{code}; exit {code}",
        ],
    )
    .run();
    ended.expect_code(1).expect_message("code=125: rank 0 failed first (exit 125)");
    assert_eq!(scratch.read("count-125").lines().count(), 2);
    assert!(ended.out().contains("0 (2 failed)"), "{}", ended.out());
}

#[test]
fn a_trial_that_takes_too_long_fails_and_the_sweep_goes_on() {
    let scratch = Scratch::new();
    let ended = sweep(
        &scratch,
        ["-n", "1", "-p", "t=0,300", "-r", "2", "-w", "0", "--timeout", "200ms", "-o", "r", "--", "sleep", "{t}"],
    )
    .run();
    ended.expect_code(1);
    let trials = trials(&scratch.join("r/results.jsonl"));
    let states: Vec<&str> = trials.iter().filter_map(|trial| trial["state"].as_str()).collect();
    assert_eq!(states, ["done", "timed_out", "done", "timed_out"]);
}

#[test]
fn what_cannot_be_started_or_read_is_said_before_anything_is_measured() {
    let scratch = Scratch::new();
    let missing = sweep(&scratch, ["-n", "1", "-p", "a=x,y", "-o", "r", "--", "./not-there", "{a}"]).run();
    missing.expect_code(127).expect_message("the first trial could not be started, so no other was tried");
    assert_eq!(trials(&scratch.join("r/results.jsonl")).len(), 1);
    for (words, message) in [
        (vec!["-n", "x", "--", "true"], "`x` is not a number of ranks"),
        (vec!["-n", "1", "--bind", "0-", "--", "true"], "is not a list of CPUs"),
        (vec!["-n", "1"], "there is no program to try"),
        (vec!["--", "true"], "how many ranks shall a trial have?"),
        (vec!["-n", "1", "--compare", "b", "--", "true"], "`b` is not a parameter"),
        (vec!["-n", "1", "./bench"], "cannot read the experiment ./bench"),
        (vec!["--report", "r", "--metric", "speed"], "no trial has the figure `speed`"),
        (vec!["--report", "/not/there"], "cannot read the results"),
    ] {
        let ended = Prun::new().option("sweep").options(words).dir(scratch.path()).run();
        ended.expect_code(125).expect_message(message);
    }
}

/// Writes 40 values of a known distribution, a line each, and the script that prints the next one.
fn synthetic(scratch: &Scratch, kind: &str) {
    let mut state = 88_172_645_463_325_252u64;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut normal = || (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    let mut value = |at: usize| match kind {
        "fixed" => 100.0,
        "noisy" => 100.0 + 2.0 * normal(),
        "bimodal" => (if at % 5 < 3 { 100.0 } else { 130.0 }) + normal(),
        "drifting" => 100.0 + at as f64 + normal(),
        _ => 100.0 + 0.5 * normal() + if [11, 23, 31].contains(&at) { 60.0 } else { 0.0 },
    };
    let lines: String = (0..40).map(|at| format!("value {}\n", value(at))).collect();
    scratch.file(&format!("values-{kind}"), lines.as_bytes(), 0o644);
}

#[test]
fn medians_and_warnings_are_right_for_known_distributions() {
    let scratch = Scratch::new();
    let kinds = ["fixed", "noisy", "bimodal", "drifting", "heavy"];
    kinds.iter().for_each(|kind| synthetic(&scratch, kind));
    let next = "read c 2>/dev/null < count-{kind}; c=$((${c:-0} + 1)); echo $c > count-{kind}; exec sed -n ${c}p values-{kind}";
    let ended = sweep(
        &scratch,
        [
            "-n",
            "1",
            "-p",
            "kind=fixed,noisy,bimodal,drifting,heavy",
            "-r",
            "40",
            "-w",
            "0",
            "-q",
            "-o",
            "r",
            "--figure",
            "value=value ([0-9.]+)",
            "--json",
            "-",
            "--",
            "sh",
            "-c",
            next,
        ],
    )
    .run();
    ended.expect_code(0);
    let summary = json(&ended.out());
    let row = |at: usize| {
        let row = &summary["rows"][at];
        let kinds: Vec<String> = row["warnings"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|warning| warning["kind"].as_str().map(String::from))
            .collect();
        let of = |name: &str| row["description"][name].as_f64().expect("a number");
        let interval = &row["description"]["interval"];
        (
            kinds.join(" "),
            of("median"),
            interval["low"].as_f64().expect("low"),
            interval["high"].as_f64().expect("high"),
        )
    };
    assert_eq!(row(0), (String::new(), 100.0, 100.0, 100.0));
    let expected: BTreeMap<usize, (&str, f64)> =
        [(1, ("", 100.0)), (2, ("two_groups", 100.0)), (3, ("drift", 119.5)), (4, ("outliers", 100.0))].into();
    for (at, (kinds, truth)) in expected {
        let (found, median, low, high) = row(at);
        assert_eq!(found, kinds, "{at}");
        assert!((median - truth).abs() < 2.0 && low <= median && median <= high, "{at}: {median} {low} {high}");
    }
    let table = sweep(&scratch, ["--report", "r"]).run();
    table.expect_code(0);
    for words in ["trials come in two groups", "figures drift: from", "3 of 40 trials lie far", "try: --bind core"] {
        assert!(table.out().contains(words), "{words}\n{}", table.out());
    }
}

#[test]
fn two_results_are_compared_and_equal_ones_are_called_equal() {
    let scratch = Scratch::new();
    let run = |out: &str, slower: &str| {
        let script = format!(
            "read c < count-{out} 2>/dev/null; c=$((${{c:-0}} + 1)); echo $c > count-{out}; echo value $(({slower} + c * 7 % 5))"
        );
        sweep(
            &scratch,
            [
                "-n",
                "1",
                "-r",
                "12",
                "-w",
                "0",
                "-q",
                "-o",
                out,
                "--figure",
                "value=value (\\d+)",
                "--",
                "sh",
                "-c",
                &script,
            ],
        )
        .run()
        .expect_code(0);
    };
    run("a", "1000");
    run("b", "1000");
    run("c", "1100");
    let same = sweep(&scratch, ["--report", "b", "--against", "a"]).run();
    assert!(same.out().contains("no difference seen"), "{}", same.out());
    let slower = sweep(&scratch, ["--report", "c", "--against", "a"]).run();
    assert!(slower.out().contains("+10.0 %, worse"), "{}", slower.out());
}

#[test]
fn programs_report_figures_through_libcomm() {
    let scratch = Scratch::new();
    let library = ["libcomm.so", "liblibcomm.so"]
        .map(|name| built("prun").with_file_name(name))
        .into_iter()
        .find(|path| path.exists())
        .expect("libcomm is built");
    let program = format!(
        "import ctypes, os\nlib = ctypes.CDLL({:?})\nlib.comm_report.argtypes = [ctypes.c_char_p, ctypes.c_double]\nfor step in range(3): assert lib.comm_report(b'step_ms', 10.0 * step + int(os.environ['PRUN_RANK'])) == 0\n",
        library.display().to_string()
    );
    scratch.file("report.py", program.as_bytes(), 0o644);
    sweep(&scratch, ["-n", "2", "-r", "2", "-w", "0", "-o", "r", "--metric", "step_ms", "--", "python3", "report.py"])
        .run()
        .expect_code(0);
    let trials = trials(&scratch.join("r/results.jsonl"));
    let mut samples: Vec<(u64, f64)> = trials[0]["figures"]["step_ms"]
        .as_array()
        .expect("samples")
        .iter()
        .map(|sample| (sample["rank"].as_u64().expect("a rank"), sample["value"].as_f64().expect("a value")))
        .collect();
    samples.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    assert_eq!(samples, [(0, 0.0), (0, 10.0), (0, 20.0), (1, 1.0), (1, 11.0), (1, 21.0)]);
    // Without a sweep nobody listens, and nothing happens.
    Prun::new().ranks(2).program(["python3", "report.py"]).dir(scratch.path()).run().expect_code(0);
}

#[test]
fn every_ready_experiment_can_be_read_and_the_small_ones_run() {
    let scratch = Scratch::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sweeps");
    let mut count = 0;
    for entry in fs::read_dir(&directory).expect("configs/sweeps") {
        let path = entry.expect("a file").path().display().to_string();
        sweep(&scratch, [path.as_str(), "--dry-run"]).run().expect_code(0);
        count += 1;
    }
    assert!(count >= 8, "{count}");
    let path = |name: &str| directory.join(name).display().to_string();
    let programs = built("prun").parent().expect("a directory").display().to_string();
    let with_path = |prun: Prun| prun.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap_or_default()));
    with_path(sweep(&scratch, [&path("hello.toml"), "-n", "1,2", "-r", "2", "-q"])).run().expect_code(0);
    let chaos = with_path(sweep(&scratch, [&path("chaos.toml"), "-r", "1", "-p", "ranks=2", "-q"])).run();
    chaos.expect_code(0);
    assert!(chaos.out().starts_with("chaos: 4 combinations, 4 trials; clean_after_ms"), "{}", chaos.out());
    let soak = with_path(sweep(&scratch, [&path("soak.toml"), "-r", "2", "-p", "ranks=2", "--json", "-", "-q"])).run();
    soak.expect_code(0);
    assert!(json(&soak.out())["rows"][0]["description"]["median"].as_f64() > Some(1.0), "{}", soak.out());
}

#[test]
fn precision_and_budget_decide_how_often() {
    let scratch = Scratch::new();
    let ended = sweep(
        &scratch,
        [
            "-n",
            "1",
            "-r",
            "5",
            "-w",
            "0",
            "-p",
            "v=1",
            "--precision",
            "1%",
            "--figure",
            "v=(\\d+)",
            "-o",
            "r",
            "--",
            "echo",
            "{v}",
        ],
    )
    .run();
    ended.expect_code(0);
    assert_eq!(trials(&scratch.join("r/results.jsonl")).len(), 5, "a fixed figure is known at once");
    let began = Instant::now();
    let ended = sweep(&scratch, ["-n", "1", "-r", "1000", "--budget", "700ms", "-o", "b", "--", "sleep", "0.1"]).run();
    ended.expect_code(0).expect_message("the time is used up");
    assert!(
        began.elapsed() < Duration::from_secs(20) && (1..20).contains(&trials(&scratch.join("b/results.jsonl")).len())
    );
}

#[test]
fn several_trials_run_at_once_only_where_there_is_room() {
    let scratch = Scratch::new();
    let cpus = std::thread::available_parallelism().expect("known").get();
    let script = "echo + >> log; sleep 0.05; echo - >> log";
    let words = |n: &'static str, out: &'static str| {
        ["-n", n, "-r", "6", "-w", "0", "--jobs", "8", "-q", "-o", out, "--", "sh", "-c", script]
    };
    sweep(&scratch, words("1", "r")).run().expect_code(0);
    let mut running = 0i32;
    let most = scratch
        .read("log")
        .lines()
        .map(|line| {
            running += if line == "+" { 1 } else { -1 };
            running
        })
        .max();
    let most = usize::try_from(most.expect("lines")).expect("positive");
    assert!(most <= cpus && (cpus == 1 || most > 1), "{most} at once on {cpus} CPUs");
    assert_eq!(trials(&scratch.join("r/results.jsonl")).len(), 6);
}

#[test]
fn on_a_terminal_there_is_a_bar_with_the_time_that_is_left() {
    let scratch = Scratch::new();
    let (job, _terminal): (Running, _) = sweep(&scratch, ["-n", "1", "-r", "6", "-o", "r", "--", "sleep", "0.05"])
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .start_on_terminal();
    job.expect_output("/7 trials", 1);
    let ended = job.wait();
    assert!(ended.out().contains(" left") && !ended.out().contains("\u{1b}[36m"), "{}", ended.out());
}

#[test]
#[ignore = "a figure, not a promise, in a debug build: make soak runs it in release"]
fn a_trial_costs_less_than_5_ms_more_than_its_program() {
    let scratch = Scratch::new();
    let count = 200;
    let bare: Vec<f64> = (0..count)
        .map(|_| {
            let began = Instant::now();
            assert!(Command::new("true").status().expect("true").success());
            began.elapsed().as_secs_f64()
        })
        .collect();
    let began = Instant::now();
    sweep(&scratch, ["-n", "1", "-r", "200", "-w", "0", "-q", "-o", "r", "--", "true"]).run().expect_code(0);
    let whole = began.elapsed().as_secs_f64() / f64::from(count);
    let mut totals: Vec<f64> =
        trials(&scratch.join("r/results.jsonl")).iter().filter_map(|trial| trial["total_s"].as_f64()).collect();
    let mut bare = bare;
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2] * 1e3
    };
    let (bare, total) = (median(&mut bare), median(&mut totals));
    println!("`true` alone {bare:.2} ms; as a trial {total:.2} ms; the whole sweep {:.2} ms a trial", whole * 1e3);
    assert!(total - bare < 5.0);
}
