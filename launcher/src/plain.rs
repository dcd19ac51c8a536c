//! `prun -n N PROGRAM [ARGS]…`, the commonest command line, read without clap.
//!
//! clap builds all of prun's options before it looks at one argument, which takes 0.2 ms of the 3 to 4 that a job of two
//! short ranks takes. Whatever else is asked for, and whatever is wrong, goes to clap: this reads the same or nothing.

use std::ffi::OsString;

use crate::cli::{Args, Options};
use crate::job::value::RankCount;

/// What clap would read, if the only option is one `-n`; `None` for every other command line.
pub(crate) fn read(arguments: &[OsString]) -> Option<Args> {
    let first = arguments.get(1)?.to_str()?;
    let (count, mut rest) = match first {
        "-n" | "--np" => (arguments.get(2)?.to_str()?, arguments.get(3..)?),
        _ => (first.strip_prefix("-n")?, arguments.get(2..)?),
    };
    let np: RankCount = count.parse().ok()?;
    if rest.first().is_some_and(|word| word == "--") {
        rest = &rest[1..];
    } else if rest.first().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return None;
    }
    let options = Options { np: Some(np), ..Options::default() };
    (!rest.is_empty()).then(|| Args { options, program: rest.to_vec() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        std::iter::once("prun").chain(words.iter().copied()).map(OsString::from).collect()
    }

    #[test]
    fn the_commonest_command_lines_are_read() {
        for line in
            [&["-n", "4", "./a"][..], &["-n4", "a", "-x"], &["--np", "2", "--", "-odd"], &["-n2", "a", ":", "b"]]
        {
            assert!(read(&words(line)).is_some(), "{line:?}");
        }
        for line in
            [&["-n", "4"][..], &["-n", "0", "a"], &["-l", "-n2", "a"], &["-n2", "-l", "a"], &["-np", "2", "a"], &[]]
        {
            assert!(read(&words(line)).is_none(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_clap_reads(line in prop::collection::vec(
            prop::sample::select(vec!["-n", "--np", "-n2", "-n=2", "--np=3", "4", "0", "x", "-1", "--", ":", "-l", "-q", "", "a", "-np", "+5", " 6"]),
            0..6,
        )) {
            let line = words(&line);
            if let Some(args) = read(&line) {
                let clap = Args::try_parse_from(&line);
                prop_assert_eq!(clap.ok().map(|clap| (clap.options, clap.program)), Some((args.options, args.program)));
            }
        }
    }
}
