//! Reads the table of `nvidia-smi topo -m`, of old drivers and new.
//!
//! The names of the rows are also those of the columns, so a header whose cells run together does no harm. Cells of
//! a row that run together (`NODENODE`) are split where only one way to split them exists; a row with too few cells
//! is an error with its line, and never shifted by a column.
//!
//! The table has no PCI addresses. Lines before or behind it may name them, `GPU 2: 0006:01:00.0`; the domain counts, since some
//! machines have each GPU at the same bus number of another domain.

use super::{Gpu, Link, LinkKind, Machine, NVIDIA, Nic, PciAddress, gpu_name};
use crate::placement::cpuset::CpuSet;
use crate::placement::node::{Cpus, NumaNode};

/// Why a text is no such table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It has no rows.
    #[error("the table of `nvidia-smi topo -m` has no row that begins with GPU0")]
    NoRows,
    /// The header and the rows do not agree.
    #[error("the header does not name the rows: row {0} is missing in it")]
    Header(String),
    /// A row that cannot be cut into cells.
    #[error("line {line}: {name} has {found} cells and not {wanted}")]
    Cells {
        /// Counted from 1.
        line: usize,
        /// The row.
        name: String,
        /// What could be read.
        found: usize,
        /// One for each column.
        wanted: usize,
    },
    /// An affinity that is no list.
    #[error("line {line}: `{text}` is not a list of CPUs or NUMA nodes")]
    Affinity {
        /// Counted from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
}

/// Whether this may be such a table. Prompts, dates and other commands' output may stand before it.
pub fn looks_like_it(text: &str) -> bool {
    let lines: Vec<(usize, String)> = text.lines().map(|line| (0, plain(line))).collect();
    header(&lines).is_some()
}

/// Where the table begins: the line of its columns, which the row of GPU0 follows.
fn header(lines: &[(usize, String)]) -> Option<usize> {
    let filled: Vec<usize> = (0..lines.len()).filter(|at| !lines[*at].1.trim().is_empty()).collect();
    let begins = |at: usize| lines[at].1.trim_start().starts_with("GPU0");
    filled.windows(2).find(|pair| begins(pair[0]) && lines[pair[1]].1.starts_with("GPU0")).map(|pair| pair[0])
}

/// Reads the table.
///
/// # Errors
/// [`TableError`] with the line that cannot be read.
pub fn read(text: &str) -> Result<Machine, TableError> {
    let lines: Vec<(usize, String)> = text.lines().enumerate().map(|(at, line)| (at + 1, plain(line))).collect();
    let begin = header(&lines).ok_or(TableError::NoRows)?;
    let rows: Vec<(usize, &str, &str)> = lines[begin + 1..]
        .iter()
        .skip_while(|(_, line)| line.trim().is_empty())
        .map_while(|(at, line)| {
            let (name, rest) = line.trim_end().split_once(char::is_whitespace)?;
            (!name.is_empty() && !rest.trim().is_empty()).then_some((*at, name, rest))
        })
        .collect();
    let header = lines[begin].1.split_whitespace().collect::<String>();
    if rows.first().is_none_or(|(_, name, _)| *name != "GPU0") {
        return Err(TableError::NoRows);
    }
    let mut rest = header.as_str();
    for (_, name, _) in &rows {
        rest = rest.strip_prefix(name).ok_or_else(|| TableError::Header((*name).to_owned()))?;
    }
    let has = |column: &str| rest.contains(column);
    let columns = [has("CPUAffinity"), has("NUMAAffinity"), has("GPUNUMAID")];

    let mut machine = Machine { origin: "the text of nvidia-smi topo -m".into(), ..Machine::default() };
    let legend = legend(&lines);
    let named =
        |name: &str| legend.iter().find(|(short, _)| short == name).map_or(name.to_owned(), |(_, long)| long.clone());
    let gpus = rows.iter().filter(|(_, name, _)| name.starts_with("GPU")).count();
    // GPUs and cards keep their own numbers in our links, whatever the table calls them.
    let ours = |column: usize| match rows[column].1 {
        name if name.starts_with("GPU") => gpu_name(column),
        _ => format!("NIC{}", column - gpus),
    };
    for (row, (line, name, rest)) in rows.iter().enumerate() {
        let (cells, behind) = cells(rest, rows.len());
        if cells.len() != rows.len() {
            let (name, found) = ((*name).to_owned(), cells.len());
            return Err(TableError::Cells { line: *line, name, found, wanted: rows.len() });
        }
        let is_gpu = name.starts_with("GPU");
        for (column, kind) in cells.iter().enumerate().skip(row + 1) {
            if let (Some(kind), true) = (kind, is_gpu) {
                machine.links.push(Link::new(ours(row), ours(column), *kind));
            }
        }
        if is_gpu {
            let gpu = Gpu { index: machine.gpus.len(), vendor: Some(NVIDIA), ..Gpu::default() };
            machine.gpus.push(with_affinity(gpu, behind, columns, *line)?);
        } else {
            machine.nics.push(Nic { name: named(name), ..Nic::default() });
        }
    }
    for (gpu, address) in addresses(&lines) {
        if let Some(gpu) = machine.gpus.get_mut(gpu) {
            gpu.address = Some(address);
        }
    }
    machine.cpus = cpus_of(&machine.gpus);
    let unsure: Vec<String> =
        machine.gpus.iter().filter(|gpu| gpu.numa.len() > 1).map(|gpu| gpu_name(gpu.index)).collect();
    if !unsure.is_empty() {
        machine.notes.push(format!(
            "{} may be near to several NUMA nodes: the table does not tell which, so all of them are used",
            unsure.join(", ")
        ));
    }
    if machine.cpus.is_some() {
        machine.notes.push(
            "the table does not tell which CPUs share a core: each GPU gets the same part of every range of CPUs"
                .into(),
        );
    }
    Ok(machine)
}

/// The CPUs that the table speaks of. It does not tell which of them share a core or a socket, so none is made up.
fn cpus_of(gpus: &[Gpu]) -> Option<Cpus> {
    let mut usable = CpuSet::default();
    gpus.iter().filter_map(|gpu| gpu.local_cpus.as_ref()).for_each(|cpus| usable.extend(cpus));
    let mut numa: Vec<NumaNode> = Vec::new();
    for gpu in gpus {
        if let ([id], Some(cpus)) = (gpu.numa.as_slice(), &gpu.local_cpus)
            && numa.iter().all(|node| node.id != *id)
        {
            numa.push(NumaNode { id: *id, cpus: cpus.clone() });
        }
    }
    if numa.is_empty() {
        numa.push(NumaNode { id: 0, cpus: usable.clone() });
    }
    (!usable.is_empty()).then(|| Cpus { affinity: usable.clone(), usable, numa, ..Cpus::default() })
}

/// Columns behind the cells, as far as the header has them.
fn with_affinity(mut gpu: Gpu, behind: &str, columns: [bool; 3], line: usize) -> Result<Gpu, TableError> {
    let mut words = behind.split_whitespace();
    for (at, _) in columns.iter().enumerate().filter(|(_, there)| **there) {
        let Some(word) = words.next() else { break };
        if word == "N/A" {
            continue;
        }
        let set: CpuSet =
            word.parse().map_err(|_| TableError::Affinity { line, text: word.chars().take(40).collect() })?;
        match at {
            0 => gpu.local_cpus = Some(set),
            1 => gpu.numa = set.into_vec(),
            _ => gpu.memory_numa = set.first(),
        }
    }
    Ok(gpu)
}

/// The first `count` cells, `None` for the diagonal; and what stands behind them.
fn cells(mut rest: &str, count: usize) -> (Vec<Option<LinkKind>>, &str) {
    let mut cells = Vec::new();
    while cells.len() < count {
        rest = rest.trim_start();
        let length = cell_length(rest);
        let (cell, after) = rest.split_at(length);
        match cell {
            "X" => cells.push(None),
            _ => match cell.parse() {
                Ok(kind) => cells.push(Some(kind)),
                Err(_) => break,
            },
        }
        rest = after;
    }
    (cells, rest)
}

fn cell_length(text: &str) -> usize {
    let words = ["PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "X"];
    if let Some(word) = words.into_iter().find(|word| text.starts_with(word)) {
        return word.len();
    }
    match text.strip_prefix("NV") {
        Some(digits) => 2 + digits.bytes().take_while(u8::is_ascii_digit).count(),
        None => 0,
    }
}

/// `NIC0: mlx5_0` lines.
fn legend(lines: &[(usize, String)]) -> Vec<(String, String)> {
    lines
        .iter()
        .filter_map(|(_, line)| line.trim().split_once(": "))
        .filter(|(short, _)| short.starts_with("NIC") && short[3..].bytes().all(|byte| byte.is_ascii_digit()))
        .map(|(short, long)| (short.to_owned(), long.trim().to_owned()))
        .collect()
}

/// `GPU 0: 0002:01:00.0` lines.
fn addresses(lines: &[(usize, String)]) -> impl Iterator<Item = (usize, PciAddress)> {
    lines.iter().filter_map(|(_, line)| {
        let (number, address) = line.trim().strip_prefix("GPU ")?.split_once(": ")?;
        Some((number.trim().parse().ok()?, address.trim().parse().ok()?))
    })
}

/// The line without the codes that underline a terminal's header.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            let _ = characters.find(char::is_ascii_alphabetic);
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(machine: &Machine, a: &str, b: &str) -> String {
        machine.link(a, b).unwrap().kind.to_string()
    }

    #[test]
    fn addresses_behind_the_table_are_told_apart_by_their_domain() {
        let machine = read(
            "\tGPU0\tGPU1\tCPU Affinity\n\
             GPU0\t X \tNV2\t0-0,8-8,16-16\n\
             GPU1\tNV2\t X \t80-80,88-88\n\n\
             GPU 0: 0002:01:00.0\n\
             GPU 1: 00000003:01:00.0\n\
             GPU 9: 0007:01:00.0\n",
        )
        .unwrap();
        let shown: Vec<String> = machine.gpus.iter().map(|gpu| gpu.address.unwrap().to_string()).collect();
        assert_eq!(shown, ["0002:01:00.0", "0003:01:00.0"]);
        assert_eq!(machine.gpus[0].local_cpus.as_ref().unwrap().to_string(), "0,8,16");
    }

    #[test]
    fn what_was_pasted_around_a_table_does_no_harm() {
        let table = "Mon Nov 30 10:00:00 UTC 2026\nuser@node:~$ nvidia-smi -L\nGPU 0: 0002:01:00.0\nGPU 1: 0003:01:00.0\n\
                     user@node:~$ nvidia-smi topo -m\n\
                     \tGPU0\tGPU1\tCPU Affinity\n\
                     GPU0\t X \tPIX\t0-3\n\
                     GPU1\tPIX\t X \t4-7\n\n\
                     Legend:\n\n  X    = Self\nuser@node:~$ \n";
        assert!(looks_like_it(table));
        let machine = read(table).unwrap();
        let shown: Vec<String> = machine.gpus.iter().map(|gpu| gpu.address.unwrap().to_string()).collect();
        assert_eq!(shown, ["0002:01:00.0", "0003:01:00.0"]);
        assert_eq!(kind(&machine, "GPU0", "GPU1"), "PIX");
        assert!(!looks_like_it("name = 'GPU0'\nGPU0\n"));
    }

    #[test]
    fn several_numa_nodes_are_all_kept() {
        let machine = read(
            "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\
             GPU0\t X \tPIX\tSYS\t0-31,64-95\t0\t\tN/A\n\
             GPU1\tPIX\t X \tSYS\t0-31,64-95\t0\t\tN/A\n\
             GPU2\tSYS\tSYS\t X \t0-127\t0-1\t\tN/A\n",
        )
        .unwrap();
        assert_eq!(machine.gpus[0].numa, [0]);
        assert_eq!(machine.gpus[2].numa, [0, 1]);
        assert_eq!(machine.gpus[2].local_cpus.as_ref().unwrap().len(), 128);
        assert!(machine.notes[0].starts_with("GPU2 may be near"), "{:?}", machine.notes);
    }

    #[test]
    fn cells_that_run_together_are_split_and_never_shifted() {
        let machine = read(
            "        GPU0    GPU1    NIC0NIC1    NIC2    CPU Affinity    NUMA Affinity\n\
             GPU0     X      NV18    NODENODE    PIX     0-55,112-167    0\n\
             GPU1    NV18     X      SYSPIX      SYS     70-99   1\n\
             NIC0    NODE    SYS      X PIX      SYS\n\
             NIC1    NODE    PIX     PIX X       SYS\n\
             NIC2    PIX     SYS     SYSSYS       X\n\n\
             Legend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_bond_0\n",
        )
        .unwrap();
        assert_eq!((machine.gpus.len(), machine.nics.len()), (2, 3));
        assert_eq!(kind(&machine, "GPU0", "NIC1"), "NODE");
        assert_eq!(kind(&machine, "GPU1", "NIC0"), "SYS");
        assert_eq!(kind(&machine, "GPU1", "NIC1"), "PIX");
        assert_eq!(machine.nics[2].name, "mlx5_bond_0");
        assert_eq!(machine.gpus[1].numa, [1]);
        let cut = read("  GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-1\nGPU1 PIX 0-1\n").unwrap_err();
        assert_eq!(cut.to_string(), "line 3: GPU1 has 1 cells and not 2");
    }

    #[test]
    fn old_drivers_tables_are_read() {
        // A header that runs together, the old word for SYS, cards by their own names and out of order, no NUMA column.
        let machine = read(
            "\t    GPU0GPU1GPU2mlx5_0\tmlx5_2\tmlx5_1\tCPU Affinity\n\
             GPU0\t X \tNV1\tSOC\tPIX\tSOC\tPHB\t1-1\n\
             GPU1\tNV1\t X \tPXB\tPIX\tSOC\tPHB\t1-1\n\
             GPU2\tSOC\tPXB\t X \tSOC\tPIX\tSOC\t1-1\n\
             mlx5_0\tPIX\tPIX\tSOC\t X \tSOC\tPHB\n\
             mlx5_2\tSOC\tSOC\tPIX\tSOC\t X \tSOC\n\
             mlx5_1\tPHB\tPHB\tSOC\tPHB\tSOC\t X \n",
        )
        .unwrap();
        assert_eq!(kind(&machine, "GPU0", "GPU2"), "SYS");
        assert_eq!(
            machine.nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(),
            ["mlx5_0", "mlx5_2", "mlx5_1"]
        );
        assert_eq!(kind(&machine, "GPU2", "NIC1"), "PIX");
        assert_eq!(machine.gpus[0].local_cpus.as_ref().unwrap().to_string(), "1");
        assert!(machine.gpus[0].numa.is_empty());
    }

    #[test]
    fn affinity_with_single_cpus_as_ranges_is_a_set() {
        let machine = read(
            "        GPU0    GPU1    CPU Affinity\n\
             GPU0     X      NV2     0-0,8-8,16-16,24-24\n\
             GPU1    NV2      X      80-80,88-88\n",
        )
        .unwrap();
        assert_eq!(machine.gpus[0].local_cpus.as_ref().unwrap().to_string(), "0,8,16,24");
        assert_eq!(machine.gpus[1].local_cpus.as_ref().unwrap().len(), 2);
    }

    #[test]
    fn a_terminal_s_underlines_do_no_harm() {
        let text = "\t\u{1b}[4mGPU0\tGPU1\tCPU Affinity\u{1b}[0m\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \tN/A\n";
        assert!(looks_like_it(text));
        let machine = read(text).unwrap();
        assert_eq!((machine.gpus[1].local_cpus.as_ref(), machine.links.len()), (None, 1));
        assert_eq!(read("nothing\n"), Err(TableError::NoRows));
    }

    /// The plan of a table with some ranks.
    fn planned(table: &str, ranks: u32) -> (Vec<Vec<usize>>, String) {
        use crate::placement::tests::{context, job};
        let node = crate::placement::Node::of(read(table).unwrap());
        let plan = crate::placement::plan(&job(&format!("ranks = {ranks}\nprogram = ['a']")), &node, &context(&[]));
        let plan = plan.unwrap();
        let text = crate::placement::table::text(&plan, &node, "table");
        (plan.node.ranks.iter().map(|rank| rank.cpus.clone().unwrap()).collect(), text)
    }

    // F03
    #[test]
    fn a_gpu_of_two_nodes_is_pinned_to_both_of_them() {
        let row = |name: &str, cells: &str, cpus: &str, numa: &str| format!("{name}\t{cells}\t{cpus}\t{numa}\t\tN/A\n");
        let table = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n".to_owned()
            + &row("GPU0", " X \tPIX\tSYS\tSYS", "0-31,64-95", "0")
            + &row("GPU1", "PIX\t X \tSYS\tSYS", "0-31,64-95", "0")
            + &row("GPU2", "SYS\tSYS\t X \tPIX", "0-127", "0-1")
            + &row("GPU3", "SYS\tSYS\tPIX\t X ", "0-127", "0-1");
        let machine = read(&table).unwrap();
        assert_eq!(
            machine.gpus.iter().map(|gpu| gpu.numa.clone()).collect::<Vec<_>>(),
            [vec![0], vec![0], vec![0, 1], vec![0, 1]]
        );
        let (cpus, text) = planned(&table, 4);
        let set = |at: usize| cpus[at].iter().copied().collect::<CpuSet>();
        assert_eq!((set(0).to_string(), set(1).to_string()), ("0-15,64-79".into(), "16-31,80-95".into()));
        // Both nodes: 0-31,64-95 is node 0 and the rest node 1.
        let (first, rest): (CpuSet, CpuSet) = ("0-31,64-95".parse().unwrap(), "32-63,96-127".parse().unwrap());
        for rank in [2, 3] {
            assert!(!set(rank).and(&first).is_empty() && !set(rank).and(&rest).is_empty(), "{}", set(rank));
        }
        let mut both = set(2);
        both.extend(&set(3));
        assert_eq!(both.to_string(), "0-127");
        assert!(text.contains("note: GPU2, GPU3 may be near to several NUMA nodes"), "{text}");
        assert!(text.contains("cores unknown") && text.contains("does not tell which CPUs share a core"), "{text}");
    }

    #[test]
    fn cores_that_no_table_tells_of_are_not_bound_to() {
        use crate::placement::tests::{context, job};
        let table = "  GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3\nGPU1 PIX X 0-3\n";
        let machine = read(table).unwrap();
        let cpus = machine.cpus.as_ref().unwrap();
        assert!(cpus.cores.is_empty() && cpus.sockets.is_empty());
        let node = crate::placement::Node::of(machine);
        for (how, what) in [("bind = 'core'", "share a core"), ("bind = 'socket'", "on one socket")] {
            let job = job(&format!("ranks = 2\nprogram = ['a']\n{how}"));
            let refused = crate::placement::plan(&job, &node, &context(&[])).unwrap_err().to_string();
            assert!(refused.contains(what), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_table_or_an_error(text in "(GPU[01]|NIC0|PIX|NV1|X|SYS|\t| |\n|0-1|N/A|CPU Affinity){0,40}") {
            let _ = (looks_like_it(&text), read(&text));
            let _ = read(&format!("GPU0 GPU1\n{text}"));
        }
    }
}
