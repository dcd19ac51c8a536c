//! The text of `--dry-run`: what each rank would get.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::cpuset::CpuSet;
use super::{Node, Plan, StartContext};
use crate::surface::compiler::quoted;

/// Shows `plan`: what all ranks share, then a line for each rank.
pub fn explain(plan: &Plan, node: &Node, context: &StartContext) -> String {
    let size = plan.node.world_size;
    let mut text = String::new();
    let programs = plan.node.programs.len();
    let _ = writeln!(
        text,
        "{size} {} of {programs} {} on {}; nothing is started",
        plural(size as usize, "rank"),
        plural(programs, "program"),
        context.hostname
    );
    if let Some(cpus) = &node.cpus {
        let numa = plural(cpus.numa.len(), "NUMA node");
        let _ = writeln!(
            text,
            "usable CPUs: {} ({}, {} {numa})",
            cpus.usable,
            crate::view::text::cores(cpus),
            cpus.numa.len()
        );
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }

    let inherited: BTreeSet<Vec<u8>> = context
        .inherited
        .iter()
        .map(|(name, value)| [name.as_encoded_bytes(), b"=", value.as_encoded_bytes()].concat())
        .collect();
    let _ = writeln!(text, "\nevery rank's environment: prun's own, with");
    for line in plan.node.base_env.iter().filter(|line| !inherited.contains(*line)) {
        let _ = writeln!(text, "  + {}", variable(line, context));
    }
    let kept: BTreeSet<&[u8]> = plan.node.base_env.iter().map(|line| name(line)).collect();
    for (gone, _) in context.inherited.iter().filter(|(gone, _)| !kept.contains(gone.as_encoded_bytes())) {
        let why = if plan.removed.contains(gone) { " (of another world)" } else { "" };
        let _ = writeln!(text, "  - {}{why}", gone.display());
    }

    let mut rows = vec![["rank", "cpus", "working dir", "program", "environment of its own"].map(str::to_owned)];
    for rank in &plan.node.ranks {
        let argv = &plan.node.programs[rank.program].argv;
        rows.push([
            rank.rank.to_string(),
            rank.cpus.as_ref().map_or("any".into(), |cpus| cpus.iter().copied().collect::<CpuSet>().to_string()),
            rank.working_dir
                .as_ref()
                .map_or_else(|| context.cwd.display().to_string(), |dir| String::from_utf8_lossy(dir).into_owned()),
            argv.iter().map(|argument| word(argument)).collect::<Vec<_>>().join(" "),
            rank.env.iter().map(|line| variable(line, context)).collect::<Vec<_>>().join(" "),
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows));
    text
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn name(line: &[u8]) -> &[u8] {
    line.split(|&byte| byte == b'=').next().unwrap_or(line)
}

fn variable(line: &[u8], context: &StartContext) -> String {
    let name = name(line);
    let shown = String::from_utf8_lossy(name).into_owned();
    match line.get(name.len() + 1..) {
        Some(b"0") if shown == "MASTER_PORT" && context.master_port == 0 => "MASTER_PORT=(a free port)".into(),
        value => format!("{shown}={}", word(value.unwrap_or_default())),
    }
}

/// As a shell would want it; bytes that are not text become their escapes.
fn word(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => quoted(text),
        _ => format!("$'{}'", bytes.escape_ascii()),
    }
}

/// Columns as wide as their widest cell, two spaces apart; the last one is left as it is.
fn table(rows: &[[String; 5]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", cells.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::tests::{context, job};
    use super::*;

    #[test]
    fn each_rank_has_its_line() {
        let job = job("ranks = 2\nprogram = ['./a b', \"\\u0001\"]\nwdir = 'd{rank}'\n[env]\nX = 'v{rank}'");
        let mut context = context(&[("HOME", "/root"), ("SLURM_PROCID", "3")]);
        context.master_port = 0;
        let plan = plan(&job, &Node::default(), &context).unwrap();
        let text = explain(&plan, &Node::default(), &context);
        let expected = "\
2 ranks of 1 program on here; nothing is started

every rank's environment: prun's own, with
  + MASTER_ADDR=127.0.0.1
  + MASTER_PORT=(a free port)
  + WORLD_SIZE=2
  + LOCAL_WORLD_SIZE=2
  + PRUN_SIZE=2
  + PRUN_LOCAL_SIZE=2
  + PRUN_NODE=0
  + PRUN_JOB_ID=0123456789abcdef
  + PRUN_RESTART_COUNT=0
  - SLURM_PROCID (of another world)

rank  cpus  working dir  program          environment of its own
0     any   /work/d0     './a b' $'\\x01'  PRUN_RANK=0 PRUN_LOCAL_RANK=0 RANK=0 LOCAL_RANK=0 PWD=/work/d0 X=v0
1     any   /work/d1     './a b' $'\\x01'  PRUN_RANK=1 PRUN_LOCAL_RANK=1 RANK=1 LOCAL_RANK=1 PWD=/work/d1 X=v1
";
        assert_eq!(text, expected);
    }
}
