//! `prun plan`.

use std::ffi::OsString;
use std::path::Path;

use super::args::PlanArgs;
use super::{Done, load};
use crate::cli::Options;
use crate::exit;
use crate::job::merge::Request;
use crate::job::value::{MAX_RANKS, RankCount, YesNo};
use crate::job::{Job, Part, check};
use crate::placement::node::Node;
use crate::placement::{self, StartContext, gpu, table};
use crate::refused::Refused;
use crate::topology::Machine;
use crate::topology::read::Detail;

/// Plans for this machine or another one.
///
/// # Errors
/// [`Refused`] if so many ranks cannot be placed there.
pub fn run(args: &PlanArgs, inherited: &[(OsString, OsString)]) -> Result<Done, Refused> {
    let elsewhere = args.source.node.is_some() || args.source.root.is_some();
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // What hides GPUs here hides none of another machine.
    let inherited: Vec<_> =
        inherited.iter().filter(|(name, _)| !elsewhere || name != "CUDA_VISIBLE_DEVICES").cloned().collect();
    let context = StartContext {
        inherited,
        job_id: "0".repeat(16),
        master_port: 0,
        hostname,
        restart_count: 0,
        cwd: "/".into(),
        open_files: (0, 0),
    };
    let one = job(args, 1)?;
    let node = match elsewhere {
        true => Node::of(load(&args.source, Detail::Launch, &context.inherited)?),
        false => Node::read_for(&one, Path::new("/"), &context.inherited, &context.hostname),
    };
    let mut node = node;
    let told = match (&node.machine, &node.cpus) {
        (Some(machine), _) => machine.notes.clone(),
        (None, cpus) => cpus.as_ref().map(|cpus| cpus.notes.clone()).unwrap_or_default(),
    };
    for note in told {
        if !node.notes.contains(&note) {
            node.notes.push(note);
        }
    }
    let ranks = match args.np {
        Some(RankCount(ranks)) => ranks,
        None => usual_ranks(&one, &node, &context),
    };
    let job = job(args, ranks)?;
    let plan = placement::plan(&job, &node, &context)?;
    let name = table::name_of(node.machine.as_ref().filter(|_| elsewhere), &context.hostname);
    let text = match args.json {
        true => format!("{}\n", table::json(&plan, &node, &name)),
        false => table::text(&plan, &node, &name),
    };
    Ok(Done { text, code: exit::SUCCESS })
}

fn usual_ranks(job: &Job, node: &Node, context: &StartContext) -> u32 {
    let nothing = Machine::default();
    let machine = node.machine.as_ref().unwrap_or(&nothing);
    let gpus = match gpu::mapping(job, Some(machine), context) {
        crate::job::MapBy::Gpu => gpu::count(job, machine, context),
        _ => 0,
    };
    let cores = node.cpus.as_ref().map_or(1, |cpus| cpus.cores.len());
    u32::try_from(if gpus > 0 { gpus } else { cores }).unwrap_or(1).clamp(1, MAX_RANKS)
}

fn job(args: &PlanArgs, ranks: u32) -> Result<Job, Refused> {
    let options = Options {
        np: Some(RankCount(ranks)),
        dry_run: Some(YesNo(true)),
        bind: args.bind.clone(),
        placement: args.placement.clone(),
        ..Options::default()
    };
    let argv = if args.program.is_empty() { vec!["program".into()] } else { args.program.clone() };
    check::job(Request { options, parts: vec![Part { argv, ..Part::default() }] }, &[])
}
