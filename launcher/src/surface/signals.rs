//! What prun does with each signal: the table behind `prun signals`, to which a test in
//! [`supervise::state`](crate::supervise::state) holds what is really done.

use std::fmt::Write;

use nix::sys::signal::Signal;

/// What a signal that reaches prun does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Passed on; the grace period starts. A second one of this kind kills the ranks at once.
    Ends,
    /// Passed on; the job goes on.
    PassedOn,
    /// The ranks are stopped, then prun itself.
    Stops,
    /// The ranks go on.
    Continues,
}

/// The signals that prun treats by name; any other is passed on. None of them ends prun before its ranks.
pub const TABLE: [(Signal, Effect); 12] = [
    (Signal::SIGINT, Effect::Ends),
    (Signal::SIGTERM, Effect::Ends),
    (Signal::SIGHUP, Effect::Ends),
    (Signal::SIGQUIT, Effect::Ends),
    (Signal::SIGUSR1, Effect::PassedOn),
    (Signal::SIGUSR2, Effect::PassedOn),
    (Signal::SIGALRM, Effect::PassedOn),
    (Signal::SIGWINCH, Effect::PassedOn),
    (Signal::SIGTSTP, Effect::Stops),
    (Signal::SIGTTIN, Effect::Stops),
    (Signal::SIGTTOU, Effect::Stops),
    (Signal::SIGCONT, Effect::Continues),
];

/// The text of `prun signals`.
pub fn text() -> String {
    let names = |effect| {
        let names: Vec<&str> =
            TABLE.iter().filter(|(_, its)| *its == effect).map(|(signal, _)| signal.as_str()).collect();
        names.join(" ")
    };
    let rows = [
        (
            names(Effect::Ends),
            "passed on to the ranks, and the grace period (--grace, 10s) begins:\n\
             half way SIGTERM if it was another signal, at its end SIGKILL.\n\
             A second one kills at once. Exit code: 128 + its number.",
        ),
        (names(Effect::PassedOn), "and any other: passed on; the job goes on."),
        (names(Effect::Stops), "the ranks are stopped, then prun (Ctrl-Z)."),
        (names(Effect::Continues), "the ranks go on (fg, bg)."),
        (
            "SIGKILL".into(),
            "cannot be seen: what watches over prun then ends the ranks as for\n\
             SIGTERM, and cleans up.",
        ),
    ];
    let mut text = String::from("What a signal that is sent to prun does:\n\n");
    for (signals, meaning) in rows {
        let mut names = signals.as_str();
        let mut lines = meaning.lines();
        // Two names to a line, beside the lines of the meaning.
        loop {
            let (here, after) = split_names(names);
            let line = lines.next().unwrap_or_default();
            if here.is_empty() && line.is_empty() {
                break;
            }
            let _ = writeln!(text, "{}", format!("  {here:<16}  {line}").trim_end());
            names = after;
        }
        text.push('\n');
    }
    text.push_str("SIGHUP that is ignored when prun starts (nohup) stays ignored.\nRanks start with default signal handling and nothing blocked.\n");
    text
}

/// The first two of `names`, and the rest.
fn split_names(names: &str) -> (&str, &str) {
    match names.match_indices(' ').nth(1) {
        Some((at, _)) => (&names[..at], &names[at + 1..]),
        None => (names, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_of_the_table_is_in_the_text() {
        let text = text();
        for (signal, _) in TABLE {
            assert!(text.contains(signal.as_str()), "{signal}\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 88 && line.trim_end() == line), "{text}");
    }
}
