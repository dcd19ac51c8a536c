//! Ranks as processes of their own, which join as under prun: by environment, inherited descriptor and socket.
//!
//! The test plays the daemon; each rank is this test program again, told by a variable what to do.

use comm::node::{AbortReason, CallState, JobSegment, JoinServer, RankExit};
use comm::{Comm, CommError, Op, env};
use rustix::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LIBCOMM_TEST_ROLE";
const JOB: &str = "processes";

/// What a rank does; not a test of its own.
#[test]
#[ignore = "started by the other tests"]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let comm = match role.as_str() {
        "fail" => std::process::exit(7),
        "return" => return,
        _ => Comm::init(),
    };
    let result = comm.and_then(|comm| match role.as_str() {
        "init" => comm.finalize(),
        "twice" => {
            comm.finalize()?;
            Comm::init()?.finalize()
        }
        "barriers" => loop {
            comm.barrier()?
        },
        "reductions" => {
            let mut data = vec![1.0f32; 1_000_000];
            loop {
                comm.all_reduce_in_place(&mut data, Op::Max)?
            }
        }
        call if call.starts_with("twice ") => {
            let which: u32 = call[6..].parse().unwrap();
            one_call(&comm, which)?;
            one_call(&comm, which)?;
            comm.finalize()
        }
        call if call.starts_with("each ") => {
            let which: u32 = call[5..].parse().unwrap();
            loop {
                one_call(&comm, which)?
            }
        }
        "wait" => {
            comm.barrier()?;
            match comm.rank() {
                1 => loop {
                    std::thread::park()
                },
                _ => comm.all_reduce_in_place(&mut [1.0f32; 10], Op::Sum),
            }
        }
        "late" => {
            comm.barrier()?;
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_secs(1));
                return comm.barrier();
            }
            let (began, used) = (Instant::now(), cpu_time());
            comm.barrier()?;
            let share = (cpu_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
            println!("rank: used {:.2} % of a CPU", 100.0 * share);
            Ok(())
        }
        "exit in the middle" => match comm.rank() {
            1 => std::process::exit(0), // joined, not left
            _ => comm.barrier(),
        },
        "drop and fail" => match comm.rank() {
            1 => {
                drop(comm);
                std::thread::sleep(Duration::from_millis(100)); // the others go on waiting meanwhile
                std::process::exit(3)
            }
            _ => comm.barrier(),
        },
        "drop" => {
            let result = comm.all_reduce_in_place(&mut [1.0f32; 1000], Op::Sum);
            drop(comm);
            result
        }
        "fork" => {
            forked_copy_is_refused(&comm);
            comm.barrier()?;
            comm.finalize()
        }
        other => panic!("no role {other}"),
    });
    match result {
        Ok(()) => println!("rank: fine"),
        Err(error) => println!("rank: at {}: {error}", now_ns()),
    }
}

/// What this process has used of CPUs.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the rank that used most of a CPU used of it while it waited a second for rank 1, in %.
fn used_while_waiting(ranks: u32) -> f64 {
    let mut job = Job::start(ranks, "late");
    let used = (0..ranks).filter(|rank| *rank != 1).map(|rank| {
        let verdict = job.verdict(rank);
        let share = verdict.strip_prefix("used ").and_then(|rest| rest.strip_suffix(" % of a CPU"));
        share.unwrap_or_else(|| panic!("{verdict}")).parse::<f64>().unwrap()
    });
    used.fold(0.0, f64::max)
}

#[test]
fn a_rank_that_waits_a_second_for_a_late_peer_hardly_uses_a_cpu() {
    let cpus = std::thread::available_parallelism().unwrap().get() as u32;
    for ranks in [2, cpus + 3] {
        // Some 1 %. A machine that does much else at the moment gets another chance.
        let least = (0..3).map(|_| used_while_waiting(ranks)).find(|used| *used < 5.0);
        let least = least.unwrap_or_else(|| panic!("three times in a row 5 % of a CPU and more"));
        println!("{ranks} ranks on {cpus} CPUs: a rank that waits a second uses at most {least:.2} % of one");
    }
}

/// One of every kind of call, with several chunks where data moves.
fn one_call(comm: &Comm, which: u32) -> Result<(), CommError> {
    const COUNT: usize = 200_000;
    let ranks = comm.size() as usize;
    let (mut a, mut b) = (vec![1.0f32; COUNT * ranks], vec![1.0f32; COUNT * ranks]);
    match which {
        0 => comm.broadcast(&mut a, 1),
        1 => comm.all_gather(&a[..COUNT], &mut b),
        2 => comm.reduce_scatter(&a, &mut b[..COUNT], Op::Max),
        3 => comm.reduce(&a[..COUNT], &mut b[..COUNT], Op::Max, 0),
        4 => comm.gather(&a[..COUNT], &mut b, 2),
        5 => comm.scatter(&a, &mut b[..COUNT], 0),
        6 => comm.all_to_all(&a, &mut b),
        7 => comm.scan(&a[..COUNT], &mut b[..COUNT], Op::Min),
        8 => comm.all_gather_v(&a[..COUNT], &mut b, &vec![COUNT; ranks]),
        9 => comm.all_reduce_in_place(&mut a[..5], Op::Max),
        10 => {
            let mut shared = comm.alloc::<f32>(COUNT)?;
            comm.all_reduce_in_place(&mut shared, Op::Sum)
        }
        11 => {
            let (to, from) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
            comm.send_recv(&a[..COUNT], to, &mut b[..COUNT], from, 0)
        }
        12 => comm.dup()?.all_reduce_in_place(&mut a, Op::Max),
        13 => comm.start_all_reduce(a, Op::Max)?.wait().map(drop),
        14 => comm.barrier(),
        _ => comm.all_reduce_in_place(&mut a[..COUNT], Op::Max),
    }
}

/// How many kinds of calls there are.
const KINDS: u32 = 16;

#[test]
fn a_kill_in_every_collective_is_told_to_all() {
    for which in 0..KINDS {
        let mut job = Job::start(3, &format!("each {which}"));
        job.wait_for_calls();
        std::thread::sleep(Duration::from_millis(u64::from(which) % 4)); // somewhere in the middle
        let victim = which % 3;
        job.kill(victim);
        for rank in (0..3).filter(|rank| *rank != victim) {
            let verdict = job.verdict(rank);
            let wanted = format!("rank {victim} exited (signal 9, SIGKILL) without leaving");
            assert!(verdict.contains(&wanted), "call {which}: {verdict}");
        }
    }
}

/// Ends a rank before it posts a step of its second call, at each step that the call has, one job each. Returns how many
/// jobs that were, and after how many milliseconds the last of the others knew.
fn end_at_each_step(ranks: u32, which: u32, settings: &[(&str, &str)]) -> (u32, f64) {
    let mut slowest = 0.0f64;
    for step in 0.. {
        let victim = (which + step) % ranks;
        let mut job = Job::new(ranks);
        for rank in 0..ranks {
            let mut command = job.command(rank, &format!("twice {which}"));
            command.envs(settings.iter().copied());
            command.env(env::FAULT, format!("kill:rank={victim},call=2,step={step}"));
            job.add(command);
        }
        job.reap(victim);
        let noted = now_ns();
        if job.ended[victim as usize] == Some(RankExit::Code(0)) {
            assert!(step > 0, "call {which} of {ranks} ranks, {settings:?}: no step at all");
            return (step, slowest); // the call has no such step, and all went well
        }
        for rank in (0..ranks).filter(|rank| *rank != victim) {
            let verdict = job.verdict(rank);
            let wanted = format!("rank {victim} exited (signal 9, SIGKILL) without leaving");
            assert!(verdict.contains(&wanted), "call {which} of {ranks} ranks, {settings:?}, step {step}: {verdict}");
            slowest = slowest.max(delay_ms(&verdict, noted));
        }
    }
    unreachable!("a call ends")
}

/// The messages, whose steps are cells, and the other rank of a communicator of its own are killed by time above.
#[test]
fn a_rank_that_ends_at_any_step_of_any_collective_is_named_by_all() {
    let ends = (0..KINDS).filter(|which| *which != 11).map(|which| end_at_each_step(3, which, &[]));
    let (jobs, slowest) = ends.fold((0, 0.0f64), |(jobs, slowest), (more, slow)| (jobs + more, slowest.max(slow)));
    println!("{jobs} jobs; after each end at a step, all others knew within {slowest:.1} ms");
    assert!(slowest < 10_000.0, "{slowest} ms");
}

/// The same of the ways that only two ranks take, of those that are taken only where they are asked for, and of those
/// that check what arrives.
#[test]
fn a_rank_that_ends_at_any_step_is_named_whatever_way_the_data_goes() {
    let (short, shared, long) = (9, 10, 15);
    type Way = (u32, u32, &'static [(&'static str, &'static str)]);
    let ways: [Way; 12] = [
        (2, short, &[]),
        (2, shared, &[]),
        (2, long, &[]),
        (2, long, &[(env::VERIFY, "every")]),
        (2, short, &[(env::VERIFY, "full")]),
        (3, short, &[(env::PROTO, "ll")]),
        (3, short, &[(env::PROTO, "simple")]),
        (3, long, &[(env::ALGO, "ring")]),
        (3, long, &[(env::ALGO, "one_shot")]),
        (3, long, &[(env::VERIFY, "every")]),
        (3, long, &[(env::VERIFY, "full")]),
        (4, long, &[(env::ALGO, "hierarchical:2")]),
    ];
    let slowest = ways.map(|(ranks, which, settings)| end_at_each_step(ranks, which, settings).1);
    assert!(slowest.iter().all(|slowest| *slowest < 10_000.0), "{slowest:?} ms");
}

#[expect(unsafe_code, reason = "fork")]
fn forked_copy_is_refused(comm: &Comm) {
    // Nobody else is in this barrier yet, so the thread that carries it on is in the middle of it.
    let open = (comm.rank() == 0).then(|| comm.start_barrier().unwrap());
    // SAFETY: the child only makes a call that must return at once, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = matches!(comm.barrier(), Err(CommError::Forked))
            && matches!(comm.send(&[1u8], 0, 0), Err(CommError::Forked))
            && matches!(comm.start_barrier(), Err(CommError::Forked))
            && matches!(comm.abort(), CommError::Forked)
            && open.is_none_or(|request| matches!(request.wait(), Err(CommError::Forked)));
        // SAFETY: ends the child and runs nothing.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child and a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the fork could use the communicator");
    match open {
        Some(request) => request.wait().unwrap(),
        None => comm.barrier().unwrap(),
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The daemon's side of a job.
struct Job {
    segment: JobSegment,
    /// Inheritable.
    fd: OwnedFd,
    size: u32,
    ranks: Vec<Child>,
    /// How those ended that were reaped.
    ended: [Option<RankExit>; 8],
}

impl Job {
    fn new(size: u32) -> Job {
        let segment = JobSegment::create(JOB, size, size).unwrap();
        let fd = rustix::io::dup(segment.as_fd()).unwrap();
        Job { segment, fd, size, ranks: Vec::new(), ended: [None; 8] }
    }

    fn command(&self, rank: u32, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "as_a_rank", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(env::RANK, rank.to_string())
            .env(env::LOCAL_RANK, rank.to_string())
            .env(env::SIZE, self.size.to_string())
            .env(env::JOB_ID, JOB)
            .env(env::SEGMENT_FD, self.fd.as_raw_fd().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(size: u32, role: &str) -> Job {
        let mut job = Job::new(size);
        for rank in 0..size {
            job.add(job.command(rank, role));
        }
        job
    }

    fn add(&mut self, mut command: Command) {
        self.ranks.push(command.spawn().unwrap());
    }

    /// Returns once all ranks make calls.
    fn wait_for_calls(&self) {
        let busy =
            || (0..self.size).all(|rank| self.segment.rank_report(rank).last_call().is_some_and(|c| c.number >= 3));
        wait_until(busy);
    }

    /// Kills a rank, and notes its end as soon as it is reaped. Returns when that was.
    fn kill(&mut self, rank: u32) -> u64 {
        self.ranks[rank as usize].kill().unwrap();
        self.reap(rank);
        now_ns()
    }

    fn reap(&mut self, rank: u32) {
        let status = self.ranks[rank as usize].wait().unwrap();
        let exit = match status.signal() {
            Some(signal) => RankExit::Signal(signal),
            None => RankExit::Code(status.code().unwrap()),
        };
        self.segment.note_exit(rank, exit);
        self.ended[rank as usize] = Some(exit);
    }

    /// What a rank printed about how it ended.
    fn verdict(&mut self, rank: u32) -> String {
        use std::io::Read;
        let mut text = String::new();
        self.ranks[rank as usize].stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.split_once("rank: ").map(|(_, verdict)| verdict.to_owned()));
        line.unwrap_or_else(|| panic!("rank {rank} printed no verdict: {text}"))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "it did not happen in a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Milliseconds from `noted` to the moment that a verdict carries.
fn delay_ms(verdict: &str, noted: u64) -> f64 {
    let at: u64 = verdict.strip_prefix("at ").unwrap().split(':').next().unwrap().parse().unwrap();
    (at as i64 - noted as i64) as f64 / 1e6
}

/// Kills a rank while all are busy; all others must name it. On a busy machine a process may not run for a while, so
/// of five trials the median must be quick.
fn assert_a_kill_is_told(role: &str) {
    let mut delays: Vec<f64> = (0..5)
        .map(|trial| {
            let mut job = Job::start(3, role);
            job.wait_for_calls();
            let victim = trial % 3;
            let noted = job.kill(victim);
            let survivors = (0..3).filter(|rank| *rank != victim);
            let delay = survivors.map(|rank| {
                let verdict = job.verdict(rank);
                let wanted = format!("rank {victim} exited (signal 9, SIGKILL) without leaving");
                assert!(verdict.contains(&wanted), "{verdict}");
                delay_ms(&verdict, noted)
            });
            delay.fold(0.0, f64::max)
        })
        .collect();
    delays.sort_by(f64::total_cmp);
    println!("{role}: told within {delays:?} ms");
    assert!(delays[2] < 100.0, "{delays:?} ms");
}

#[test]
fn a_kill_in_a_barrier_is_told_to_all_in_time() {
    assert_a_kill_is_told("barriers");
}

#[test]
fn a_kill_in_an_allreduce_is_told_to_all_in_time() {
    assert_a_kill_is_told("reductions");
}

#[test]
fn a_rank_that_ends_before_it_joins_makes_the_others_init_fail() {
    for (role, status) in [("return", 0), ("fail", 7)] {
        let mut job = Job::new(3);
        job.add(job.command(0, "init"));
        job.add(job.command(1, role));
        job.add(job.command(2, "init"));
        job.reap(1);
        for rank in [0, 2] {
            let verdict = job.verdict(rank);
            assert!(verdict.contains(&format!("rank 1 exited (status {status}) before joining")), "{verdict}");
            let report = job.segment.rank_report(rank).to_string();
            assert!(report.contains("could not join: rank 1 exited"), "{report}");
        }
    }
}

#[test]
fn a_rank_that_exits_without_leaving_is_named() {
    let mut job = Job::start(2, "exit in the middle");
    job.reap(1);
    let verdict = job.verdict(0);
    assert!(verdict.contains("rank 1 exited (status 0) without leaving"), "{verdict}");
    assert_eq!(job.segment.aborted(), Some(AbortReason::RankExited(1)));
}

#[test]
fn a_rank_that_drops_its_communicator_and_fails_is_named_by_its_exit() {
    let mut job = Job::start(3, "drop and fail");
    job.reap(1);
    for rank in [0, 2] {
        let verdict = job.verdict(rank);
        assert!(verdict.contains("rank 1 exited (status 3) without leaving"), "{verdict}");
    }
    assert_eq!(job.segment.aborted(), Some(AbortReason::RankExited(1)));
}

#[test]
fn programs_that_end_without_finalize_and_well_disturb_nobody_and_the_next_may_join() {
    let mut job = Job::new(3);
    for generation in 1..=2 {
        let first = job.ranks.len();
        for rank in 0..3 {
            job.add(job.command(rank, "drop"));
        }
        for process in first..first + 3 {
            let at_end = job.ranks[process].wait().unwrap();
            assert!(at_end.success());
            assert_eq!(job.verdict(process as u32), "fine");
        }
        assert_eq!(job.segment.rank_report(1).generation, generation);
    }
    for rank in 0..3 {
        job.segment.note_exit(rank, RankExit::Code(0));
    }
    assert_eq!(job.segment.aborted(), None);
}

/// In role "wait", after the barrier.
fn rank_0_waits_for_rank_1(job: &Job) -> bool {
    let report = job.segment.rank_report(0);
    report.last_call().is_some_and(|call| call.number == 2 && call.waiting_for == Some(1))
}

#[test]
fn ending_the_job_ends_the_waits() {
    let mut job = Job::start(2, "wait");
    wait_until(|| rank_0_waits_for_rank_1(&job));
    job.segment.abort(AbortReason::TimeLimit);
    let verdict = job.verdict(0);
    assert!(verdict.contains("the job is being ended: its time limit is over during call 2 allreduce"), "{verdict}");
}

#[test]
fn the_report_says_who_waits_for_whom() {
    let job = Job::start(2, "wait");
    wait_until(|| rank_0_waits_for_rank_1(&job));
    assert!(job.segment.anyone_joined());
    let before = job.segment.progress();
    let (waits, idle) = (job.segment.rank_report(0), job.segment.rank_report(1));
    let call = waits.last_call().unwrap();
    assert_eq!((call.number, call.count, call.state), (2, 10, CallState::Running));
    let line = waits.to_string();
    assert!(line.starts_with("rank 0: call 2 allreduce sum f32 x 10, waits for rank 1, since "), "{line}");
    assert_eq!(idle.last_call().unwrap().state, CallState::Done);
    assert!(waits.joined && idle.joined && idle.exit.is_none());
    assert_eq!(job.segment.progress(), before, "nobody moves");
}

#[test]
fn a_closed_or_reused_descriptor_is_replaced_through_the_socket() {
    let uid = rustix::process::getuid().as_raw();
    let mut server = JoinServer::bind(JOB, uid).unwrap();
    let mut job = Job::new(4);
    let wrong_job = JobSegment::create("another", 4, 4).unwrap();
    let wrong_fd = rustix::io::dup(wrong_job.as_fd()).unwrap();
    for rank in 0..4 {
        let mut command = job.command(rank, "twice");
        command.env(env::SOCKET, server.name());
        match rank {
            0 => command.env_remove(env::SEGMENT_FD),
            1 => command.env(env::SEGMENT_FD, "0"), // /dev/null or a terminal
            2 => command.env(env::SEGMENT_FD, wrong_fd.as_raw_fd().to_string()),
            _ => command.env(env::SEGMENT_FD, "987654"), // closed
        };
        job.add(command);
    }
    while job.ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
        server.serve_ready(&job.segment);
        std::thread::sleep(Duration::from_millis(1));
    }
    for rank in 0..4 {
        assert_eq!(job.verdict(rank), "fine");
    }
    assert!(!wrong_job.anyone_joined());
}

#[test]
fn strangers_get_no_segment() {
    let mut server = JoinServer::bind("a job of somebody else", rustix::process::getuid().as_raw() + 1).unwrap();
    let mut job = Job::new(1);
    let mut command = job.command(0, "init");
    command.env_remove(env::SEGMENT_FD).env(env::SOCKET, server.name());
    job.add(command);
    while job.ranks[0].try_wait().unwrap().is_none() {
        server.serve_ready(&job.segment);
        std::thread::sleep(Duration::from_millis(1));
    }
    let verdict = job.verdict(0);
    assert!(verdict.contains("this process does not belong to the job"), "{verdict}");
}

#[test]
fn a_late_joiner_learns_that_the_job_is_gone() {
    let name = JoinServer::bind(JOB, 0).unwrap().name().to_owned(); // and dropped
    let mut job = Job::new(1);
    let mut command = job.command(0, "init");
    command.env(env::SEGMENT_FD, "987654").env(env::SOCKET, name);
    job.add(command);
    let verdict = job.verdict(0);
    assert!(verdict.contains("the job's daemon is gone"), "{verdict}");
}

#[test]
fn without_descriptor_and_socket_init_fails_at_once() {
    let mut job = Job::new(2);
    let mut command = job.command(0, "init");
    command.env_remove(env::SEGMENT_FD).env_remove(env::SOCKET);
    job.add(command);
    let verdict = job.verdict(0);
    assert!(verdict.contains("PRUN_SEGMENT_FD is not set") && verdict.contains("PRUN_SOCKET"), "{verdict}");
}

#[test]
fn a_forked_copy_cannot_use_the_communicator_and_does_not_leave_for_its_parent() {
    let mut job = Job::start(2, "fork");
    assert_eq!(job.verdict(0), "fine");
    assert_eq!(job.verdict(1), "fine");
}

#[test]
fn a_process_that_is_gone_behind_its_wrapper_is_noticed() {
    // The wrapper lives on, so the daemon has no exit to note.
    let mut job = Job::new(2);
    job.add(job.command(0, "barriers"));
    let inner = job.command(1, "barriers");
    let mut wrapper = Command::new("sh");
    wrapper
        .arg("-c")
        .arg("\"$@\" & wait; exec sleep 600")
        .arg("wrapper")
        .arg(inner.get_program())
        .args(inner.get_args());
    wrapper.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapper.stdout(Stdio::null()).stderr(Stdio::null());
    job.add(wrapper);
    job.wait_for_calls();
    let pid = job.segment.rank_report(1).pid.unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let verdict = job.verdict(0);
    assert!(verdict.contains("rank 1's process ") && verdict.contains("is gone without having left"), "{verdict}");
}

#[test]
fn two_jobs_of_one_name_share_nothing() {
    // The segment has no name, so the same job id twice is no collision.
    let mut jobs: Vec<Job> = (0..2).map(|_| Job::start(2, "twice")).collect();
    for job in &mut jobs {
        assert_eq!(job.verdict(0), "fine");
        assert_eq!(job.verdict(1), "fine");
        assert_eq!(job.segment.rank_report(0).generation, 2);
    }
}

#[test]
fn a_program_that_no_launcher_started_is_alone() {
    let mut job = Job::new(1);
    let mut command = job.command(0, "init");
    for name in [env::RANK, env::LOCAL_RANK, env::SIZE, env::JOB_ID, env::SEGMENT_FD] {
        command.env_remove(name);
    }
    job.add(command);
    assert_eq!(job.verdict(0), "fine");
    assert!(!job.segment.anyone_joined());
}

#[test]
fn making_a_segment_for_many_ranks_is_quick_and_touches_a_page() {
    let began = Instant::now();
    let segments: Vec<JobSegment> = (0..20).map(|_| JobSegment::create(JOB, 256, 256).unwrap()).collect();
    println!("{:?} a segment of 256 ranks", began.elapsed() / 20);
    for segment in &segments {
        (0..256).for_each(|rank| segment.note_exit(rank, RankExit::Code(0)));
        let stat = rustix::fs::fstat(segment.as_fd()).unwrap();
        assert!(stat.st_blocks * 512 <= 3 * 4096, "{} blocks of 512 bytes in use", stat.st_blocks);
    }
}
