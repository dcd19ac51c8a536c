//! A machine whose link falls while a job runs: what prun says, what stands in `--json`, and what `--on-fault` does.
//!
//! The machine is made up, with one GPU of the driver's list, and the CPUs that this test may use.

use std::fs;

use serde_json::Value;
use tests::{Prun, Running, Scratch, eventually};

const DEVICE: &str = "machine/sys/bus/pci/devices/0000:41:00.0";

/// Writes a file of the made-up machine.
fn write(scratch: &Scratch, path: &str, text: &str) {
    let path = scratch.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("a writable scratch directory");
    fs::write(path, text).expect("a writable scratch directory");
}

fn machine() -> Scratch {
    let scratch = Scratch::new();
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a mask").trim();
    write(&scratch, "machine/proc/self/status", &format!("Cpus_allowed_list:\t{cpus}\n"));
    write(&scratch, "machine/sys/devices/system/cpu/online", &format!("{cpus}\n"));
    write(&scratch, "machine/proc/driver/nvidia/gpus/0000:41:00.0/information", "Device Minor: 0\n");
    write(&scratch, "machine/dev/nvidia0", "");
    for (name, text) in [("class", "0x030200"), ("vendor", "0x10de"), ("current_link_speed", "32.0 GT/s PCIe")] {
        write(&scratch, &format!("{DEVICE}/{name}"), text);
    }
    write(&scratch, &format!("{DEVICE}/current_link_width"), "16\n");
    scratch
}

/// A job of one rank that ends when `stop` is there, or at once when it was started again.
fn job(scratch: &Scratch, on_fault: &str) -> Running {
    let stop = scratch.join("stop");
    let script =
        format!("[ \"$PRUN_RESTART_COUNT\" = 0 ] || exit 0; while [ ! -e '{}' ]; do sleep 0.05; done", stop.display());
    Prun::new()
        .ranks(1)
        .options(["--on-fault", on_fault, "--json"])
        .option(scratch.join("events.jsonl"))
        .env("PRUN_TEST_ROOT", scratch.join("machine"))
        .sh(script)
        .start()
}

fn events(scratch: &Scratch, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(scratch.join("events.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|event| event["event"] == kind).collect()
}

/// Waits until somebody has looked, and then takes half of the link's lanes.
fn let_the_link_fall(scratch: &Scratch) {
    let first = eventually("a first look", || events(scratch, "gpus").into_iter().next());
    assert_eq!((&first["gpus"][0]["link"], &first["gpus"][0]["ranks"][0]), (&"Gen5 x16".into(), &0.into()));
    write(scratch, &format!("{DEVICE}/current_link_width"), "8\n");
}

const FELL: &str = "prun: fault: GPU0's link fell from Gen5 x16 to Gen5 x8 at ";

#[test]
fn a_link_that_falls_is_told_at_once_and_at_the_end() {
    let scratch = machine();
    let running = job(&scratch, "warn");
    let_the_link_fall(&scratch);
    running.expect_message(FELL);
    let early = running.messages_so_far();
    assert!(early.contains(" (rank 0)") && !early.contains("the machine changed"), "{early}");
    write(&scratch, "stop", "");
    let ended = running.wait();
    ended
        .expect_code(0)
        .expect_message("prun: the machine changed while the job ran (1 change, first: GPU0's link fell");
    assert_eq!(ended.err().matches(FELL).count(), 1, "{}", ended.err());
    let changes = events(&scratch, "machine");
    assert_eq!((changes.len(), &changes[0]["gpu"], &changes[0]["fault"]), (1, &0.into(), &true.into()));
    assert_eq!(changes[0]["kind"], "link");
}

#[test]
fn a_fault_ends_the_job_where_that_was_asked_for() {
    let scratch = machine();
    let running = job(&scratch, "abort");
    let_the_link_fall(&scratch);
    let ended = running.wait();
    ended.expect_code(125).expect_message(FELL);
    let result = events(&scratch, "result").pop().expect("a result");
    assert_eq!(result["cause"]["kind"], "machine_fault", "{result}");
}

#[test]
fn a_job_is_started_again_after_a_fault_where_that_was_asked_for() {
    let scratch = machine();
    let running = job(&scratch, "restart");
    let_the_link_fall(&scratch);
    let ended = running.wait();
    ended.expect_code(0).expect_message(FELL).expect_message("starting again in 1");
    assert_eq!(events(&scratch, "result").len(), 2);
}
