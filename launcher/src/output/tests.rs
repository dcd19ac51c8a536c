//! Whole jobs without processes: threads write into the ranks' ends, pipes stand for prun's own descriptors.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::job::{LabelPart, LabelTemplate, OutputFiles};

/// Far above what anything here takes; only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_millis(200);

fn label() -> Option<LabelTemplate> {
    Some(LabelTemplate(vec![LabelPart::Text("[".into()), LabelPart::Rank, LabelPart::Text("] ".into())]))
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// A job whose ranks are threads of the test.
struct Fake {
    ranks: Vec<ChildStdio>,
    relay: Option<Relay>,
    stdout: Option<File>,
    stderr: Option<File>,
}

impl Fake {
    fn new(world_size: u32, output: Output) -> Fake {
        let (stdout, out) = pipe().unwrap();
        let (stderr, err) = pipe().unwrap();
        let own = OwnStdio { stdin: null(), stdout: out, stderr: err };
        let (ranks, relay) = open_with(world_size, &output, StdinTo::Rank(0), own).unwrap();
        Fake { ranks, relay: Some(relay), stdout: Some(stdout.into()), stderr: Some(stderr.into()) }
    }

    fn one_target(world_size: u32, output: Output) -> Fake {
        let (stdout, out) = pipe().unwrap();
        let own = OwnStdio { stdin: null(), stderr: out.try_clone().unwrap(), stdout: out };
        let (ranks, relay) = open_with(world_size, &output, StdinTo::Rank(0), own).unwrap();
        Fake { ranks, relay: Some(relay), stdout: Some(stdout.into()), stderr: None }
    }

    /// The rank's (stdout, stderr); the rank has ended when both are dropped.
    fn take_rank(&mut self, rank: usize) -> (File, File) {
        let stdio = self.ranks[rank].clone();
        let dup = |fd: &OwnedFd| File::from(fd.try_clone().unwrap());
        (dup(&stdio.stdout), dup(&stdio.stderr))
    }

    fn start(&mut self) -> RunningRelay {
        self.ranks.clear();
        self.relay.take().unwrap().start().unwrap()
    }

    fn collect_stdout(&mut self) -> JoinHandle<Vec<u8>> {
        collect(self.stdout.take().unwrap())
    }

    fn collect_stderr(&mut self) -> JoinHandle<Vec<u8>> {
        collect(self.stderr.take().unwrap())
    }
}

fn open_with(
    world_size: u32,
    output: &Output,
    stdin: StdinTo,
    own: OwnStdio,
) -> Result<(Vec<ChildStdio>, Relay), OutputError> {
    open(Spec { output, stdin, world_size, job_id: "j1", host: "h1", started: Instant::now(), append: false, own })
}

fn collect(mut from: File) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

fn read_until(from: &mut File, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(from.read(&mut byte).unwrap(), 1, "ended after {:?}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

fn wait_for(fd: impl AsFd) {
    let limit = rustix::event::Timespec::try_from(HANG).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)), Ok(1), "hangs");
}

/// Bytes with every value, the same in each run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn one_rank_is_byte_exact() {
    for output in [Output::default(), Output { merge_stderr: true, ..Output::default() }] {
        let mut job = Fake::new(1, output);
        let (mut stdout, stderr) = job.take_rank(0);
        let (relay, received) = (job.start(), job.collect_stdout());
        let sent = noise((1 << 20) + 7);
        stdout.write_all(&sent).unwrap();
        drop((stdout, stderr));
        let finished = relay.finish(LIMIT);
        assert_eq!((finished.failure.clone(), finished.held_open.len()), (None, 0));
        drop(finished);
        assert!(received.join().unwrap() == sent);
    }
}

#[test]
fn with_labels_removed_binary_output_is_unchanged() {
    let mut job = Fake::new(2, Output { label: label(), ..Output::default() });
    let (mut stdout, stderr) = job.take_rank(1);
    let (relay, received) = (job.start(), job.collect_stdout());
    let mut sent = noise(1 << 20);
    sent.push(b'\n');
    for piece in sent.chunks(4097) {
        stdout.write_all(piece).unwrap();
    }
    drop((stdout, stderr));
    drop(relay.finish(LIMIT));
    let received = received.join().unwrap();
    let bare: Vec<u8> = received
        .split_inclusive(|&byte| byte == b'\n')
        .flat_map(|line| line.strip_prefix(b"[1] ").expect("a label on each line"))
        .copied()
        .collect();
    assert!(bare == sent);
}

#[test]
fn lines_written_in_pieces_by_four_ranks_stay_whole() {
    let mut job = Fake::new(4, Output { label: label(), ..Output::default() });
    let ranks: Vec<_> = (0..4).map(|rank| job.take_rank(rank)).collect();
    let (relay, received) = (job.start(), job.collect_stdout());
    let writers: Vec<_> = ranks
        .into_iter()
        .enumerate()
        .map(|(rank, (mut stdout, _stderr))| {
            std::thread::spawn(move || {
                let line = format!("{}\n", rank.to_string().repeat(299));
                for _ in 0..500 {
                    for piece in line.as_bytes().chunks(7) {
                        stdout.write_all(piece).unwrap();
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(relay.finish(LIMIT));
    let received = String::from_utf8(received.join().unwrap()).unwrap();
    assert_eq!(received.lines().count(), 2000);
    for line in received.lines() {
        let rank = &line[1..2];
        assert_eq!(line, format!("[{rank}] {}", rank.repeat(299)));
    }
}

#[test]
fn one_rank_with_both_streams_into_one_target_keeps_their_order() {
    let mut job = Fake::one_target(1, Output::default());
    let (mut stdout, mut stderr) = job.take_rank(0);
    let (relay, received) = (job.start(), job.collect_stdout());
    for _ in 0..100 {
        stdout.write_all(b"out ").unwrap();
        stderr.write_all(b"err ").unwrap();
    }
    drop((stdout, stderr));
    drop(relay.finish(LIMIT));
    assert_eq!(received.join().unwrap(), b"out err ".repeat(100));
}

#[test]
fn a_blocked_stdout_does_not_hold_stderr() {
    let mut job = Fake::new(2, Output::default());
    let (mut stdout, mut stderr) = job.take_rank(0);
    let stuck = std::thread::spawn(move || stdout.write_all(&b"x\n".repeat(2 << 20)));
    let (relay, errors) = (job.start(), job.collect_stderr());
    stderr.write_all(&b"e\n".repeat(1 << 20)).unwrap();
    relay.note("note");
    drop(stderr);
    let received = job.collect_stdout();
    stuck.join().unwrap().unwrap();
    drop(relay.finish(LIMIT));
    assert_eq!(received.join().unwrap().len(), 4 << 20);
    assert_eq!(errors.join().unwrap().len(), (2 << 20) + 5);
}

#[test]
fn a_reader_that_goes_away_is_told_and_ranks_do_not_block() {
    let mut job = Fake::new(1, Output::default());
    let (mut stdout, stderr) = job.take_rank(0);
    let relay = job.start();
    job.stdout = None;
    stdout.write_all(&noise(4 << 20)).unwrap();
    wait_for(relay.failure_fd());
    assert_eq!(relay.failure(), Some(SinkFailure::Closed { stream: Stream::Stdout }));
    drop((stdout, stderr));
    assert_eq!(relay.finish(LIMIT).failure, Some(SinkFailure::Closed { stream: Stream::Stdout }));
}

#[test]
fn a_full_disk_names_the_file_and_what_to_try() {
    let directory = temp("full");
    std::os::unix::fs::symlink("/dev/full", directory.join("rank-0.out")).unwrap();
    let mut job = Fake::new(1, files(directory.to_str().unwrap(), false));
    let (mut stdout, stderr) = job.take_rank(0);
    let relay = job.start();
    stdout.write_all(b"a line\n").unwrap();
    wait_for(relay.failure_fd());
    let failure = relay.failure().unwrap();
    assert_eq!(failure, SinkFailure::File { path: directory.join("rank-0.out"), errno: Errno::NOSPC });
    let message = failure.to_string();
    assert!(
        message.contains("rank-0.out") && message.contains("No space left") && message.contains("try:"),
        "{message}"
    );
    drop((stdout, stderr));
    drop(relay.finish(LIMIT));
    std::fs::remove_dir_all(directory).unwrap();
}

fn temp(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("prun-output-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn files(pattern: &str, tee: bool) -> Output {
    Output { files: Some(OutputFiles { pattern: pattern.to_owned(), tee }), ..Output::default() }
}

/// Every rank writes a line to each stream, and one without end. Returns what came to (stdout, stderr).
fn speak(mut job: Fake) -> (String, String) {
    let ranks: Vec<_> = (0..job.ranks.len()).map(|rank| job.take_rank(rank)).collect();
    let relay = job.start();
    for (rank, (mut stdout, mut stderr)) in ranks.into_iter().enumerate() {
        stdout.write_all(format!("out {rank}\nend {rank}").as_bytes()).unwrap();
        stderr.write_all(format!("err {rank}\n").as_bytes()).unwrap();
    }
    let (stdout, stderr) = (job.collect_stdout(), job.collect_stderr());
    assert_eq!(relay.finish(LIMIT).failure, None);
    (String::from_utf8(stdout.join().unwrap()).unwrap(), String::from_utf8(stderr.join().unwrap()).unwrap())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_directory_gets_two_files_per_rank_and_the_terminal_nothing() {
    let directory = temp("directory").join("made/on the way");
    let pattern = directory.to_str().unwrap();
    assert_eq!(speak(Fake::new(2, Output { label: label(), ..files(pattern, false) })), (String::new(), String::new()));
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!((read("rank-1.out"), read("rank-1.err")), ("out 1\nend 1".into(), "err 1\n".into()));
    assert_eq!((read("rank-0.out"), read("rank-0.err")), ("out 0\nend 0".into(), "err 0\n".into()));
    // Truncated at the next start.
    speak(Fake::new(1, files(pattern, false)));
    assert_eq!(read("rank-0.out"), "out 0\nend 0");
    std::fs::remove_dir_all(temp("directory")).unwrap();
}

#[test]
fn tee_fills_both_and_the_filter_only_concerns_the_terminal() {
    let directory = temp("tee");
    let pattern = format!("{}/{{rank}}.{{stream}}", directory.display());
    let output = Output { label: label(), ranks: Some(vec![1]), ..files(&pattern, true) };
    let (stdout, stderr) = speak(Fake::new(3, output));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("[1] out 1\n[1] end 1", "[1] err 1\n"));
    for rank in 0..3 {
        let read = |stream: &str| std::fs::read_to_string(directory.join(format!("{rank}.{stream}"))).unwrap();
        assert_eq!((read("out"), read("err")), (format!("out {rank}\nend {rank}"), format!("err {rank}\n")));
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_pattern_without_stream_or_rank_shares_the_file_by_whole_lines() {
    let directory = temp("shared");
    let per_rank = format!("{}/{{rank}}.log", directory.display());
    for tee in [false, true] {
        let (stdout, stderr) = speak(Fake::new(2, files(&per_rank, tee)));
        assert_eq!(sorted(&stdout), if tee { vec!["end 0", "end 1", "out 0", "out 1"] } else { vec![] });
        assert_eq!(sorted(&stderr), if tee { vec!["err 0", "err 1"] } else { vec![] });
        let log = std::fs::read_to_string(directory.join("1.log")).unwrap();
        // Without tee the rank has one pipe for both, and their order is that of its writes.
        assert_eq!(sorted(&log).concat().replace(' ', "").len(), "out1end1err1".len());
        assert!(log.contains("out 1\n") && log.contains("end 1") && log.contains("err 1\n"), "{log}");
    }
    let one = format!("{}/all-{{job}}.log", directory.display());
    speak(Fake::new(2, Output { label: label(), ..files(&one, false) }));
    let all = std::fs::read_to_string(directory.join("all-j1.log")).unwrap();
    assert!(all.lines().all(|line| line.starts_with("[0] ") || line.starts_with("[1] ")), "{all}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_that_cannot_be_created_is_an_error_before_anything_starts() {
    let own = OwnStdio { stdin: null(), stdout: null(), stderr: null() };
    let error = open_with(1, &files("/proc/nowhere", false), StdinTo::None, own).unwrap_err().to_string();
    assert!(error.contains("/proc/nowhere/rank-0.out") && error.contains("try:"), "{error}");
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    let own = || OwnStdio { stdin: null(), stdout: null(), stderr: null() };
    let error = open_with(2, &Output::default(), StdinTo::Rank(2), own()).unwrap_err().to_string();
    assert!(error.starts_with("--stdin 2: the job has ranks 0 to 1"), "{error}");
    let pty = Output { pty: PtyRanks::One(7), ..Output::default() };
    assert!(open_with(2, &pty, StdinTo::None, own()).is_err());
}

#[test]
fn somebody_who_keeps_a_pipe_open_delays_the_end_by_the_limit_only_and_is_named() {
    let mut job = Fake::new(2, Output::default());
    let (mut grandchild, stderr) = job.take_rank(1);
    drop(stderr);
    let (relay, received) = (job.start(), job.collect_stdout());
    grandchild.write_all(b"done\nhalf").unwrap();
    let asked = Instant::now();
    let finished = relay.finish(LIMIT);
    assert!(asked.elapsed() >= LIMIT && asked.elapsed() < HANG);
    assert_eq!(finished.held_open, [(1, Stream::Stdout)]);
    drop(finished);
    assert_eq!(received.join().unwrap(), b"done\nhalf");
    assert!(grandchild.write_all(b"x").is_err(), "the pipe is closed");
}

#[test]
fn a_slow_reader_is_never_cut_off() {
    let mut job = Fake::new(2, Output { label: label(), ..Output::default() });
    let ranks: Vec<_> = (0..2).map(|rank| job.take_rank(rank)).collect();
    let mut writers = Vec::new();
    let mut keepers = Vec::new();
    for (mut stdout, stderr) in ranks {
        // Kept open by somebody, so that not even end of file helps.
        keepers.push(stdout.try_clone().unwrap());
        writers.push(std::thread::spawn(move || {
            stdout.write_all(&b"line\n".repeat(12 << 10)).unwrap();
            drop(stderr);
        }));
    }
    // Both fit into the pipes, so the writers end before anybody reads.
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let relay = job.start();
    relay.drain(Duration::ZERO);
    std::thread::sleep(Duration::from_millis(300));
    let received = job.collect_stdout();
    let finished = relay.finish(Duration::ZERO);
    assert_eq!(finished.held_open.len(), 2);
    drop(finished);
    assert_eq!(received.join().unwrap().len(), 2 * (12 << 10) * "[0] line\n".len());
}

#[test]
fn an_abandoned_end_does_not_wait_for_a_stuck_reader() {
    let mut job = Fake::new(1, Output::default());
    let (mut stdout, stderr) = job.take_rank(0);
    let relay = job.start();
    let writer = std::thread::spawn(move || stdout.write_all(&noise(1 << 20)));
    drop(stderr);
    relay.drain(LIMIT);
    relay.abandon().note("gone");
    let mut errors = job.stderr.take().unwrap();
    assert_eq!(read_until(&mut errors, "gone\n"), "\ngone\n");
    drop(job);
    let _ = writer.join().unwrap();
}

#[test]
fn an_idle_owner_of_a_long_line_makes_room_for_others() {
    let mut job = Fake::new(2, Output { label: label(), ..Output::default() });
    let (mut long, _e0) = job.take_rank(0);
    let (mut other, _e1) = job.take_rank(1);
    let relay = job.start();
    let mut stdout = job.stdout.take().unwrap();
    let length = 400 << 10;
    let writer = std::thread::spawn(move || {
        long.write_all(&vec![b'x'; length]).unwrap();
        long
    });
    let mut start = vec![0; length + 4];
    stdout.read_exact(&mut start).unwrap();
    other.write_all(b"me too\n").unwrap();
    assert_eq!(read_until(&mut stdout, "too\n"), "\n[1] me too\n");
    let mut long = writer.join().unwrap();
    long.write_all(b"end\n").unwrap();
    assert_eq!(read_until(&mut stdout, "end\n"), "[0] end\n");
    drop((long, other, _e0, _e1));
    drop(relay.finish(LIMIT));
}

#[test]
fn notes_are_whole_lines_and_last_words_start_their_own() {
    let mut job = Fake::one_target(2, Output::default());
    let (mut stdout, stderr) = job.take_rank(0);
    let relay = job.start();
    let mut received = job.stdout.take().unwrap();
    stdout.write_all(b"half a ").unwrap();
    relay.note("prun: first\nprun: second");
    assert_eq!(read_until(&mut received, "second\n"), "prun: first\nprun: second\n");
    stdout.write_all(b"line\nlast").unwrap();
    drop((stdout, stderr));
    let finished = relay.finish(LIMIT);
    finished.note("prun: bye");
    drop(finished);
    assert_eq!(read_until(&mut received, "bye\n"), "half a line\nlast\nprun: bye\n");
}

#[test]
fn the_tail_is_what_the_rank_wrote_last() {
    let mut job = Fake::new(2, Output { ranks: Some(vec![]), ..Output::default() });
    let (mut stdout, mut stderr) = job.take_rank(1);
    let relay = job.start();
    stdout.write_all(b"fine\n").unwrap();
    stderr.write_all(b"assertion failed\n").unwrap();
    drop((stdout, stderr));
    let finished = relay.finish(LIMIT);
    assert_eq!(finished.tail(1), b"assertion failed\n");
    assert_eq!(finished.tail(0), b"");
}

#[test]
fn endless_lines_of_four_ranks_reach_a_slow_reader_complete() {
    let mut job = Fake::new(4, Output::default());
    let ranks: Vec<_> = (0..4).map(|rank| job.take_rank(rank)).collect();
    let relay = job.start();
    let writers: Vec<_> = ranks
        .into_iter()
        .map(|(mut stdout, _stderr)| {
            std::thread::spawn(move || (0..64).for_each(|_| stdout.write_all(&[b'x'; 256 << 10]).unwrap()))
        })
        .collect();
    let received = job.collect_stdout();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(relay.finish(LIMIT));
    let received = received.join().unwrap();
    assert_eq!(received.iter().filter(|&&byte| byte == b'x').count(), 4 * (16 << 20));
}

#[test]
fn a_pty_is_a_terminal_and_its_bytes_are_those_written() {
    let mut job = Fake::new(2, Output { pty: PtyRanks::One(1), ..Output::default() });
    assert!(job.ranks[1].pty && !job.ranks[0].pty);
    for fd in [&job.ranks[1].stdin, &job.ranks[1].stdout, &job.ranks[1].stderr] {
        assert!(isatty(fd));
    }
    // Rank 0 reads standard input, so rank 1's first read says end of file.
    let mut input = File::from(job.ranks[1].stdin.try_clone().unwrap());
    let mut buffer = [0; 16];
    assert_eq!(input.read(&mut buffer).unwrap(), 0);
    drop(input);
    let (mut stdout, mut stderr) = job.take_rank(1);
    let (relay, received) = (job.start(), job.collect_stdout());
    stdout.write_all(b"a\nb\r\n").unwrap();
    stderr.write_all(b"c\n").unwrap();
    relay.resize();
    drop((stdout, stderr));
    let finished = relay.finish(LIMIT);
    assert_eq!(finished.held_open, []);
    drop(finished);
    assert_eq!(received.join().unwrap(), b"a\nb\r\nc\n");
}

#[test]
fn a_prompt_is_seen_on_a_terminal() {
    let look = Look { size: None, interactive: None };
    let Pty { master, slave } = Pty::open(&look).unwrap();
    let own = OwnStdio { stdin: null(), stderr: slave.try_clone().unwrap(), stdout: slave };
    let (ranks, relay) = open_with(2, &Output::default(), StdinTo::None, own).unwrap();
    let mut rank = File::from(ranks[0].stdout.try_clone().unwrap());
    drop(ranks);
    let relay = relay.start().unwrap();
    let mut terminal = File::from(master);
    rank.write_all(b"name? ").unwrap();
    assert_eq!(read_until(&mut terminal, "? "), "name? ");
    rank.write_all(b"thanks\n").unwrap();
    assert_eq!(read_until(&mut terminal, "\n"), "thanks\n");
    drop(rank);
    drop(relay.finish(LIMIT));
}

/// Bytes of each rank's standard input, until end of file.
fn read_inputs(ranks: &[ChildStdio]) -> Vec<JoinHandle<Vec<u8>>> {
    ranks.iter().map(|rank| collect(rank.stdin.try_clone().unwrap().into())).collect()
}

#[test]
fn a_pipe_is_handed_to_the_reading_rank_itself() {
    let (read_end, write_end) = pipe().unwrap();
    let same = read_end.try_clone().unwrap();
    let own = OwnStdio { stdin: read_end, stdout: null(), stderr: null() };
    let (ranks, relay) = open_with(3, &Output::default(), StdinTo::Rank(1), own).unwrap();
    assert!(same_file(same.as_fd(), ranks[1].stdin.as_fd()));
    let inputs = read_inputs(&ranks);
    File::from(write_end).write_all(b"for rank 1").unwrap();
    drop(ranks);
    let received: Vec<_> = inputs.into_iter().map(|input| input.join().unwrap()).collect();
    assert_eq!(received, [b"".to_vec(), b"for rank 1".to_vec(), b"".to_vec()]);
    drop(relay.start().unwrap().finish(LIMIT));
}

#[test]
fn every_rank_gets_a_copy_and_one_that_does_not_read_is_skipped() {
    let (read_end, write_end) = pipe().unwrap();
    let own = OwnStdio { stdin: read_end, stdout: null(), stderr: null() };
    let (mut ranks, relay) = open_with(4, &Output::default(), StdinTo::All, own).unwrap();
    ranks.remove(2); // Its end closes when prun's copies are dropped.
    let inputs = read_inputs(&ranks);
    drop(ranks);
    let relay = relay.start().unwrap();
    let sent = noise(650_015);
    File::from(write_end).write_all(&sent).unwrap();
    for input in inputs {
        assert!(input.join().unwrap() == sent);
    }
    drop(relay.finish(LIMIT));
}

#[test]
fn a_terminal_is_copied_and_its_end_of_file_passed_on() {
    let look = Look { size: None, interactive: None };
    let Pty { master, slave } = Pty::open(&look).unwrap();
    let own = OwnStdio { stdin: slave, stdout: null(), stderr: null() };
    let (ranks, relay) = open_with(2, &Output::default(), StdinTo::Rank(0), own).unwrap();
    assert!(!isatty(&ranks[0].stdin));
    let inputs = read_inputs(&ranks);
    drop(ranks);
    let relay = relay.start().unwrap();
    let mut terminal = File::from(master);
    terminal.write_all(b"typed\n\x04").unwrap();
    let received: Vec<_> = inputs.into_iter().map(|input| input.join().unwrap()).collect();
    assert_eq!(received, [b"typed\n".to_vec(), b"".to_vec()]);
    drop(relay.finish(LIMIT));
}

#[test]
fn the_end_does_not_wait_for_input() {
    let (read_end, _never_written) = pipe().unwrap();
    let own = OwnStdio { stdin: read_end, stdout: null(), stderr: null() };
    let (ranks, relay) = open_with(2, &Output::default(), StdinTo::All, own).unwrap();
    let (done, end) = mpsc::channel();
    let relay = relay.start().unwrap();
    drop(ranks);
    std::thread::spawn(move || done.send(relay.finish(LIMIT).held_open.len()));
    assert_eq!(end.recv_timeout(HANG), Ok(0));
}
