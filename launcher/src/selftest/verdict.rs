//! Whether a case passed: what prun's exit code and the ranks' lines say together. Pure.

use std::process::Output;

use super::cases::Case;
use crate::exit;

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// With so many parts; others were left out, for the reasons that the ranks gave.
    Passed { parts: usize, left_out: Vec<String> },
    /// With figures.
    Measured(String),
    /// And why.
    Failed(String),
    /// And why.
    Skipped(String),
}

/// From the lines that begin with `ok`, `skip` and `FAIL`, and from how the job ended.
pub(super) fn judge(case: &Case, output: &Output) -> Verdict {
    let said = String::from_utf8_lossy(&output.stdout);
    let after = |word: &str| said.lines().filter_map(|line| line.strip_prefix(word)).collect::<Vec<_>>();
    let (passed, left_out, failed) = (after("ok "), after("skip "), after("FAIL "));
    let code = output.status.code();
    if let Some(first) = failed.first() {
        return Verdict::Failed(first.trim().to_owned());
    }
    if code == Some(i32::from(exit::TIME_LIMIT)) {
        return Verdict::Failed(format!("did not end in {} s", case.limit_s));
    }
    if (case.ends_well && code != Some(0)) || (passed.is_empty() && left_out.is_empty()) {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("the ranks said nothing").to_owned();
        let how = code.map_or_else(|| output.status.to_string(), |code| format!("exit {code}"));
        return Verdict::Failed(format!("{how}: {last}"));
    }
    let left_out: Vec<String> = left_out.into_iter().map(|why| why.trim().to_owned()).collect();
    match passed.len() {
        0 => Verdict::Skipped(left_out.join("; ")),
        parts => Verdict::Passed { parts, left_out },
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn output(code: i32, said: &str, complained: &str) -> Output {
        Output { status: ExitStatus::from_raw(code << 8), stdout: said.into(), stderr: complained.into() }
    }

    fn passed(parts: usize) -> Verdict {
        Verdict::Passed { parts, left_out: Vec::new() }
    }

    #[test]
    fn a_case_passes_only_if_its_ranks_say_so_and_end_as_they_should() {
        let well = CASES[0];
        let dying = Case { ends_well: false, ..well };
        let failed = |verdict| match verdict {
            Verdict::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(judge(&well, &output(0, "ok   a\nrank 0: b\nok   c\n", "")), passed(2));
        assert_eq!(judge(&dying, &output(137, "ok   a\n", "prun: rank 1 …")), passed(1));
        assert_eq!(failed(judge(&well, &output(137, "ok   a\n", "x\nprun: rank 1\n"))), "exit 137: prun: rank 1");
        assert_eq!(failed(judge(&well, &output(0, "", ""))), "exit 0: the ranks said nothing");
        assert_eq!(failed(judge(&dying, &output(0, "ok   a\nFAIL b, rank 1: c\n", ""))), "b, rank 1: c");
        assert_eq!(failed(judge(&well, &output(124, "ok   a\n", ""))), "did not end in 120 s");
    }

    #[test]
    fn what_was_not_tried_is_no_part_that_passed() {
        let case = CASES[0];
        let some = judge(&case, &output(0, "ok   a\nskip NCCL beside: there is none\n", ""));
        assert_eq!(some, Verdict::Passed { parts: 1, left_out: vec!["NCCL beside: there is none".into()] });
        let none = judge(&case, &output(0, "skip NCCL: there is none\n", ""));
        assert_eq!(none, Verdict::Skipped("NCCL: there is none".into()));
        assert!(matches!(judge(&case, &output(1, "skip NCCL: there is none\n", "")), Verdict::Failed(_)));
    }
}
