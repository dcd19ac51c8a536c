//! `prun bench`: every collective comes out right, and what cannot be measured is said in one sentence.

use std::path::Path;

use tests::{Ended, Prun, Scratch};

fn bench(words: &[&str]) -> Ended {
    let quick = ["--batches", "1", "--iters", "3", "--warmup", "1"];
    Prun::new().option("bench").options(words.iter().copied()).options(quick).run()
}

#[test]
fn every_collective_is_measured_and_every_element_is_right() {
    let all = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "reduce_scatter",
        "gather",
        "scatter",
        "alltoall",
        "scan",
        "sendrecv",
        "barrier",
    ];
    for collective in all {
        let text = bench(&[collective, "-n", "3", "--sizes", "12,300K", "--alloc", "both"]).expect_code(0).out();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), if collective == "barrier" { 1 } else { 4 }, "{text}");
        assert!(text.contains("out-of-place") && text.ends_with("# Out of bounds values : 0 OK\n"), "{text}");
    }
}

#[test]
fn results_come_as_json_too() {
    let scratch = Scratch::new();
    let file = scratch.join("out.jsonl");
    let path = file.to_str().expect("plain");
    bench(&["allreduce", "-b", "1K", "-e", "4K", "-d", "bfloat16", "-o", "max", "--percentiles", "--json", path])
        .expect_code(0);
    let lines: Vec<String> = scratch.read("out.jsonl").lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for part in ["\"type\":\"bfloat16\"", "\"redop\":\"max\"", "\"size\":1024", "\"p99\":", "\"wrong\":0"] {
        assert!(lines[1].contains(part), "{part}: {}", lines[1]);
    }
    let only = bench(&["allreduce", "--sizes", "64", "--json", "-"]).expect_code(0).out();
    assert!(only.lines().all(|line| line.starts_with('{')), "{only}");
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_sentence() {
    let table: [(&[&str], &str); 6] = [
        (&["gossip"], "there is no collective `gossip`"),
        (&["allreduce", "-d", "float", "-o", "band"], "band is for integers"),
        (&["reduce", "-r", "2"], "there is no rank 2 among 2"),
        (&["allgather", "-b", "1", "-e", "2"], "there is no message to measure"),
        (&["allreduce", "--against", "nccl"], "are measured between GPUs only"),
        (&["reduce", "--device"], "is not measured between GPUs"),
    ];
    for (words, message) in table {
        bench(words).expect_code(125).expect_message(message);
    }
}

#[test]
fn mpi_takes_turns_with_us_or_its_absence_is_said() {
    let ended = bench(&["allreduce", "--sizes", "64,4K", "--against", "mpi", "--rounds", "1"]);
    let is_there = ["mpicc.openmpi", "mpicc.mpich"].iter().any(|name| Path::new("/usr/bin").join(name).exists());
    if is_there {
        let text = ended.expect_code(0).out();
        assert!(
            text.contains("ratio of libcomm") && text.lines().filter(|line| !line.starts_with('#')).count() == 2,
            "{text}"
        );
    } else {
        ended.expect_code(125).expect_message("no twin could be built").expect_message("try: `apt-get install");
    }
}

/// A compiler that makes a program of whatever it is given, and a launcher that does as told.
fn fake_mpi(scratch: &Scratch, launcher: &str) -> [String; 4] {
    let compiler = r#"while [ "$1" != -o ]; do shift; done; printf '#!/bin/sh\n' > "$2"; chmod +x "$2""#;
    let compiler = scratch.script("my-cc", compiler);
    let launcher = scratch.script("my-mpirun", launcher);
    let text = |path: &Path| path.to_str().expect("plain").to_owned();
    ["--mpicc".into(), text(&compiler), "--mpirun".into(), text(&launcher)]
}

#[test]
fn a_rival_that_does_not_end_is_printed_as_that_and_not_tried_again() {
    let scratch = Scratch::new();
    let sleeper = r#"[ "$1" = --version ] && exit; echo begun >> "$(dirname "$0")/begun"; sleep 1000"#;
    let fake = fake_mpi(&scratch, sleeper);
    let mut words = vec!["allreduce", "--sizes", "64,4K", "--against", "mpi", "--rounds", "2", "--rival-limit", "1"];
    words.extend(fake.iter().map(String::as_str));
    let text = bench(&words).expect_code(0).out();
    let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains("> 1 s")), "{text}");
    assert!(text.contains("my-mpirun"), "{text}");
    assert_eq!(scratch.read("begun"), "begun\n");
}

#[test]
fn an_mpi_named_by_the_environment_is_measured_and_its_failure_is_said() {
    let scratch = Scratch::new();
    let fake =
        fake_mpi(&scratch, r#"[ "$1" = --version ] && { echo "mpirun (Open MPI) 9"; exit; }; echo "$@" >&2; exit 3"#);
    let job = Prun::new().env("MPICC", &fake[1]).env("MPIRUN", &fake[3]).option("bench");
    let words = ["allreduce", "--sizes", "64", "--against", "mpi", "--rounds", "1", "--batches", "1", "--iters", "3"];
    let ended = job.options(words).run();
    let text = ended.expect_code(0).expect_message("note: Open MPI: --oversubscribe --allow-run-as-root -n 2 ").out();
    assert!(text.contains("Open MPI") && text.contains("failed"), "{text}");
}
