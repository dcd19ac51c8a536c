//! `prun sweep` from its arguments to its exit code: run or read, sum up, show.

use std::ffi::OsString;
use std::path::Path;

use super::args::SweepArgs;
use super::journal::{self, Results};
use super::show::{csv, html, plot, table};
use super::spec::Experiment;
use super::summary::{Summary, Wanted, summarize};
use super::sweep::{self, End};
use super::{file, trial};
use crate::exit;
use crate::refused::Refused;
use crate::report::stdout::print;

/// The exit code of a sweep that ran to its end with trials that failed.
pub const SOME_FAILED: u8 = 1;

/// Does what the arguments ask for.
///
/// # Errors
/// [`Refused`] if it cannot, or results cannot be read or written.
pub fn run(args: &SweepArgs, inherited: &[(OsString, OsString)]) -> Result<u8, Refused> {
    let (directory, end) = match &args.report {
        Some(directory) => (directory.clone(), End::Complete),
        None => {
            let experiment = file::experiment(args)?;
            if args.dry_run {
                return Ok(print(plan(&experiment)));
            }
            let end = sweep::run(&experiment, inherited, args.resume, args.quiet)?;
            (experiment.out, end)
        }
    };
    let results = journal::read(&directory)?;
    let earlier = args.against.as_deref().map(journal::read).transpose()?;
    let wanted =
        Wanted { metric: args.metric.clone(), compare: args.compare.clone(), leave_out_marked: args.leave_out_marked };
    let summary = summarize(&results, &wanted, earlier.as_ref());
    if let Some(metric) = args.metric.as_ref().filter(|metric| !summary.figures.contains(metric)) {
        return Err(Refused::new(format!("no trial has the figure `{metric}`"))
            .try_instead(format!("one of {}", summary.figures.join(", "))));
    }
    let code = show(args, &results, &summary, earlier.as_ref())?;
    if !args.quiet && args.report.is_none() {
        say_end(&end, &directory, &results);
    }
    Ok(match end {
        End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(exit::REFUSED),
        End::CannotStart(code) => u8::try_from(code).unwrap_or(exit::REFUSED),
        End::Complete | End::OutOfTime if code != exit::SUCCESS => code,
        End::Complete | End::OutOfTime if summary.failed > 0 => SOME_FAILED,
        End::Complete | End::OutOfTime => exit::SUCCESS,
    })
}

fn say_end(end: &End, directory: &Path, results: &Results) {
    let count = results.trials.len();
    let directory = directory.display();
    match end {
        End::Complete => eprintln!("prun: results are in {directory}"),
        End::OutOfTime => {
            eprintln!("prun: the time is used up after {count} trials; --resume with more --budget goes on")
        }
        End::Signal(_) => eprintln!("prun: interrupted after {count} trials; --resume goes on"),
        End::CannotStart(_) => eprintln!(
            "prun: the first trial could not be started, so no other was tried; its messages are in {directory}/trials"
        ),
    }
}

fn show(args: &SweepArgs, results: &Results, summary: &Summary, earlier: Option<&Results>) -> Result<u8, Refused> {
    let mut code = exit::SUCCESS;
    let mut stdout_taken = false;
    let mut write = |path: &Option<std::path::PathBuf>, text: &dyn Fn() -> String| -> Result<(), Refused> {
        match path {
            Some(path) if path.as_os_str() == "-" => {
                stdout_taken = true;
                code = print(text());
                Ok(())
            }
            Some(path) => std::fs::write(path, text())
                .map_err(|cause| Refused::new(format!("cannot write {}", path.display())).because(cause)),
            None => Ok(()),
        }
    };
    write(&args.csv, &|| csv::text(results))?;
    write(&args.json, &|| format!("{}\n", serde_json::to_string_pretty(summary).unwrap_or_default()))?;
    write(&args.svg, &|| plot::svg(summary))?;
    write(&args.html, &|| html::page(results, summary, earlier))?;
    if !stdout_taken {
        code = print(table::text(summary));
    }
    Ok(code)
}

/// What would be tried.
fn plan(experiment: &Experiment) -> String {
    let trials = &experiment.trials;
    let each = match trials.precision {
        Some(precision) => {
            format!("{} to {} each, until the median is known to {} %", trials.repeat, trials.most(), 100.0 * precision)
        }
        None => format!("{} each", trials.repeat),
    };
    let mut text = format!(
        "{}: {} combinations, {each}, after {} to warm up; results go to {}\n",
        experiment.name,
        experiment.variants.len(),
        trials.warmup,
        experiment.out.display()
    );
    for variant in &experiment.variants {
        let words: Vec<String> =
            trial::command(experiment, variant).iter().map(|word| crate::batch::quote::shown(word)).collect();
        text.push_str(&format!("  {}\n", words.join(" ")));
    }
    text
}
