//! A trial's prun and the sweep that started it: how it learns that the sweep is gone.

use std::ffi::OsString;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The first argument of a trial's prun; the second is the sweep's process id. No program is started by this name.
pub const WORD: &str = "@trial";

/// The arguments without the beginning that only a sweep gives; `None` if that sweep is gone already.
///
/// The kernel sends SIGTERM when the sweep dies, of SIGKILL too, and the trial ends as any job that was asked to.
pub fn entered(mut arguments: Vec<OsString>) -> Option<Vec<OsString>> {
    if arguments.get(1).is_none_or(|word| word != WORD) {
        return Some(arguments);
    }
    let sweep: Option<i32> = arguments.get(2).and_then(|pid| pid.to_str()).and_then(|pid| pid.parse().ok());
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have died before the line above.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != sweep {
        return None;
    }
    // It was started as /proc/self/exe, so that a new build in the middle of a sweep changes nothing.
    rankd::fork::set_name(c"prun");
    arguments.drain(1..3);
    Some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sweeps_child_loses_its_first_words() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(entered(words(&["prun", "-n", "2", WORD])), Some(words(&["prun", "-n", "2", WORD])));
        assert_eq!(entered(words(&["prun"])), Some(words(&["prun"])));
    }
}
