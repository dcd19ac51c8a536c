//! Makes a [`Job`] of what was asked for: fills in defaults and refuses what does not fit together.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::merge::Request;
use super::template::Template;
use super::value::{Assignment, CoreCount, Limit, MAX_RANKS, RankCount, Span, Times, YesNo};
use super::{
    BaseEnvironment, Bind, Ending, GpuChoice, Job, MapBy, OnFault, Output, OutputFiles, Part, Placement, Program,
    PtyRanks, RankBy, StdinTo, env_file,
};
use crate::cli::{EndingOptions, Options, OutputOptions, PlacementOptions};
use crate::refused::Refused;

/// The job that `request` asks for. `inherited` is prun's own environment, for `-x NAME`.
pub fn job(request: Request, inherited: &[(OsString, OsString)]) -> Result<Job, Refused> {
    let Request { options, parts } = request;
    if parts.is_empty() {
        return Err(
            Refused::new("there is no program to start").try_instead("`prun -n 4 PROGRAM [ARGS]...`, or `prun --help`")
        );
    }
    let several = parts.len() > 1;
    let programs =
        parts.into_iter().map(|part| program(part, &options, several, inherited)).collect::<Result<Vec<_>, _>>()?;
    let total: u64 = programs.iter().map(|program| u64::from(program.ranks)).sum();
    let world_size = u32::try_from(total).ok().filter(|&total| total <= MAX_RANKS);
    let world_size = world_size.ok_or_else(|| {
        Refused::new(format!("{total} ranks in all are more than prun starts; {MAX_RANKS} is the most"))
    })?;

    let mut from_files = Vec::new();
    for path in &options.env_file {
        let variables = env_file::read(path)?;
        for (name, _) in &variables {
            check_variable(name, OsStr::new(""))?;
        }
        from_files.extend(variables);
    }
    let stdin = options.stdin.unwrap_or(StdinTo::Rank(0));
    if let StdinTo::Rank(rank) = stdin {
        check_rank("--stdin", rank, world_size)?;
    }
    let on_fault = options.placement.on_fault.unwrap_or_default();
    let listed = matches!(options.bind, Some(Bind::List(_)));
    Ok(Job {
        programs,
        environment: BaseEnvironment { clear: yes(options.env_clear), from_files },
        output: output(options.output, world_size)?,
        stdin,
        ending: ending(options.ending, on_fault)?,
        bind: options.bind.unwrap_or_default(),
        placement: placement(options.placement, listed)?,
        verify: options.verify,
        json: options.json,
        dry_run: yes(options.dry_run),
        verbosity: if options.quiet { -1 } else { options.verbose.min(100) as i8 },
    })
}

fn yes(switch: Option<YesNo>) -> bool {
    switch.is_some_and(|YesNo(yes)| yes)
}

fn program(
    part: Part,
    options: &Options,
    several: bool,
    inherited: &[(OsString, OsString)],
) -> Result<Program, Refused> {
    let Some(name) = part.argv.first() else {
        return Err(Refused::new("there is no program to start beside a `:`").try_instead("`prun -n 1 ./a : -n 3 ./b`"));
    };
    if let Some(argument) = part.argv.iter().find(|argument| has_nul(argument)) {
        return Err(Refused::new(format!("the argument {argument:?} holds a NUL byte, which no program can be given")));
    }
    // A number before the first program is that program's; it says nothing about the others.
    let ranks = part.ranks.or(if several { None } else { options.np });
    // Inside a batch job its tasks are the answer.
    let ranks = match ranks {
        None if !several => crate::batch::fit::ranks(inherited)?.map(RankCount),
        known => known,
    };
    let Some(RankCount(ranks)) = ranks else {
        let name = name.display();
        return Err(Refused::new(format!("how many ranks shall run {name}?"))
            .try_instead(format!("`-n 2` before {name}, or `ranks = 2` in a job file")));
    };
    let working_dir = part.wdir.or_else(|| options.wdir.clone());
    let mut env: Vec<(OsString, Template)> = Vec::new();
    for Assignment { name, value } in options.env.iter().chain(&part.env) {
        let value = match value {
            Some(value) => {
                check_variable(name, value)?;
                Template::parse(value)
            }
            None => {
                check_variable(name, OsStr::new(""))?;
                let own = inherited.iter().find(|(inherited, _)| inherited == name).map(|(_, value)| value);
                let own = own.ok_or_else(|| {
                    let name = name.display();
                    Refused::new(format!("-x {name} has no value, and {name} is not set where prun was started"))
                        .try_instead(format!("`-x {name}=VALUE`, or leave it out"))
                })?;
                Template::literal(own)
            }
        };
        match env.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1 = value,
            None => env.push((name.clone(), value)),
        }
    }
    Ok(Program { ranks, argv: part.argv, working_dir, env })
}

fn check_variable(name: &OsStr, value: &OsStr) -> Result<(), Refused> {
    if comm::env::OF_LAUNCHER.iter().any(|ours| name == *ours) {
        return Err(Refused::new(format!("{} is set by prun for each rank and cannot be set by hand", name.display())));
    }
    if name.is_empty() || name.as_bytes().contains(&b'=') || has_nul(name) || has_nul(value) {
        return Err(Refused::new(format!("{name:?} cannot be set in an environment"))
            .because("a name is not empty and holds no `=`, and neither name nor value hold a NUL byte"));
    }
    Ok(())
}

fn has_nul(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

fn check_rank(flag: &str, rank: u32, world_size: u32) -> Result<(), Refused> {
    if rank < world_size {
        return Ok(());
    }
    let ranks = if world_size == 1 {
        "the only rank is 0".to_owned()
    } else {
        format!("the ranks are 0 to {}", world_size - 1)
    };
    Err(Refused::new(format!("{flag} names rank {rank}, but {ranks}")))
}

fn output(options: OutputOptions, world_size: u32) -> Result<Output, Refused> {
    let tee = yes(options.tee);
    if tee && options.dir.is_none() {
        return Err(Refused::new("--tee says \"to the terminal as well\", but no files were asked for")
            .try_instead("`-o DIR --tee`"));
    }
    if let Some(pattern) = options.dir.as_ref().filter(|pattern| !pattern.names_the_rank() && world_size > 1) {
        return Err(Refused::new(format!("-o {} would send all ranks to the same file", pattern.0))
            .try_instead("put {rank} into it"));
    }
    if let Some(ranks) = &options.ranks {
        for &rank in &ranks.0 {
            check_rank("--ranks", rank, world_size)?;
        }
    }
    if let Some(PtyRanks::One(rank)) = options.pty {
        check_rank("--pty", rank, world_size)?;
    }
    Ok(Output {
        label: options.label.filter(|label| !label.0.is_empty()),
        files: options.dir.map(|pattern| OutputFiles { pattern: pattern.0, tee }),
        ranks: options.ranks.map(|ranks| ranks.0),
        merge_stderr: yes(options.merge_stderr),
        pty: options.pty.unwrap_or_default(),
    })
}

fn placement(options: PlacementOptions, listed: bool) -> Result<Placement, Refused> {
    let placement = Placement {
        map_by: options.map_by,
        rank_by: options.rank_by.unwrap_or_default(),
        gpus: options.gpus.unwrap_or_default(),
        gpu_mask: yes(options.gpu_mask),
        share_gpus: yes(options.share_gpus),
        cpus_per_rank: options.cpus_per_rank.map(|CoreCount(cores)| cores),
        watch: options.watch.map(|YesNo(watch)| watch),
        on_fault: options.on_fault.unwrap_or_default(),
    };
    if placement.map_by == Some(MapBy::List) && !listed {
        return Err(Refused::new("--map-by list, and there is no list").try_instead("`--map-by list --bind 0,2,4-5`"));
    }
    if placement.cpus_per_rank.is_some() && listed {
        return Err(Refused::new("--cpus-per-rank and a list of --bind both say which CPUs a rank gets")
            .try_instead("leave one of them out"));
    }
    let contradiction = |what: &str| {
        Err(Refused::new(format!("{what} asks for GPUs, and another option for none"))
            .try_instead("leave one of them out"))
    };
    let no_gpu = placement.gpus == GpuChoice::None || placement.map_by.is_some_and(|map| map != MapBy::Gpu);
    match () {
        () if placement.map_by == Some(MapBy::Gpu) && placement.gpus == GpuChoice::None => {
            contradiction("--map-by gpu")
        }
        () if matches!(placement.gpus, GpuChoice::List(_)) && no_gpu => contradiction("--gpus"),
        () if placement.share_gpus && no_gpu => contradiction("--share-gpus"),
        () if placement.gpu_mask && no_gpu => contradiction("--gpu-mask"),
        () if placement.rank_by == RankBy::Ring && no_gpu => contradiction("--rank-by ring"),
        () => Ok(placement),
    }
}

fn ending(options: EndingOptions, on_fault: OnFault) -> Result<Ending, Refused> {
    let usual = Ending::default();
    let kill_on_fail = match (options.kill_on_fail, options.keep_going) {
        (Some(YesNo(kill)), Some(YesNo(go_on))) if kill == go_on => {
            return Err(
                Refused::new("kill-on-fail and keep-going contradict each other").try_instead("say only one of them")
            );
        }
        (Some(YesNo(kill)), _) => kill,
        (None, Some(YesNo(go_on))) => !go_on,
        (None, None) => usual.kill_on_fail,
    };
    // Who asks for a restart gets one.
    let usual_restarts = if on_fault == OnFault::Restart { 1 } else { usual.max_restarts };
    let timeout = options.timeout.and_then(|Limit(limit)| limit);
    if let Some(warning) = options.signal {
        let shown = humantime::format_duration(warning.before);
        match timeout {
            None => {
                return Err(Refused::new("--signal counts back from --timeout, and there is none")
                    .try_instead(format!("`--timeout TIME --signal {}@{shown}`", &warning.signal.as_str()[3..])));
            }
            Some(limit) if warning.before >= limit => {
                return Err(Refused::new(format!(
                    "--signal would be sent {shown} before the end of a job that lasts {} at most",
                    humantime::format_duration(limit)
                )));
            }
            Some(_) => {}
        }
    }
    Ok(Ending {
        timeout,
        grace: options.grace.map_or(usual.grace, |Span(grace)| grace),
        kill_on_fail,
        warning: options.signal.map(|warning| (warning.signal, warning.before)),
        max_restarts: options.max_restarts.map_or(usual_restarts, |Times(times)| times),
        stall_timeout: options.stall_timeout.map_or(usual.stall_timeout, |Limit(limit)| limit),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Bind, file};
    use super::*;

    fn made(text: &str) -> Result<Job, Refused> {
        let request = file::parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        job(request, &[("HOME".into(), "/home/{rank}".into())])
    }

    #[test]
    fn defaults_are_filled_in() {
        let job = made("ranks = 2\nprogram = ['a']").unwrap();
        assert_eq!(job.world_size(), 2);
        assert_eq!(job.stdin, StdinTo::Rank(0));
        assert_eq!(job.ending, Ending::default());
        assert_eq!(job.output, Output::default());
        assert_eq!(job.bind, Bind::Unsaid);
        assert_eq!(job.placement, Placement::default());
        assert!(!job.dry_run && job.verbosity == 0);
    }

    #[test]
    fn later_variables_win_and_passed_ones_are_taken_as_they_are() {
        let job = made("pass-env = ['HOME']\n[env]\nA = 'all'\n[[program]]\nargv = ['a']\nranks = 1\n[[program]]\nargv=['b']\nranks = 3\nenv = {A = '{rank}'}").unwrap();
        let numbers = super::super::template::Numbers { rank: 1, local_rank: 1, size: 4 };
        let filled = |program: usize| -> Vec<(OsString, OsString)> {
            job.programs[program].env.iter().map(|(name, value)| (name.clone(), value.fill(numbers))).collect()
        };
        assert_eq!(filled(0), [("A".into(), "all".into()), ("HOME".into(), "/home/{rank}".into())]);
        assert_eq!(filled(1), [("A".into(), "1".into()), ("HOME".into(), "/home/{rank}".into())]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused_in_a_sentence() {
        let base = "ranks = 2\nprogram = ['a']\n";
        let table = [
            ("ranks = 2", "no program"),
            ("program = ['a']", "how many ranks shall run a?"),
            ("[[program]]\nranks = 1\nargv = ['a']\n[[program]]\nargv = ['b']", "how many ranks shall run b?"),
            ("[[program]]\nranks = 65536\nargv = ['a']\n[[program]]\nranks = 1\nargv = ['b']", "65537 ranks in all"),
            ("ranks = 1\nprogram = [\"a\\u0000\"]", "NUL"),
            (&format!("{base}[output]\ntee = true"), "--tee"),
            (&format!("{base}[output]\ndir = 'x/{{host}}'"), "same file"),
            (&format!("{base}[output]\nranks = '1-2'"), "--ranks names rank 2, but the ranks are 0 to 1"),
            (&format!("{base}[output]\npty = 2"), "--pty names rank 2"),
            (&format!("{base}stdin = 7"), "--stdin names rank 7"),
            (&format!("{base}[placement]\nmap-by = 'numa'\nshare-gpus = true"), "--share-gpus asks for GPUs"),
            (&format!("{base}[placement]\nmap-by = 'gpu'\ngpus = 'none'"), "--map-by gpu asks for GPUs"),
            (&format!("{base}[placement]\nmap-by = 'core'\ngpus = '0'"), "--gpus asks for GPUs"),
            (&format!("{base}[placement]\nmap-by = 'list'"), "there is no list"),
            (&format!("{base}bind = '0,1'\n[placement]\ncpus-per-rank = 2"), "both say which CPUs"),
            (&format!("{base}[ending]\nsignal = 'USR1@60'"), "--signal counts back from --timeout"),
            (&format!("{base}[ending]\ntimeout = 60\nsignal = 'USR1@60'"), "--signal would be sent 1m before"),
            (&format!("{base}[ending]\nkill-on-fail = true\nkeep-going = true"), "contradict"),
            (&format!("{base}[env]\nPRUN_RANK = 1"), "PRUN_RANK is set by prun"),
            (&format!("{base}[env]\nPRUN_RING = '1,0'"), "PRUN_RING is set by prun"),
            (&format!("{base}[env]\n'A=B' = 1"), "cannot be set"),
            (&format!("{base}pass-env = ['NOT_THERE']"), "NOT_THERE is not set"),
            (&format!("{base}env-file = '/not/there'"), "cannot read the --env-file /not/there"),
        ];
        for (text, part) in table {
            let refused = made(text).expect_err(text);
            assert!(refused.to_string().contains(part), "{text}\n{refused}");
        }
    }

    #[test]
    fn who_asks_for_a_restart_after_a_fault_gets_one() {
        let restarts = |more: &str| {
            made(&format!("ranks=1\nprogram=['a']\n[placement]\non-fault='restart'\n{more}"))
                .unwrap()
                .ending
                .max_restarts
        };
        assert_eq!((restarts(""), restarts("[ending]\nmax-restarts=3")), (1, 3));
    }

    #[test]
    fn endings_are_read() {
        let job = made("ranks=1\nprogram=['a']\n[ending]\ntimeout='1m'\nsignal='USR1@10'\nkeep-going=true\ngrace=0\nstall-timeout='none'\nmax-restarts=2").unwrap();
        assert_eq!(
            job.ending,
            Ending {
                timeout: Some(Duration::from_secs(60)),
                grace: Duration::ZERO,
                kill_on_fail: false,
                warning: Some((nix::sys::signal::Signal::SIGUSR1, Duration::from_secs(10))),
                max_restarts: 2,
                stall_timeout: None,
            }
        );
    }
}
