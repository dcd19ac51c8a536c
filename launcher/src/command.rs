//! From arguments to what prun shall do: [`read`].

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::cli::{Args, FileArgs, PartArgs};
use crate::job::merge::Request;
use crate::job::{self, Job, Part};
use crate::refused::Refused;
use crate::surface::{compiler, completions, help, man, signals};

/// What prun shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Start this job, or show its plan.
    Run(Box<Job>),
    /// Print this text on standard output and end with 0.
    Print(String),
    /// Become this compiler command (`prun cc`).
    Compile(Vec<OsString>),
}

/// Words that are kept for what prun will do later, so that no script comes to rely on programs of that name.
const KEPT_WORDS: [&str; 7] = ["topo", "plan", "doctor", "sweep", "script", "bench", "status"];

/// What `arguments` ask for, the first of which is prun's own name. `inherited` is prun's environment.
pub fn read(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let rest = || arguments.iter().skip(2).cloned();
    match first {
        "run" => run_file(rest().collect(), inherited),
        "cc" => compiler::command(compiler::Language::C, rest().collect()).map(compiled),
        "c++" => compiler::command(compiler::Language::Cxx, rest().collect()).map(compiled),
        "signals" => only_word(&arguments).map(|()| Command::Print(signals::text())),
        "completions" => completions::script(rest().collect()).map(Command::Print),
        "man" => only_word(&arguments).map(|()| Command::Print(man::page())),
        "help" => only_word(&arguments).map(|()| Command::Print(help::long())),
        word if KEPT_WORDS.contains(&word) => Err(Refused::new(format!("`prun {word}` is kept for a later version"))
            .try_instead(format!("`prun -n N -- {word}` starts a program of that name"))),
        _ => run(arguments, inherited),
    }
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

fn run(arguments: Vec<OsString>, inherited: &[(OsString, OsString)]) -> Result<Command, Refused> {
    let args = match parsed::<Args>(&arguments) {
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
        let part = PartArgs::try_parse_from(section).map_err(refused)?;
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

/// clap's error as one sentence and something to try.
fn refused(error: clap::Error) -> Refused {
    let option = context(&error, ContextKind::InvalidArg).unwrap_or_default();
    let value = context(&error, ContextKind::InvalidValue).unwrap_or_default();
    // clap writes an option as `--np <N>`; people know it by its name.
    let name = option.split([' ', '[', '=']).next().unwrap_or_default().to_owned();
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
                let prior = prior.split([' ', '[', '=']).next().unwrap_or_default().to_owned();
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
        "--bind-to" | "--map-by" | "--cpu-bind" | "--numa-binding" => "`--bind core`, `--bind numa` or a list of CPUs",
        "--oversubscribe" | "--overcommit" | "--allow-run-as-root" => "leave it out: prun never refuses that",
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
