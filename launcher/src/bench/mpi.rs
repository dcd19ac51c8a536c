//! MPI as a rival: the twin of our loop in C, built here with the compiler of each MPI that is installed, and run under
//! that MPI's own launcher.
//!
//! Waiting MPI ranks spin, so a twin is started anew for each size and turn and is gone when others are measured. Its
//! launcher runs under a prun of one rank: that sets the time limit, and leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comm::{DataType, Op};
use programs::bench::wire::{Answer, Entry, Job, Place};

use super::args::BenchArgs;
use crate::refused::Refused;
use crate::{exit, own_job};

/// A rival that needs longer for one size is printed as that.
pub const LIMIT_S: u32 = 60;

const SOURCE: &str = include_str!("twin.c");

/// How an MPI's programs are called: its name, its compiler, its launcher.
const KNOWN: [(&str, &str, &str); 2] =
    [("Open MPI", "mpicc.openmpi", "mpirun.openmpi"), ("MPICH", "mpicc.mpich", "mpiexec.hydra")];
/// The same where an MPI is installed by other means than Debian's.
const PLAIN: (&str, &str) = ("mpicc", "mpirun");

/// The twin of one MPI, built.
#[derive(Debug)]
pub struct Twin {
    /// Which MPI.
    pub name: String,
    launcher: OsString,
    options: &'static [&'static str],
    program: PathBuf,
    limit_s: u32,
}

/// A directory that goes with its value.
#[derive(Debug)]
pub struct Workshop(PathBuf);

impl Workshop {
    fn new() -> Result<Workshop, Refused> {
        let path = std::env::temp_dir().join(format!("prun-bench-{}", std::process::id()));
        let made = fs::create_dir(&path).map(|()| Workshop(path.clone()));
        made.map_err(|cause| Refused::new(format!("cannot make {}", path.display())).because(cause))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds the twin of the MPI that is named, or else of each that is installed.
///
/// # Errors
/// [`Refused`] if there is none, or MPI does not know the type or the operation.
pub fn twins(args: &BenchArgs, job: &Job) -> Result<(Workshop, Vec<Twin>), Refused> {
    words(job)?;
    let workshop = Workshop::new()?;
    let source = workshop.0.join("twin.c");
    fs::write(&source, SOURCE).map_err(|cause| Refused::new("cannot write the twin's source").because(cause))?;
    let (mut twins, mut missing) = (Vec::new(), Vec::new());
    let mut build = |name: Option<&str>, compiler: &OsStr, launcher: &OsStr| {
        let program = workshop.0.join(format!("twin-{}", twins.len()));
        match compile(compiler, &source, &program) {
            Ok(()) => twins.push(Twin::new(name, launcher, program, args.rival_limit)),
            Err(why) => missing.push(format!("{}: {why}", compiler.display())),
        }
        twins.len()
    };
    let plain = |named: &Option<OsString>, name: &str| named.clone().unwrap_or_else(|| name.into());
    let (compiler, launcher) = (plain(&args.mpicc, PLAIN.0), plain(&args.mpirun, PLAIN.1));
    let mut built = 0;
    if args.mpicc.is_none() && args.mpirun.is_none() {
        for (name, compiler, launcher) in KNOWN {
            built = build(Some(name), compiler.as_ref(), launcher.as_ref());
        }
    }
    if built == 0 {
        build(None, &compiler, &launcher);
    }
    if twins.is_empty() {
        return Err(Refused::new("cannot measure against MPI: no twin could be built")
            .because(missing.join("; "))
            .try_instead("`apt-get install libopenmpi-dev openmpi-bin libmpich-dev mpich`, or --mpicc and --mpirun"));
    }
    Ok((workshop, twins))
}

/// Builds the twin with an MPI's compiler; why not in a few words.
fn compile(compiler: &OsStr, source: &Path, program: &Path) -> Result<(), String> {
    let mut command = Command::new(compiler);
    let built = command.arg("-O3").arg("-o").arg(program).arg(source).stdin(Stdio::null()).output();
    let output = built.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned()),
    }
}

/// MPI's words for the job.
fn words(job: &Job) -> Result<(&'static str, &'static str), Refused> {
    let data_type = match job.data_type {
        DataType::F64 => "double",
        DataType::F32 => "float",
        DataType::I8 => "int8",
        DataType::U8 => "uint8",
        DataType::I16 => "int16",
        DataType::U16 => "uint16",
        DataType::I32 => "int32",
        DataType::U32 => "uint32",
        DataType::I64 => "int64",
        DataType::U64 => "uint64",
        DataType::F16 | DataType::BF16 | DataType::E4M3 | DataType::E5M2 => {
            return Err(Refused::new(format!("MPI has no type {}", job.data_type)).try_instead("-d float"));
        }
    };
    let op = match job.op {
        Op::Sum => "sum",
        Op::Prod => "prod",
        Op::Min => "min",
        Op::Max => "max",
        Op::BitAnd => "band",
        Op::BitOr => "bor",
        Op::BitXor => "bxor",
        Op::All => "land",
        Op::Any => "lor",
        Op::Avg => return Err(Refused::new("MPI has no operation avg").try_instead("-o sum")),
    };
    Ok((data_type, op))
}

impl Twin {
    /// Open MPI refuses more ranks than cores, and root, unless told otherwise; so it is asked whether it is that.
    fn new(name: Option<&str>, launcher: &OsStr, program: PathBuf, limit_s: u32) -> Twin {
        let version = || {
            let output = Command::new(launcher).arg("--version").stdin(Stdio::null()).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
        };
        let file = || Path::new(launcher).file_name().unwrap_or(launcher).to_string_lossy().into_owned();
        let by_version = || match version() {
            text if ["Open MPI", "OpenRTE"].iter().any(|word| text.contains(word)) => "Open MPI".into(),
            text if text.contains("HYDRA") => "MPICH".into(),
            _ => file(),
        };
        let name = name.map_or_else(by_version, str::to_owned);
        let options: &[&str] = if name == "Open MPI" { &["--oversubscribe", "--allow-run-as-root"] } else { &[] };
        Twin { name, launcher: launcher.to_owned(), options, program, limit_s }
    }

    /// Measures one size; what went wrong is said in a few words.
    pub fn measure(&self, job: &Job, ranks: u32, count: u64) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        for &place in &job.places {
            entries.extend(self.measure_in(job, ranks, count, place)?);
        }
        Ok(entries)
    }

    fn measure_in(&self, job: &Job, ranks: u32, count: u64, place: Place) -> Result<Vec<Entry>, String> {
        let (data_type, op) = words(job).map_err(|refused| refused.message)?;
        let mut program: Vec<OsString> = vec![self.launcher.clone()];
        program.extend(self.options.iter().map(OsString::from));
        program.extend(["-n".into(), ranks.to_string().into(), self.program.clone().into()]);
        let in_place = u8::from(place == Place::In);
        let numbers = [job.root.to_string(), count.to_string(), in_place.to_string(), job.warmup.to_string()];
        let iterations = job.iterations.unwrap_or(0);
        let more = [
            job.batches.to_string(),
            iterations.to_string(),
            job.batch_ms.to_string(),
            u8::from(job.check).to_string(),
        ];
        program.extend([job.collective.name(), data_type, op].map(OsString::from));
        program.extend(numbers.into_iter().chain(more).map(OsString::from));
        let options = ["-n1", "--map-by=none", "--stdin=none", "--grace=1"].map(String::from);
        let options: Vec<String> = options.into_iter().chain([format!("--timeout={}", self.limit_s)]).collect();
        let output =
            own_job::command(&options, &program).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if output.status.code() == Some(i32::from(exit::TIME_LIMIT)) {
            return Err(format!("> {} s", self.limit_s));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let answer = said.lines().find_map(|line| serde_json::from_str::<Answer>(line).ok());
        match answer {
            Some(answer) if output.status.success() => {
                Ok(answer.entries.into_iter().map(|entry| self.named(entry)).collect())
            }
            _ => {
                let complaint = String::from_utf8_lossy(&output.stderr);
                eprintln!("note: {}: {}", self.name, complaint.lines().next().unwrap_or("it said nothing"));
                Err("failed".into())
            }
        }
    }

    fn named(&self, entry: Entry) -> Entry {
        Entry { variant: self.name.clone(), ..entry }
    }
}
