//! Peer access between GPUs, proven before ranks start, on a machine that has none: the NVIDIA driver's list of GPUs lies
//! over `/proc` in a mount namespace, and `tests/fakes/cuda.c` is the driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tests::{Scratch, built, may_mount, quoted};

const GPUS: [&str; 2] = ["0000:1b:00.0", "0000:3b:00.0"];

/// A folder with the driver.
fn driver(scratch: &Scratch) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fakes/cuda.c");
    let library = scratch.join("libcuda.so.1");
    let compiled = Command::new("cc").args(["-O2", "-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.expect("a C compiler").success());
    scratch.path().to_owned()
}

/// Runs a shell command on a machine with two GPUs, whose driver is as `fault` says.
fn with_gpus(scratch: &Scratch, fault: &str, command: &str) -> Output {
    let mut script = String::from("mount -t tmpfs none /proc/driver\n");
    for (number, gpu) in GPUS.iter().enumerate() {
        let text = format!("Model: NVIDIA Fake\\nGPU UUID: GPU-0000000{number}-0000-0000-0000-000000000000\\n");
        script.push_str(&format!(
            "mkdir -p /proc/driver/nvidia/gpus/{gpu}; printf '{text}' >/proc/driver/nvidia/gpus/{gpu}/information\n"
        ));
    }
    script.push_str(command);
    Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .env("LD_LIBRARY_PATH", driver(scratch))
        .env("XDG_CACHE_HOME", scratch.join("cache"))
        .env("FAKE_CUDA", fault)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("PRUN_P2P")
        .output()
        .expect("unshare")
}

fn launch(scratch: &Scratch, fault: &str) -> (String, String) {
    let prun = quoted(built("prun"));
    let output = with_gpus(scratch, fault, &format!("{prun} -n 2 sh -c 'echo p2p=$PRUN_P2P health=$PRUN_LINK_HEALTH'"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn skipped() -> bool {
    let skip = !may_mount();
    if skip {
        println!("SKIP: may not mount");
    }
    skip
}

#[test]
fn a_pair_is_proven_before_the_first_job_and_not_again() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let (out, err) = launch(&scratch, "");
    assert!(err.contains("proved the ways between the GPUs in "), "{err}");
    assert_eq!(out, "p2p= health=100\np2p= health=100\n");
    let (_, err) = launch(&scratch, "lie");
    assert_eq!(err, "", "known from the first time");
}

#[test]
fn a_pair_whose_data_does_not_arrive_is_named_and_the_ranks_go_through_the_host() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let (out, err) = launch(&scratch, "lie");
    assert!(err.contains("what one GPU writes does not arrive at the other: GPU0 and GPU1"), "{err}");
    assert_eq!(out, "p2p=off health=0\np2p=off health=0\n");
    let doctor = format!("{} doctor --during 50ms --no-load || true", quoted(built("prun")));
    let said = String::from_utf8_lossy(&with_gpus(&scratch, "", &doctor).stdout).into_owned();
    assert!(said.contains("fault: GPU0 and GPU1: data that one wrote did not arrive"), "{said}");
}

#[test]
fn gpus_that_may_not_write_to_each_other_are_no_fault() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let (out, err) = launch(&scratch, "no-peer");
    assert!(err.contains("the driver allows no direct transfers between the GPUs"), "{err}");
    assert_eq!(out, "p2p= health=\np2p= health=\n");
    assert_eq!(launch(&scratch, "no-peer").1, "");
}
