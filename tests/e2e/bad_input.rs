//! Bad input: the documented code, one clear sentence, something to try, and nothing lost or left.

use std::fs;

use tests::{Ended, Prun, Scratch};

/// prun's own errors.
const REFUSED: i32 = 125;

#[track_caller]
fn expect_refusal(ended: &Ended, code: i32, part: &str) {
    ended.expect_code(code).expect_message(part).expect_message("  try: ");
    let first = ended.err().lines().next().unwrap_or_default().to_owned();
    assert!(first.starts_with("error: ") && first.len() > 20, "{}", ended.err());
    assert_eq!(ended.err().lines().filter(|line| line.starts_with("error: ")).count(), 1, "{}", ended.err());
    assert_eq!(ended.out(), "");
}

fn refused(words: &[&str], part: &str) {
    let ended = Prun::new().options(words.iter().copied()).run();
    expect_refusal(&ended, REFUSED, part);
}

#[test]
fn impossible_numbers_of_ranks_are_refused() {
    refused(&["-n", "0", "true"], "at least 1 rank");
    refused(&["-n", "100000", "true"], "100000 ranks are more than prun starts");
    refused(&["-n", "-3", "true"], "-3");
    refused(&["-n", "two", "true"], "two");
    refused(&["-n", "99999999999999999999", "true"], "99999999999999999999");
}

#[test]
fn no_program_and_no_number_are_refused() {
    refused(&[], "no program");
    refused(&["-n", "2"], "no program");
    refused(&["true"], "how many ranks");
    refused(&["-n", "1", "true", ":"], "no program");
    Prun::new().ranks(2).program([""]).run().expect_code(127).expect_message("error: the program's name is empty");
}

#[test]
fn a_program_that_is_not_there_is_127() {
    expect_refusal(&Prun::new().ranks(2).program(["./nosuch"]).run(), 127, "cannot find program './nosuch'");
}

#[test]
fn options_that_do_not_exist_or_contradict_are_refused() {
    refused(&["--nosuch", "-n", "2", "true"], "--nosuch");
    refused(&["-n", "2", "--bind-to", "core", "true"], "--bind-to");
    refused(&["-n", "2", "-n", "3", "true"], "twice");
    refused(&["-n", "2", "--timeout", "soon", "true"], "soon");
    refused(&["-n", "2", "--signal", "USR1@10", "true"], "--timeout");
    refused(&["-n", "2", "--tee", "true"], "--tee");
    refused(&["-n", "2", "-x", "NOT_SET_ANYWHERE", "true"], "NOT_SET_ANYWHERE");
    refused(&["-n", "2", "--json", "77", "true"], "77");
    refused(&["-n", "2", "-o", "same-for-all-{host}", "true"], "same file");
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    for words in [["-n", "2", "--ranks", "0-2"], ["-n", "2", "--stdin", "2"]] {
        let ended = Prun::new().options(words).program(["true"]).run();
        ended.expect_code(REFUSED).expect_message("rank 2");
    }
}

fn refused_file(text: &[u8], part: &str) {
    let scratch = Scratch::new();
    scratch.file("job.toml", text, 0o644);
    let ended = Prun::new().dir(scratch.path()).options(["run", "job.toml"]).run();
    ended.expect_code(REFUSED).expect_message(part);
    let first = ended.err().lines().next().unwrap_or_default().to_owned();
    assert!(first.starts_with("error: job.toml, line "), "{}", ended.err());
}

#[test]
fn a_job_file_that_is_not_toml_is_shown_where_it_goes_wrong() {
    refused_file(b"ranks = 2\nprogram = ['true'\n", "line ");
    refused_file(b"ranks = = 2\n", "line 1, column 9");
    refused_file(b"ranks = 2\n\xff\xfe", "line 2, column 1: this is not UTF-8 text");
    refused_file(b"ranks = 'many'\nprogram = ['true']\n", "line 1, column 9");
}

#[test]
fn an_unknown_key_is_shown_with_line_and_column_and_a_near_one() {
    let scratch = Scratch::new();
    scratch.file("job.toml", b"ranks = 2\nprogram = ['true']\n\n[output]\n  labell = true\n", 0o644);
    let ended = Prun::new().dir(scratch.path()).options(["run", "job.toml"]).run();
    expect_refusal(&ended, REFUSED, "job.toml, line 5, column 3: there is no key `output.labell`");
    ended.expect_message("5 |   labell = true").expect_message("`label` in the table [output]");
    scratch.file("job.toml", b"rank = 2\nprogram = ['true']\n", 0o644);
    let ended = Prun::new().dir(scratch.path()).options(["run", "job.toml"]).run();
    expect_refusal(&ended, REFUSED, "line 1, column 1: there is no key `rank`");
    ended.expect_message("`ranks`");
}

#[test]
fn a_job_file_that_cannot_be_read_is_named() {
    let scratch = Scratch::new();
    for name in ["nosuch.toml", "."] {
        let ended = Prun::new().dir(scratch.path()).options(["run", name]).run();
        expect_refusal(&ended, REFUSED, "cannot read the job file");
    }
    refused(&["run"], "");
    // Root may read what nobody may.
    if !nix::unistd::Uid::effective().is_root() {
        scratch.file("secret.toml", b"ranks = 1\n", 0o000);
        let ended = Prun::new().dir(scratch.path()).options(["run", "secret.toml"]).run();
        expect_refusal(&ended, REFUSED, "cannot read the job file");
    }
}

#[test]
fn a_full_disk_for_output_files_ends_the_job_and_says_so() {
    let scratch = Scratch::new();
    let writer =
        "i=0; while [ $i -lt 4000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done; sleep 300";
    if tests::may_mount() {
        fs::create_dir(scratch.join("small")).expect("a directory");
        let mount = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none small && exec \"$@\"", "sh"];
        let ended =
            Prun::new().under(mount).dir(scratch.path()).ranks(2).options(["-o", "small/logs"]).sh(writer).run();
        expect_refusal(&ended, REFUSED, "cannot write the output file small/logs/rank-");
        ended.expect_message("No space left on device").expect_message("ended the job");
    }
    std::os::unix::fs::symlink("/dev/full", scratch.join("rank-0.out")).expect("a link");
    let ended = Prun::new().dir(scratch.path()).ranks(1).options(["-o", "."]).sh(writer).run();
    expect_refusal(&ended, REFUSED, "rank-0.out");
    ended.expect_message("No space left on device");
}

#[test]
fn text_that_cannot_be_written_is_told_and_a_reader_who_left_is_not() {
    let ended = |arguments: &str| {
        let command = format!("exec '{}' {arguments}", tests::built("prun").display());
        let output = std::process::Command::new("sh").args(["-c", &command]).output().expect("sh");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for look in
        ["topo --json", "plan -n 1 --json", "doctor --during 1ms --json", "--help", "sweep -n 1 --dry-run -- true"]
    {
        let (code, said) = ended(&format!("{look} > /dev/full"));
        assert_eq!(code, Some(125), "{look}: {said}");
        assert!(said.contains("cannot write to standard output") && said.contains("No space left"), "{look}: {said}");
    }
    let pipe = format!("trap '' PIPE; '{}' man | true; :", tests::built("prun").display());
    let output = std::process::Command::new("sh").args(["-c", &pipe]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_full_disk_for_stdout_ends_the_job_and_says_so() {
    let ended = Prun::new().under(["sh", "-c", "exec \"$@\" > /dev/full", "sh"]).ranks(2).sh("echo x; sleep 300").run();
    expect_refusal(&ended, REFUSED, "cannot write to prun's stdout");
    ended.expect_message("No space left on device");
}

#[test]
fn a_closed_stdout_or_stderr_harms_no_job() {
    for closed in [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let under = format!("exec \"$@\" {closed}");
        let scratch = Scratch::new();
        let ended = Prun::new()
            .under(["sh", "-c", &under, "sh"])
            .dir(scratch.path())
            .ranks(2)
            .option("--keep-going")
            .sh("echo out; echo err >&2; echo x > wrote-$PRUN_RANK; exit $((PRUN_RANK * 4))")
            .run();
        ended.expect_code(4);
        assert!(scratch.join("wrote-0").exists() && scratch.join("wrote-1").exists(), "{closed}");
    }
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "").expect("a file");
    for (option, part) in [("-o", "cannot create the output file"), ("--json", "cannot write JSON lines")] {
        for place in ["/proc/nosuch/out", "file/below"] {
            let ended = Prun::new().dir(scratch.path()).ranks(1).options([option, place]).program(["true"]).run();
            expect_refusal(&ended, REFUSED, part);
        }
    }
}

/// A shell that is nobody in particular, in a directory where it may not write.
fn as_nobody(script: &str) -> Option<Vec<String>> {
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"].map(str::to_owned).to_vec();
    let mut words = if nix::unistd::Uid::effective().is_root() { words } else { words[4..].to_vec() };
    words.extend([script.to_owned(), "sh".to_owned()]);
    let prun = tests::built("prun").display().to_string();
    let test: Vec<&str> = words.iter().map(String::as_str).collect::<Vec<_>>()[..words.len() - 2].to_vec();
    tests::succeeds(&[&test[..], &[&format!("test -x {prun}")]].concat()).then_some(words)
}

#[test]
fn in_a_directory_where_nothing_can_be_written_jobs_run() {
    let scratch = Scratch::new();
    let directory = scratch.join("closed");
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o555)).expect("our own");
    let Some(words) = as_nobody("exec \"$@\"") else {
        println!("SKIP: prun lies where nobody else may run it");
        return;
    };
    let ended = Prun::new().under(words.clone()).dir(&directory).ranks(2).sh("pwd").run();
    assert_eq!(ended.expect_code(0).out(), format!("{0}\n{0}\n", directory.display()));
    let ended = Prun::new().under(words).dir(&directory).ranks(2).options(["-o", "logs"]).program(["true"]).run();
    expect_refusal(&ended, REFUSED, "cannot create the output file logs/rank-0.");
    ended.expect_message("Permission denied");
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("gone")).expect("a directory");
    let ended = Prun::new()
        .under(["sh", "-c", "rmdir \"$PWD\"; exec \"$@\"", "sh"])
        .dir(scratch.join("gone"))
        .ranks(1)
        .program(["true"])
        .run();
    expect_refusal(&ended, REFUSED, "working directory is gone");
}

#[test]
fn a_limit_on_processes_or_files_is_named() {
    let ended = Prun::new().under(["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"]).ranks(64).program(["true"]).run();
    ended.expect_code(REFUSED).expect_message("open files").expect_message("try: ");
}
