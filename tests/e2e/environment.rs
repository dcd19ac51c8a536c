//! What ranks find in their environment.

use std::collections::BTreeMap;
use std::net::TcpListener;

use tests::{Ended, Prun, Scratch};

/// The variables of each rank, from `env -0`.
fn environments(ended: &Ended) -> Vec<BTreeMap<String, String>> {
    ended.expect_code(0);
    let text = ended.out();
    let variables = |part: &str| {
        part.split('\0')
            .filter_map(|line| line.trim_start_matches('\n').split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let mut all: Vec<BTreeMap<String, String>> =
        text.split("\0END\n").filter(|part| !part.is_empty()).map(variables).collect();
    all.sort_by_key(|variables| variables["PRUN_RANK"].clone());
    all
}

/// One write per rank, so that two ranks' texts, which hold no line ends, cannot mix.
const SHOW: &str = "import os, sys\nos.write(1, b'\\0'.join(os.fsencode(k) + b'=' + os.fsencode(v) for k, v in os.environ.items()) + b'\\0END\\n')";

fn show(prun: Prun) -> Vec<BTreeMap<String, String>> {
    environments(&prun.program(["/usr/bin/env", "python3", "-c", SHOW]).run())
}

#[test]
fn ranks_know_who_they_are_in_prun_s_words_and_in_those_of_existing_programs() {
    let ranks = show(Prun::new().ranks(3).without_env("MASTER_ADDR").without_env("MASTER_PORT"));
    assert_eq!(ranks.len(), 3);
    for (rank, variables) in ranks.iter().enumerate() {
        let rank = rank.to_string();
        let expected = [
            ("PRUN_RANK", rank.as_str()),
            ("PRUN_LOCAL_RANK", &rank),
            ("RANK", &rank),
            ("LOCAL_RANK", &rank),
            ("PRUN_SIZE", "3"),
            ("PRUN_LOCAL_SIZE", "3"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("PRUN_NODE", "0"),
            ("PRUN_RESTART_COUNT", "0"),
            ("MASTER_ADDR", "127.0.0.1"),
        ];
        for (name, value) in expected {
            assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(variables["PRUN_JOB_ID"].len(), 16);
        assert_eq!(
            (&variables["PRUN_JOB_ID"], &variables["MASTER_PORT"]),
            (&ranks[0]["PRUN_JOB_ID"], &ranks[0]["MASTER_PORT"])
        );
    }
    let port: u16 = ranks[0]["MASTER_PORT"].parse().expect("a port");
    assert!(port > 0);
}

#[test]
fn the_port_is_free_when_the_ranks_start() {
    let python = "import os, socket; s = socket.socket(); s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); s.listen(); print('bound')";
    // Ports of listeners are never given out.
    let _taken: Vec<_> = (0..50).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    for _ in 0..5 {
        let ended = Prun::new().ranks(1).without_env("MASTER_PORT").program(["python3", "-c", python]).run();
        assert_eq!(ended.expect_code(0).out(), "bound\n");
    }
}

#[test]
fn another_world_s_rank_variables_are_removed_and_the_rest_is_kept() {
    let stale = [
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_FD",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "PMIX_SERVER_URI2",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NTASKS",
        "SLURM_STEP_ID",
        "MV2_COMM_WORLD_RANK",
        "GROUP_RANK",
        "TORCHELASTIC_RUN_ID",
        "HOROVOD_RANK",
    ];
    let kept = ["SLURM_JOB_ID", "OMPI_MCA_btl", "CUDA_VISIBLE_DEVICES", "LANG", "PRUN_ALGO", "PMIX_MCA_gds"];
    let mut prun = Prun::new()
        .ranks(2)
        .env("RANK", "77")
        .env("WORLD_SIZE", "99")
        .env("PRUN_RANK", "55")
        .env("PRUN_JOB_ID", "old")
        .env("MASTER_ADDR", "far")
        .env("MASTER_PORT", "1");
    for name in &stale {
        prun = prun.env(*name, "7");
    }
    for name in kept {
        prun = prun.env(name, "kept");
    }
    for (rank, variables) in show(prun).iter().enumerate() {
        let left: Vec<_> = stale.iter().filter(|name| variables.contains_key(**name)).collect();
        assert!(left.is_empty(), "{left:?}");
        for name in kept {
            assert_eq!(variables.get(name).map(String::as_str), Some("kept"), "{name}");
        }
        assert_eq!((variables["RANK"].as_str(), variables["WORLD_SIZE"].as_str()), (rank.to_string().as_str(), "2"));
        assert_eq!(variables["PRUN_RANK"], rank.to_string());
        assert_ne!(variables["PRUN_JOB_ID"], "old");
        assert_eq!(variables["MASTER_ADDR"], "127.0.0.1");
    }
}

#[test]
fn a_job_inside_a_job_has_numbers_of_its_own() {
    let inner = format!(
        "{} -n 2 sh -c 'echo $PRUN_RANK of $PRUN_SIZE in $PRUN_JOB_ID'; echo outer $PRUN_RANK of $PRUN_SIZE in $PRUN_JOB_ID",
        tests::quoted(tests::built("prun"))
    );
    let ended = Prun::new().ranks(2).sh(inner).run();
    ended.expect_code(0);
    let mut jobs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in ended.out().lines() {
        let (who, job) = line.split_once(" in ").expect("a job");
        jobs.entry(job.to_owned()).or_default().push(who.to_owned());
    }
    let mut groups: Vec<Vec<String>> = jobs
        .into_values()
        .map(|mut who| {
            who.sort();
            who
        })
        .collect();
    groups.sort();
    assert_eq!(groups, [vec!["0 of 2", "1 of 2"], vec!["0 of 2", "1 of 2"], vec!["outer 0 of 2", "outer 1 of 2"]]);
}

#[test]
fn variables_that_the_user_sets_win_and_are_filled_in() {
    let ranks = show(
        Prun::new()
            .ranks(2)
            .options([
                "-x",
                "RANK=r{rank}",
                "-x",
                "WORLD_SIZE=many",
                "-x",
                "MASTER_PORT=5",
                "-x",
                "HERE",
                "-x",
                "PAIR={local_rank}/{size}",
                "-x",
                "EMPTY=",
            ])
            .env("HERE", "a {rank} b"),
    );
    for (rank, variables) in ranks.iter().enumerate() {
        let expected = [
            ("RANK", format!("r{rank}")),
            ("WORLD_SIZE", "many".into()),
            ("MASTER_PORT", "5".into()),
            ("HERE", "a {rank} b".into()),
            ("PAIR", format!("{rank}/2")),
            ("EMPTY", String::new()),
        ];
        for (name, value) in expected {
            assert_eq!(variables.get(name), Some(&value), "{name}");
        }
        assert_eq!(variables["PRUN_RANK"], rank.to_string());
    }
}

#[test]
fn variables_come_from_files_and_from_an_almost_empty_environment() {
    let scratch = Scratch::new();
    scratch.file("vars", b"# a comment\nexport ONE=1\nTWO='two words'\nTHREE=3\n", 0o644);
    let ranks = show(
        Prun::new()
            .ranks(1)
            .options(["--env-file", "vars", "--env-clear", "-x", "THREE=x"])
            .dir(scratch.path())
            .env("SECRET", "s"),
    );
    let variables = &ranks[0];
    assert_eq!(
        (variables["ONE"].as_str(), variables["TWO"].as_str(), variables["THREE"].as_str()),
        ("1", "two words", "x")
    );
    assert!(!variables.contains_key("SECRET") && variables.contains_key("PATH"), "{variables:?}");
}

#[test]
fn a_variable_that_is_not_utf_8_is_handed_on() {
    let odd: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(b"\xff\xfe".to_vec());
    let ended = Prun::new().ranks(1).env("ODD", odd).sh("printf %s \"$ODD\" | od -An -tx1").run();
    assert_eq!(ended.expect_code(0).out(), " ff fe\n");
}
