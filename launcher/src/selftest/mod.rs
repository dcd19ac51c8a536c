//! `prun selftest`: what libcomm promises, tried on the machine at hand, from the installed program alone.
//!
//! [`cases`] is the table of cases, [`args`] what is asked for. Each case is one job of prun's own rank program; what its
//! ranks print decides, with prun's exit code.

pub mod args;
pub mod cases;
mod starts;
mod verdict;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::cli::Options;
use crate::experiment::show::table::aligned;
use crate::job::merge::Request;
use crate::job::value::{RankCount, YesNo};
use crate::job::{MapBy, Part, check};
use crate::machine::Done;
use crate::placement::{Node, StartContext, gpu};
use crate::refused::Refused;
use crate::{exit, own_job};
use args::SelftestArgs;
use cases::{CASES, Case};
use verdict::{Verdict, judge};

/// The longest that a rank waits for its peers, unless the environment says otherwise.
const COMM_TIMEOUT_MS: u32 = 8000;

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ran {
    case: Case,
    verdict: Verdict,
    time: Duration,
}

/// Runs the cases that this machine can, and shows what came of them.
///
/// # Errors
/// [`Refused`] if a case has no such name, or a job cannot be started at all.
pub fn run(args: &SelftestArgs, inherited: &[(OsString, OsString)]) -> Result<Done, Refused> {
    if args.list {
        return Ok(Done { text: list(), code: exit::SUCCESS });
    }
    let chosen = chosen(&args.only)?;
    let gpus = Gpus::found(inherited);
    let mut log = args.log.as_deref().map(Log::create).transpose()?;
    let mut results = Vec::new();
    for case in chosen {
        let began = Instant::now();
        let verdict = match gpus.too_few_for(&case) {
            Some(why) => Verdict::Skipped(why),
            None => {
                say_running(&case);
                let before = (case.starts > 0).then(starts::InUse::now);
                let output = job(&case, inherited).output().map_err(cannot_start)?;
                if let Some(log) = &mut log {
                    log.add(&case, &output)?;
                }
                match (judge(&case, &output), before) {
                    (Verdict::Passed { .. }, Some(before)) => starts::follow(&case, &before, inherited)?,
                    (verdict, _) => verdict,
                }
            }
        };
        results.push(Ran { case, verdict, time: began.elapsed() });
    }
    clear_running();
    let skips_fail = gpus.count < args.require_gpus;
    let failed = results.iter().any(|result| match result.verdict {
        Verdict::Failed(_) => true,
        Verdict::Skipped(_) => skips_fail,
        Verdict::Passed { .. } | Verdict::Measured(_) => false,
    });
    let mut text = shown(&results);
    if skips_fail {
        let _ = writeln!(text, "FAILED: {} GPUs are required, {} found", args.require_gpus, gpus.count);
    }
    Ok(Done { text, code: u8::from(failed) })
}

fn cannot_start(cause: std::io::Error) -> Refused {
    Refused::new("cannot start prun for a case").because(cause)
}

fn chosen(only: &[String]) -> Result<Vec<Case>, Refused> {
    let known = |name: &String| CASES.iter().any(|case| case.name == name);
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        return Err(Refused::new(format!("there is no case `{unknown}`")).try_instead("`prun selftest --list`"));
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|name| name == case.name);
    Ok(CASES.iter().filter(wanted).copied().collect())
}

fn list() -> String {
    let needs = |case: &Case| match case.gpus {
        0 => String::new(),
        1 => "1 GPU".into(),
        gpus => format!("{gpus} GPUs"),
    };
    let line = |case: &Case| vec![case.name.into(), case.ranks.to_string(), needs(case), case.tries.into()];
    let heads = ["case", "ranks", "needs", "tries"].map(String::from).to_vec();
    aligned(&std::iter::once(heads).chain(CASES.iter().map(line)).collect::<Vec<_>>(), 4)
}

/// The GPUs that a job would get.
struct Gpus {
    count: usize,
    /// Why there are none.
    why: String,
}

impl Gpus {
    fn found(inherited: &[(OsString, OsString)]) -> Gpus {
        let mut options = Options { np: Some(RankCount(1)), dry_run: Some(YesNo(true)), ..Options::default() };
        options.placement.map_by = Some(MapBy::Gpu);
        let parts = vec![Part { argv: vec!["program".into()], ..Part::default() }];
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let context = StartContext {
            inherited: inherited.to_vec(),
            job_id: "0".repeat(16),
            master_port: 0,
            hostname,
            restart_count: 0,
            cwd: "/".into(),
            open_files: (0, 0),
        };
        let Ok(job) = check::job(Request { options, parts }, inherited) else {
            return Gpus { count: 0, why: "a job with GPUs cannot be planned".into() };
        };
        let node = Node::read_for(&job, Path::new("/"), &context.inherited, &context.hostname);
        let count = node.machine.as_ref().map_or(0, |machine| gpu::count(&job, machine, &context));
        let why = match crate::placement::plan(&job, &node, &context) {
            Err(error) if count == 0 => Refused::from(error).cause.unwrap_or_else(|| "none found".into()),
            _ => String::new(),
        };
        Gpus { count, why }
    }

    fn too_few_for(&self, case: &Case) -> Option<String> {
        let why = if self.why.is_empty() { String::new() } else { format!(" ({})", self.why) };
        let needs = if case.gpus == 1 { "1 GPU".into() } else { format!("{} GPUs", case.gpus) };
        (case.gpus > self.count).then(|| format!("needs {needs}, found {}{why}", self.count))
    }
}

fn job(case: &Case, inherited: &[(OsString, OsString)]) -> std::process::Command {
    let mut options: Vec<String> = vec![format!("-n{}", case.ranks), format!("--timeout={}", case.limit_s)];
    options.extend(["--grace=3", "--stdin=none"].map(String::from));
    let has_its_own = case.options.iter().any(|option| option.starts_with(comm::env::TIMEOUT_MS));
    if !has_its_own && !inherited.iter().any(|(name, _)| name == comm::env::TIMEOUT_MS) {
        options.extend(["-x".into(), format!("{}={COMM_TIMEOUT_MS}", comm::env::TIMEOUT_MS)]);
    }
    options.extend(case.options.iter().map(|option| option.to_string()));
    let mut command = own_job::command(&options, &own_job::rank(programs::selftest::WORD, case.word));
    command.stdin(Stdio::null());
    command
}

fn shown(results: &[Ran]) -> String {
    let line = |result: &Ran| {
        let time = match result.verdict {
            Verdict::Skipped(_) => "–".into(),
            _ => format!("{:.1} s", result.time.as_secs_f64()),
        };
        let (verdict, words) = match &result.verdict {
            Verdict::Passed { parts, left_out } => ("passed", passed(result.case.tries, *parts, left_out)),
            Verdict::Measured(figures) => ("passed", format!("{}: {figures}", result.case.tries)),
            Verdict::Failed(why) => ("FAILED", why.clone()),
            Verdict::Skipped(why) => ("skipped", why.clone()),
        };
        vec![result.case.name.to_owned(), verdict.to_owned(), format!("{time:>7}"), words]
    };
    let heads = ["case", "result", "   time", ""].map(String::from).to_vec();
    let mut text = aligned(&std::iter::once(heads).chain(results.iter().map(line)).collect::<Vec<_>>(), 4);
    let count = |wanted: fn(&Verdict) -> bool| results.iter().filter(|result| wanted(&result.verdict)).count();
    let _ = writeln!(
        text,
        "{} passed, {} failed, {} skipped",
        count(|verdict| matches!(verdict, Verdict::Passed { .. } | Verdict::Measured(_))),
        count(|verdict| matches!(verdict, Verdict::Failed(_))),
        count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    );
    text
}

/// What was tried, and what not, with the reasons.
fn passed(tries: &str, parts: usize, left_out: &[String]) -> String {
    let word = if parts == 1 { "part" } else { "parts" };
    let mut text = format!("{tries}: {parts} {word}");
    if !left_out.is_empty() {
        let _ = write!(text, "; not tried: {}", left_out.join("; "));
    }
    text
}

/// On a terminal, the case that runs.
fn say_running(case: &Case) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{}: {} …", case.name, case.tries);
    }
}

fn clear_running() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Everything that the jobs wrote.
struct Log<'a>(&'a Path, std::fs::File);

impl Log<'_> {
    fn create(path: &Path) -> Result<Log<'_>, Refused> {
        std::fs::File::create(path).map(|file| Log(path, file)).map_err(|cause| refuse_log(path, cause))
    }

    fn add(&mut self, case: &Case, output: &Output) -> Result<(), Refused> {
        let mut text = format!("== {}: {}\n", case.name, output.status).into_bytes();
        text.extend_from_slice(&output.stdout);
        text.extend_from_slice(&output.stderr);
        self.1.write_all(&text).map_err(|cause| refuse_log(self.0, cause))
    }
}

fn refuse_log(path: &Path, cause: std::io::Error) -> Refused {
    Refused::new(format!("cannot write {}", path.display())).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_gpus_skips_what_needs_them_and_says_why() {
        let gpus = Gpus { count: 0, why: "no driver".into() };
        let skipped = CASES.iter().filter_map(|case| gpus.too_few_for(case)).collect::<Vec<_>>();
        assert!(skipped.contains(&"needs 2 GPUs, found 0 (no driver)".to_owned()), "{skipped:?}");
        assert!(CASES.iter().filter(|case| case.gpus == 0).all(|case| gpus.too_few_for(case).is_none()));
    }

    #[test]
    fn an_unknown_case_is_refused() {
        assert!(chosen(&["nothing".into()]).unwrap_err().message.contains("`nothing`"));
        assert_eq!(chosen(&["killed".into()]).unwrap().len(), 1);
    }
}
