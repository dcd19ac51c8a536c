//! What prun tells scripts: `--json`.

use std::fs;

use nix::sys::signal::Signal::SIGTERM;
use serde_json::Value;
use tests::{Ended, Prun, Scratch};

/// All events; each line must be one.
fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Runs a job with `--json` to a file.
fn recorded(prun: Prun) -> (Ended, Vec<Value>) {
    let scratch = Scratch::new();
    let ended = prun.options(["--json".into(), scratch.join("events").into_os_string()]).run();
    let text = scratch.read("events");
    (ended, events(&text))
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("every line has an event")).collect()
}

#[test]
fn a_good_job_is_a_start_its_ranks_and_a_result() {
    let (ended, events) = recorded(Prun::new().ranks(2).program(["true"]));
    ended.expect_code(0);
    let mut kinds = kinds(&events);
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("start", "result"));
    kinds.sort_unstable();
    assert_eq!(kinds, ["exited", "exited", "ready", "result", "start", "started", "started"]);
    let result = events.last().expect("a result");
    assert_eq!(
        (result["code"].as_i64(), &result["cause"], result["restart"].as_i64()),
        (Some(0), &Value::Null, Some(0))
    );
    let ranks = result["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    for (rank, line) in ranks.iter().enumerate() {
        assert_eq!((line["rank"].as_u64(), line["code"].as_i64()), (Some(rank as u64), Some(0)));
        assert!(line["max_rss_kib"].as_u64() > Some(0) && line["pid"].as_i64() > Some(1), "{line}");
    }
    assert_eq!(events[0]["ranks"].as_u64(), Some(2));
    assert_eq!(events[0]["programs"][0]["argv"][0], "true");
}

#[test]
fn a_failure_is_named_as_data_with_its_last_output() {
    let (ended, events) =
        recorded(Prun::new().ranks(2).sh("[ $PRUN_RANK = 1 ] && { echo last words; exit 3; }; exec sleep 300"));
    ended.expect_code(3);
    let result = events.last().expect("a result");
    assert_eq!(
        (&result["code"], &result["cause"]["kind"], &result["cause"]["rank"], &result["cause"]["code"]),
        (&3.into(), &"rank_failed".into(), &1.into(), &3.into())
    );
    assert!(result["last_output"].as_str().is_some_and(|text| text.contains("last words")), "{result}");
    assert!(result["message"].as_str().is_some_and(|text| text.contains("rank 1 failed first")), "{result}");
    assert_eq!(result["ranks"][0]["signal"], "SIGTERM");
    assert_eq!(result["ranks"][0]["was_asked"], true);
}

#[test]
fn a_program_that_is_not_there_a_limit_and_a_signal_are_causes_too() {
    let (ended, events) = recorded(Prun::new().ranks(2).program(["./nosuch"]));
    ended.expect_code(127);
    assert!(kinds(&events).contains(&"start_failed"));
    assert_eq!(events.last().expect("a result")["cause"]["kind"], "start_failed");
    let (ended, events) = recorded(Prun::new().ranks(2).options(["--timeout", "200ms"]).program(["sleep", "300"]));
    ended.expect_code(124);
    assert_eq!(events.last().expect("a result")["cause"]["kind"], "time_limit");
    let (ended, events) = recorded(Prun::new().ranks(1).sh("sleep 300 > /dev/null 2>&1 & exit 0"));
    ended.expect_code(0);
    assert_eq!(events.last().expect("a result")["leftovers"][0]["name"], "sleep");
}

#[test]
fn a_signal_is_an_event_and_the_cause() {
    let scratch = Scratch::new();
    let job =
        Prun::new().ranks(1).options(["--json", "events"]).dir(scratch.path()).sh("echo ready; exec sleep 300").start();
    job.expect_output("ready", 1);
    job.signal(SIGTERM);
    job.wait().expect_code(143);
    let events = events(&scratch.read("events"));
    let signal = events.iter().find(|event| event["event"] == "signal").expect("a signal");
    assert_eq!(signal["signal"], "SIGTERM");
    assert_eq!(events.last().expect("a result")["cause"]["kind"], "signal");
}

#[test]
fn each_start_of_a_job_has_its_result() {
    let (ended, events) =
        recorded(Prun::new().ranks(1).options(["--max-restarts", "1"]).sh("exit $((1 - PRUN_RESTART_COUNT))"));
    ended.expect_code(0);
    let results: Vec<_> =
        events.iter().filter(|event| event["event"] == "result").map(|event| event["code"].as_i64()).collect();
    assert_eq!(results, [Some(1), Some(0)]);
}

#[test]
fn events_go_to_an_open_descriptor_as_well() {
    let scratch = Scratch::new();
    let ended = Prun::new()
        .under(["sh", "-c", "exec \"$@\" 7> events", "sh"])
        .dir(scratch.path())
        .ranks(2)
        .options(["--json", "7"])
        .program(["true"])
        .run();
    ended.expect_code(0);
    assert_eq!(kinds(&events(&scratch.read("events"))).last(), Some(&"result"));
    // The ranks do not get it.
    let ended = Prun::new()
        .under(["sh", "-c", "exec \"$@\" 7> events", "sh"])
        .dir(scratch.path())
        .ranks(1)
        .options(["--json", "7"])
        .sh("ls /proc/self/fd")
        .run();
    assert!(!ended.out().lines().any(|line| line == "7"), "{}", ended.out());
}

#[test]
fn a_reader_of_events_that_is_gone_harms_nothing() {
    let ended = Prun::new()
        .under(["bash", "-c", "exec \"$@\" 7> >(exec true)", "bash"])
        .ranks(2)
        .options(["--json", "7"])
        .sh("sleep 0.1")
        .run();
    ended.expect_code(0);
}

#[test]
fn a_killed_rankd_is_a_cause() {
    let scratch = Scratch::new();
    let job =
        Prun::new().ranks(2).options(["--json", "events"]).dir(scratch.path()).sh("echo ready; exec sleep 300").start();
    job.expect_output("ready", 2);
    tests::kill_now(job.rankd());
    job.wait().expect_code(125);
    let text = fs::read_to_string(scratch.join("events")).expect("events");
    assert_eq!(events(&text).last().expect("a result")["cause"]["kind"], "rankd_gone");
}
