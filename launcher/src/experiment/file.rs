//! Reads an experiment (TOML), and lays the flags of `prun sweep` over it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regex::bytes::Regex;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::args::SweepArgs;
use super::figures::{Better, Figure, Source, Take, WALL};
use super::flags;
use super::matrix::{Matrix, Parameter};
use super::number;
use super::spec::{Experiment, Order, Report, Trials};
use crate::job::duration;
use crate::job::file::FileError;
use crate::job::value::{Span, Times};
use crate::refused::Refused;

/// An experiment as a file says it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    name: Option<String>,
    program: Vec<String>,
    out: Option<PathBuf>,
    job: Table,
    parameters: BTreeMap<String, Value>,
    zip: Vec<Vec<String>>,
    include: Vec<BTreeMap<String, Value>>,
    exclude: Vec<BTreeMap<String, Value>>,
    trials: TrialsTable,
    figures: BTreeMap<String, FigureTable>,
    report: ReportTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct TrialsTable {
    repeat: Option<u32>,
    warmup: Option<u32>,
    precision: Option<Value>,
    max_repeat: Option<u32>,
    budget: Option<Value>,
    order: Option<Order>,
    seed: Option<u64>,
    timeout: Option<Value>,
    retries: Option<u32>,
    jobs: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct FigureTable {
    regex: Option<String>,
    json: Option<String>,
    take: Take,
    unit: Option<String>,
    better: Better,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct ReportTable {
    metric: Option<String>,
    compare: Option<String>,
}

/// The experiment that the arguments ask for.
pub fn experiment(args: &SweepArgs) -> Result<Experiment, Refused> {
    let (file, order) = match &args.file {
        Some(path) => read(path)?,
        None => (File::default(), Vec::new()),
    };
    let program: Vec<OsString> = match args.program.is_empty() {
        true => file.program.iter().map(OsString::from).collect(),
        false => args.program.clone(),
    };
    if program.is_empty() {
        return Err(Refused::new("there is no program to try")
            .try_instead("`prun sweep -n 2,4 -- PROGRAM [ARGS]`, or `program = [\"./bench\"]` in the file"));
    }
    let matrix = matrix(args, &file, &order)?;
    let mut job = file.job.clone();
    let fixed_ranks = job.remove("ranks");
    let ranks_flag = match (&fixed_ranks, matrix.names().iter().any(|name| name == "n")) {
        (_, true) => "-n={n}".replace('=', ""),
        (Some(ranks), false) => format!("-n{}", flags::scalar(ranks).unwrap_or_default()),
        (None, false) => {
            return Err(Refused::new("how many ranks shall a trial have?")
                .try_instead("`-n 2`, `-n 1,2,4` or `ranks = 2` in the table [job]"));
        }
    };
    let mut job_flags = vec![OsString::from(ranks_flag)];
    job_flags.extend(flags::of(&job)?);
    job_flags.extend(args.env.iter().flat_map(|variable| ["-x".into(), variable.into()]));
    job_flags.extend(args.bind.iter().map(|bind| format!("--bind={bind}").into()));
    let variants = matrix.variants().map_err(|error| Refused::new(error.to_string()))?;
    let name = args.file.as_deref().and_then(Path::file_stem).unwrap_or(program[0].as_os_str());
    let name = Path::new(name).file_name().unwrap_or(name).to_string_lossy().into_owned();
    let name = file.name.clone().unwrap_or(name);
    let out = args.out.clone().or(file.out.clone()).unwrap_or_else(|| PathBuf::from(format!("{name}.sweep")));
    let figures = figures(args, &file)?;
    let report = Report {
        metric: args.metric.clone().or(file.report.metric.clone()),
        compare: args.compare.clone().or(file.report.compare.clone()),
    };
    if let Some(compare) = report.compare.as_ref().filter(|compare| !matrix.names().contains(compare)) {
        return Err(Refused::new(format!("`{compare}` is not a parameter, so its values cannot be compared"))
            .try_instead(format!("one of {}", matrix.names().join(", "))));
    }
    Ok(Experiment { name, program, job_flags, variants, trials: trials(args, &file.trials)?, figures, report, out })
}

/// The file, and the names of its parameters in the order in which they stand.
fn read(path: &Path) -> Result<(File, Vec<String>), Refused> {
    let text = std::fs::read_to_string(path).map_err(|cause| {
        Refused::new(format!("cannot read the experiment {}", path.display()))
            .because(cause)
            .try_instead("`prun sweep -- PROGRAM` tries a program without a file")
    })?;
    let failed = |error: toml::de::Error| FileError::from(error).in_file(path, &text);
    let file: File = toml::from_str(&text).map_err(failed)?;
    let document = DeTable::parse(&text).map_err(failed)?;
    let mut names: Vec<(usize, String)> = match document.get_ref().get("parameters").map(|table| table.get_ref()) {
        Some(DeValue::Table(table)) => table.keys().map(|key| (key.span().start, key.get_ref().to_string())).collect(),
        _ => Vec::new(),
    };
    names.sort();
    Ok((file, names.into_iter().map(|(_, name)| name).collect()))
}

fn matrix(args: &SweepArgs, file: &File, order: &[String]) -> Result<Matrix, Refused> {
    let mut parameters = Vec::new();
    for name in order {
        parameters.push(Parameter { name: name.clone(), values: values(name, &file.parameters[name])? });
    }
    let mut given: Vec<(String, Vec<String>)> = Vec::new();
    given.extend(args.np.iter().map(|list| ("n".to_owned(), list_of(list))));
    for text in &args.param {
        let (name, list) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
            Refused::new(format!("--param: `{text}` is not a name and values")).try_instead("--param chunk=4,8,16")
        })?;
        given.push((name.to_owned(), list_of(list)));
    }
    for (name, values) in given {
        match parameters.iter_mut().find(|parameter: &&mut Parameter| parameter.name == name) {
            Some(parameter) if order.contains(&name) => parameter.values = values,
            _ => parameters.push(Parameter { name, values }),
        }
    }
    if let Some(parameter) = parameters.iter().find(|parameter| {
        ["rank", "local_rank", "size"].contains(&parameter.name.as_str())
            && args.file.is_none()
            && parameter.name != "size"
    }) {
        return Err(Refused::new(format!(
            "{{{}}} stands for each rank's own number and cannot be a parameter",
            parameter.name
        )));
    }
    let mut zips = file.zip.clone();
    zips.extend(args.zip.iter().map(|names| list_of(names)));
    let pairs = |table: &BTreeMap<String, Value>| {
        let pair = |(name, value): (&String, &Value)| flags::scalar(value).map(|value| (name.clone(), value));
        table
            .iter()
            .map(pair)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Refused::new("a combination holds texts, numbers or switches only"))
    };
    let mut exclude = file.exclude.iter().map(pairs).collect::<Result<Vec<_>, _>>()?;
    for text in &args.exclude {
        let split =
            |pair: &str| pair.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        let combination: Option<Vec<_>> = text.split(',').map(split).collect();
        exclude.push(combination.ok_or_else(|| {
            Refused::new(format!("--exclude: `{text}` is not a combination")).try_instead("--exclude n=4,chunk=32")
        })?);
    }
    Ok(Matrix { parameters, zips, include: file.include.iter().map(pairs).collect::<Result<_, _>>()?, exclude })
}

/// Items between commas, ranges written out.
fn list_of(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .flat_map(|item| number::range(item).unwrap_or_else(|| vec![item.to_owned()]))
        .collect()
}

fn values(name: &str, value: &Value) -> Result<Vec<String>, Refused> {
    let wrong = || {
        Refused::new(format!("the parameter `{name}` is not a list"))
            .try_instead(format!("{name} = [4, 8, 16] or {name} = \"1K..1G*4\""))
    };
    match value {
        Value::Array(items) => items.iter().map(flags::scalar).collect::<Option<Vec<_>>>().ok_or_else(wrong),
        Value::String(text) => number::range(text).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

fn figures(args: &SweepArgs, file: &File) -> Result<Vec<Figure>, Refused> {
    let regex = |name: &str, text: &str| {
        Regex::new(text).map(Source::Regex).map_err(|error| {
            let last = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Refused::new(format!("the figure `{name}` has a regular expression that cannot be read: {text}"))
                .because(last)
        })
    };
    let mut figures = Vec::new();
    for (name, table) in &file.figures {
        let source = match (&table.regex, &table.json) {
            (Some(text), None) => regex(name, text)?,
            (None, Some(key)) => Source::Json(key.clone()),
            (None, None) => Source::Reported,
            _ => {
                return Err(
                    Refused::new(format!("the figure `{name}` has both `regex` and `json`")).try_instead("one of them")
                );
            }
        };
        figures.push(Figure {
            name: name.clone(),
            source,
            take: table.take,
            unit: table.unit.clone(),
            better: table.better,
        });
    }
    for text in &args.figure {
        let (name, expression) = text.split_once('=').ok_or_else(|| {
            Refused::new(format!("--figure: `{text}` is not a name and a regular expression"))
                .try_instead("--figure 'time_us=avg: ([0-9.]+)'")
        })?;
        figures.push(Figure {
            name: name.into(),
            source: regex(name, expression)?,
            take: Take::Median,
            unit: None,
            better: Better::Lower,
        });
    }
    match figures.iter().find(|figure| figure.name == WALL) {
        Some(_) => Err(Refused::new(format!("`{WALL}` is the name of the wall time that every trial has"))),
        None => Ok(figures),
    }
}

fn trials(args: &SweepArgs, file: &TrialsTable) -> Result<Trials, Refused> {
    let default = Trials::default();
    let times = |flag: Option<Times>| flag.map(|Times(times)| times);
    let time = |flag: Option<Span>, key: &str, value: &Option<Value>| -> Result<Option<Duration>, Refused> {
        match (flag, value.as_ref().and_then(flags::scalar)) {
            (Some(Span(time)), _) => Ok(Some(time)),
            (None, Some(text)) => {
                duration::parse(&text).map(Some).map_err(|error| Refused::new(format!("trials.{key}: {error}")))
            }
            (None, None) => Ok(None),
        }
    };
    let precision = args.precision.clone().or(file.precision.as_ref().and_then(flags::scalar));
    let trials = Trials {
        repeat: times(args.repeat).or(file.repeat).unwrap_or(default.repeat),
        warmup: times(args.warmup).or(file.warmup).unwrap_or(default.warmup),
        precision: precision.as_deref().map(part).transpose()?,
        max_repeat: times(args.max_repeat).or(file.max_repeat).unwrap_or(default.max_repeat),
        budget: time(args.budget, "budget", &file.budget)?,
        order: args.order.or(file.order).unwrap_or_default(),
        seed: args.seed.or(file.seed).unwrap_or(default.seed),
        timeout: time(args.timeout, "timeout", &file.timeout)?,
        retries: times(args.retries).or(file.retries).unwrap_or(default.retries),
        jobs: times(args.jobs).or(file.jobs).unwrap_or(default.jobs),
    };
    if trials.repeat == 0 || trials.jobs == 0 {
        return Err(Refused::new("a sweep needs at least one trial of each combination, and one at a time"));
    }
    Ok(trials)
}

/// `2%` or `0.02`.
fn part(text: &str) -> Result<f64, Refused> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse::<f64>(),
    };
    number
        .ok()
        .filter(|part| (1e-6..1.0).contains(part))
        .ok_or_else(|| Refused::new(format!("`{text}` is not a precision")).try_instead("2% or 0.02"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn asked(words: &[&str]) -> Result<Experiment, Refused> {
        experiment(&SweepArgs::try_parse_from(std::iter::once("prun sweep").chain(words.iter().copied())).unwrap())
    }

    fn from_file(name: &str, text: &str, more: &[&str]) -> Result<Experiment, Refused> {
        let path = std::env::temp_dir().join(format!("prun-test-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let result = asked(&[&[path.to_str().unwrap()], more].concat());
        std::fs::remove_file(&path).unwrap();
        result
    }

    #[test]
    fn the_command_line_alone_makes_an_experiment() {
        let experiment = asked(&[
            "-n",
            "2,4",
            "--param",
            "chunk=4K..16K*2",
            "-r",
            "3",
            "-x",
            "A={chunk}",
            "--",
            "./bench",
            "{chunk}",
        ])
        .unwrap();
        assert_eq!((experiment.name.as_str(), experiment.variants.len(), experiment.trials.repeat), ("bench", 6, 3));
        assert_eq!(experiment.variants[1].to_string(), "n=2 chunk=8K");
        assert_eq!(experiment.job_flags, ["-n{n}", "-x", "A={chunk}"]);
        assert_eq!(experiment.out, PathBuf::from("bench.sweep"));
    }

    #[test]
    fn a_file_keeps_the_order_of_its_parameters_and_flags_win() {
        let text = "name = 'x'\nprogram = ['./b', '{z}', '{a}']\nzip = [['a', 'q']]\n[job]\nranks = 2\nbind = 'core'\n[parameters]\nz = '1..4*2'\na = ['u', 'v']\nq = [1, 2]\n[[exclude]]\nz = 4\na = 'v'\n[trials]\nrepeat = 7\nprecision = '3%'\ntimeout = '1m'\norder = 'random'\n[figures.lat]\nregex = 'lat (\\d+)'\nunit = 'us'\n[report]\ncompare = 'a'\n";
        let experiment = from_file("order", text, &["-r", "5", "-p", "a=v,w"]).unwrap();
        let variants: Vec<String> = experiment.variants.iter().map(ToString::to_string).collect();
        assert_eq!(variants, ["z=1 a=v q=1", "z=1 a=w q=2", "z=2 a=v q=1", "z=2 a=w q=2", "z=4 a=w q=2"]);
        assert_eq!(
            (experiment.trials.repeat, experiment.trials.precision, experiment.trials.order),
            (5, Some(0.03), Order::Random)
        );
        assert_eq!(experiment.trials.timeout, Some(Duration::from_secs(60)));
        assert_eq!(experiment.job_flags, ["-n2", "--bind=core"]);
        assert_eq!(experiment.figures[0].unit.as_deref(), Some("us"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, message) in [
            ("program = ['a']\nrepeet = 3\n[job]\nranks=1", "line 2, column 1: unknown field `repeet`"),
            ("program = ['a']", "how many ranks shall a trial have?"),
            ("[job]\nranks = 1", "there is no program to try"),
            ("program = ['a']\n[job]\nranks = 1\n[parameters]\nx = 3", "the parameter `x` is not a list"),
            ("program = ['a']\n[job]\nranks = 1\n[trials]\nprecision = 'high'", "`high` is not a precision"),
            (
                "program = ['a']\n[job]\nranks = 1\n[trials]\nbudget = 'long'",
                "trials.budget: `long` is not a length of time",
            ),
            (
                "program = ['a']\n[job]\nranks = 1\n[figures.f]\nregex = '('",
                "the figure `f` has a regular expression that cannot be read",
            ),
            ("program = ['a']\n[job]\nranks = 1\n[report]\ncompare = 'y'", "`y` is not a parameter"),
        ] {
            let refused = from_file("wrong", text, &[]).unwrap_err();
            assert!(refused.message.contains(message), "{text}\n{refused}");
        }
    }
}
