//! Who is measured: libcomm, and the rivals that were asked for. Each is a job of its own; those that wait asleep run from
//! the first size to the last, MPI's are started for each size.

use std::ffi::OsString;

use comm::{DataType, Op, env};
use programs::bench::collective::Collective;
use programs::bench::wire::{DeviceJob, Hello, Job, Place, SetUp};

use super::args::{BenchArgs, Rival};
use super::mpi::{self, Twin, Workshop};
use super::results::Row;
use super::session::Session;
use super::sizes::Message;
use super::table::Form;
use super::words::type_name;
use crate::own_job;
use crate::refused::Refused;

/// libcomm's own job, and the start of all that is measured in it.
const OWN: &str = "libcomm";
const TORCH: &str = include_str!("torch.py");

/// One that is measured.
#[derive(Debug)]
pub enum Contestant {
    /// A job that runs on: who it is, and whether entries named `libcomm` are in it.
    Job(String, Session),
    /// The twin of an MPI; what it failed with at an earlier size.
    Mpi(Twin, std::rc::Rc<Workshop>, Option<String>),
}

/// What is worth saying before the first line.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Told {
    /// How long each took to be ready.
    pub set_up: Vec<SetUp>,
    /// Circumstances.
    pub notes: Vec<String>,
}

impl Told {
    fn add(&mut self, hello: Hello) {
        self.set_up.extend(hello.set_up);
        self.notes.extend(hello.notes.into_iter().filter(|note| !self.notes.contains(note)).collect::<Vec<_>>());
    }

    /// As lines that begin with `#`.
    pub fn text(&self, form: &Form<'_>) -> String {
        let what = form.job.collective.name();
        let data = if form.job.most_bytes > 16 || form.job.collective.reduces() {
            format!(", {}", type_name(form.job.data_type))
        } else {
            String::new()
        };
        let cold = if form.job.cold { ", caches emptied" } else { "" };
        let mut text = format!("# prun bench {what}: {} ranks{data}{cold}\n", form.ranks);
        for SetUp { what, ms } in &self.set_up {
            text.push_str(&format!("# set-up: {what} {ms:.1} ms\n"));
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("# {note}\n")));
        text
    }
}

/// Starts all that run on, and builds what must be built.
///
/// # Errors
/// [`Refused`] if one of them is not there.
pub fn contestants(args: &BenchArgs, job: &Job) -> Result<(Vec<Contestant>, Told), Refused> {
    comparable(args)?;
    let mut told = Told::default();
    let mut all = Vec::new();
    let asked = |rival| args.against.contains(&rival);
    let with_nccl = asked(Rival::Nccl);
    let own = Job {
        device: args.device.then(|| DeviceJob {
            graph: args.graph,
            own: true,
            nccl: with_nccl.then(|| "NCCL".into()),
            nccl_registered: with_nccl.then(|| "registered".into()),
        }),
        ..job.clone()
    };
    // Twins are built before anything is started that a missing compiler would end.
    let twins = if asked(Rival::Mpi) { Some(mpi::twins(args, job)?) } else { None };
    all.push(start_own(args, OWN, &own, &[], &mut told)?);
    let nccl_alone =
        |name: &str| DeviceJob { graph: args.graph, own: false, nccl: Some(name.into()), nccl_registered: None };
    if asked(Rival::NcclP2pOff) {
        let name = "NCCL, P2P off";
        let job = Job { device: Some(nccl_alone(name)), ..job.clone() };
        all.push(start_own(args, name, &job, &["NCCL_P2P_DISABLE=1".into()], &mut told)?);
    }
    for protocol in &args.rival_proto {
        let name = format!("NCCL, {protocol}");
        let job = Job { device: Some(nccl_alone(&name)), ..job.clone() };
        all.push(start_own(args, &name, &job, &[format!("NCCL_PROTO={protocol}")], &mut told)?);
    }
    if asked(Rival::Torch) {
        all.push(start_torch(args, &own, &mut told)?);
    }
    if let Some((workshop, twins)) = twins {
        let workshop = std::rc::Rc::new(workshop);
        all.extend(twins.into_iter().map(|twin| Contestant::Mpi(twin, workshop.clone(), None)));
    }
    Ok((all, told))
}

/// Whether every rival can do what libcomm is to do; said before anything is started.
fn comparable(args: &BenchArgs) -> Result<(), Refused> {
    for rival in &args.against {
        let on_gpus = !matches!(rival, Rival::Mpi);
        if on_gpus != args.device {
            let (what, try_) = match on_gpus {
                true => ("NCCL and PyTorch are measured between GPUs only", "--device"),
                false => ("MPI is measured on the host only", "leave out --device"),
            };
            return Err(Refused::new(what).try_instead(try_));
        }
    }
    match args.against.contains(&Rival::Torch).then(|| not_by_torch(args)).flatten() {
        Some((what, try_)) => Err(Refused::new(what).try_instead(try_)),
        None => Ok(()),
    }
}

/// What is asked for and PyTorch's symmetric memory, or the runner, does not have; and what to try.
fn not_by_torch(args: &BenchArgs) -> Option<(String, &'static str)> {
    if args.collective != Collective::AllReduce {
        return Some(("PyTorch's symmetric memory is measured with allreduce only".into(), "--against nccl"));
    }
    if args.op != Op::Sum {
        return Some((format!("PyTorch's symmetric memory has sums only, and no {}", args.op), "-o sum"));
    }
    if !matches!(args.data_type, DataType::F32 | DataType::BF16) {
        let name = type_name(args.data_type);
        return Some((format!("PyTorch's symmetric memory adds float and bfloat16 only, not {name}"), "-d float"));
    }
    let asked = [(args.cold, "--cold"), (args.percentiles, "--percentiles")].into_iter().find(|(asked, _)| *asked);
    asked.map(|(_, option)| (format!("PyTorch is measured in batches only, without {option}"), "--against nccl"))
}

fn start_own(
    args: &BenchArgs,
    title: &str,
    job: &Job,
    more: &[String],
    told: &mut Told,
) -> Result<Contestant, Refused> {
    let mut options = options(args);
    let forced = [(env::ALGO, &args.algo), (env::PROTO, &args.proto), (env::VERIFY, &args.verify)];
    let forced = forced.iter().filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}={value}")));
    for variable in forced.chain(more.iter().cloned()) {
        options.extend(["-x".into(), variable]);
    }
    let job = serde_json::to_string(job).map_err(|cause| Refused::new("cannot tell the ranks").because(cause))?;
    let (session, mut hello) = Session::start(title, &options, &own_job::rank(programs::bench::WORD, &job))?;
    if title != OWN {
        // Of a rival's job, only the rival is of interest.
        hello.set_up.retain(|set_up| set_up.what != OWN);
        hello.set_up.iter_mut().for_each(|set_up| set_up.what = format!("{title} ({})", set_up.what));
    }
    told.add(hello);
    Ok(Contestant::Job(title.into(), session))
}

fn start_torch(args: &BenchArgs, job: &Job, told: &mut Told) -> Result<Contestant, Refused> {
    let job = serde_json::to_string(job).map_err(|cause| Refused::new("cannot tell the ranks").because(cause))?;
    let program: [OsString; 4] = [args.python.as_str().into(), "-c".into(), TORCH.into(), job.into()];
    let (session, hello) = Session::start("PyTorch", &options(args), &program)
        .map_err(|refused| refused.try_instead("--python PROGRAM, one that has PyTorch with CUDA"))?;
    told.add(hello);
    Ok(Contestant::Job("PyTorch".into(), session))
}

/// The job's options: ranks that wait for the next question are no stall.
fn options(args: &BenchArgs) -> Vec<String> {
    let mut options = vec![format!("-n{}", args.np.0), "--stdin=rank0".into(), "--stall-timeout=none".into()];
    if !args.device {
        options.push("--map-by=none".into());
    }
    if args.share_gpus {
        options.push("--share-gpus".into());
    }
    if let Some(bind) = &args.bind {
        options.push(format!("--bind={bind}"));
    }
    options
}

impl Contestant {
    /// Who it is.
    pub fn title(&self) -> &str {
        match self {
            Contestant::Job(title, _) => title,
            Contestant::Mpi(twin, ..) => &twin.name,
        }
    }

    /// Measures one message once more. A rival's failure is noted in the row, and it is not tried again.
    ///
    /// # Errors
    /// [`Refused`] if a job that runs on has ended.
    pub fn measure(&mut self, job: &Job, ranks: u32, message: Message, row: &mut Row) -> Result<(), Refused> {
        match self {
            Contestant::Job(_, session) => {
                for entry in session.ask(message.count)? {
                    let own = entry.variant.starts_with(OWN);
                    row.add(own, entry);
                }
            }
            Contestant::Mpi(twin, _, broken) => {
                let measured = match broken {
                    Some(why) => Err(why.clone()),
                    None => twin.measure(job, ranks, message.count),
                };
                match measured {
                    Ok(entries) => entries.into_iter().for_each(|entry| row.add(false, entry)),
                    Err(why) => {
                        let place = job.places.first().copied().unwrap_or(Place::Out);
                        row.add_failure(&twin.name, place, &why);
                        *broken = Some(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets it end.
    ///
    /// # Errors
    /// [`Refused`] if it does not end well.
    pub fn end(self) -> Result<(), Refused> {
        match self {
            Contestant::Job(_, session) => session.end(),
            Contestant::Mpi(..) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn what_a_rival_cannot_do_is_refused_with_what_to_try() {
        let table: [(&[&str], &str, &str); 10] = [
            (&["allreduce", "--against", "nccl"], "NCCL and PyTorch are measured between GPUs only", "--device"),
            (&["allreduce", "--device", "--against", "mpi"], "MPI is measured on the host only", "leave out --device"),
            (&["broadcast", "--device", "--against", "torch"], "with allreduce only", "--against nccl"),
            (&["allreduce", "--device", "--against", "torch", "-o", "max"], "sums only, and no max", "-o sum"),
            (&["allreduce", "--device", "--against", "nccl,torch", "-o", "avg"], "sums only, and no avg", "-o sum"),
            (&["allreduce", "--device", "--against", "torch", "-d", "int32"], "bfloat16 only, not int32", "-d float"),
            (&["allreduce", "--device", "--against", "torch", "-d", "half"], "bfloat16 only, not half", "-d float"),
            (&["allreduce", "--device", "--against", "torch", "-d", "double"], "only, not double", "-d float"),
            (&["allreduce", "--device", "--against", "torch", "--cold"], "without --cold", "--against nccl"),
            (
                &["allreduce", "--device", "--against", "torch", "--percentiles"],
                "without --percentiles",
                "--against nccl",
            ),
        ];
        for (words, message, try_) in table {
            let args = BenchArgs::parse_from(["prun bench"].iter().chain(words));
            let refused = comparable(&args).unwrap_err();
            assert!(refused.message.contains(message), "{words:?}: {}", refused.message);
            assert_eq!(refused.try_.as_deref(), Some(try_), "{words:?}");
        }
        for words in [&["allreduce", "--device", "--graph", "--against", "nccl,torch", "-d", "bfloat16"][..], &["scan"]]
        {
            assert!(comparable(&BenchArgs::parse_from(["prun bench"].iter().chain(words))).is_ok(), "{words:?}");
        }
    }
}
