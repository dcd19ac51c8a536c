//! Lays flags over a job file: whatever a flag says wins, the rest is the file's.

use super::Part;
use crate::cli::{EndingOptions, Options, OutputOptions, PlacementOptions};
use crate::refused::Refused;

/// What flags ask for, or a file, or both together. Nothing in it has been checked against the rest yet.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Everything but the programs.
    pub options: Options,
    /// The programs in rank order.
    pub parts: Vec<Part>,
}

/// The file's request with the flags laid over it.
pub fn merge(flags: Options, file: Request) -> Result<Request, Refused> {
    let Request { options: below, mut parts } = file;
    if flags.np.is_some() && parts.len() > 1 {
        return Err(Refused::new(format!("-n does not say which of the file's {} programs it means", parts.len()))
            .try_instead("change `ranks` of that [[program]] in the file"));
    }
    if let [only] = parts.as_mut_slice() {
        only.ranks = flags.np.or(only.ranks);
    }
    Ok(Request { options: over(flags, below), parts })
}

fn over(flags: Options, file: Options) -> Options {
    // Saying one of the two is also an answer about the other.
    let says_quiet_or_verbose = flags.quiet || flags.verbose > 0;
    Options {
        np: flags.np.or(file.np),
        dry_run: flags.dry_run.or(file.dry_run),
        verbose: if says_quiet_or_verbose { flags.verbose } else { file.verbose },
        quiet: if says_quiet_or_verbose { flags.quiet } else { file.quiet },
        env: [file.env, flags.env].concat(),
        pass_env: Vec::new(),
        env_file: [file.env_file, flags.env_file].concat(),
        env_clear: flags.env_clear.or(file.env_clear),
        wdir: flags.wdir.or(file.wdir),
        output: OutputOptions {
            label: flags.output.label.or(file.output.label),
            dir: flags.output.dir.or(file.output.dir),
            tee: flags.output.tee.or(file.output.tee),
            merge_stderr: flags.output.merge_stderr.or(file.output.merge_stderr),
            ranks: flags.output.ranks.or(file.output.ranks),
            pty: flags.output.pty.or(file.output.pty),
        },
        stdin: flags.stdin.or(file.stdin),
        ending: ending_over(flags.ending, file.ending),
        bind: flags.bind.or(file.bind),
        placement: PlacementOptions {
            map_by: flags.placement.map_by.or(file.placement.map_by),
            rank_by: flags.placement.rank_by.or(file.placement.rank_by),
            gpus: flags.placement.gpus.or(file.placement.gpus),
            gpu_mask: flags.placement.gpu_mask.or(file.placement.gpu_mask),
            share_gpus: flags.placement.share_gpus.or(file.placement.share_gpus),
            cpus_per_rank: flags.placement.cpus_per_rank.or(file.placement.cpus_per_rank),
            watch: flags.placement.watch.or(file.placement.watch),
            on_fault: flags.placement.on_fault.or(file.placement.on_fault),
        },
        verify: flags.verify.or(file.verify),
        json: flags.json.or(file.json),
    }
}

fn ending_over(flags: EndingOptions, file: EndingOptions) -> EndingOptions {
    let says_whether_to_go_on = flags.kill_on_fail.is_some() || flags.keep_going.is_some();
    EndingOptions {
        timeout: flags.timeout.or(file.timeout),
        grace: flags.grace.or(file.grace),
        kill_on_fail: if says_whether_to_go_on { flags.kill_on_fail } else { file.kill_on_fail },
        keep_going: if says_whether_to_go_on { flags.keep_going } else { file.keep_going },
        signal: flags.signal.or(file.signal),
        max_restarts: flags.max_restarts.or(file.max_restarts),
        stall_timeout: flags.stall_timeout.or(file.stall_timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::super::value::{RankCount, YesNo};
    use super::*;

    #[test]
    fn flags_win_and_variables_come_after_the_files() {
        let below = file::parse(
            "ranks = 4\nprogram = ['a']\nbind = 'core'\nquiet = true\n[env]\nA = '1'\n[ending]\nkeep-going = true",
        )
        .unwrap();
        let a: Vec<_> = below.options.env.clone();
        let flags = Options {
            np: Some(RankCount(2)),
            env: a.clone(),
            verbose: 1,
            ending: EndingOptions { kill_on_fail: Some(YesNo(true)), ..Default::default() },
            ..Default::default()
        };
        let both = merge(flags, below).unwrap();
        assert_eq!(both.parts[0].ranks, Some(RankCount(2)));
        assert_eq!(both.options.bind, Some(super::super::Bind::Core));
        assert_eq!(both.options.env.len(), 2);
        assert_eq!((both.options.verbose, both.options.quiet), (1, false));
        assert_eq!((both.options.ending.kill_on_fail, both.options.ending.keep_going), (Some(YesNo(true)), None));
    }

    #[test]
    fn a_number_for_several_programs_is_refused() {
        let below = file::parse("[[program]]\nranks=1\nargv=['a']\n[[program]]\nranks=1\nargv=['b']").unwrap();
        let flags = Options { np: Some(RankCount(2)), ..Default::default() };
        assert!(merge(flags, below).unwrap_err().message.contains("2 programs"));
    }
}
