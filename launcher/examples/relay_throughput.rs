//! How fast output passes through, beside a bare relay: `cargo run --release -p launcher --example relay_throughput`.
//!
//! Starts 4 writers of 256 MiB each, in 80-byte lines, written one by one or 64 KiB at a time, and passes their
//! output into `cat > /dev/null`: through a loop of poll, read 64 KiB, write (which mixes lines), plainly, and
//! with labels. Prints MB/s (10⁶ bytes of the writers' output per second) and the peak memory of this process.
//! With arguments `ranks MiB-per-rank repetitions`, other sizes.

use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::job::{LabelPart, LabelTemplate, Output, StdinTo};
use launcher::output::{OwnStdio, Spec, open};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::event::{PollFd, PollFlags, poll};

const LINE: usize = 80;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default: usize| arguments.get(index).map_or(default, |text| text.parse().expect("a number"));
    if arguments.first().is_some_and(|first| first == "--write") {
        write_lines(number(1, 0), number(2, LINE));
        return;
    }
    let (ranks, mib, repetitions) = (number(0, 4), number(1, 256), number(2, 3));
    println!("{ranks} ranks x {mib} MiB, {LINE}-byte lines, median of {repetitions}, MB/s");
    for (name, piece) in [("one write per line", LINE), ("64 KiB writes", 64 << 10)] {
        let mut columns: [Vec<Run>; 3] = Default::default();
        for _ in 0..repetitions {
            columns[0].push(bare(ranks, mib << 20, piece));
            columns[1].push(relay(ranks, mib << 20, piece, false));
            columns[2].push(relay(ranks, mib << 20, piece, true));
        }
        let cpu = columns.clone().map(|column| median(column.into_iter().map(|run| run.cpu).collect()));
        let [bare, plain, labelled] = columns.map(|column| median(column.into_iter().map(|run| run.speed).collect()));
        println!("{name:20} bare {bare:7.0}  plain {plain:7.0} ({:.2} x)  labelled {labelled:7.0}", plain / bare);
        println!(
            "{:20} bare {:7.2}  plain {:7.2}           labelled {:7.2}",
            "  CPU seconds per GB", cpu[0], cpu[1], cpu[2]
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    print!("{}", status.lines().filter(|line| line.starts_with("VmHWM")).collect::<String>());
    println!();
}

fn write_lines(bytes: usize, piece: usize) {
    let mut text = Vec::new();
    while text.len() < piece {
        text.extend_from_slice(&[b'x'; LINE - 1]);
        text.push(b'\n');
    }
    text.truncate(piece);
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().expect("stdout");
    let mut file = std::fs::File::from(stdout);
    for _ in 0..bytes / piece {
        file.write_all(&text).expect("write");
    }
}

fn writer(bytes: usize, piece: usize, stdout: OwnedFd, stderr: Option<OwnedFd>) -> Child {
    Command::new("/proc/self/exe")
        .args(["--write", &bytes.to_string(), &piece.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::from(stdout))
        .stderr(stderr.map_or_else(Stdio::inherit, Stdio::from))
        .spawn()
        .expect("start a writer")
}

fn cat() -> (Child, ChildStdin) {
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start cat");
    let stdin = cat.stdin.take().expect("a pipe");
    (cat, stdin)
}

fn bare(ranks: usize, bytes: usize, piece: usize) -> Run {
    let (mut cat, target) = cat();
    let started = (Instant::now(), cpu_seconds());
    let mut children = Vec::new();
    let mut pipes = Vec::new();
    for _ in 0..ranks {
        let (read_end, write_end) = std::io::pipe().expect("pipe");
        children.push(writer(bytes, piece, write_end.into(), None));
        pipes.push(OwnedFd::from(read_end));
    }
    let mut buffer = vec![0; 64 << 10];
    while !pipes.is_empty() {
        let mut fds: Vec<_> = pipes.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        poll(&mut fds, None).expect("poll");
        let ready: Vec<usize> = (0..fds.len()).filter(|&index| !fds[index].revents().is_empty()).collect();
        let mut ended = Vec::new();
        for index in ready {
            let count = rustix::io::read(&pipes[index], &mut buffer).expect("read");
            if count == 0 {
                ended.push(index);
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let written = rustix::io::write(&target, rest).expect("write");
                rest = &rest[written..];
            }
        }
        for index in ended.into_iter().rev() {
            pipes.swap_remove(index);
        }
    }
    drop(target);
    end(children, &mut cat, started, ranks * bytes)
}

fn relay(ranks: usize, bytes: usize, piece: usize, labelled: bool) -> Run {
    let (mut cat, target) = cat();
    let started = (Instant::now(), cpu_seconds());
    let label = || LabelTemplate(vec![LabelPart::Text("[".into()), LabelPart::Rank, LabelPart::Text("] ".into())]);
    let output = Output { label: labelled.then(label), ..Output::default() };
    let mut own = OwnStdio::inherit().expect("stdio");
    own.stdout = target.into();
    let spec = Spec {
        output: &output,
        stdin: StdinTo::None,
        world_size: ranks as u32,
        job_id: "bench",
        host: "host",
        started: started.0,
        append: false,
        own,
    };
    let (stdio, relay) = open(spec).expect("open");
    let copy = |fd: &OwnedFd| fd.try_clone().expect("dup");
    let children = stdio.iter().map(|one| writer(bytes, piece, copy(&one.stdout), Some(copy(&one.stderr)))).collect();
    drop(stdio);
    let finished = relay.start().expect("start").finish(Duration::from_secs(3600));
    assert_eq!(finished.failure, None);
    drop(finished);
    end(children, &mut cat, started, ranks * bytes)
}

fn end(children: Vec<Child>, cat: &mut Child, started: (Instant, f64), bytes: usize) -> Run {
    for mut child in children {
        assert!(child.wait().expect("wait").success());
    }
    cat.wait().expect("wait for cat");
    let speed = bytes as f64 / 1e6 / started.0.elapsed().as_secs_f64();
    Run { speed, cpu: (cpu_seconds() - started.1) / (bytes as f64 / 1e9) }
}

/// One measurement.
#[derive(Clone)]
struct Run {
    /// 10⁶ bytes per second.
    speed: f64,
    /// CPU seconds of everybody (writers, relay, `cat`) per 10⁹ bytes: steadier on a busy machine.
    cpu: f64,
}

/// CPU seconds of this process and its ended children so far.
fn cpu_seconds() -> f64 {
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .map(|who| {
            let usage = getrusage(who).expect("getrusage");
            [usage.user_time(), usage.system_time()]
                .into_iter()
                .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
                .sum::<f64>()
        })
        .sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
