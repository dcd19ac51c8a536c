//! Trials whose circumstances changed: what about them makes their figures doubtful.

use serde::Serialize;

use super::journal::Trial;

/// Less than this part of the machine's CPU time is nobody's load.
const OTHER_LOAD: f64 = 0.10;
/// The kernel counts CPU time in hundredths of a second, so short trials tell nothing about it.
const SHORTEST_FOR_LOAD_S: f64 = 0.5;

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Which kind, for scripts.
    pub kind: Kind,
    /// What, in a few words.
    pub what: String,
}

/// The kinds of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A link had fewer lanes or another speed than in most trials.
    Link,
    /// Transfer errors were counted.
    Errors,
    /// CPUs were slowed down because of heat.
    Throttled,
    /// Other programs used CPUs.
    OtherLoad,
    /// The program's file is another one.
    Program,
    /// Another commit, or other uncommitted changes.
    Source,
    /// Another machine, kernel or driver.
    Machine,
}

/// The marks of each trial, in their order. `cpus` is how many the machine has.
pub fn marks(trials: &[Trial], cpus: usize) -> Vec<Vec<Mark>> {
    let usual_links = usual_links(trials);
    let first = trials.first();
    trials
        .iter()
        .map(|trial| {
            let mut marks = Vec::new();
            let mut mark = |kind, what| marks.push(Mark { kind, what });
            link_changes(trial, &usual_links).into_iter().for_each(|what| mark(Kind::Link, what));
            errors(trial).into_iter().for_each(|what| mark(Kind::Errors, what));
            if let (Some(before), Some(after)) = (trial.before.throttled, trial.after.throttled)
                && after > before
            {
                mark(Kind::Throttled, format!("CPUs were slowed down by heat {} times", after - before));
            }
            gpu_changes(trial).into_iter().for_each(|(kind, what)| mark(kind, what));
            if let Some(busy) = other_load(trial).filter(|busy| *busy > OTHER_LOAD * cpus as f64) {
                mark(Kind::OtherLoad, format!("other programs kept {busy:.1} of {cpus} CPUs busy"));
            }
            if let Some(first) = first {
                compare_with_first(trial, first, &mut mark);
            }
            marks
        })
        .collect()
}

fn compare_with_first(trial: &Trial, first: &Trial, mark: &mut impl FnMut(Kind, String)) {
    let same_program = trials_program(trial).zip(trials_program(first)).is_none_or(|(one, other)| one == other);
    if trial.program.as_ref().map(|program| &program.path) == first.program.as_ref().map(|program| &program.path)
        && !same_program
    {
        mark(Kind::Program, "the program was built anew".into());
    }
    if trial.setting.git != first.setting.git {
        mark(Kind::Source, "the working directory is at another commit or has other changes".into());
    }
    let machine = |trial: &Trial| {
        let setting = &trial.setting;
        (setting.host.clone(), setting.kernel.clone(), setting.gpu_driver.clone(), setting.cpus_allowed.clone())
    };
    if machine(trial) != machine(first) {
        mark(Kind::Machine, "another machine, kernel, driver or set of CPUs".into());
    }
}

fn trials_program(trial: &Trial) -> Option<(u64, i64)> {
    trial.program.as_ref().map(|program| (program.bytes, program.modified))
}

/// CPUs that others kept busy while the trial ran.
fn other_load(trial: &Trial) -> Option<f64> {
    let wall = trial.total_s;
    let busy = trial.after.busy_s? - trial.before.busy_s?;
    (wall >= SHORTEST_FOR_LOAD_S).then(|| ((busy - trial.cpu_s()) / wall).max(0.0))
}

/// Lanes and speed.
type LinkState = (Option<u32>, Option<String>);

/// Right after a trial a link is as fast as it was in the trial; before it, it may have been asleep. What most trials
/// end with is usual.
fn usual_links(trials: &[Trial]) -> Vec<(String, Option<u32>, Option<String>)> {
    let Some(first) = trials.first() else { return Vec::new() };
    let most_often = |device: &str| {
        let mut seen: Vec<(LinkState, usize)> = Vec::new();
        for link in trials.iter().flat_map(|trial| &trial.after.links).filter(|link| link.device == device) {
            let state = (link.width, link.speed.clone());
            match seen.iter_mut().find(|(known, _)| *known == state) {
                Some((_, times)) => *times += 1,
                None => seen.push((state, 1)),
            }
        }
        seen.into_iter().max_by_key(|(_, times)| *times).map(|(state, _)| state)
    };
    let devices = first.after.links.iter().map(|link| link.device.clone());
    devices.filter_map(|device| most_often(&device).map(|(width, speed)| (device, width, speed))).collect()
}

fn link_changes(trial: &Trial, usual: &[(String, Option<u32>, Option<String>)]) -> Vec<String> {
    let mut changes = Vec::new();
    for (device, width, speed) in usual {
        let Some(link) = trial.after.links.iter().find(|link| link.device == *device) else {
            changes.push(format!("{device} is gone"));
            continue;
        };
        if let (Some(was), Some(is)) = (width, link.width)
            && *was != is
        {
            changes.push(format!("the link of {device} had {is} lanes, usually {was}"));
        }
        if let (Some(was), Some(is)) = (speed, &link.speed)
            && was != is
        {
            changes.push(format!("the link of {device} ran at {is}, usually {was}"));
        }
    }
    changes
}

fn errors(trial: &Trial) -> Vec<String> {
    let mut changes = Vec::new();
    for before in &trial.before.links {
        let Some(after) = trial.after.links.iter().find(|link| link.device == before.device) else { continue };
        let new = |before: Option<u64>, after: Option<u64>| {
            after.zip(before).map_or(0, |(after, before)| after.saturating_sub(before))
        };
        let corrected = new(before.aer_correctable, after.aer_correctable);
        let uncorrected = new(before.aer_uncorrectable, after.aer_uncorrectable);
        if corrected + uncorrected > 0 {
            changes.push(format!(
                "{} counted {corrected} corrected and {uncorrected} other transfer errors",
                before.device
            ));
        }
    }
    changes
}

/// GPUs that ran slower than they could, other than at their power limit, where a busy one just is; and packets that
/// had to be sent again.
fn gpu_changes(trial: &Trial) -> Vec<(Kind, String)> {
    let mut changes = Vec::new();
    for after in &trial.after.gpus {
        let reasons: Vec<&str> =
            after.state.throttled.iter().map(String::as_str).filter(|why| *why != "power limit").collect();
        if !reasons.is_empty() {
            changes.push((Kind::Throttled, format!("GPU {} ran slower: {}", after.device, reasons.join(", "))));
        }
        let before = trial.before.gpus.iter().find(|before| before.device == after.device);
        let replays = before.and_then(|before| before.state.replays).zip(after.state.replays);
        if let Some((before, now)) = replays.filter(|(before, now)| now > before) {
            changes.push((Kind::Errors, format!("GPU {} sent {} packets again", after.device, now - before)));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::super::circumstances::{Git, GpuNow, Link};
    use super::super::journal::tests::{header, trial};
    use super::*;
    use crate::topology::GpuState;

    fn link(width: u32, speed: &str, errors: u64) -> Vec<Link> {
        vec![Link {
            device: "0000:01:00.0".into(),
            speed: Some(speed.into()),
            width: Some(width),
            aer_correctable: Some(errors),
            aer_uncorrectable: Some(0),
        }]
    }

    fn kinds(trials: &[Trial]) -> Vec<Vec<Kind>> {
        marks(trials, 4).into_iter().map(|marks| marks.into_iter().map(|mark| mark.kind).collect()).collect()
    }

    #[test]
    fn a_link_that_fell_back_or_counts_errors_is_marked_and_one_that_slept_before_is_not() {
        let header = header(&["n=2"]);
        let mut trials: Vec<Trial> = (0..4).map(|repetition| trial(&header, 0, repetition, 1.0)).collect();
        for trial in &mut trials {
            (trial.before.links, trial.after.links) = (link(16, "2.5 GT/s PCIe", 7), link(16, "16.0 GT/s PCIe", 7));
        }
        assert!(kinds(&trials).iter().all(Vec::is_empty));
        trials[2].after.links = link(8, "16.0 GT/s PCIe", 9);
        assert_eq!(kinds(&trials), [vec![], vec![], vec![Kind::Link, Kind::Errors], vec![]]);
        let what = &marks(&trials, 4)[2];
        assert_eq!(what[0].what, "the link of 0000:01:00.0 had 8 lanes, usually 16");
        assert_eq!(what[1].what, "0000:01:00.0 counted 2 corrected and 0 other transfer errors");
    }

    #[test]
    fn heat_and_other_load_are_marked() {
        let header = header(&["n=2"]);
        let mut hot = trial(&header, 0, 0, 2.0);
        (hot.before.throttled, hot.after.throttled) = (Some(3), Some(5));
        let mut loaded = trial(&header, 0, 1, 2.0);
        (loaded.before.busy_s, loaded.after.busy_s) = (Some(100.0), Some(104.75));
        let mut short = trial(&header, 0, 2, 0.1);
        (short.before.busy_s, short.after.busy_s) = (Some(100.0), Some(104.75));
        let mut alone = trial(&header, 0, 3, 2.0);
        (alone.before.busy_s, alone.after.busy_s) = (Some(100.0), Some(101.0));
        let trials = [hot, loaded, short, alone];
        assert_eq!(kinds(&trials), [vec![Kind::Throttled], vec![Kind::OtherLoad], vec![], vec![]]);
    }

    #[test]
    fn a_hot_gpu_and_packets_sent_again_are_marked() {
        let header = header(&["n=2"]);
        let gpu = |throttled: &[&str], replays| {
            let throttled = throttled.iter().map(|why| why.to_string()).collect();
            vec![GpuNow {
                device: "0000:01:00.0".into(),
                state: GpuState { throttled, replays: Some(replays), ..GpuState::default() },
            }]
        };
        let mut trial = trial(&header, 0, 0, 1.0);
        (trial.before.gpus, trial.after.gpus) = (gpu(&[], 3), gpu(&["power limit"], 3));
        assert!(kinds(std::slice::from_ref(&trial))[0].is_empty());
        trial.after.gpus = gpu(&["temperature"], 5);
        assert_eq!(kinds(&[trial])[0], [Kind::Throttled, Kind::Errors]);
    }

    #[test]
    fn another_build_commit_or_kernel_is_marked() {
        let header = header(&["n=2"]);
        let first = trial(&header, 0, 0, 1.0);
        let mut second = trial(&header, 0, 1, 1.0);
        second.setting.git = Some(Git { commit: "abc".into(), branch: None, changed_files: 0 });
        second.setting.kernel = "6.2".into();
        assert_eq!(kinds(&[first, second])[1], [Kind::Source, Kind::Machine]);
    }
}
