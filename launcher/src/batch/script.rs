//! `prun script`: a batch script around a job, for Slurm, PBS, Torque or LSF.
//!
//! Directives stand at the top, before any command; prun's words follow, quoted so that the shell gives back every byte.
//! The script ends in `exec prun`, so that prun has the process id to which the system sends its signals, and its exit
//! status is the job's. Only a job that shall queue itself again keeps the shell, with a trap and `wait`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueHint;

use super::quote;
use crate::job::Job;
use crate::job::value::{SignalAt, Span};
use crate::refused::Refused;
use crate::supervise::signals::signal_name;

/// `prun script --slurm [OPTIONS] JOB.toml`, or a command line of prun.
#[derive(Debug, Clone, PartialEq, Default, clap::Parser)]
#[command(
    name = "prun script",
    about = "Write a batch script for a job",
    override_usage = "prun script --slurm|--pbs|--torque|--lsf [OPTIONS] JOB.toml\n       \
                      prun script --slurm|--pbs|--torque|--lsf [OPTIONS] -n 4 [OPTIONS OF prun] -- PROGRAM [ARGS]...",
    max_term_width = 100,
    disable_version_flag = true
)]
#[command(group = clap::ArgGroup::new("system").required(true))]
pub struct ScriptArgs {
    /// For Slurm: submit it with sbatch
    #[arg(long, group = "system")]
    pub slurm: bool,
    /// For PBS Pro and OpenPBS: submit it with qsub
    #[arg(long, group = "system")]
    pub pbs: bool,
    /// For Torque: submit it with qsub
    #[arg(long, group = "system")]
    pub torque: bool,
    /// For LSF: submit it with bsub < SCRIPT
    #[arg(long, group = "system")]
    pub lsf: bool,

    /// Time limit of the batch job
    #[arg(long, value_name = "TIME")]
    pub time: Option<Span>,
    /// Name of the batch job [default: the program's or the job file's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Partition or queue
    #[arg(long, visible_alias = "partition", value_name = "NAME")]
    pub queue: Option<String>,
    /// Account or project that is charged
    #[arg(long, value_name = "NAME")]
    pub account: Option<String>,
    /// CPUs for each rank [default: 1]
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// GPUs of the job
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Memory of the job, such as 16G
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Run it as an array, such as 0-9
    #[arg(long, value_name = "LIST")]
    pub array: Option<String>,
    /// Send the ranks a signal before the time limit: USR1@60
    #[arg(long, value_name = "SIGNAL@TIME")]
    pub warn: Option<SignalAt>,
    /// Queue it again when the time limit came first (Slurm); needs --warn
    #[arg(long)]
    pub requeue: bool,
    /// A further line of directives, without its beginning: "--exclusive"
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub directive: Vec<String>,
    /// A line of shell before prun starts: "module load cuda"
    #[arg(long, value_name = "LINE")]
    pub before: Vec<String>,
    /// Write it to this file and make that executable [default: standard output]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub to: Option<PathBuf>,

    /// The job file, or a command line of prun
    #[arg(value_name = "JOB", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Slurm,
    Pbs,
    Torque,
    Lsf,
}

/// The script for this job. `directory` is where it was asked for.
///
/// # Errors
/// [`Refused`] if prun could not read the words either, or the system cannot do what is asked.
pub fn script(args: &ScriptArgs, directory: &OsStr, inherited: &[(OsString, OsString)]) -> Result<Vec<u8>, Refused> {
    let words = words(args)?;
    let job = job(&words, inherited)?;
    let system = match (args.slurm, args.pbs, args.torque) {
        (true, _, _) => System::Slurm,
        (_, true, _) => System::Pbs,
        (_, _, true) => System::Torque,
        _ => System::Lsf,
    };
    if args.requeue && (system != System::Slurm || args.warn.is_none()) {
        return Err(Refused::new("--requeue needs --slurm, and --warn to know before the time limit")
            .try_instead("`--slurm --warn USR1@60 --requeue`; docs/experiments.md shows how with PBS and LSF"));
    }
    if args.warn.is_some() && args.time.is_none() {
        return Err(Refused::new("--warn counts back from the time limit, and there is none").try_instead("--time 1h"));
    }
    for text in args
        .directive
        .iter()
        .chain(&args.before)
        .chain(&args.queue)
        .chain(&args.account)
        .chain(&args.array)
        .chain(&args.mem)
    {
        if text.contains(['\n', '\r', '\0']) {
            return Err(Refused::new(format!("{text:?} is not one line")));
        }
    }
    let mut script = b"#!/bin/sh\n".to_vec();
    script.extend_from_slice(directives(system, args, &job, &words).as_bytes());
    script.push(b'\n');
    let body = Body::of(system, args, &words, directory);
    if body.has_newlines {
        script.extend_from_slice(b"# The end of a line; no line of an argument may begin one of this script, where it could be a directive.\n");
        script.extend_from_slice(b"nl=$(printf '\\nx'); nl=${nl%x}\n");
    }
    script.extend_from_slice(&body.text);
    Ok(script)
}

/// `JOB.toml …` is short for `run JOB.toml …`.
fn words(args: &ScriptArgs) -> Result<Vec<OsString>, Refused> {
    let Some(first) = args.words.first() else {
        return Err(Refused::new("there is no job to write a script for")
            .try_instead("`prun script --slurm job.toml`, or `prun script --slurm -n 4 -- PROGRAM`"));
    };
    let is_file = first.as_bytes().ends_with(b".toml") && !first.as_bytes().starts_with(b"-");
    let run = is_file.then(|| OsString::from("run"));
    Ok(run.into_iter().chain(args.words.iter().cloned()).collect())
}

/// The words are read as prun will read them, so that a mistake is found now and not when the job's turn comes.
fn job(words: &[OsString], inherited: &[(OsString, OsString)]) -> Result<Job, Refused> {
    let named = std::iter::once(OsString::from("prun")).chain(words.iter().cloned()).collect();
    match crate::command::read(named, inherited)? {
        crate::command::Command::Run(job) => Ok(*job),
        _ => Err(Refused::new(format!("`prun {}` starts no job", words[0].display()))
            .try_instead("`prun script --slurm job.toml`")),
    }
}

fn directives(system: System, args: &ScriptArgs, job: &Job, words: &[OsString]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let ranks = job.world_size();
    let cpus = args.cpus.unwrap_or(1);
    let name = name(args, job, words);
    let array = args.array.as_deref();
    let option = |flag: &str, value: &Option<String>| value.as_ref().map(|value| format!("{flag}{value}"));
    match system {
        System::Slurm => {
            let numbers = if array.is_some() { "%A_%a" } else { "%j" };
            lines.extend([
                format!("--job-name={name}"),
                format!("--output={name}-{numbers}.out"),
                "--nodes=1".into(),
                format!("--ntasks={ranks}"),
                format!("--cpus-per-task={cpus}"),
            ]);
            lines.extend(args.gpus.map(|gpus| format!("--gpus-per-node={gpus}")));
            lines.extend(option("--mem=", &args.mem));
            lines.extend(args.time.map(|Span(time)| format!("--time={}", clock(time))));
            lines.extend(option("--partition=", &args.queue));
            lines.extend(option("--account=", &args.account));
            lines.extend(array.map(|array| format!("--array={array}")));
            // B: to the batch shell, which is prun by then.
            lines.extend(args.warn.map(|warn| format!("--signal=B:{}@{}", plain(warn), warn.before.as_secs().max(1))));
            lines.extend(args.requeue.then(|| "--requeue".to_owned()));
            lines.extend(args.requeue.then(|| "--open-mode=append".to_owned()));
        }
        System::Pbs => {
            let gpus = args.gpus.map(|gpus| format!(":ngpus={gpus}")).unwrap_or_default();
            let mem = args.mem.as_ref().map(|mem| format!(":mem={}", with_b(mem))).unwrap_or_default();
            lines.extend([
                format!("-N {}", cut(&name, 15)),
                "-j oe".into(),
                format!("-l select=1:ncpus={}:mpiprocs={ranks}{gpus}{mem}", ranks * cpus),
            ]);
            lines.extend(args.time.map(|Span(time)| format!("-l walltime={}", clock(time))));
            lines.extend(option("-q ", &args.queue));
            lines.extend(option("-A ", &args.account));
            lines.extend(array.map(|array| format!("-J {array}")));
        }
        System::Torque => {
            let gpus = args.gpus.map(|gpus| format!(":gpus={gpus}")).unwrap_or_default();
            lines.extend([
                format!("-N {}", cut(&name, 15)),
                "-j oe".into(),
                format!("-l nodes=1:ppn={}{gpus}", ranks * cpus),
            ]);
            lines.extend(args.mem.as_ref().map(|mem| format!("-l mem={}", with_b(mem))));
            lines.extend(args.time.map(|Span(time)| format!("-l walltime={}", clock(time))));
            lines.extend(option("-q ", &args.queue));
            lines.extend(option("-A ", &args.account));
            lines.extend(array.map(|array| format!("-t {array}")));
        }
        System::Lsf => {
            let numbers = if array.is_some() { "%J_%I" } else { "%J" };
            let array = array.map(|array| format!("[{array}]")).unwrap_or_default();
            lines.extend([
                format!("-J \"{name}{array}\""),
                format!("-o {name}-{numbers}.out"),
                format!("-n {}", ranks * cpus),
                "-R \"span[hosts=1]\"".into(),
            ]);
            lines.extend(args.gpus.map(|gpus| format!("-gpu \"num={gpus}\"")));
            lines.extend(args.mem.as_ref().map(|mem| format!("-R \"rusage[mem={mem}]\"")));
            lines.extend(args.time.map(|Span(time)| format!("-W {}", minutes(time))));
            lines.extend(option("-q ", &args.queue));
            lines.extend(option("-P ", &args.account));
        }
    }
    lines.extend(args.directive.iter().cloned());
    let beginning = match system {
        System::Slurm => "#SBATCH",
        System::Pbs | System::Torque => "#PBS",
        System::Lsf => "#BSUB",
    };
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{beginning} {line}");
        text
    })
}

/// What stands behind the directives.
struct Body {
    text: Vec<u8>,
    has_newlines: bool,
}

impl Body {
    fn of(system: System, args: &ScriptArgs, words: &[OsString], directory: &OsStr) -> Body {
        let mut body = Body { text: Vec::new(), has_newlines: false };
        // PBS starts in the home directory, the others where the script was submitted; this is where it was made.
        body.text.extend_from_slice(b"cd -- ");
        body.word(directory);
        body.text.extend_from_slice(b" || exit 125\n");
        for line in &args.before {
            body.text.extend_from_slice(line.as_bytes());
            body.text.push(b'\n');
        }
        if !args.requeue {
            body.text.extend_from_slice(b"exec ");
        }
        body.text.extend_from_slice(b"\"${PRUN:-prun}\"");
        body.limit(system, args, words);
        for word in words {
            body.text.push(b' ');
            body.word(word);
        }
        body.text.extend_from_slice(
            if args.requeue {
                REQUEUE.replace("USR1", &args.warn.map(plain).unwrap_or_default()).into_bytes()
            } else {
                b"\n".to_vec()
            }
            .as_slice(),
        );
        body
    }

    /// PBS and LSF do not warn in seconds, so prun does it: its own limit comes a little before theirs.
    fn limit(&mut self, system: System, args: &ScriptArgs, words: &[OsString]) {
        let (Some(warn), Some(Span(time))) = (args.warn, args.time) else { return };
        if system == System::Slurm || words.first().is_some_and(|word| word == "run") {
            return;
        }
        let limit = time.saturating_sub(Duration::from_secs(15)).as_secs().max(1);
        let text = format!(" --timeout {limit} --signal {}@{}", plain(warn), warn.before.as_secs());
        self.text.extend_from_slice(text.as_bytes());
    }

    /// One word; no line of it begins a line of the script.
    fn word(&mut self, word: &OsStr) {
        let mut lines = word.as_bytes().split(|&byte| byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let rest: Vec<&[u8]> = lines.collect();
        if rest.is_empty() {
            self.text.extend(quote::word(word));
            return;
        }
        self.has_newlines = true;
        if !first.is_empty() {
            self.text.extend(quote::word(OsStr::from_bytes(first)));
        }
        for line in rest {
            self.text.extend_from_slice(b"\"$nl\"");
            if !line.is_empty() {
                self.text.extend(quote::word(OsStr::from_bytes(line)));
            }
        }
    }
}

/// Passes the warning and the end on, waits, and queues the job again if the warning came and it did not finish.
const REQUEUE: &str = " &
prun=$!
warned=no
trap 'warned=yes; kill -USR1 \"$prun\" 2>/dev/null' USR1
trap 'kill -TERM \"$prun\" 2>/dev/null' TERM
wait \"$prun\"
code=$?
while kill -0 \"$prun\" 2>/dev/null; do # a signal only interrupted the wait
    wait \"$prun\"
    code=$?
done
if [ \"$warned\" = yes ] && [ \"$code\" -ne 0 ]; then
    scontrol requeue \"$SLURM_JOB_ID\"
fi
exit \"$code\"
";

/// Letters, digits and what no batch system takes for anything else.
fn name(args: &ScriptArgs, job: &Job, words: &[OsString]) -> String {
    let file = words.get(1).filter(|_| words[0] == "run").map(|path| path.as_os_str());
    let whole = args.name.as_deref().map(OsStr::new).or(file).unwrap_or(&job.programs[0].argv[0]);
    let path = std::path::Path::new(whole);
    let text = path.file_stem().unwrap_or(whole).to_string_lossy().into_owned();
    let safe: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    match safe.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => safe,
        false => format!("job_{safe}"),
    }
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// `1:02:03`, rounded up to whole seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// LSF counts in minutes.
fn minutes(time: Duration) -> String {
    let minutes = time.as_secs().div_ceil(60).max(1);
    format!("{}:{:02}", minutes / 60, minutes % 60)
}

/// PBS wants `16gb` where others write `16G`.
fn with_b(mem: &str) -> String {
    let lower = mem.to_lowercase();
    if lower.ends_with(['k', 'm', 'g', 't']) { format!("{lower}b") } else { lower }
}

/// `USR1`.
fn plain(warn: SignalAt) -> String {
    signal_name(warn.signal as i32).trim_start_matches("SIG").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    fn made(words: &[&str]) -> Result<String, Refused> {
        let args = ScriptArgs::try_parse_from(std::iter::once("prun script").chain(words.iter().copied())).unwrap();
        script(&args, OsStr::new("/work/my dir"), &[]).map(|script| String::from_utf8(script).unwrap())
    }

    #[test]
    fn a_slurm_script_ends_in_exec() {
        let script = made(&[
            "--slurm",
            "--time",
            "90m",
            "--gpus",
            "2",
            "--cpus",
            "4",
            "--queue",
            "gpu",
            "--warn",
            "USR1@60",
            "--array",
            "0-3",
            "-n",
            "2",
            "-x",
            "A=b c",
            "--",
            "./my prog",
            "*",
        ])
        .unwrap();
        let expected = "#!/bin/sh
#SBATCH --job-name=my_prog
#SBATCH --output=my_prog-%A_%a.out
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=1:30:00
#SBATCH --partition=gpu
#SBATCH --array=0-3
#SBATCH --signal=B:USR1@60

cd -- '/work/my dir' || exit 125
exec \"${PRUN:-prun}\" -n 2 -x 'A=b c' -- './my prog' '*'
";
        assert_eq!(script, expected);
    }

    #[test]
    fn each_system_gets_its_own_words() {
        let pbs =
            made(&["--pbs", "--time", "1h", "--mem", "16G", "--gpus", "1", "--warn", "USR1@60", "-n3", "./a"]).unwrap();
        assert!(
            pbs.contains("#PBS -l select=1:ncpus=3:mpiprocs=3:ngpus=1:mem=16gb\n#PBS -l walltime=1:00:00\n"),
            "{pbs}"
        );
        assert!(pbs.ends_with("exec \"${PRUN:-prun}\" --timeout 3585 --signal USR1@60 -n3 ./a\n"), "{pbs}");
        let torque = made(&["--torque", "--array", "1-2", "-n2", "./a"]).unwrap();
        assert!(torque.contains("#PBS -l nodes=1:ppn=2\n#PBS -t 1-2\n"), "{torque}");
        let lsf = made(&["--lsf", "--time", "61s", "--array", "1-4", "--account", "p", "-n2", "./a"]).unwrap();
        assert!(lsf.contains("#BSUB -J \"a[1-4]\"\n#BSUB -o a-%J_%I.out\n#BSUB -n 2\n#BSUB -R \"span[hosts=1]\"\n#BSUB -W 0:02\n#BSUB -P p\n"), "{lsf}");
    }

    #[test]
    fn a_job_that_queues_itself_again_keeps_the_shell() {
        let script = made(&["--slurm", "--time", "1h", "--warn", "USR2@5m", "--requeue", "-n2", "./a"]).unwrap();
        assert!(
            script.contains("\n\"${PRUN:-prun}\" -n2 ./a &\nprun=$!\n")
                && script.contains("kill -USR2")
                && script.contains("scontrol requeue"),
            "{script}"
        );
        assert!(script.contains("#SBATCH --signal=B:USR2@300\n#SBATCH --requeue\n"), "{script}");
    }

    #[test]
    fn what_no_script_can_do_is_refused_now() {
        for (words, message) in [
            (&["--slurm"][..], "there is no job"),
            (&["--slurm", "-n", "x", "./a"], "`x` is not a number of ranks"),
            (&["--slurm", "signals"], "starts no job"),
            (&["--slurm", "/not/there.toml"], "cannot read the job file"),
            (&["--pbs", "--time", "1h", "--warn", "USR1@9", "--requeue", "-n1", "./a"], "--requeue needs --slurm"),
            (&["--slurm", "--warn", "USR1@9", "-n1", "./a"], "there is none"),
            (&["--slurm", "--directive", "a\nb", "-n1", "./a"], "is not one line"),
        ] {
            let refused = made(words).unwrap_err();
            assert!(refused.message.contains(message), "{words:?}\n{refused}");
        }
    }

    #[test]
    fn the_parser_is_sound() {
        use clap::CommandFactory;
        ScriptArgs::command().debug_assert();
        assert!(ScriptArgs::try_parse_from(["prun script", "-n1", "./a"]).is_err());
    }

    fn replaced(text: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
        let at = text.windows(old.len()).position(|window| window == old).unwrap();
        [&text[..at], new, &text[at + old.len()..]].concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_program_gets_every_byte_back(words in prop::collection::vec(prop::collection::vec(1u8.., 0..12), 1..6), lines in any::<bool>()) {
            let mut words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            words.retain(|word| word != ":");
            if lines {
                words.push("\n#BSUB -n 99\n\n".into());
            }
            let mut args = ScriptArgs { lsf: true, ..ScriptArgs::default() };
            args.words = ["-n1", "--", "prog"].map(OsString::from).into_iter().chain(words.iter().cloned()).collect();
            let script = script(&args, OsStr::new("/"), &[]).unwrap();
            let directives = script.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"#BSUB")).count();
            prop_assert_eq!(directives, 4);
            // printf stands for prun.
            let script: Vec<u8> = replaced(&script, b"\"${PRUN:-prun}\" -n1 -- prog", b"/usr/bin/printf '%s\\0' prog");
            let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).env("LC_ALL", "C").output().unwrap();
            let got: Vec<Vec<u8>> = output.stdout.split(|&byte| byte == 0).skip(1).take(words.len()).map(<[u8]>::to_vec).collect();
            let expected: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
