//! What the watch of a running job costs: CPU time of the helper process, in thousandths of a core.
//!
//! `cargo run --release -p launcher --example watch_cost -- PRUN [SECONDS [ROOT]]` starts the helper of that prun as a
//! job would, lets it settle, and reads its CPU time from `/proc` at the beginning and the end. With a ROOT it looks at
//! the files below that; without, at this machine and its driver.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Loading the driver and the first look belong to the job's start.
const SETTLES: Duration = Duration::from_secs(3);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let prun = arguments.first().map_or("prun", String::as_str);
    let seconds: u64 = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(30);
    let root = arguments.get(2).map_or("/", String::as_str);
    let helper = Command::new(prun).args(["watch-machine", root]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut helper = match helper {
        Ok(helper) => helper,
        Err(error) => {
            eprintln!("error: cannot start {prun}\n  cause: {error}\n  try: give the path of a built prun");
            std::process::exit(125);
        }
    };
    std::thread::sleep(SETTLES);
    let first_ms = cpu_ms(helper.id());
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds));
    let (took, last_ms) = (start.elapsed().as_secs_f64(), cpu_ms(helper.id()));
    drop(helper.stdin.take());
    let _ = helper.wait();
    match (first_ms, last_ms) {
        (Some(first), Some(last)) => println!(
            "watching {root} for {took:.0} s: {:.1} ms of CPU time, {:.3} % of a core; the start took {first:.1} ms",
            last - first,
            (last - first) / took / 10.0
        ),
        _ => println!("the helper ended early: there is nothing to watch at {root}"),
    }
}

/// CPU time of a process with all its threads, from the scheduler's own clock (nanoseconds).
fn cpu_ms(pid: u32) -> Option<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(tasks.filter_map(of).sum::<f64>() / 1e6)
}
