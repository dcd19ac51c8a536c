//! From arguments to what prun shall do: [`read`].

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::batch::script::{self, ScriptArgs};
use crate::bench::args::BenchArgs;
use crate::cli::{Args, FileArgs, PartArgs};
use crate::doctor::watch;
use crate::experiment::args::SweepArgs;
use crate::job::file::KEYS;
use crate::job::merge::Request;
use crate::job::{self, Job, Part};
use crate::machine::args::{DoctorArgs, PlanArgs, TopoArgs};
use crate::machine::measure;
use crate::plain;
use crate::refused::Refused;
use crate::selftest::args::SelftestArgs;
use crate::status::args::StatusArgs;
use crate::surface::{compiler, completions, help, man, signals};

/// What prun shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Start this job, or show its plan.
    Run(Box<Job>),
    /// Print this text on standard output and end with 0.
    Print(String),
    /// Run, or report on, an experiment.
    Sweep(Box<SweepArgs>),
    /// Write this batch script to the file, or print it.
    Script(Vec<u8>, Option<PathBuf>),
    /// Show where ranks would go.
    Plan(Box<PlanArgs>),
    /// Show the machine.
    Topo(Box<TopoArgs>),
    /// Examine the machine.
    Doctor(Box<DoctorArgs>),
    /// Measure collectives.
    Bench(Box<BenchArgs>),
    /// Try what libcomm promises.
    Selftest(Box<SelftestArgs>),
    /// Show what running jobs are at.
    Status(Box<StatusArgs>),
    /// Be a rank of prun's own: which program, and its argument.
    Rank(OwnRank, String),
    /// Look at the machine below this directory for another prun.
    Watch(PathBuf),
    /// Touch GPUs for another prun, as these words say.
    Measure(Vec<String>),
    /// Become this compiler command (`prun cc`).
    Compile(Vec<OsString>),
}

/// The rank programs that prun carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnRank {
    /// Of `prun bench`.
    Bench,
    /// Of `prun selftest`.
    Selftest,
}

/// What `arguments` ask for, the first of which is prun's own name. `inherited` is prun's environment.
pub fn read(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let rest = || arguments.iter().skip(2).cloned();
    match first {
        "run" => run_file(rest().collect(), inherited),
        "sweep" => sweep(rest().collect()),
        "script" => script(rest().collect(), inherited),
        "cc" => compiler::command(compiler::Language::C, rest().collect()).map(compiled),
        "c++" => compiler::command(compiler::Language::Cxx, rest().collect()).map(compiled),
        "plan" => word(first, rest(), Command::Plan),
        "topo" => word(first, rest(), Command::Topo),
        "doctor" => word(first, rest(), Command::Doctor),
        "bench" => word(first, rest(), Command::Bench),
        "selftest" => word(first, rest(), Command::Selftest),
        "status" => word(first, rest(), Command::Status),
        programs::bench::WORD => Ok(Command::Rank(OwnRank::Bench, argument(&arguments))),
        programs::selftest::WORD => Ok(Command::Rank(OwnRank::Selftest, argument(&arguments))),
        watch::WORD => Ok(Command::Watch(rest().next().unwrap_or_else(|| "/".into()).into())),
        measure::WORD => Ok(Command::Measure(rest().map(|word| word.to_string_lossy().into_owned()).collect())),
        "signals" => only_word(&arguments).map(|()| Command::Print(signals::text())),
        "completions" => completions::script(rest().collect()).map(Command::Print),
        "man" => only_word(&arguments).map(|()| Command::Print(man::page())),
        "help" => only_word(&arguments).map(|()| Command::Print(help::long())),
        _ => run(arguments, inherited),
    }
}

/// What follows the word that makes prun a rank of its own.
fn argument(arguments: &[OsString]) -> String {
    arguments.get(2).map(|argument| argument.to_string_lossy().into_owned()).unwrap_or_default()
}

fn compiled(command: compiler::Compile) -> Command {
    match command {
        compiler::Compile::Show(text) => Command::Print(text),
        compiler::Compile::Become(argv) => Command::Compile(argv),
    }
}

fn only_word(arguments: &[OsString]) -> Result<(), Refused> {
    match arguments.get(2) {
        None => Ok(()),
        Some(more) => Err(Refused::new(format!(
            "`prun {}` takes no argument, but got `{}`",
            arguments[1].display(),
            more.display()
        ))),
    }
}

/// A word that has options of its own.
fn word<T: CommandFactory + FromArgMatches>(
    name: &str,
    rest: impl Iterator<Item = OsString>,
    made: fn(Box<T>) -> Command,
) -> Result<Command, Refused> {
    let named: Vec<OsString> = std::iter::once(OsString::from(format!("prun {name}"))).chain(rest).collect();
    match parsed::<T>(&named) {
        Ok(args) => Ok(made(Box::new(args))),
        Err(error) => printed_or_refused(error),
    }
}

fn run(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let args = match plain::read(&arguments).map_or_else(|| parsed::<Args>(&arguments), Ok) {
        Ok(args) => args,
        Err(error) => match spelt_as_mpirun_does(&arguments, &error) {
            Some(corrected) => return run(corrected, inherited),
            None => return printed_or_refused(error),
        },
    };
    let mut sections = args.program.split(|argument| argument == ":");
    // -n before the first program is that program's; -x and --wdir hold for all and stay in the options.
    let first = Part { ranks: args.options.np, argv: sections.next().unwrap_or_default().to_vec(), ..Part::default() };
    let mut parts = vec![first];
    for section in sections {
        let part = PartArgs::try_parse_from(section).map_err(refused_in_part)?;
        parts.push(Part { ranks: part.np, argv: part.program, env: part.env, wdir: part.wdir });
    }
    if args.program.is_empty() {
        parts.clear();
    }
    job::check::job(Request { options: args.options, parts }, inherited).map(|job| Command::Run(Box::new(job)))
}

fn run_file(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let named = std::iter::once(OsString::from("prun run")).chain(arguments).collect::<Vec<_>>();
    let args = match parsed::<FileArgs>(&named) {
        Ok(args) => args,
        Err(error) => match spelt_as_mpirun_does(&named, &error) {
            Some(corrected) => return run_file(corrected.into_iter().skip(1).collect(), inherited),
            None => return printed_or_refused(error),
        },
    };
    let below = job::file::read(&args.file)?;
    let request = job::merge::merge(args.options, below)?;
    job::check::job(request, inherited).map(|job| Command::Run(Box::new(job)))
}

fn sweep(arguments: Vec<OsString>) -> Result<Command, Refused> {
    let named = std::iter::once(OsString::from("prun sweep")).chain(arguments).collect::<Vec<_>>();
    match parsed::<SweepArgs>(&named) {
        Ok(args) => Ok(Command::Sweep(Box::new(args))),
        Err(error) => printed_or_refused(error),
    }
}

fn script(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let named = std::iter::once(OsString::from("prun script")).chain(arguments).collect::<Vec<_>>();
    match parsed::<ScriptArgs>(&named) {
        Ok(args) => {
            let directory = std::env::current_dir()
                .map_err(|cause| Refused::new("the working directory is gone").because(cause))?;
            let script = script::script(&args, directory.as_os_str(), inherited)?;
            Ok(Command::Script(script, args.to))
        }
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            Err(Refused::new("which batch system is the script for?").try_instead("--slurm, --pbs, --torque or --lsf"))
        }
        Err(error) => printed_or_refused(error),
    }
}

fn parsed<T: CommandFactory + FromArgMatches>(arguments: &[OsString]) -> Result<T, clap::Error> {
    let matches = T::command().try_get_matches_from(arguments)?;
    T::from_arg_matches(&matches)
}

/// `-np 4` as mpirun has it, which clap reads as `-n p`: the arguments with `--np` in its place.
fn spelt_as_mpirun_does(arguments: &[OsString], error: &clap::Error) -> Option<Vec<OsString>> {
    if error.kind() != ErrorKind::ValueValidation || context(error, ContextKind::InvalidValue)? != "p" {
        return None;
    }
    let at = arguments.iter().position(|argument| argument == "-np")?;
    let mut corrected = arguments.to_vec();
    corrected[at] = OsString::from("--np");
    Some(corrected)
}

fn printed_or_refused(error: clap::Error) -> Result<Command, Refused> {
    match error.kind() {
        ErrorKind::DisplayHelp => Ok(Command::Print(help::asked(&error.to_string()))),
        ErrorKind::DisplayVersion => Ok(Command::Print(error.to_string())),
        _ => Err(refused(error)),
    }
}

/// A later program has three options only; the others hold for the job.
fn refused_in_part(error: clap::Error) -> Refused {
    let unknown = error.kind() == ErrorKind::UnknownArgument;
    let option = context(&error, ContextKind::InvalidArg).unwrap_or_default();
    let refused = refused(error);
    let of_the_job = KEYS.iter().any(|(flag, _)| option == format!("--{flag}"));
    if unknown && of_the_job {
        let message = format!("there is no option `{option}` behind a `:`");
        return Refused::new(message)
            .try_instead(format!("{option} before the first program; it holds for the whole job"));
    }
    refused
}

/// clap's error as one sentence and something to try.
fn refused(error: clap::Error) -> Refused {
    let option = context(&error, ContextKind::InvalidArg).unwrap_or_default();
    let value = context(&error, ContextKind::InvalidValue).unwrap_or_default();
    let name = known_as(&option);
    let usage = || Refused::new(String::new()).try_instead("`prun --help`").try_;
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_else(|| format!("`{value}` is no good"));
            Refused { try_: usage(), ..Refused::new(format!("{name}: {why}")) }
        }
        ErrorKind::UnknownArgument => {
            let suggested = context(&error, ContextKind::SuggestedArg);
            let try_ = match (elsewhere(&option), suggested) {
                (Some(hint), _) => Some(hint.to_owned()),
                (None, Some(suggested)) => Some(format!("`{suggested}`")),
                (None, None) => usage(),
            };
            match option.starts_with('-') {
                true => Refused { try_, ..Refused::new(format!("there is no option `{option}`")) },
                false => Refused { try_: usage(), ..Refused::new(format!("`{option}` is one argument too many")) },
            }
        }
        ErrorKind::ArgumentConflict => match context(&error, ContextKind::PriorArg) {
            Some(prior) if prior != option => {
                let prior = known_as(&prior);
                Refused::new(format!("{name} and {prior} contradict each other")).try_instead("give only one of them")
            }
            _ => Refused::new(format!("{name} is given twice")).try_instead("give it once"),
        },
        ErrorKind::InvalidValue | ErrorKind::NoEquals | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues
            if value.is_empty() =>
        {
            Refused { try_: usage(), ..Refused::new(format!("{name} needs a value: {option}")) }
        }
        ErrorKind::InvalidUtf8 => {
            Refused { try_: usage(), ..Refused::new("an option's value is not UTF-8 text".to_owned()) }
        }
        ErrorKind::MissingRequiredArgument => Refused { try_: usage(), ..Refused::new(format!("{option} is missing")) },
        _ => {
            let text = error.to_string();
            let sentence = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Refused { try_: usage(), ..Refused::new(sentence) }
        }
    }
}

/// The name that people know an option by; clap writes `--np <N>`.
fn known_as(option: &str) -> &str {
    match option.split([' ', '[', '=']).next().unwrap_or_default() {
        "--np" => "-n",
        "--env" => "-x",
        "--label" => "-l",
        "--output-dir" => "-o",
        name => name,
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        _ => None,
    }
}

/// What prun has in place of an option that other launchers' users reach for.
fn elsewhere(option: &str) -> Option<&'static str> {
    Some(match option.split('=').next().unwrap_or_default() {
        "--bind-to" | "--cpu-bind" | "--numa-binding" => "`--bind core`, `--bind numa` or a list of CPUs",
        "--gpus-per-task" | "--gpu-bind" => {
            "leave it out: each rank gets a GPU; `--share-gpus` for several ranks on one"
        }
        "--cpus-per-task" | "--cpus-per-proc" => "`--cpus-per-rank N`",
        "--oversubscribe" | "--overcommit" | "--allow-run-as-root" => {
            "leave it out: prun refuses more ranks than GPUs only"
        }
        "--tag-output" | "--prefix" | "--prepend-rank" => "`-l`",
        "--display-map" | "--report-bindings" => "`--dry-run`",
        "--nproc-per-node" | "--nproc_per_node" | "--ntasks" => "`-n N`",
        "--output-filename" | "--log-dir" => "`-o DIR`",
        "--chdir" | "--cwd" | "--wd" => "`--wdir DIR`",
        "--host" | "--hostfile" | "--machinefile" => "leave it out: prun starts all ranks on this machine",
        "--mca" | "--gmca" => "`-x OMPI_MCA_NAME=VALUE`",
        "--genv" => "`-x NAME=VALUE`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::job::{Bind, JsonTarget, PtyRanks, StdinTo, Verify};

    fn read_words(words: &[&str]) -> Result<Command, Refused> {
        let arguments = std::iter::once("prun").chain(words.iter().copied()).map(OsString::from).collect();
        read(arguments, &[("HOME".into(), "/root".into())])
    }

    fn job_of(words: &[&str]) -> Job {
        match read_words(words) {
            Ok(Command::Run(job)) => *job,
            other => panic!("{words:?} gave {other:?}"),
        }
    }

    fn argv_of(words: &[&str]) -> Vec<OsString> {
        job_of(words).programs.remove(0).argv
    }

    #[test]
    fn the_first_argument_that_is_no_option_ends_the_options() {
        assert_eq!(argv_of(&["-n", "2", "./a", "-n", "3", "--help", "-x"]), ["./a", "-n", "3", "--help", "-x"]);
        assert_eq!(argv_of(&["-n2", "--", "-odd", "--", "x"]), ["-odd", "--", "x"]);
        assert_eq!(argv_of(&["-n2", "a", "--", "x", ""]), ["a", "--", "x", ""]);
        assert_eq!(argv_of(&["-l", "-n2", "a"]), ["a"]);
        assert_eq!(argv_of(&["--pty", "--verify", "--dry-run", "--tee=no", "-n2", "a"]), ["a"]);
    }

    #[test]
    fn arguments_are_kept_byte_for_byte() {
        let odd = [&b"./my prog"[..], b"a b", b"", b"*", b"\"", b"it's", b"x\xff"]
            .map(|bytes| OsString::from_vec(bytes.to_vec()));
        let arguments = ["prun", "-n", "2"].map(OsString::from).into_iter().chain(odd.clone()).collect();
        let Ok(Command::Run(job)) = read(arguments, &[]) else { panic!() };
        assert_eq!(job.programs[0].argv, odd);
    }

    #[test]
    fn a_colon_begins_another_program() {
        let job = job_of(&[
            "-n", "1", "-x", "A=1", "--wdir", "/w", "./a", "x", ":", "-n", "3", "-x", "A=2", "./b", "-n", ":",
            "--np=2", "--", "c",
        ]);
        let shown: Vec<_> = job.programs.iter().map(|program| (program.ranks, program.argv.clone())).collect();
        let argv = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(shown, [(1, argv(&["./a", "x"])), (3, argv(&["./b", "-n"])), (2, argv(&["c"]))]);
        assert_eq!(job.world_size(), 6);
        assert!(job.programs.iter().all(|program| program.working_dir.is_some() && program.env.len() == 1));
        assert_ne!(job.programs[0].env, job.programs[1].env);
    }

    #[test]
    fn words_are_words_only_in_the_first_place() {
        assert_eq!(argv_of(&["-n", "1", "run", "x"]), ["run", "x"]);
        assert_eq!(argv_of(&["-n1", "--", "signals"]), ["signals"]);
        assert_eq!(argv_of(&["-n1", "help"]), ["help"]);
        for word in ["signals", "man", "help", "--help", "-h", "--version"] {
            assert!(matches!(read_words(&[word]), Ok(Command::Print(text)) if text.len() > 5), "{word}");
        }
        assert!(matches!(read_words(&["completions", "zsh"]), Ok(Command::Print(_))));
        assert!(matches!(read_words(&["run", "--help"]), Ok(Command::Print(_))));
        assert!(matches!(read_words(&["status", "0a1b"]), Ok(Command::Status(args)) if args.job.is_some()));
    }

    #[test]
    fn mpirun_s_spelling_of_the_number_is_understood() {
        let job = job_of(&["-np", "3", "-l", "a", "-np"]);
        assert_eq!((job.world_size(), job.programs[0].argv.len()), (3, 2));
        assert_eq!(job_of(&["--np", "3", "a"]).world_size(), 3);
        assert_eq!(job_of(&["-n=3", "a"]).world_size(), 3);
    }

    #[test]
    fn flags_reach_the_job() {
        let job = job_of(&[
            "-n4",
            "-q",
            "-x",
            "HOME",
            "-x",
            "A=",
            "--env-clear",
            "--wdir",
            "w{rank}",
            "-l={host} ",
            "-o",
            "logs",
            "--tee",
            "--merge-stderr",
            "--ranks",
            "0,2-3",
            "--pty=1",
            "--stdin",
            "none",
            "--timeout",
            "2m",
            "--grace",
            "500ms",
            "--keep-going",
            "--signal",
            "USR1@30",
            "--max-restarts",
            "3",
            "--stall-timeout",
            "none",
            "--bind",
            "0,1",
            "--verify",
            "--json",
            "3",
            "a",
        ]);
        assert_eq!(job.verbosity, -1);
        assert!(job.environment.clear);
        assert_eq!(job.programs[0].env.len(), 2);
        assert_eq!(job.output.ranks, Some(vec![0, 2, 3]));
        assert_eq!(job.output.files.as_ref().map(|files| (files.pattern.as_str(), files.tee)), Some(("logs", true)));
        assert!(job.output.merge_stderr && job.output.label.is_some());
        assert_eq!(job.output.pty, PtyRanks::One(1));
        assert_eq!(job.stdin, StdinTo::None);
        assert!(!job.ending.kill_on_fail && job.ending.warning.is_some() && job.ending.stall_timeout.is_none());
        assert_eq!(job.ending.max_restarts, 3);
        assert_eq!(job.bind, Bind::List(vec![vec![0], vec![1]]));
        assert_eq!(job.verify, Some(Verify::Every));
        assert_eq!(job.json, Some(JsonTarget::Fd(3)));
        assert_eq!(job_of(&["-n1", "-vv", "a"]).verbosity, 2);
        assert_eq!(job_of(&["-n1", "--verify=off", "a"]).verify, Some(Verify::Off));
        assert_eq!(job_of(&["-n1", "--verify=full", "a"]).verify, Some(Verify::Full));
    }

    #[test]
    fn every_flag_has_a_key_and_every_key_a_flag() {
        let command = Args::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
        for flag in &flags {
            assert!(
                matches!(*flag, "help" | "version") || KEYS.iter().any(|(known, _)| known == flag),
                "--{flag} has no key"
            );
        }
        for (flag, key) in KEYS {
            assert!(flags.contains(flag), "{key} has no flag");
        }
    }

    #[test]
    fn the_parser_is_sound() {
        help::whole().debug_assert();
        FileArgs::command().debug_assert();
        PartArgs::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_is_said_in_one_sentence_with_something_to_try() {
        let table: &[(&[&str], &str, &str)] = &[
            (&[], "there is no program to start", "prun -n 4 PROGRAM"),
            (&["-n", "4"], "there is no program to start", "prun -n 4 PROGRAM"),
            (&["./a"], "how many ranks shall run ./a?", "-n 2"),
            (&["-n", "0", "a"], "-n: a job needs at least 1 rank", ""),
            (&["-n", "x", "a"], "-n: `x` is not a number of ranks", ""),
            (&["-n", "100000", "a"], "-n: 100000 ranks are more than prun starts; 65536 is the most", ""),
            (&["-n", "-1", "a"], "-n: `-1` is not a number of ranks", ""),
            (&["-n"], "-n needs a value", ""),
            (&["-n1", "-n2", "a"], "-n is given twice", "once"),
            (&["-q", "-v", "-n1", "a"], "contradict each other", "only one"),
            (&["--kill-on-fail", "yes", "--keep-going", "-n1", "a"], "contradict each other", "only one"),
            (&["--timeuot", "5", "-n1", "a"], "there is no option `--timeuot`", "`--timeout`"),
            (&["--oversubscribe", "-n1", "a"], "there is no option `--oversubscribe`", "leave it out"),
            (&["--bind-to", "core", "-n1", "a"], "there is no option `--bind-to`", "--bind core"),
            (&["-Z", "-n1", "a"], "there is no option `-Z`", "prun --help"),
            (&["--timeout", "soon", "-n1", "a"], "--timeout: `soon` is not a length of time", ""),
            (&["--bind", "0-", "-n1", "a"], "--bind: `0-` is not a list of CPUs", ""),
            (&["-l={rnak}", "-n1", "a"], "-l: `{rnak}` is not a placeholder; there are {rank}", ""),
            (&["--signal", "USR1@60", "-n1", "a"], "--signal counts back from --timeout", "--timeout TIME"),
            (
                &["-x", "NOT_SET_ANYWHERE", "-n1", "a"],
                "NOT_SET_ANYWHERE is not set where prun was started",
                "-x NOT_SET_ANYWHERE=VALUE",
            ),
            (&["-x", "=1", "-n1", "a"], "-x: `=1` has no name", ""),
            (&["-n1", "a", ":", "-n1"], "no program to start beside a `:`", ""),
            (&["-n1", "a", ":"], "no program to start beside a `:`", ""),
            (&["-n1", "a", ":", "b"], "how many ranks shall run b?", ""),
            (&["-n1", "a", ":", "--tee", "b"], "there is no option `--tee`", "before the first program"),
            (&["run"], "JOB.toml> is missing", ""),
            (&["run", "/not/there.toml"], "cannot read the job file /not/there.toml", ""),
            (&["run", "a.toml", "b"], "`b` is one argument too many", ""),
            (&["signals", "x"], "takes no argument", ""),
            (&["completions", "tcsh"], "takes the name of one shell", "prun completions bash"),
        ];
        for (words, message, try_) in table {
            let refused = read_words(words).expect_err(&format!("{words:?}"));
            assert!(refused.message.contains(message), "{words:?}\n{refused}");
            assert!(refused.try_.unwrap_or_default().contains(try_), "{words:?} {try_}");
            assert!(!refused.message.contains('\n'), "{words:?}");
        }
    }
}
