//! After many jobs the machine is as before, and a rank holds no descriptor that is not its own.
//!
//! The counts are the whole machine's, so these tests have a target of their own, and run one after another.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGTERM;
use tests::{Prun, built, eventually, job_cgroups, shared_memory};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What a machine holds.
#[derive(Debug)]
struct Holdings {
    processes: usize,
    cgroups: usize,
    shared_memory: usize,
    open_files: u64,
    available_kib: u64,
}

impl Holdings {
    fn now() -> Holdings {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processes = fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok())
            .count();
        let open_files =
            text("/proc/sys/fs/file-nr").split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let memory = text("/proc/meminfo");
        let available =
            memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().split(' ').next()?.parse().ok());
        Holdings {
            processes,
            cgroups: job_cgroups().len(),
            shared_memory: shared_memory().len(),
            open_files,
            available_kib: available.unwrap_or(0),
        }
    }

    /// What `jobs` jobs would leave if each left one of each, and a megabyte, is far more than other programs of the
    /// machine gain and lose in the meantime, given enough jobs; what they do in a moment passes.
    fn assert_as_before(&self, jobs: usize) {
        let slack = (jobs / 2) as u64;
        let is_as_before = |now: &Holdings| {
            now.processes as u64 <= self.processes as u64 + slack
                && now.cgroups as u64 <= self.cgroups as u64 + slack
                && now.shared_memory as u64 <= self.shared_memory as u64 + slack
                && now.open_files <= self.open_files + slack + 512
                && now.available_kib + (jobs as u64) * 1024 + (512 << 10) >= self.available_kib
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_as_before(&Holdings::now()) {
            assert!(Instant::now() < deadline, "before: {self:?}; after {jobs} jobs: {:?}", Holdings::now());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn run_jobs(count: usize) {
    let _alone = ONE_AT_A_TIME.lock();
    let before = Holdings::now();
    for number in 0..count {
        match number % 5 {
            0 => _ = Prun::new().ranks(4).program(["true"]).run().expect_code(0),
            1 => _ = Prun::new().ranks(2).sh("sleep 300 & exit 3").run().expect_code(3),
            2 => drop(
                Prun::new()
                    .ranks(2)
                    .program([built("member").as_os_str(), "reduce".as_ref(), "3".as_ref(), "1000".as_ref()])
                    .run()
                    .expect_code(0),
            ),
            3 => _ = Prun::new().ranks(2).option("--pty").sh("echo x").run().expect_code(0),
            _ => {
                let job = Prun::new().ranks(2).sh("echo ready; exec sleep 300").start();
                job.expect_output("ready", 2);
                tests::kill_now(if number % 2 == 0 { job.pid() } else { job.rankd() });
                drop(job.wait());
            }
        }
    }
    before.assert_as_before(count);
}

#[test]
fn twenty_jobs_leave_the_machine_as_it_was() {
    run_jobs(20);
}

#[test]
#[ignore = "minutes long: make soak"]
fn a_thousand_jobs_leave_the_machine_as_it_was() {
    let before = Holdings::now();
    let started = Instant::now();
    run_jobs(1000);
    println!(
        "1000 jobs in {:.0} s\nbefore: {before:?}\nafter:  {:?}",
        started.elapsed().as_secs_f64(),
        Holdings::now()
    );
}

/// Every descriptor of a process and what it is.
fn descriptors(pid: i32) -> Vec<(i32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("a living process");
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?.display().to_string()))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_rank_holds_its_three_streams_and_the_segment_and_nothing_else() {
    let _alone = ONE_AT_A_TIME.lock();
    // prun itself was started with more than it needs.
    let extra = ["sh", "-c", "exec \"$@\" 5< /dev/null 9> /dev/null", "sh"];
    for options in [&[][..], &["-l", "--stdin", "all"], &["--pty"]] {
        let job = Prun::new().under(extra).ranks(3).options(options.iter().copied()).program(["sleep", "300"]).start();
        for rank in 0..3 {
            let rank = job.rank(rank);
            // A program that starts opens its libraries and closes them again.
            let held =
                eventually("four descriptors in a rank", || Some(descriptors(rank)).filter(|held| held.len() == 4));
            let numbers: Vec<i32> = held.iter().map(|(number, _)| *number).collect();
            assert!(numbers[..3] == [0, 1, 2] && held[3].1.contains("memfd:"), "{held:?}");
            let told = tests::environment(rank)
                .into_iter()
                .find_map(|entry| Some(String::from_utf8_lossy(entry.strip_prefix(b"PRUN_SEGMENT_FD=")?).into_owned()));
            assert_eq!(told, Some(numbers[3].to_string()));
        }
        job.signal(SIGTERM);
        job.wait().expect_code(143);
    }
}

/// What rankd and the keeper hold does not grow with what ranks do.
#[test]
fn prun_s_own_processes_hold_no_more_descriptors_after_much_output() {
    let _alone = ONE_AT_A_TIME.lock();
    let job = Prun::new().ranks(2).sh("echo ready; while read line; do (setsid true &); done; yes 'a line of some length, again and again' | head -c 4000000; echo done; exec sleep 300").stdin_bytes("x\n".repeat(50)).start();
    job.expect_output("ready", 2);
    let ours = [job.pid(), job.keeper(), job.rankd()];
    let count = || ours.map(|pid| descriptors(pid).len());
    let before = count();
    job.expect_output("done", 2);
    let after = count();
    assert!(after.iter().zip(before).all(|(&after, before)| after <= before), "{before:?}, then {after:?}");
    assert!(after[1] < 10, "the keeper holds {:?}", descriptors(ours[1]));
    job.signal(SIGTERM);
    job.wait().expect_code(143);
}
