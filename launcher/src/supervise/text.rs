//! The sentences that prun says about a job: pure text from what happened.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use comm::node::RankReport;
use nix::libc;
use rankd::keeper::RankdEnd;
use rankd::proto::{ExitStatus, Leftover};

use super::signals::signal_name;
use super::state::{Cause, JobState};
use crate::job::Ending;
use crate::output::SinkFailure;

/// What is said when a job has ended: nothing if all went well, else what each part adds, the cause last.
pub fn summary(job: &JobState, ending: &Ending, tail: Option<&[u8]>) -> Vec<String> {
    let mut lines = Vec::new();
    if !job.leftovers.is_empty() {
        lines.push(leftovers(&job.leftovers));
    }
    let Some((cause, after)) = job.verdict() else { return lines };
    let has_tail = tail.is_some_and(|tail| !tail.is_empty());
    if let (Cause::Rank { rank, .. }, Some(tail), true) = (cause, tail, has_tail) {
        lines.push(last_output(*rank, tail));
    }
    if job.reports.iter().any(|report| report.ever_joined) && !matches!(cause, Cause::Start { .. }) {
        lines.push(calls(&job.reports));
    }
    lines.push(verdict(job, cause, after, ending));
    lines
}

fn verdict(job: &JobState, cause: &Cause, after: Duration, ending: &Ending) -> String {
    let after = seconds(after);
    let then = what_followed(job, ending);
    match cause {
        Cause::Rank { rank, status } => {
            let hint = out_of_memory_hint(*status);
            format!("prun: rank {rank} failed first ({}) after {after}{then}{hint}", how(*status))
        }
        // Already a whole message with its cause and advice.
        Cause::Start { rank: 0, reason, .. } => format!("error: {reason}"),
        Cause::Start { rank, reason, .. } => format!("error: {reason}\nprun: rank {rank} could not be started{then}"),
        Cause::Signal(signal) => format!("prun: stopped by {} after {after}{then}", signal_name(*signal)),
        Cause::TimeLimit => {
            let limit = ending.timeout.map_or_else(|| after.clone(), seconds);
            format!("prun: the time limit of {limit} is over{then}")
        }
        Cause::Sink(SinkFailure::Closed { .. }) => format!("prun: standard output was closed after {after}{then}"),
        Cause::Sink(failure) => format!("error: {failure}\nprun: ended the job after {after}{then}"),
        Cause::Machine(what) => format!("prun: ended the job after {after}, since {what}{then}"),
        Cause::RankdAsked(signal) => {
            format!("prun: rankd was asked to end ({}) after {after}{then}", signal_name(*signal))
        }
        Cause::KeeperGone => format!("prun: the keeper was killed after {after}, so the job was ended{then}"),
        Cause::RankdGone(end) => format!("prun: rankd {} after {after}; the job was ended with it", rankd_end(*end)),
    }
}

fn rankd_end(end: Option<RankdEnd>) -> String {
    match end {
        Some(RankdEnd::Killed { signal }) => format!("was killed ({})", signal_name(signal)),
        Some(RankdEnd::KeeperKilled { .. }) => "and its keeper were killed".to_owned(),
        Some(RankdEnd::Failed { code: rankd::start::exit::LEFT_BEHIND }) => {
            "gave up on processes that SIGKILL does not end (stuck in a driver?)".to_owned()
        }
        Some(RankdEnd::Failed { code: rankd::start::exit::NO_RANKD }) => {
            "could not be started (no more processes?)".to_owned()
        }
        Some(RankdEnd::Failed { code }) => format!("ended unexpectedly (code {code})"),
        Some(RankdEnd::Done) | None => "ended unexpectedly".to_owned(),
    }
}

/// "; rank 0 was then stopped (SIGTERM)": the ranks that ended because of us, grouped by how.
fn what_followed(job: &JobState, ending: &Ending) -> String {
    let mut groups: BTreeMap<(Followed, String), Vec<u32>> = BTreeMap::new();
    for (rank, state) in job.ranks.iter().enumerate() {
        let Some(end) = state.end.as_ref().filter(|end| end.was_asked && !end.status.is_success()) else { continue };
        let followed = match end.status {
            ExitStatus::Code(_) => Followed::Ended,
            ExitStatus::Signal { signal: libc::SIGKILL, .. } if job.killed_after.is_some() => Followed::Killed,
            ExitStatus::Signal { .. } => Followed::Stopped,
        };
        groups.entry((followed, how(end.status))).or_default().push(rank as u32);
    }
    let mut text = String::new();
    for ((followed, how), ranks) in groups {
        let (ranks, verb) = (rank_list(&ranks), if ranks.len() == 1 { "was" } else { "were" });
        let _ = match followed {
            Followed::Stopped => write!(text, "; {ranks} {verb} then stopped ({how})"),
            Followed::Ended => write!(text, "; {ranks} then ended ({how})"),
            Followed::Killed => {
                write!(text, "; {ranks} did not end within {} and {verb} killed", grace_text(job, ending))
            }
        };
    }
    text
}

/// How a rank ended once the job was being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Followed {
    /// By the signal that asked it to.
    Stopped,
    /// By itself, perhaps because it was asked.
    Ended,
    /// Only by SIGKILL.
    Killed,
}

/// The grace period, or less where a second interrupt cut it short.
fn grace_text(job: &JobState, ending: &Ending) -> String {
    let had = job.killed_after.map(|killed| killed.saturating_sub(job.cause_after)).unwrap_or(ending.grace);
    seconds(had.min(ending.grace))
}

fn how(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("exit {code}"),
        ExitStatus::Signal { signal, core: true } => format!("{}, core dumped", signal_name(signal)),
        ExitStatus::Signal { signal, core: false } => signal_name(signal),
    }
}

fn out_of_memory_hint(status: ExitStatus) -> &'static str {
    match status {
        ExitStatus::Signal { signal: libc::SIGKILL, .. } => {
            "\n  cause: somebody's kill -9, or the kernel was out of memory\n  try: dmesg | grep -i 'out of memory'"
        }
        _ => "",
    }
}

/// "rank 3", "ranks 0-2,5".
pub fn rank_list(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let text: Vec<String> = parts
        .iter()
        .map(|&(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, text.join(","))
}

/// "0.21 s", "3.2 s", "2 min 5 s".
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    match s {
        _ if s < 1.0 => format!("{s:.2} s"),
        _ if s < 120.0 && s.fract() == 0.0 => format!("{s:.0} s"),
        _ if s < 120.0 => format!("{s:.1} s"),
        _ => format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

fn last_output(rank: u32, tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<String> = text.lines().map(|line| format!("  | {line}")).collect();
    format!("prun: last output of rank {rank}:\n{}", lines.join("\n"))
}

fn leftovers(found: &[Leftover]) -> String {
    let one = |process: &Leftover| match process.rank {
        Some(rank) => format!("{} (pid {}, from rank {rank})", process.name, process.pid),
        None => format!("{} (pid {})", process.name, process.pid),
    };
    let names: Vec<String> = found.iter().take(8).map(one).collect();
    let more = found.len().saturating_sub(8);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("prun: the ranks left processes behind, which were ended: {}{more}", names.join(", "))
}

/// The table of last calls.
fn calls(reports: &[RankReport]) -> String {
    let lines: Vec<String> = reports.iter().map(|report| format!("  {report}")).collect();
    format!("prun: last libcomm calls:\n{}", lines.join("\n"))
}

/// What is said when no call moved for `ms` milliseconds.
pub fn stalled(ms: u64, reports: &[RankReport]) -> String {
    let lines: Vec<String> = reports.iter().map(|report| format!("  {report}")).collect();
    format!(
        "prun: no libcomm call moved for {}; each rank's last call:\n{}",
        seconds(Duration::from_millis(ms)),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges() {
        assert_eq!(rank_list(&[3]), "rank 3");
        assert_eq!(rank_list(&[0, 1, 2, 5, 7, 8]), "ranks 0-2,5,7-8");
    }

    #[test]
    fn times_are_short() {
        for (ms, text) in [(212, "0.21 s"), (3249, "3.2 s"), (10_000, "10 s"), (125_000, "2 min 5 s")] {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }
}
