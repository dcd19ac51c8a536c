//! `prun bench`: how long libcomm's collectives take, in the words and columns of nccl-tests, beside others if asked for.
//!
//! [`args`] → [`sizes`] and [`words`] → a [`session`] for each job that measures → [`results`] → [`table`]. What a rank
//! does is in the crate `programs`; it is prun itself, started as the ranks of a job. [`rivals`] says who is measured.

pub mod args;
pub mod mpi;
pub mod results;
pub mod rivals;
pub mod session;
pub mod sizes;
pub mod table;
pub mod words;

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use programs::bench::collective::Collective;
use programs::bench::wire::{Buffers, Job};

use crate::exit;
use crate::refused::Refused;
use args::{Alloc, BenchArgs};
use results::Row;
use rivals::{Contestant, Told};
use sizes::Message;
use table::Form;

/// Measures, printing each line as it comes; prun's exit code.
///
/// # Errors
/// [`Refused`] if that cannot be measured here, or a job of libcomm's ends in the middle.
pub fn run(args: &BenchArgs) -> Result<u8, Refused> {
    let ranks = args.np.0;
    let messages =
        sizes::messages(args.collective, args.data_type, ranks, (args.begin, args.end, args.factor), &args.sizes);
    let job = job(args, &messages)?;
    let mut sink = Sink::open(args.json.as_deref())?;
    let progress = Progress::new();
    progress.say("starting");
    let (mut contestants, told) = rivals::contestants(args, &job)?;
    let form = Form { job: &job, ranks, against: !args.against.is_empty() || !args.rival_proto.is_empty() };
    let rounds = if form.against { args.rounds } else { 1 };
    let mut wrong = 0;
    let mut first = None;
    let mut open = sink.begin(&progress, &form, &told)?;
    for (at, message) in messages.iter().enumerate() {
        if !open {
            break;
        }
        let mut row = Row::new(*message);
        for round in 1..=rounds {
            for contestant in &mut contestants {
                progress.say(&words_of(*message, at, messages.len(), round, rounds, contestant));
                contestant.measure(&job, ranks, *message, &mut row)?;
            }
        }
        wrong += row.wrong();
        let columns = first.get_or_insert_with(|| row.clone());
        open = sink.row(&progress, &form, &row, columns, at == 0)?;
    }
    progress.end();
    for contestant in contestants {
        contestant.end()?;
    }
    if !open {
        return Ok(exit::CLOSED_STDOUT);
    }
    sink.end(&form, wrong)?;
    Ok(u8::from(wrong > 0))
}

fn words_of(message: Message, at: usize, of: usize, round: u32, rounds: u32, who: &Contestant) -> String {
    let turn = if rounds > 1 { format!(", turn {round} of {rounds}") } else { String::new() };
    let size = crate::experiment::number::bytes(message.bytes as f64);
    format!("size {size} ({} of {of}){turn}: {}", at + 1, who.title())
}

/// What the rank programs are told.
fn job(args: &BenchArgs, messages: &[Message]) -> Result<Job, Refused> {
    let ranks = args.np.0;
    let Some(most_bytes) = messages.iter().map(|message| message.bytes).max() else {
        return Err(Refused::new("there is no message to measure")
            .because(format!("no size from -b to -e holds an element for each of {ranks} ranks"))
            .try_instead("-b 1K -e 64M"));
    };
    if args.collective.has_root() && args.root >= ranks {
        return Err(Refused::new(format!("there is no rank {} among {ranks} to be the root", args.root)));
    }
    if args.collective.reduces() && !args.op.applies_to(args.data_type) {
        return Err(Refused::new(format!("{} is for integers, not for {}", args.op, words::type_name(args.data_type)))
            .try_instead("-d int32"));
    }
    if args.device && !programs::bench::device::DEVICE.contains(&args.collective) {
        return Err(Refused::new(format!("{} is not measured between GPUs", args.collective.name()))
            .because("libcomm has allreduce and broadcast there")
            .try_instead("`prun bench allreduce --device`"));
    }
    let buffers = match args.alloc {
        _ if args.collective == Collective::Barrier => vec![Buffers::Malloc],
        Alloc::Malloc => vec![Buffers::Malloc],
        Alloc::Comm => vec![Buffers::Comm],
        Alloc::Both => vec![Buffers::Malloc, Buffers::Comm],
    };
    let places = args.collective.places();
    // Beside rivals, one place is enough: all are compared in the same.
    let alone = args.against.is_empty() && args.rival_proto.is_empty();
    let places = if alone { places.to_vec() } else { places[..1].to_vec() };
    Ok(Job {
        collective: args.collective,
        data_type: args.data_type,
        op: args.op,
        root: args.root,
        buffers,
        places,
        iterations: args.iters,
        warmup: args.warmup,
        batches: args.batches,
        batch_ms: args.batch_ms,
        check: args.check,
        cold: args.cold,
        percentiles: args.percentiles,
        most_bytes: most_bytes.max(16),
        device: None,
    })
}

/// Where results go.
struct Sink {
    json: Option<File>,
    /// JSON goes to standard output, and no table.
    only_json: bool,
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Sink, Refused> {
        let only_json = path == Some(Path::new("-"));
        let refuse = |path: &Path, cause| Refused::new(format!("cannot write {}", path.display())).because(cause);
        let json = match path.filter(|_| !only_json) {
            Some(path) => Some(File::create(path).map_err(|cause| refuse(path, cause))?),
            None => None,
        };
        Ok(Sink { json, only_json })
    }

    fn begin(&mut self, progress: &Progress, form: &Form<'_>, told: &Told) -> Result<bool, Refused> {
        let about = serde_json::json!({
            "about": { "collective": form.job.collective.name(), "ranks": form.ranks, "job": form.job,
                       "set_up_ms": told.set_up, "notes": told.notes },
        });
        self.write(progress, &about, || told.text(form))
    }

    /// Whether somebody still reads.
    fn row(
        &mut self,
        progress: &Progress,
        form: &Form<'_>,
        row: &Row,
        columns: &Row,
        is_first: bool,
    ) -> Result<bool, Refused> {
        let head = if is_first { form.head(row) } else { String::new() };
        self.write(progress, &form.json(row), || head + &form.row(row, columns))
    }

    fn end(&mut self, form: &Form<'_>, wrong: u64) -> Result<(), Refused> {
        if !self.only_json {
            let checked = if form.job.check { wrong.to_string() } else { "not checked".into() };
            let _ = writeln!(
                std::io::stdout(),
                "# Out of bounds values : {checked}{}",
                if wrong == 0 { " OK" } else { " FAILED" }
            );
        }
        Ok(())
    }

    fn write(
        &mut self,
        progress: &Progress,
        json: &serde_json::Value,
        text: impl FnOnce() -> String,
    ) -> Result<bool, Refused> {
        if let Some(file) = &mut self.json {
            writeln!(file, "{json}").map_err(|cause| Refused::new("cannot write the results").because(cause))?;
        }
        let text = if self.only_json { format!("{json}\n") } else { text() };
        Ok(progress.aside(|| {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
        }))
    }
}

/// What is being measured, on a terminal only, with how long all has taken so far.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new() -> Progress {
        let shown = std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        Progress(shown.then(|| {
            let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        }))
    }

    fn say(&self, text: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(text.to_owned());
        }
    }

    /// Does something that writes lines of its own.
    fn aside<T>(&self, body: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(body),
            None => body(),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
