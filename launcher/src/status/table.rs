//! The tables of `prun status`.

use std::fmt::Write;
use std::fs;

use comm::node::{CallReport, CallState, RankReport};

use super::{Seen, latest};
use crate::view::text::{columns, plural};

/// A line for each job.
pub(super) fn jobs(jobs: &[Seen]) -> String {
    if jobs.is_empty() {
        return "no job is running\n".to_owned();
    }
    let mut rows = vec![row(["job", "ranks", "libcomm", "program"])];
    rows.extend(jobs.iter().map(|job| {
        row([&*job.job_id, &job.ranks.len().to_string(), &what_it_does(job), &program(job).unwrap_or_default()])
    }));
    columns(&rows)
}

/// Each rank of a job with its last calls.
pub(super) fn ranks(job: &Seen, calls: usize) -> String {
    let mut text = format!("job {}, {} {}", job.job_id, job.ranks.len(), plural(job.ranks.len(), "rank"));
    if let Some(program) = program(job) {
        let _ = write!(text, ": {program}");
    }
    let _ = writeln!(text, "\nlibcomm: {}\n", what_it_does(job));
    let mut rows =
        vec![row(["rank", "pid", "call", "operation", "count", "type", "state", "waits for", "since", "took"])];
    for rank in &job.ranks {
        let number = rank.local_rank.to_string();
        let pid = rank.pid.filter(|pid| *pid != 0).map_or_else(String::new, |pid| pid.to_string());
        let shown = latest(rank, calls.max(1));
        if shown.is_empty() {
            let whom = rank.waiting_for.map_or_else(String::new, |rank| format!("rank {rank}"));
            rows.push(row([&*number, &pid, "", "", "", "", standing(rank), &whom, "", ""]));
        }
        for (at, call) in shown.iter().enumerate() {
            let (number, pid) = if at == 0 { (&*number, &*pid) } else { ("", "") };
            rows.push(of_call(number, pid, rank, call));
        }
    }
    text + &columns(&rows)
}

fn of_call(number: &str, pid: &str, rank: &RankReport, call: &CallReport) -> Vec<String> {
    let mut operation = call.operation.to_string();
    if let Some(op) = call.op {
        let _ = write!(operation, " {op}");
    }
    if let Some(root) = call.root {
        let _ = write!(operation, " {} {root}", if call.tag.is_some() { "rank" } else { "root" });
    }
    if call.communicator != 0 {
        let _ = write!(operation, " on communicator {}", call.communicator);
    }
    let state = match (call.state, rank.exit) {
        (CallState::Running, Some(exit)) => format!("ended in it ({exit})"),
        (CallState::Running, None) if call.waiting_for.is_some() => "waits".into(),
        (CallState::Running, None) => "runs".into(),
        (CallState::Done, _) => "done".into(),
        (CallState::Failed, _) => match &call.error {
            Some(error) => format!("failed: {error}"),
            None => "failed".into(),
        },
    };
    row([
        number,
        pid,
        &call.number.to_string(),
        &operation,
        &call.count.to_string(),
        &call.data_type.map_or_else(String::new, |data_type| data_type.to_string()),
        &state,
        &call.waiting_for.map_or_else(String::new, |rank| format!("rank {rank}")),
        &format!("{:.1} s", call.since_ms as f64 / 1000.0),
        &call.took_us.map_or_else(String::new, |took| format!("{took} µs")),
    ])
}

fn standing(rank: &RankReport) -> &'static str {
    match (rank.exit.is_some(), rank.ever_joined) {
        (true, _) => "ended",
        (false, true) if rank.waiting_for.is_some() => "waits to join",
        (false, true) => "joined, no call yet",
        (false, false) => "has not joined",
    }
}

/// The whole job in some words: who is in a call, and for whom most wait.
fn what_it_does(job: &Seen) -> String {
    if let Some(reason) = &job.aborted {
        return reason.clone();
    }
    let count = |of: &dyn Fn(&RankReport) -> bool| job.ranks.iter().filter(|rank| of(rank)).count();
    if count(&|rank| rank.ever_joined) == 0 {
        return "no rank has joined".into();
    }
    let in_call = |rank: &RankReport| rank.last_call().is_some_and(|call| call.state == CallState::Running);
    let mut parts = vec![format!("{} joined", count(&|rank| rank.joined)), format!("{} in a call", count(&in_call))];
    let mut awaited: Vec<u32> = job.ranks.iter().filter_map(|rank| rank.waiting_for).collect();
    awaited.sort_unstable();
    awaited.dedup();
    if !awaited.is_empty() {
        let names: Vec<String> = awaited.iter().map(u32::to_string).collect();
        parts.push(format!("waited for: {} {}", plural(names.len(), "rank"), names.join(", ")));
    }
    parts.join(", ")
}

/// The command of the lowest rank that has joined, as the kernel shows it here.
fn program(job: &Seen) -> Option<String> {
    let pid = job.ranks.iter().find_map(|rank| rank.pid.filter(|pid| *pid != 0 && rank.exit.is_none()))?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    let cut: String = command.chars().take(60).collect();
    Some(if cut.len() < command.len() { cut + "…" } else { cut })
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use comm::node::{DataType, Op, Operation};

    use super::*;

    fn call(number: u64, state: CallState, waiting_for: Option<u32>) -> CallReport {
        CallReport {
            number,
            generation: 1,
            operation: Operation::AllReduce,
            count: 1000,
            data_type: Some(DataType::F32),
            op: Some(Op::Sum),
            root: None,
            communicator: 0,
            tag: None,
            state,
            waiting_for,
            since_ms: 12_300,
            took_us: (state == CallState::Done).then_some(40),
            error: None,
        }
    }

    fn rank(local_rank: u32, calls: Vec<CallReport>) -> RankReport {
        let joined = !calls.is_empty();
        let waiting_for = calls.last().and_then(|call| call.waiting_for);
        RankReport {
            local_rank,
            ever_joined: joined,
            joined,
            generation: 1,
            pid: None,
            exit: None,
            waiting_for,
            error: None,
            calls,
        }
    }

    #[test]
    fn the_table_says_who_waits_for_whom_since_when() {
        let calls = vec![call(6, CallState::Done, None), call(7, CallState::Running, Some(1))];
        let ranks_seen = vec![rank(0, calls), rank(1, vec![call(6, CallState::Done, None)]), rank(2, vec![])];
        let job = Seen { job_id: "ab".into(), uid: 0, aborted: None, ranks: ranks_seen };
        assert_eq!(
            ranks(&job, 1),
            "job ab, 3 ranks\n\
             libcomm: 2 joined, 1 in a call, waited for: rank 1\n\n\
             rank  pid  call  operation      count  type  state           waits for  since   took\n\
             0          7     allreduce sum  1000   f32   waits           rank 1     12.3 s\n\
             1          6     allreduce sum  1000   f32   done                       12.3 s  40 µs\n\
             2                                            has not joined\n"
        );
        assert_eq!(ranks(&job, 64).lines().count(), ranks(&job, 1).lines().count() + 1);
        assert!(jobs(&[job]).contains("ab   3      2 joined, 1 in a call, waited for: rank 1"));
    }
}
