//! `prun plan` on recorded machines: what each policy gives, as files that people can read.
//!
//! A `.plan` file holds commands behind `$`, each followed by what it prints. `UPDATE_PLANS=1` writes them anew.

use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::{Prun, built};

fn nodes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nodes")
}

fn prun(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(built("prun"))
        .args(arguments)
        .current_dir(nodes())
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_DEVICE_ORDER")
        .output()
        .expect("prun is built");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code())
}

#[test]
fn every_policy_gives_each_machine_the_plan_that_is_written_down() {
    let mut plans: Vec<PathBuf> = fs::read_dir(nodes())
        .expect("tests/nodes")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "plan"))
        .collect();
    plans.sort();
    assert!(plans.len() >= 12, "only {} machines", plans.len());
    for path in plans {
        let expected = fs::read_to_string(&path).expect("a readable plan");
        let mut found = String::new();
        for line in expected.lines().filter(|line| line.starts_with("$ prun ")) {
            let arguments: Vec<&str> = line.split_whitespace().skip(2).collect();
            let (text, _) = prun(&arguments);
            let _ = write!(found, "{line}\n{}\n", text.trim_end());
            found.push('\n');
        }
        if std::env::var_os("UPDATE_PLANS").is_some() {
            fs::write(&path, &found).expect("a writable plan");
            continue;
        }
        assert_eq!(found, expected, "{} differs; UPDATE_PLANS=1 writes it anew", path.display());
    }
}

#[test]
fn a_refused_plan_has_the_exit_code_of_a_refused_job() {
    let (text, code) = prun(&["plan", "--node", "workstation-2gpu.toml", "-n", "3"]);
    assert_eq!(code, Some(125), "{text}");
    assert!(
        text.contains("3 ranks, 2 GPUs") && text.contains("--share-gpus") && text.contains("--map-by none"),
        "{text}"
    );
}

#[test]
fn the_plan_for_this_machine_is_what_ranks_then_find() {
    let show = "grep Cpus_allowed_list /proc/self/status | cut -f2";
    let ended = Prun::new().ranks(1).options(["--map-by", "numa"]).sh(show).run();
    let found = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
    let (plan, code) = prun(&["plan", "-n", "1", "--map-by", "numa", "--json"]);
    assert_eq!(code, Some(0), "{plan}");
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!(plan["ranks"][0]["cpus"], found.as_str());
}

#[test]
fn openmp_gets_the_number_of_bound_cores_unless_it_is_set() {
    let show = "echo threads=$OMP_NUM_THREADS";
    let ended = Prun::new().ranks(1).options(["--bind", "core"]).without_env("OMP_NUM_THREADS").sh(show).run();
    assert_eq!(ended.stdout, b"threads=1\n");
    let ended = Prun::new().ranks(1).options(["--bind", "core"]).env("OMP_NUM_THREADS", "7").sh(show).run();
    assert_eq!(ended.stdout, b"threads=7\n");
    let ended = Prun::new().ranks(1).without_env("OMP_NUM_THREADS").sh(show).run();
    assert_eq!(ended.stdout, b"threads=\n");
}

#[test]
fn a_saved_machine_is_the_machine() {
    let scratch = tests::Scratch::new();
    let saved = scratch.join("saved.toml");
    let (text, code) = prun(&["topo", "--save", saved.to_str().expect("text")]);
    assert_eq!(code, Some(0), "{text}");
    let here = prun(&["plan", "-n", "2", "--bind", "core", "--json", "--gpus", "none"]).0;
    let there = prun(&[
        "plan",
        "-n",
        "2",
        "--bind",
        "core",
        "--json",
        "--gpus",
        "none",
        "--node",
        saved.to_str().expect("text"),
    ])
    .0;
    let ranks = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["ranks"].clone();
    assert_eq!(ranks(&here), ranks(&there));
}

#[test]
fn a_link_that_is_stuck_is_a_fault_and_scripts_see_it() {
    let scratch = tests::Scratch::new();
    let text = "41:00.0 3D controller: NVIDIA Corporation Device (rev a1)\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 5GT/s (downgraded), Width x16\n";
    let file = scratch.file("lspci.txt", text.as_bytes(), 0o644);
    let file = file.to_str().expect("text");
    let (idle, code) = prun(&["doctor", "--lspci", file]);
    assert_eq!((code, idle.contains("not judged")), (Some(0), true), "{idle}");
    let (busy, code) = prun(&["doctor", "--lspci", file, "--busy", "--json"]);
    let busy: serde_json::Value = serde_json::from_str(&busy).expect("JSON");
    assert_eq!((code, &busy["findings"][0]["check"]), (Some(2), &"link-speed".into()));
}

#[test]
fn what_holds_no_machine_is_refused_and_not_found_healthy() {
    let scratch = tests::Scratch::new();
    let lspci = scratch.file("lspci.txt", b"41:00.0 3D controller: NVIDIA Corporation Device (rev a1)\n", 0o644);
    let (lspci, empty) = (lspci.to_str().expect("text"), scratch.path().to_str().expect("text"));
    let table: &[(&[&str], &str)] = &[
        (&["doctor", "--lspci", "dgx-1.toml"], "holds no text of lspci"),
        (&["doctor", "--lspci", "/dev/null"], "holds no text of lspci"),
        (&["doctor", "--root", "/nonexistent"], "no machine below /nonexistent"),
        (&["topo", "--root", empty], "no machine below"),
        (&["plan", "--node", "/dev/null"], "holds no machine"),
        (&["plan", "--node", lspci], "prun doctor --lspci"),
        (&["doctor", "--from", empty], "prun doctor --collect"),
        (&["doctor", "--from", empty, "--node", "dgx-1.toml"], "contradict each other"),
        (&["doctor", "--lspci", lspci, "--root", empty], "contradict each other"),
        (&["doctor", "--busy"], "--busy says that GPUs worked"),
        (&["plan", "--gpus", "7", "--node", "no-gpu.toml", "-n", "1"], "--gpus asks for GPUs"),
        (&["plan", "--cpus-per-rank", "0", "--node", "no-gpu.toml"], "a number of cores"),
        (&["plan", "--cpus-per-rank", "999", "--node", "no-gpu.toml", "-n", "1"], "--cpus-per-rank 999, and CPUs"),
        (&["plan", "--map-by", "list", "-n", "1"], "there is no list"),
    ];
    for (arguments, part) in table {
        let (text, code) = prun(arguments);
        assert!(code == Some(125) && text.contains(part), "{arguments:?}: {code:?}\n{text}");
    }
}

#[test]
fn the_doctor_judges_copies_and_saved_machines_as_it_judges_this_one() {
    let (text, code) = prun(&["doctor", "--node", "workstation-2gpu.toml", "-n", "9"]);
    assert!(code == Some(1) && text.contains("9 ranks, 2 GPUs"), "{text}");
    // F07: 5 of 32 GT/s, as a copy of the bus shows it.
    let scratch = tests::Scratch::new();
    let device = "sys/bus/pci/devices/0000:41:00.0";
    fs::create_dir_all(scratch.join(device)).expect("a writable scratch directory");
    let files = [
        ("class", "0x030200"),
        ("vendor", "0x10de"),
        ("current_link_speed", "5.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
    ];
    for (name, text) in files {
        fs::write(scratch.join(device).join(name), text).expect("a writable scratch directory");
    }
    let root = scratch.path().to_str().expect("text");
    let (text, code) = prun(&["doctor", "--root", root]);
    assert!(code == Some(0) && text.contains("whether the GPU works is not known"), "{text}");
    let (text, code) = prun(&["doctor", "--root", root, "--busy", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &found["links"][0]["verdict"]), (Some(2), &"too slow".into()));
    assert_eq!((&found["links"][0]["now"], &found["links"][0]["best"]), (&"Gen2 x16".into(), &"Gen5 x16".into()));
    assert_eq!(found["health"][0]["limited_by"], "speed");
}

#[test]
fn the_doctor_examines_this_machine_and_a_collection_of_it() {
    let scratch = tests::Scratch::new();
    let (here, code) = prun(&["doctor", "--during", "100ms"]);
    assert!(matches!(code, Some(0..=2)) && here.contains("prun doctor: "), "{here}");
    let directory = scratch.join("collection");
    let directory = directory.to_str().expect("text");
    assert_eq!(prun(&["doctor", "--during", "100ms", "--collect", directory, "--anonymous"]).1, Some(0));
    let (there, _) = prun(&["doctor", "--from", directory]);
    assert!(there.contains("prun doctor: "), "{there}");
}

#[test]
fn the_helper_that_watches_a_machine_sees_a_link_fall_and_ends_with_its_input() {
    let scratch = tests::Scratch::new();
    let write = |path: &str, text: &str| {
        let path = scratch.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a writable scratch directory");
        fs::write(path, text).expect("a writable scratch directory");
    };
    let device = "sys/bus/pci/devices/0000:41:00.0";
    write("proc/driver/nvidia/gpus/0000:41:00.0/information", "Device Minor: 0\n");
    write("dev/nvidia0", "");
    write(&format!("{device}/class"), "0x030200\n");
    write(&format!("{device}/current_link_speed"), "32.0 GT/s PCIe\n");
    write(&format!("{device}/current_link_width"), "16\n");
    let mut helper = Command::new(built("prun"))
        .arg("watch-machine")
        .arg(scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("prun is built");
    let mut lines = BufReader::new(helper.stdout.take().expect("piped")).lines();
    let mut next =
        || lines.next().map(|line| serde_json::from_str::<serde_json::Value>(&line.expect("text")).expect("JSON"));
    let first = next().expect("a look");
    assert_eq!(first["gpus"][0]["device"]["link"]["width"], 16);
    write(&format!("{device}/current_link_width"), "8\n");
    drop(helper.stdin.take());
    let last = next().expect("a last look");
    assert_eq!(last["gpus"][0]["device"]["link"]["width"], 8);
    assert!(next().is_none() && helper.wait().expect("our child").success());
}
