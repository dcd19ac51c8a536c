//! What ranks write arrives whole, in whole lines, and under back-pressure.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;
use tests::{Ended, Prun, Scratch, built, eventually, quoted, status_field};

/// The lines of each rank, by the label `[rank] `.
fn by_rank(ended: &Ended) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let mut lines: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    for line in ended.stdout.strip_suffix(b"\n").unwrap_or(&ended.stdout).split(|&byte| byte == b'\n') {
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]);
        let end = line.iter().position(|&byte| byte == b']').unwrap_or_else(|| panic!("no label: {shown}"));
        let rank = std::str::from_utf8(&line[1..end])
            .expect("a number")
            .parse()
            .unwrap_or_else(|_| panic!("no rank: {shown}"));
        assert_eq!(line[end + 1], b' ', "{shown}");
        lines.entry(rank).or_default().push(line[end + 2..].to_vec());
    }
    lines
}

// B01
#[test]
fn a_line_written_in_two_pieces_gets_one_label() {
    let scratch = Scratch::new();
    let go = scratch.join("go");
    assert!(tests::succeeds(&["mkfifo", &go.display().to_string()]));
    let job = Prun::new()
        .ranks(1)
        .option("-l")
        .dir(scratch.path())
        .sh("printf ABCD; echo half >&2; read x < go; printf 'EFGH\\n'")
        .start();
    job.expect_message("half");
    fs::write(&go, "x\n").expect("the rank reads");
    let ended = job.wait();
    ended.expect_code(0);
    assert_eq!(ended.out(), "[0] ABCDEFGH\n");
}

// B01
#[test]
fn a_last_line_without_its_end_is_shown_labelled_and_kept_apart_from_the_next() {
    let ended = Prun::new().ranks(4).option("-l").program(["printf", "no newline from %s", "x"]).run();
    ended.expect_code(0);
    let expected: Vec<_> = (0..4).map(|rank| format!("[{rank}] no newline from x")).collect();
    assert_eq!(ended.sorted_lines(), expected);
    let ended = Prun::new().ranks(3).program(["printf", "no newline"]).run();
    // What comes last stays as the rank wrote it.
    assert_eq!(ended.out(), "no newline\nno newline\nno newline");
}

// B01
#[test]
fn lines_of_many_small_writes_are_never_mixed() {
    let python = r#"
import os
rank = os.environ["PRUN_RANK"]
for number in range(20000):
    line = (f"{rank} {number} " + rank * 300)[:299] + "\n"
    if number % 40 == 0:
        for at in range(0, 300, 7): os.write(1, line[at:at + 7].encode())
    else:
        os.write(1, line.encode())
"#;
    let ended = Prun::new().ranks(4).option("-l").program(["python3", "-c", python]).run();
    ended.expect_code(0);
    let lines = by_rank(&ended);
    assert_eq!(lines.len(), 4);
    for (rank, lines) in lines {
        assert_eq!(lines.len(), 20_000);
        for (number, line) in lines.iter().enumerate() {
            let mut expected = format!("{rank} {number} ").into_bytes();
            expected.resize(299, b'0' + rank as u8);
            assert!(*line == expected, "line {number} of rank {rank}: {}", String::from_utf8_lossy(line));
        }
    }
}

// B03
#[test]
fn bytes_are_passed_on_whatever_they_are() {
    let python = r#"
import os, time
def out(data):
    while data: data = data[os.write(1, data):]
out(b"a" * 4095 + "\u20ac\n".encode())
out(b"a" * 65535 + "\u20ac\n".encode())
out(b"\xe2"); time.sleep(0.1); out(b"\x82\xac\n")
out(b"\xff\xfe\x00\n\r\n\n")
out(os.urandom(1 << 20).replace(b"\n", b"\0"))
out(os.fsencode(os.environ["ODD"]) + b"\n")
"#;
    let scratch = Scratch::new();
    let program = scratch.file(
        "bytes.py",
        format!("import sys\n{}\n", python.replace("os.urandom(1 << 20)", "open('noise', 'rb').read()")).as_bytes(),
        0o644,
    );
    let mut random = vec![0u8; 1 << 20];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").expect("a source"), &mut random).expect("bytes");
    fs::write(scratch.join("noise"), &random).expect("a file");
    let odd = std::os::unix::ffi::OsStringExt::from_vec(b"\xff\xc3".to_vec());
    let odd: std::ffi::OsString = odd;
    let mut expected = Vec::new();
    expected.extend([b'a'; 4095]);
    expected.extend("\u{20ac}\n".as_bytes());
    expected.extend([b'a'; 65535]);
    expected.extend("\u{20ac}\n".as_bytes());
    expected.extend("\u{20ac}\n".as_bytes());
    expected.extend(b"\xff\xfe\x00\n\r\n\n");
    expected.extend(random.iter().map(|&byte| if byte == b'\n' { 0 } else { byte }));
    expected.extend(b"\xff\xc3\n");
    let plain = Prun::new()
        .ranks(1)
        .program([std::ffi::OsString::from("python3"), program.into_os_string()])
        .env("ODD", odd)
        .dir(scratch.path());
    let job = plain.start();
    let ended = job.wait();
    ended.expect_code(0);
    assert!(ended.stdout == expected, "{} bytes, not {}", ended.stdout.len(), expected.len());
    let odd: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(b"\xff\xc3".to_vec());
    let labelled =
        Prun::new().ranks(1).option("-l").program(["python3", "bytes.py"]).env("ODD", odd).dir(scratch.path()).run();
    labelled.expect_code(0);
    let lines = by_rank(&labelled).remove(&0).expect("rank 0");
    assert!(lines.join(&b'\n') == expected[..expected.len() - 1], "labels change bytes");
}

// B07
#[test]
fn output_of_ranks_that_end_at_once_is_not_lost() {
    let scratch = Scratch::new();
    for round in 0..30 {
        let ended = Prun::new().ranks(8).option("-l").sh("echo $PRUN_RANK").run();
        ended.expect_code(0);
        let expected: Vec<_> = (0..8).map(|rank| format!("[{rank}] {rank}")).collect();
        assert_eq!(ended.sorted_lines(), expected, "round {round}");
    }
    for round in 0..10 {
        let ended = Prun::new().ranks(8).option("-o").option(scratch.join("out")).sh("echo $PRUN_RANK").run();
        ended.expect_code(0);
        for rank in 0..8 {
            assert_eq!(scratch.read(format!("out/rank-{rank}.out")), format!("{rank}\n"), "round {round}");
        }
    }
}

// B07
#[test]
fn a_mebibyte_written_right_before_the_end_arrives() {
    let python = "import os, sys; data = os.environ['PRUN_RANK'].encode() * (1 << 20)\nwhile data: data = data[os.write(1, data):]\nos._exit(int(os.environ['CODE']))";
    for code in ["0", "3"] {
        let ended =
            Prun::new().ranks(3).env("CODE", code).options(["--keep-going"]).program(["python3", "-c", python]).run();
        ended.expect_code(code.parse().expect("a number"));
        let lengths: Vec<_> = ended.stdout.split(|&byte| byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lengths, [1 << 20; 3]);
    }
}

/// Peak memory of a process in KiB.
fn peak_kib(pid: i32) -> u64 {
    status_field(pid, "VmHWM").and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

// B09
#[test]
fn memory_stays_small_when_nobody_reads_and_no_byte_is_lost() {
    const BYTES: u64 = 300 << 20;
    let script = format!(
        "{} -n 4 sh -c 'echo $PPID > rank-$PRUN_RANK; head -c {} /dev/zero | tr \"\\0\" x' | {{ read x < go; wc -c; }}",
        quoted(built("prun")),
        BYTES / 4
    );
    let scratch = Scratch::new();
    assert!(tests::succeeds(&["mkfifo", &scratch.join("go").display().to_string()]));
    let mark = tests::new_mark();
    let shell = Command::new("sh")
        .args(["-c", &script])
        .current_dir(scratch.path())
        .env("PRUN_TEST_MARK", &mark)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    let prun = eventually("prun", || {
        tests::marked(&mark).into_iter().find(|&pid| tests::name_of(pid).as_deref() == Some("prun"))
    });
    // All four are blocked in a write: nothing moves any more.
    eventually("blocked writers", || {
        let writers: Vec<_> =
            tests::marked(&mark).into_iter().filter(|&pid| tests::name_of(pid).as_deref() == Some("tr")).collect();
        let blocked =
            |&pid: &i32| fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|text| text.contains("pipe"));
        (writers.len() == 4 && writers.iter().all(blocked)).then_some(())
    });
    let before = peak_kib(prun);
    fs::write(scratch.join("go"), "x\n").expect("the reader reads");
    let mut peak = before;
    while let now @ 1.. = peak_kib(prun) {
        peak = peak.max(now);
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = shell.wait_with_output().expect("our child");
    let counted: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!((BYTES..=BYTES + 4).contains(&counted), "{counted}");
    assert!(peak < 64 << 10, "{before} KiB while blocked, {peak} KiB at most");
    tests::assert_nothing_left(&mark);
}

// B09
#[test]
fn stderr_flows_while_stdout_is_blocked() {
    let script = format!(
        "{} -n 1 sh -c 'head -c 1000000 /dev/zero & head -c 50000000 /dev/zero >&2; echo all >&2; wait' 2>err | {{ read x < go; wc -c; }}",
        quoted(built("prun"))
    );
    let scratch = Scratch::new();
    assert!(tests::succeeds(&["mkfifo", &scratch.join("go").display().to_string()]));
    let shell = Command::new("sh")
        .args(["-c", &script])
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    eventually("the end of stderr", || {
        fs::read(scratch.join("err")).is_ok_and(|bytes| bytes.ends_with(b"all\n")).then_some(())
    });
    fs::write(scratch.join("go"), "x\n").expect("the reader reads");
    let output = shell.wait_with_output().expect("our child");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().expect("a number") / 10, 100_000);
    assert_eq!(fs::metadata(scratch.join("err")).expect("a file").len() / 100, 500_000);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_job_with_141() {
    let script = format!(
        "{} -n 2 --grace 60s sh -c 'while :; do echo line; done' | head -1; echo ${{PIPESTATUS[0]}}",
        quoted(built("prun"))
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "line\n141\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn labels_can_be_templates() {
    let ended = Prun::new().ranks(2).option("-l={rank}/{stream}/{host}/{elapsed}> ").sh("echo out; echo err >&2").run();
    ended.expect_code(0);
    let check = |text: String, stream: &str| {
        assert_eq!(text.lines().count(), 2, "{text}");
        for line in text.lines() {
            let (label, said) = line.split_once("> ").expect("a label");
            let parts: Vec<_> = label.split('/').collect();
            assert!(
                matches!(parts[0], "0" | "1")
                    && parts[1] == stream
                    && !parts[2].is_empty()
                    && parts[3].contains('.')
                    && said == &stream[3..],
                "{line}"
            );
        }
    };
    check(ended.out(), "stdout");
    let ended = Prun::new().ranks(1).option("-l={time} ").program(["echo", "x"]).run();
    assert_eq!(ended.out().matches(':').count(), 2, "{}", ended.out());
}

#[test]
fn a_directory_gets_a_file_for_each_rank_and_stream() {
    let scratch = Scratch::new();
    let ended = Prun::new()
        .ranks(2)
        .options(["-o", "deep/logs"])
        .dir(scratch.path())
        .sh("echo out $PRUN_RANK; echo err $PRUN_RANK >&2")
        .run();
    ended.expect_code(0);
    assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
    for rank in 0..2 {
        assert_eq!(scratch.read(format!("deep/logs/rank-{rank}.out")), format!("out {rank}\n"));
        assert_eq!(scratch.read(format!("deep/logs/rank-{rank}.err")), format!("err {rank}\n"));
    }
}

#[test]
fn patterns_name_the_files_and_tee_shows_all_as_well() {
    let scratch = Scratch::new();
    let job = |options: &[&str]| {
        Prun::new()
            .ranks(2)
            .options(options.iter().copied())
            .dir(scratch.path())
            .sh("echo out $PRUN_RANK; echo err $PRUN_RANK >&2")
            .run()
    };
    let ended = job(&["-o", "p/{stream}.{rank}.txt", "--tee"]);
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), ["out 0", "out 1"]);
    assert_eq!(scratch.read("p/out.1.txt"), "out 1\n");
    assert_eq!(scratch.read("p/err.0.txt"), "err 0\n");
    job(&["-o", "q/{rank}"]).expect_code(0);
    let mut lines: Vec<_> = scratch.read("q/1").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["err 1", "out 1"]);
    job(&["-o", "r/{job}-{host}-{rank}"]).expect_code(0);
    assert_eq!(fs::read_dir(scratch.join("r")).expect("a directory").count(), 2);
}

#[test]
fn only_the_ranks_asked_for_are_shown_and_files_get_all() {
    let scratch = Scratch::new();
    let ended = Prun::new()
        .ranks(4)
        .options(["--ranks", "0,2-3", "-o", "logs", "--tee"])
        .dir(scratch.path())
        .sh("echo $PRUN_RANK")
        .run();
    ended.expect_code(0);
    assert_eq!(ended.sorted_lines(), ["0", "2", "3"]);
    assert_eq!(scratch.read("logs/rank-1.out"), "1\n");
}

#[test]
fn stderr_goes_to_stderr_or_is_merged_in_order() {
    let script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done";
    let apart = Prun::new().ranks(1).sh(script).run();
    assert_eq!((apart.out(), apart.err()), ("out 1\nout 2\nout 3\n".into(), "err 1\nerr 2\nerr 3\n".into()));
    let merged = Prun::new().ranks(1).option("--merge-stderr").sh(script).run();
    assert_eq!((merged.out(), merged.err()), ("out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n".into(), String::new()));
}

#[test]
fn everything_written_before_a_kill_arrives() {
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; kill -9 $$";
    let ended = Prun::new().ranks(2).options(["--keep-going", "-l"]).sh(script).run();
    ended.expect_code(137);
    let expected: Vec<Vec<u8>> = (0..2000).map(|number| format!("line {number}").into_bytes()).collect();
    let lines = by_rank(&ended);
    assert!(lines[&0] == expected && lines[&1] == expected);
}

#[test]
fn a_reader_that_never_reads_does_not_keep_an_interrupted_job() {
    let python = "import os, subprocess, sys; r, w = os.pipe(); p = subprocess.Popen([sys.argv[1], '-n', '2', '--grace', '300ms', 'sh', '-c', 'while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxx; done'], stdout=w, stderr=subprocess.DEVNULL); print(p.pid, flush=True); sys.stdin.readline(); print(p.wait(), flush=True)";
    let mut parent = Command::new("python3")
        .args(["-c", python])
        .arg(built("prun"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(parent.stdout.take().expect("piped")));
    let prun: i32 = lines.next().expect("a line").expect("text").parse().expect("a pid");
    // Blocked: prun's pipe is full and its ranks wait.
    eventually("a full pipe", || {
        let threads = fs::read_dir(format!("/proc/{prun}/task")).ok()?;
        let blocked = threads.flatten().any(|thread| {
            fs::read_to_string(thread.path().join("wchan")).is_ok_and(|text| text.contains("pipe_write"))
        });
        blocked.then_some(())
    });
    for _ in 0..2 {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(prun), SIGTERM).expect("prun");
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut stdin = parent.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, b"\n").expect("python reads");
    let waited = lines.next().expect("a line").expect("text");
    assert_eq!(waited, "143");
    parent.wait().expect("our child");
}
