//! The ranks' output and input: pipes and ptys, labels, files, and the threads that carry bytes.
//!
//! prun itself makes every channel before rankd is forked, keeps the read ends and lets the ranks inherit the
//! others. So output is copied once, a full pipe is the back-pressure, and what a rank wrote before any death
//! still arrives. The order of calls: [`open`] while single-threaded; fork rankd, which gives each rank its
//! [`ChildStdio`] and drops the rest; drop prun's copies; [`Relay::start`]; at the end
//! [`RunningRelay::finish`].
//!
//! - whole lines are never mixed: `mixer`
//! - who waits for whom, and what a blocked reader of our stdout means: `relay`
//! - bytes of a pseudo-terminal: `pty`
//! - standard input: `input`

mod channels;
mod files;
mod label;
mod mixer;
mod pty;
mod relay;
mod running;
mod sink;
mod tail;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::termios::{isatty, tcgetattr};
use thiserror::Error;

use crate::input::{self, InputPlan};
use crate::job::{Output, PtyRanks, StdinTo};
pub(crate) use channels::pipe;
pub use channels::{ChildStdio, Stream};
use label::{Labeller, Place};
use mixer::Mixer;
pub(crate) use pty::end_of_file;
use pty::{Look, Pty, interactive};
use relay::{Carrier, Control, Reader, SinkInfo, SinkKind};
pub(crate) use relay::{event, signal};
pub use running::{Finished, Relay, RunningRelay};
use sink::Descriptor;

/// Everything that output and input depend on.
#[derive(Debug)]
pub struct Spec<'a> {
    /// Labels, files, merging, ptys.
    pub output: &'a Output,
    /// Who reads standard input.
    pub stdin: StdinTo,
    /// The number of ranks.
    pub world_size: u32,
    /// For `{job}` in file names.
    pub job_id: &'a str,
    /// For `{host}` in file names and labels.
    pub host: &'a str,
    /// What elapsed times in labels count from.
    pub started: Instant,
    /// Output files are added to, not emptied: the job was started again.
    pub append: bool,
    /// prun's own descriptors.
    pub own: OwnStdio,
}

/// prun's own standard descriptors, as copies, so that tests can give others.
#[derive(Debug)]
pub struct OwnStdio {
    /// Descriptor 0.
    pub stdin: OwnedFd,
    /// Descriptor 1.
    pub stdout: OwnedFd,
    /// Descriptor 2.
    pub stderr: OwnedFd,
}

impl OwnStdio {
    /// Copies of what prun was started with. One that the user closed (`>&-`) is `/dev/null` by now, which the Rust
    /// runtime opens in its place, so no other file can ever have its number.
    pub fn inherit() -> Result<OwnStdio, OutputError> {
        fn copy(fd: impl AsFd) -> Result<OwnedFd, OutputError> {
            rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(OutputError::channel)
        }
        Ok(OwnStdio { stdin: copy(io::stdin())?, stdout: copy(io::stdout())?, stderr: copy(io::stderr())? })
    }
}

/// Why output could not be set up.
#[derive(Debug, Error)]
pub enum OutputError {
    /// A pipe, pty or event descriptor could not be made.
    #[error("cannot make a channel for the ranks' input and output\n  cause: {cause}")]
    Channel {
        /// What the system said.
        cause: io::Error,
    },
    /// The hard limit on open files is too low.
    #[error(
        "this many ranks need {needed} open files, and the limit is {hard}\n  try: raise it (`ulimit -Hn`), start fewer ranks, or use --merge-stderr"
    )]
    TooManyDescriptors {
        /// What this job needs.
        needed: u64,
        /// What may be had.
        hard: u64,
    },
    /// A pattern for output files has a name that means nothing.
    #[error(
        "output pattern {pattern:?}: unknown placeholder {{{name}}}\n  try: {{rank}}, {{stream}}, {{host}} or {{job}}"
    )]
    Placeholder {
        /// The whole pattern.
        pattern: String,
        /// The name in it.
        name: String,
    },
    /// An output file or its directory could not be created.
    #[error("cannot create the output file {}\n  cause: {cause}\n  try: another place for -o", path.display())]
    CreateFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// `--stdin`, `--pty` or `--ranks` names a rank that the job does not have.
    #[error("{option} {rank}: the job has ranks 0 to {}\n  try: a smaller rank, or a larger -n", world_size - 1)]
    NoSuchRank {
        /// The option.
        option: &'static str,
        /// The rank it names.
        rank: u32,
        /// Ranks there are.
        world_size: u32,
    },
    /// An output thread could not be started.
    #[error("cannot start an output thread\n  cause: {cause}")]
    Thread {
        /// What the system said.
        cause: io::Error,
    },
}

/// Output that could not be passed on; the job should end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SinkFailure {
    /// Whoever read prun's stdout or stderr is gone (`| head -1`): 141 as of a program that SIGPIPE ended.
    #[error("nobody reads prun's {stream} any more")]
    Closed {
        /// Which of prun's own.
        stream: Stream,
    },
    /// prun's stdout or stderr takes no more.
    #[error("cannot write to prun's {stream}\n  cause: {}{}", io::Error::from(*errno), what_to_try(*errno))]
    Write {
        /// Which of prun's own.
        stream: Stream,
        /// What the system said.
        errno: Errno,
    },
    /// An output file takes no more.
    #[error("cannot write the output file {}\n  cause: {}{}", path.display(), io::Error::from(*errno), what_to_try(*errno))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        errno: Errno,
    },
    /// The output thread itself cannot go on.
    #[error("cannot wait for the ranks' output\n  cause: {}", io::Error::from(*errno))]
    Relay {
        /// What the system said.
        errno: Errno,
    },
}

fn what_to_try(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => "\n  try: make room there (`df -h`), or write elsewhere",
        Errno::FBIG => "\n  try: a larger file size limit (`ulimit -f`)",
        _ => "",
    }
}

/// Makes all channels and files. Nothing is started; call it while prun has one thread and no rankd.
pub fn open(spec: Spec<'_>) -> Result<(Vec<ChildStdio>, Relay), OutputError> {
    check_ranks(&spec)?;
    let ranks = spec.world_size as usize;
    let files_per_rank = if spec.output.files.is_some() { 2 } else { 0 };
    let limit_before = channels::allow_descriptors((ranks * (6 + files_per_rank) + 64) as u64)?;
    let plan = Plan::new(&spec)?;
    let mut channels = make_channels(&spec, &plan)?;

    let mut pty_masters = Vec::new();
    for (rank, channel) in channels.iter().enumerate() {
        if let Some(master) = &channel.pty_master {
            pty_masters.push((rank as u32, master.try_clone().map_err(|cause| OutputError::Channel { cause })?));
        }
    }
    let slaves: Vec<_> =
        channels.iter().map(|channel| channel.pty_master.is_some().then(|| Arc::clone(&channel.stdout))).collect();
    let input = input::open(InputPlan {
        own: &spec.own.stdin,
        to: spec.stdin,
        slaves: &slaves,
        masters: &pty_masters,
        raw: plan.raw,
        raw_output: plan.raw_output,
    })?;

    let children = input
        .per_rank
        .iter()
        .zip(&channels)
        .map(|(stdin, channel)| ChildStdio {
            stdin: Arc::clone(stdin),
            stdout: Arc::clone(&channel.stdout),
            stderr: Arc::clone(channel.stderr.as_ref().unwrap_or(&channel.stdout)),
            pty: channel.pty_master.is_some(),
        })
        .collect();
    let readers = channels.iter_mut().flat_map(|channel| std::mem::take(&mut channel.readers)).collect();
    let carriers = plan.carriers(&spec, readers)?;
    let relay = Relay {
        carriers,
        input: input.feed,
        pty_masters: pty_masters.into_iter().map(|(_, master)| master).collect(),
        own: spec.own,
        world_size: spec.world_size,
        limit_before,
    };
    Ok((children, relay))
}

fn check_ranks(spec: &Spec<'_>) -> Result<(), OutputError> {
    let named = match spec.stdin {
        StdinTo::Rank(rank) => Some(("--stdin", rank)),
        StdinTo::All | StdinTo::None => None,
    }
    .into_iter()
    .chain(match spec.output.pty {
        PtyRanks::One(rank) => Some(("--pty", rank)),
        PtyRanks::All | PtyRanks::None => None,
    })
    .chain(spec.output.ranks.iter().flatten().map(|&rank| ("--ranks", rank)));
    for (option, rank) in named {
        if rank >= spec.world_size {
            return Err(OutputError::NoSuchRank { option, rank, world_size: spec.world_size });
        }
    }
    Ok(())
}

/// What was decided about the job's output as a whole.
struct Plan {
    /// stdout and stderr of prun are one and the same.
    one_target: bool,
    /// One thread carries everything.
    one_thread: bool,
    /// The user's terminal is switched to raw mode for the rank that has a pty.
    raw: bool,
    /// … and its output goes there untranslated.
    raw_output: bool,
    look: Look,
    /// Ranks with both streams in one pipe.
    merged: Vec<bool>,
    /// The file of each (rank, stream), where there are files.
    paths: HashMap<(u32, Stream), PathBuf>,
}

impl Plan {
    fn new(spec: &Spec<'_>) -> Result<Plan, OutputError> {
        let Spec { output, own, world_size, .. } = spec;
        let one_target = same_file(own.stdout.as_fd(), own.stderr.as_fd());
        let place = spec.place();
        let mut paths = HashMap::new();
        if let Some(files) = &output.files {
            for rank in 0..*world_size {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    paths.insert((rank, stream), files::path_for(&files.pattern, &place, rank, stream)?);
                }
            }
        }
        // One rank that nothing can mix with: the order between its streams is kept too.
        let simple = *world_size == 1 && one_target && output.label.is_none() && output.files.is_none();
        let to_terminal = output.files.as_ref().is_none_or(|files| files.tee);
        let merged = (0..*world_size)
            .map(|rank| {
                let one_file = !to_terminal && paths.get(&(rank, Stream::Stdout)) == paths.get(&(rank, Stream::Stderr));
                output.merge_stderr || simple || one_file || spec.has_pty(rank)
            })
            .collect::<Vec<_>>();
        let shared_file = paths.iter().any(|((rank, stream), path)| {
            *stream == Stream::Stderr
                && !merged[*rank as usize]
                && paths.iter().any(|((_, other), other_path)| *other == Stream::Stdout && other_path == path)
        });

        let raw = match (output.pty.clone(), spec.stdin) {
            (PtyRanks::One(pty), StdinTo::Rank(reader)) => pty == reader,
            (PtyRanks::All, StdinTo::Rank(0)) => *world_size == 1,
            _ => false,
        } && isatty(&own.stdin)
            && isatty(&own.stdout)
            && input::in_foreground(&own.stdin);
        let alone = to_terminal
            && (0..*world_size).filter(|&rank| spec.is_shown(rank)).eq(match spec.stdin {
                StdinTo::Rank(rank) => Some(rank),
                _ => None,
            });
        let raw_output = raw && alone && output.label.is_none();
        Ok(Plan {
            one_target,
            one_thread: one_target || shared_file,
            raw,
            raw_output,
            look: Look {
                size: pty::size_of(&[&own.stdout, &own.stderr, &own.stdin]),
                interactive: if raw {
                    tcgetattr(&own.stdin).ok().map(|users| interactive(users, raw_output))
                } else {
                    None
                },
            },
            merged,
            paths,
        })
    }

    /// Distributes sources and sinks over the threads.
    fn carriers(&self, spec: &Spec<'_>, readers: Vec<Reader>) -> Result<Vec<Carrier>, OutputError> {
        let mut carriers = Vec::new();
        let mut readers = readers;
        let both = [Stream::Stdout, Stream::Stderr];
        let groups: &[&[Stream]] = if self.one_thread { &[&both] } else { &[&both[..1], &both[1..]] };
        for streams in groups {
            let mine = readers.extract_if(.., |reader| streams.contains(&reader.stream)).collect();
            carriers.push(self.carrier(spec, streams, mine)?);
        }
        Ok(carriers)
    }

    fn carrier(&self, spec: &Spec<'_>, streams: &[Stream], readers: Vec<Reader>) -> Result<Carrier, OutputError> {
        let mut mixer = Mixer::new();
        let mut sinks = Vec::new();
        let mut own = HashMap::new();
        for &stream in streams {
            if self.one_target && stream == Stream::Stderr {
                // One descriptor for both: `> log 2> log` has two positions in one file, which would overwrite.
                own.insert(stream, own[&Stream::Stdout]);
                continue;
            }
            let fd = match stream {
                Stream::Stdout => &spec.own.stdout,
                Stream::Stderr => &spec.own.stderr,
            };
            let terminal = isatty(fd);
            let copy = fd.try_clone().map_err(|cause| OutputError::Channel { cause })?;
            own.insert(stream, mixer.add_sink(Descriptor(copy), true));
            sinks.push(SinkInfo { what: SinkKind::Own(stream), terminal });
        }
        let users = |path: &PathBuf| {
            self.paths
                .iter()
                .filter(|((rank, stream), other)| {
                    *other == path && !(*stream == Stream::Stderr && self.merged[*rank as usize])
                })
                .map(|((rank, _), _)| rank)
                .collect::<std::collections::HashSet<_>>()
                .len()
        };
        let mut files = HashMap::new();
        for reader in &readers {
            let mut targets = Vec::new();
            if spec.is_shown(reader.rank) && spec.output.files.as_ref().is_none_or(|files| files.tee) {
                targets.push(own[&reader.stream]);
            }
            if let Some(path) = self.paths.get(&(reader.rank, reader.stream)) {
                if !files.contains_key(path) {
                    let file = files::create(path, spec.append)?;
                    // In a file of its own a rank needs no name.
                    files.insert(path, mixer.add_sink(Descriptor(file.into()), users(path) > 1));
                    sinks.push(SinkInfo { what: SinkKind::File(path.clone()), terminal: false });
                }
                targets.push(files[path]);
            }
            let labeller =
                spec.output.label.as_ref().map(|label| Labeller::new(label, &spec.place(), reader.rank, reader.stream));
            mixer.add_source(targets, labeller);
        }
        Ok(Carrier {
            readers,
            mixer,
            sinks,
            note_sink: own.get(&Stream::Stderr).copied(),
            raw_notes: self.raw_output,
            control: Arc::new(Control::new()?),
        })
    }
}

impl Spec<'_> {
    fn place(&self) -> Place<'_> {
        Place { world_size: self.world_size, host: self.host, job_id: self.job_id, started: self.started }
    }

    fn has_pty(&self, rank: u32) -> bool {
        match self.output.pty {
            PtyRanks::None => false,
            PtyRanks::All => true,
            PtyRanks::One(one) => one == rank,
        }
    }

    /// Whether a rank's output is for the terminal.
    fn is_shown(&self, rank: u32) -> bool {
        self.output.ranks.as_ref().is_none_or(|shown| shown.contains(&rank))
    }
}

/// One rank's output channels, both ends.
struct Channel {
    stdout: Arc<OwnedFd>,
    stderr: Option<Arc<OwnedFd>>,
    readers: Vec<Reader>,
    pty_master: Option<OwnedFd>,
}

fn make_channels(spec: &Spec<'_>, plan: &Plan) -> Result<Vec<Channel>, OutputError> {
    let mut channels = Vec::with_capacity(spec.world_size as usize);
    for rank in 0..spec.world_size {
        if spec.has_pty(rank) {
            let Pty { master, slave } = Pty::open(&plan.look).map_err(OutputError::channel)?;
            let copy = master.try_clone().map_err(|cause| OutputError::Channel { cause })?;
            let reader = Reader { fd: copy, rank, stream: Stream::Stdout };
            channels.push(Channel {
                stdout: Arc::new(slave),
                stderr: None,
                readers: vec![reader],
                pty_master: Some(master),
            });
            continue;
        }
        let (fd, write_end) = pipe()?;
        let mut readers = vec![Reader { fd, rank, stream: Stream::Stdout }];
        let stderr = if plan.merged[rank as usize] {
            None
        } else {
            let (fd, write_end) = pipe()?;
            readers.push(Reader { fd, rank, stream: Stream::Stderr });
            Some(Arc::new(write_end))
        };
        channels.push(Channel { stdout: Arc::new(write_end), stderr, readers, pty_master: None });
    }
    Ok(channels)
}

fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    match (rustix::fs::fstat(a), rustix::fs::fstat(b)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
