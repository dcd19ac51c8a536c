//! Programs are found and started as asked, and the exit code and the last sentence tell how it went.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use tests::{Prun, Scratch, built, quoted};

#[test]
fn a_job_whose_ranks_all_end_well_ends_well_and_says_nothing() {
    let ended = Prun::new().ranks(4).program(["true"]).run();
    ended.expect_code(0);
    assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
}

#[test]
fn the_first_failure_is_named_with_cause_time_and_last_words_and_gives_the_code() {
    let script = "[ $PRUN_RANK = 1 ] || exec sleep 300; echo 'about to fail'; echo 'the reason' >&2; exit 3";
    let ended = Prun::new().ranks(3).sh(script).run();
    ended
        .expect_code(3)
        .expect_message("prun: rank 1 failed first (exit 3) after ")
        .expect_message("ranks 0,2 were then stopped (SIGTERM)");
    ended.expect_message("  | the reason");
    let last = ended.err().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("prun: rank 1 failed first"), "{last}");
}

#[test]
fn a_rank_that_a_signal_ends_gives_128_and_its_number() {
    let ended = Prun::new().ranks(2).sh("[ $PRUN_RANK = 0 ] && kill -SEGV $$; exec sleep 300").run();
    ended.expect_code(139).expect_message("rank 0 failed first (SIGSEGV");
    let ended = Prun::new().ranks(2).sh("[ $PRUN_RANK = 0 ] && kill -KILL $$; exec sleep 300").run();
    ended.expect_code(137).expect_message("rank 0 failed first (SIGKILL").expect_message("try: ");
}

// A04, the control: an early end is no failure.
#[test]
fn a_rank_may_end_early_while_the_others_go_on() {
    let scratch = Scratch::new();
    let go = scratch.join("go");
    assert!(std::process::Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let job = Prun::new()
        .ranks(4)
        .sh(format!("[ $PRUN_RANK = 1 ] && exit 0; read x < {}; echo went on", quoted(&go)))
        .start();
    let others = [0, 2, 3].map(|rank| job.rank(rank));
    let rankd = job.rankd();
    tests::eventually("the end of rank 1", || {
        let all = job.all();
        let children: Vec<_> = all.iter().filter(|&&pid| tests::parent_of(pid) == Some(rankd)).collect();
        (children.len() == 3 && children.iter().all(|pid| others.contains(pid))).then_some(())
    });
    // One line for each of the three, and the pipe stays open until all have read theirs.
    let mut writer = fs::OpenOptions::new().read(true).write(true).open(&go).expect("the pipe");
    std::io::Write::write_all(&mut writer, b"x\nx\nx\n").expect("room for three lines");
    let ended = job.wait();
    ended.expect_code(0);
    assert_eq!(ended.out(), "went on\n".repeat(3));
    assert_eq!(ended.err(), "");
}

// A15: no byte of an argument changes, and the working directory is kept.
#[test]
fn arguments_and_directories_with_blanks_quotes_and_any_bytes_arrive_as_they_are() {
    let scratch = Scratch::new();
    let directory = scratch.join("my dir");
    fs::create_dir(&directory).expect("a directory");
    let show = "import os, sys\nfor argument in sys.argv[1:]: print(os.fsencode(argument).hex())\nprint(len(sys.argv), os.getcwd())";
    let program = scratch.file("my dir/my prog", format!("#!/usr/bin/env python3\n{show}\n").as_bytes(), 0o755);
    let arguments: [&[u8]; 8] = [b"./my prog", b"a b", b"", b"*", b"\"", b"it's", b"x\xff", b":x"];
    let words = arguments.map(|bytes| OsString::from_vec(bytes.to_vec()));
    let ended = Prun::new().ranks(2).option("-o").option(scratch.join("out")).program(words).dir(&directory).run();
    ended.expect_code(0);
    let mut expected: Vec<String> =
        arguments[1..].iter().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    expected.push(format!("8 {}", directory.display()));
    for rank in 0..2 {
        assert_eq!(scratch.read(format!("out/rank-{rank}.out")).lines().collect::<Vec<_>>(), expected);
    }
    let ended = Prun::new().ranks(1).program([program.as_os_str(), "a b".as_ref()]).run();
    ended.expect_code(0);
    assert!(ended.out().starts_with("612062\n2 "), "{}", ended.out());
}

#[test]
fn a_program_is_found_by_path_by_name_and_from_the_ranks_directory() {
    let scratch = Scratch::new();
    let program = scratch.script("greet", "echo hello from $(pwd)");
    let here = scratch.path().display().to_string();
    let path = format!("{here}:{}", std::env::var("PATH").unwrap_or_default());
    let by_path = Prun::new().ranks(1).program([&program]).dir(&here).run();
    let by_name = Prun::new().ranks(1).program(["greet"]).env("PATH", &path).dir(&here).run();
    let relative = Prun::new().ranks(1).program(["./greet"]).dir(&here).run();
    let by_wdir = Prun::new().ranks(1).option("--wdir").option(&here).program(["./greet"]).run();
    for ended in [by_path, by_name, relative, by_wdir] {
        ended.expect_code(0);
        assert_eq!(ended.out(), format!("hello from {here}\n"));
    }
}

#[test]
fn each_rank_can_have_a_directory_of_its_own() {
    let scratch = Scratch::new();
    for rank in 0..3 {
        fs::create_dir(scratch.join(format!("part{rank}"))).expect("a directory");
    }
    let ended = Prun::new().ranks(3).option("--wdir").option(scratch.join("part{rank}")).sh("pwd; echo $PWD").run();
    ended.expect_code(0);
    let expected: Vec<_> = (0..6).map(|line| scratch.join(format!("part{}", line / 2)).display().to_string()).collect();
    assert_eq!(ended.sorted_lines(), expected);
}

#[test]
fn several_programs_are_one_job() {
    let one = "echo one $PRUN_RANK of $PRUN_SIZE $SHARED$OWN";
    let two = "echo two $PRUN_RANK of $PRUN_SIZE $SHARED$OWN";
    let words = ["-x", "SHARED=s", "-n", "1", "sh", "-c", one, ":", "-n", "2", "-x", "OWN=o", "sh", "-c", two];
    let ended = Prun::new().options(words).run();
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), ["one 0 of 3 s", "two 1 of 3 so", "two 2 of 3 so"]);
    let ended = Prun::new().options(["-n", "2", "sleep", "300", ":", "-n", "1", "sh", "-c", "exit 5"]).run();
    ended.expect_code(5).expect_message("rank 2 failed first (exit 5)");
}

#[test]
fn many_ranks_start_and_end() {
    let ended = Prun::new().ranks(200).sh("echo $PRUN_RANK").run();
    ended.expect_code(0);
    let seen: BTreeSet<u32> = ended.out().lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(seen, (0..200).collect());
}

#[test]
fn a_dry_run_shows_each_rank_and_starts_nothing() {
    let scratch = Scratch::new();
    let ended = Prun::new().ranks(2).option("--dry-run").program(["touch", "started"]).dir(scratch.path()).run();
    ended.expect_code(0);
    assert!(!scratch.join("started").exists());
    assert!(ended.out().contains("touch") && ended.out().contains("rank"), "{}", ended.out());
}

#[test]
fn a_job_file_is_the_same_as_its_flags_and_flags_win() {
    let scratch = Scratch::new();
    let text = "ranks = 3\nprogram = ['sh', '-c', 'echo $PRUN_RANK of $PRUN_SIZE, $COLOUR; exit $CODE']\n[env]\nCOLOUR = 'blue'\nCODE = '0'\n[output]\nlabel = '{rank}> '\n";
    let file = scratch.file("job.toml", text.as_bytes(), 0o644);
    let ended = Prun::new().option("run").option(&file).run();
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), ["0> 0 of 3, blue", "1> 1 of 3, blue", "2> 2 of 3, blue"]);
    let ended = Prun::new().option("run").option(&file).options(["-n", "1", "-x", "COLOUR=red", "-l=: "]).run();
    ended.expect_code(0);
    assert_eq!(ended.out(), ": 0 of 1, red\n");
    let ended = Prun::new().option("run").option(&file).options(["-x", "CODE=6"]).run();
    ended.expect_code(6);
}

/// The CPUs this test may use, as the kernel lists them.
fn allowed() -> Vec<usize> {
    let text = tests::status_field(std::process::id() as i32, "Cpus_allowed_list").expect("a list");
    expand(&text)
}

fn expand(list: &str) -> Vec<usize> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().expect("a CPU")..=last.parse::<usize>().expect("a CPU")
    };
    list.trim().split(',').flat_map(one).collect()
}

const SHOW_CPUS: &str = "echo $PRUN_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";

#[test]
fn ranks_are_not_bound_unless_asked_for() {
    let ended = Prun::new().ranks(2).sh(SHOW_CPUS).run();
    ended.expect_code(0);
    for line in ended.out().lines() {
        assert_eq!(expand(line.split_once(' ').expect("two words").1), allowed());
    }
}

#[test]
fn a_list_binds_each_rank_in_turn() {
    let cpus = allowed();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let ended = Prun::new().ranks(3).option("--bind").option(format!("{first},{last}")).sh(SHOW_CPUS).run();
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), [format!("0 {first}"), format!("1 {last}"), format!("2 {first}")]);
}

#[test]
fn core_binding_stays_inside_the_mask_and_gives_each_rank_its_own() {
    let cpus = allowed();
    let ended = Prun::new()
        .ranks(1)
        .under(["taskset", "-c", &cpus[0].to_string()])
        .options(["--bind", "core"])
        .sh(SHOW_CPUS)
        .run();
    ended.expect_code(0);
    assert_eq!(ended.out(), format!("0 {}\n", cpus[0]));
    let ended = Prun::new().ranks(2).options(["--bind", "core"]).sh(SHOW_CPUS).run();
    ended.expect_code(0);
    for line in ended.out().lines() {
        let bound = expand(line.split_once(' ').expect("two words").1);
        assert!(!bound.is_empty() && bound.iter().all(|cpu| cpus.contains(cpu)), "{line}");
    }
}

#[test]
fn a_cpu_outside_the_mask_is_refused_by_its_number() {
    let cpus = allowed();
    let outside = cpus[cpus.len() - 1];
    let ended = Prun::new()
        .ranks(1)
        .under(["taskset", "-c", &cpus[0].to_string()])
        .option("--bind")
        .option(outside.to_string())
        .program(["true"])
        .run();
    if cpus.len() == 1 {
        ended.expect_code(0);
        return;
    }
    ended.expect_code(125).expect_message(&outside.to_string());
    assert!(ended.err().starts_with("error: "), "{}", ended.err());
}

#[test]
fn the_program_that_is_built_here_answers_by_itself() {
    for (words, part) in [
        (vec!["--version"], "prun "),
        (vec!["--help"], "Usage: prun"),
        (vec!["signals"], "SIGTERM"),
        (vec!["man"], ".TH PRUN 1"),
        (vec!["completions", "bash"], "complete"),
    ] {
        let output = std::process::Command::new(built("prun")).args(&words).output().expect("prun starts");
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(part),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
}
