//! Where the parts of a drawn machine go: one column for each NUMA node, in it the memory, the network cards and the
//! GPUs by host bridge; links between GPUs as curves in the space below them.

use std::collections::BTreeMap;

use super::nccl;
use super::text::{machine_ring, size};
use crate::doctor::health;
use crate::topology::{Aer, Gpu, Link, LinkKind, Machine, PciAddress, gpu_name, ring};

const BOX_WIDTH: f64 = 190.0;
const BOX_HEIGHT: f64 = 64.0;
const GAP: f64 = 28.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 64.0;
/// A GPU's row begins here, below CPUs and network cards.
const CARD_HEIGHT: f64 = 40.0;
/// A strip over the GPUs of one host bridge.
const BRIDGE_HEIGHT: f64 = 24.0;

/// A box.
#[derive(Debug, Clone, PartialEq)]
pub struct Box {
    /// `GPU0`, `NIC1`, `NUMA0`.
    pub id: String,
    /// Lines of text in it, the first one bold.
    pub lines: Vec<String>,
    /// What a reader sees who points at it.
    pub tip: Vec<String>,
    /// Left, top, width, height.
    pub place: [f64; 4],
    /// `numa`, `bridge`, `gpu`, `nic`.
    pub kind: &'static str,
    /// Health from 0 to 100 where it is known.
    pub score: Option<u32>,
}

/// A link between two boxes.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// `GPU0-GPU1`.
    pub id: String,
    /// What lies between.
    pub kind: LinkKind,
    /// What a reader sees who points at it.
    pub tip: Vec<String>,
    /// An SVG path.
    pub path: String,
    /// Whether libcomm's ring goes along it.
    pub in_ring: bool,
    /// How many channels of NCCL do.
    pub nccl_channels: usize,
    /// The colour of its cost.
    pub colour: &'static str,
    /// How thick it is drawn.
    pub width: f64,
}

/// A drawing.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Title, then a line about versions.
    pub title: [String; 2],
    /// NUMA nodes first, so that what lies in them is drawn over them.
    pub boxes: Vec<Box>,
    /// Links between GPUs, and from GPUs to the network cards beside them.
    pub edges: Vec<Edge>,
    /// Rings of NCCL as lists of GPUs, each with its channels.
    pub nccl_rings: Vec<(Vec<usize>, Vec<usize>)>,
}

/// Lays the machine out; `channels` are the rings of NCCL's channels, where they are known.
pub fn layout(machine: &Machine, channels: &[Vec<usize>]) -> Drawing {
    let columns = columns(machine);
    let mut boxes = Vec::new();
    let mut centres: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let cards = columns.iter().map(|column| column.nics.len().div_ceil(column.width())).max().unwrap_or(0) as f64;
    let strips: Vec<Vec<Strip>> = columns.iter().map(|column| strips(machine, &column.gpus)).collect();
    let rows = strips.iter().flatten().map(|strip| strip.level + 1).max().unwrap_or(1);
    let bridge_top = HEAD + MARGIN + 40.0 + cards * (CARD_HEIGHT + 10.0);
    let gpu_top = bridge_top + rows as f64 * (BRIDGE_HEIGHT + 4.0);
    let mut left = MARGIN;
    for (column, strips) in columns.iter().zip(&strips) {
        let inner = column.width() as f64 * (BOX_WIDTH + GAP) - GAP;
        let numa = [left, HEAD, inner + 2.0 * 14.0, gpu_top - HEAD + BOX_HEIGHT + 14.0];
        boxes.push(Box {
            id: column.id.clone(),
            lines: column.lines.clone(),
            tip: column.lines.clone(),
            place: numa,
            kind: "numa",
            score: None,
        });
        for (at, &nic) in column.nics.iter().enumerate() {
            let (row, place) = (at / column.width(), at % column.width());
            let x = left + 14.0 + place as f64 * (BOX_WIDTH + GAP);
            let y = HEAD + 54.0 + row as f64 * (CARD_HEIGHT + 10.0);
            boxes.push(nic_box(machine, nic, [x, y, BOX_WIDTH, CARD_HEIGHT]));
        }
        boxes.extend(strips.iter().map(|strip| strip.drawn(left + 14.0, bridge_top)));
        for (at, &gpu) in column.gpus.iter().enumerate() {
            let x = left + 14.0 + at as f64 * (BOX_WIDTH + GAP);
            centres.insert(gpu_name(machine.gpus[gpu].index), (x + BOX_WIDTH / 2.0, gpu_top + BOX_HEIGHT));
            boxes.push(gpu_box(machine, gpu, [x, gpu_top, BOX_WIDTH, BOX_HEIGHT]));
        }
        left += numa[2] + GAP;
    }
    let bottom = gpu_top + BOX_HEIGHT + 14.0;
    let in_ring: Vec<(usize, usize)> =
        machine_ring(machine).map(|(cycle, _)| ring::links(&cycle).collect()).unwrap_or_default();
    let links: Vec<&Link> =
        machine.links.iter().filter(|link| centres.contains_key(&link.a) && centres.contains_key(&link.b)).collect();
    let furthest = links.iter().map(|link| (centres[&link.a].0 - centres[&link.b].0).abs()).fold(0.0, f64::max);
    let edges = links
        .iter()
        .map(|link| {
            let ends = [leaves(&link.a, &link.b, &links, &centres), leaves(&link.b, &link.a, &links, &centres)];
            edge(machine, link, &centres, ends, (&in_ring, channels))
        })
        .collect();
    let depth = if furthest > 0.0 { sag(furthest) * 0.75 + 20.0 } else { 0.0 };
    Drawing {
        width: left.max(640.0) - GAP + MARGIN,
        height: bottom + depth + 40.0,
        title: [if machine.name.is_empty() { "a machine".into() } else { machine.name.clone() }, versions(machine)],
        boxes,
        edges,
        nccl_rings: nccl::rings(channels),
    }
}

/// How far down the curve between two GPUs is drawn.
fn sag(distance: f64) -> f64 {
    40.0 + distance * 0.28
}

/// The NUMA node of a network card: its own, or that of the GPU that it is closest to, if no socket lies between. Tables
/// name cards and their ways to GPUs, and no node.
fn near_nic(machine: &Machine, at: usize) -> Option<usize> {
    let name = format!("NIC{at}");
    let kind = |gpu: &&Gpu| machine.link(&gpu_name(gpu.index), &name).map(|link| link.kind);
    let closest = || {
        let gpu = machine.gpus.iter().filter(|gpu| kind(gpu).is_some()).min_by_key(|gpu| kind(gpu))?;
        gpu.numa.first().copied().filter(|_| kind(&gpu).is_some_and(|kind| kind < LinkKind::Sys))
    };
    machine.nics[at].numa.or_else(closest)
}

/// As many boxes stand side by side where there are network cards only.
const CARDS_ABREAST: usize = 4;

struct Column {
    id: String,
    lines: Vec<String>,
    gpus: Vec<usize>,
    nics: Vec<usize>,
}

impl Column {
    fn width(&self) -> usize {
        match self.gpus.len() {
            0 => self.nics.len().clamp(1, CARDS_ABREAST),
            gpus => gpus,
        }
    }
}

/// Nodes with CPUs or devices; devices of an unknown node come last.
fn columns(machine: &Machine) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let near = |node: Option<usize>| {
        let gpus = (0..machine.gpus.len()).filter(|at| machine.gpus[*at].numa.first().copied() == node).collect();
        let nics = (0..machine.nics.len()).filter(|at| near_nic(machine, *at) == node).collect();
        (gpus, nics)
    };
    let mut known: Vec<usize> =
        machine.memory.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.node).collect();
    known.extend(machine.gpus.iter().filter_map(|gpu| gpu.numa.first().copied()));
    known.extend(machine.nics.iter().filter_map(|nic| nic.numa));
    known.sort_unstable();
    known.dedup();
    for node in known {
        let (gpus, nics) = near(Some(node));
        let memory = machine.memory.iter().find(|its| its.node == node);
        let mut second = memory.map(|memory| format!("CPUs {}", memory.cpus)).unwrap_or_default();
        if let Some(mib) = memory.and_then(|memory| memory.memory_mib) {
            second = format!("{second}, {}", size(mib));
        }
        columns.push(Column {
            id: format!("NUMA{node}"),
            lines: vec![format!("NUMA node {node}"), second],
            gpus,
            nics,
        });
    }
    let (gpus, nics): (Vec<usize>, Vec<usize>) = near(None);
    if !gpus.is_empty() || !nics.is_empty() {
        let lines = vec!["NUMA node unknown".into(), "the machine does not tell".into()];
        columns.push(Column { id: "NUMA?".into(), lines, gpus, nics });
    }
    columns
}

/// A strip over GPUs that hang below the same host bridge or the same switch.
struct Strip {
    /// 0 for host bridges, one more for each switch below another.
    level: usize,
    /// The first of its GPUs in the column, and how many there are.
    run: (usize, usize),
    name: String,
    tip: Vec<String>,
}

impl Strip {
    fn drawn(&self, left: f64, top: f64) -> Box {
        let (first, count) = self.run;
        Box {
            id: format!("BRIDGE-{}-{first}", self.name.replace(' ', "-")),
            lines: vec![self.name.clone()],
            tip: self.tip.clone(),
            place: [
                left + first as f64 * (BOX_WIDTH + GAP),
                top + self.level as f64 * (BRIDGE_HEIGHT + 4.0),
                count as f64 * (BOX_WIDTH + GAP) - GAP,
                BRIDGE_HEIGHT,
            ],
            kind: "bridge",
            score: None,
        }
    }
}

/// A strip for each run of GPUs below the same host bridge, and below it one for each switch that two of them share.
fn strips(machine: &Machine, gpus: &[usize]) -> Vec<Strip> {
    let device = |at: usize| machine.device_of(&machine.gpus[at]);
    let root = |at: usize| device(at).and_then(|device| device.root.clone());
    let mut strips = Vec::new();
    let mut at = 0;
    while at < gpus.len() {
        let Some(own) = root(gpus[at]) else {
            at += 1;
            continue;
        };
        let run = gpus[at..].iter().take_while(|gpu| root(**gpu).as_ref() == Some(&own)).count();
        let paths: Vec<&[PciAddress]> = gpus[at..at + run]
            .iter()
            .map(|gpu| device(*gpu).map(|device| device.above.as_slice()).unwrap_or_default())
            .collect();
        let name = |offset: usize| gpu_name(machine.gpus[gpus[at + offset]].index);
        let below = |offset: usize| {
            let path: Vec<String> = paths[offset].iter().map(ToString::to_string).collect();
            format!("{} below {}", name(offset), path.join(" → "))
        };
        let tip = std::iter::once(format!("host bridge {own}")).chain((0..run).map(below)).collect();
        strips.push(Strip { level: 0, run: (at, run), name: format!("host bridge {own}"), tip });
        for (level, first, count, switch) in switches(&paths, 0, 1) {
            let members: Vec<String> = (first..first + count).map(name).collect();
            let tip = vec![format!("PCIe switch with the port {switch}"), format!("above {}", members.join(", "))];
            strips.push(Strip { level, run: (at + first, count), name: format!("switch {switch}"), tip });
        }
        at += run;
    }
    strips
}

/// The switches that several of these devices share, as level, first device, count and the last bridge that is above all of
/// them. `known` bridges are above all of them anyway.
fn switches(paths: &[&[PciAddress]], known: usize, level: usize) -> Vec<(usize, usize, usize, PciAddress)> {
    let Some(first) = paths.first().filter(|_| paths.len() > 1) else { return Vec::new() };
    let common = (0..first.len()).take_while(|at| paths.iter().all(|path| path.get(*at) == first.get(*at))).count();
    let mut found = Vec::new();
    let below = if common > known {
        found.push((level, 0, paths.len(), first[common - 1]));
        level + 1
    } else {
        level
    };
    let mut at = 0;
    for run in paths.chunk_by(|one, other| one.get(common).is_some() && one.get(common) == other.get(common)) {
        // A part as large as the whole has nothing in common that the whole does not have.
        if run.len() < paths.len() {
            let parts = switches(run, common, below);
            found.extend(parts.into_iter().map(|(level, first, count, switch)| (level, at + first, count, switch)));
        }
        at += run.len();
    }
    found
}

/// Where on its box's lower edge a link leaves: to the left the near ones outside, to the right as well, so that
/// curves lie in each other and do not cross at the box.
fn leaves(own: &str, other: &str, links: &[&Link], centres: &BTreeMap<String, (f64, f64)>) -> f64 {
    let middle = centres[own].0;
    let mut others: Vec<&str> = links
        .iter()
        .filter_map(|link| match (link.a == own, link.b == own) {
            (true, _) => Some(link.b.as_str()),
            (_, true) => Some(link.a.as_str()),
            _ => None,
        })
        .collect();
    let distance = |name: &str| centres[name].0 - middle;
    let order = |name: &str| if distance(name) < 0.0 { (0, -distance(name)) } else { (1, -distance(name)) };
    others.sort_by(|one, its| order(one).0.cmp(&order(its).0).then(order(one).1.total_cmp(&order(its).1)));
    let place = others.iter().position(|name| *name == other).unwrap_or(0);
    middle - BOX_WIDTH / 2.0 + BOX_WIDTH * (place as f64 + 1.0) / (others.len() as f64 + 1.0)
}

fn gpu_box(machine: &Machine, at: usize, place: [f64; 4]) -> Box {
    let gpu = &machine.gpus[at];
    let device = machine.device_of(gpu);
    let link = device.map(|device| device.link).unwrap_or_default();
    let name = gpu.name.clone().unwrap_or_else(|| "GPU".into());
    let short: String = name.trim_start_matches("NVIDIA ").chars().take(22).collect();
    let mut tip = vec![
        format!("{}: {name}", gpu_name(gpu.index)),
        format!("bus id {}", gpu.address.map_or("unknown".into(), |address| address.to_string())),
        format!("PCIe now {}, at best {}", link.shown(), link.max_shown()),
    ];
    if let Some(mib) = gpu.memory_mib {
        tip.push(format!("memory {}", size(mib)));
    }
    if let Some(aer) = device.map(|device| &device.aer) {
        let counts: Vec<String> = aer
            .by_severity()
            .iter()
            .filter_map(|(severity, counts)| Some(format!("{} {}", Aer::total(counts)?, severity.name())))
            .collect();
        tip.push(if counts.is_empty() {
            "AER counters not available".into()
        } else {
            format!("AER since power-on: {}", counts.join(", "))
        });
    }
    let state = gpu.state.clone().unwrap_or_default();
    if let Some(replays) = state.replays {
        tip.push(format!("{replays} PCIe replays since the driver was loaded"));
    }
    if let (Some(percent), Some(celsius)) = (state.busy_percent, state.celsius) {
        tip.push(format!("{percent} % busy, {celsius} °C"));
    }
    let score = health::of_gpu(machine, gpu).map(|health| health.score());
    if let Some(score) = score {
        tip.push(format!("health {score} of 100"));
    }
    if let Some(uuid) = &gpu.uuid {
        tip.push(uuid.clone());
    }
    let bus = gpu.address.map_or(String::new(), |address| address.to_string());
    Box {
        id: gpu_name(gpu.index),
        lines: vec![gpu_name(gpu.index), short, format!("{bus}  {}", link.shown())],
        tip,
        place,
        kind: "gpu",
        score,
    }
}

fn nic_box(machine: &Machine, at: usize, place: [f64; 4]) -> Box {
    let nic = &machine.nics[at];
    let id = format!("NIC{at}");
    let bus = nic.address.map_or("unknown".into(), |address| address.to_string());
    let link = nic.address.and_then(|address| machine.device(address)).map(|device| device.link).unwrap_or_default();
    let mut tip = vec![
        format!("{id}: {}", nic.name),
        format!("bus id {bus}"),
        format!("PCIe now {}, at best {}", link.shown(), link.max_shown()),
    ];
    for gpu in &machine.gpus {
        if let Some(link) = machine.link(&gpu_name(gpu.index), &id) {
            tip.push(format!("to {}: {}", gpu_name(gpu.index), link.kind));
        }
    }
    // A card without a name is called by its address, which stands below.
    let name: String = if nic.name == bus { String::new() } else { nic.name.chars().take(22).collect() };
    Box {
        id: id.clone(),
        lines: vec![format!("{id} {name}").trim_end().to_owned(), bus],
        tip,
        place,
        kind: "nic",
        score: None,
    }
}

fn edge(
    machine: &Machine,
    link: &Link,
    centres: &BTreeMap<String, (f64, f64)>,
    ends: [f64; 2],
    (in_ring, channels): (&[(usize, usize)], &[Vec<usize>]),
) -> Edge {
    let (from, to) = (centres[&link.a], centres[&link.b]);
    let number = |name: &str| name.trim_start_matches("GPU").parse::<usize>().unwrap_or(0);
    let (a, b) = (number(&link.a), number(&link.b));
    let ring = in_ring.contains(&(a, b)) || in_ring.contains(&(b, a));
    let mut tip = vec![format!("{} – {}: {} ({})", link.a, link.b, link.kind, link.kind.meaning())];
    match (link.gb_s, link.back_gb_s) {
        (None, None) => tip.push(format!("about {:.0} GB/s, estimated from the kind of link", machine.gpu_gb_s(a, b))),
        (there, back) => {
            let shown = |gb_s: Option<f64>| gb_s.map_or("?".into(), |gb_s| format!("{gb_s:.0}"));
            tip.push(format!("measured {} GB/s there, {} GB/s back", shown(there), shown(back)));
        }
    }
    if let Some(both) = link.both_gb_s {
        tip.push(format!("{both:.0} GB/s each way with both at once"));
    }
    if let Some(us) = link.us {
        tip.push(format!("{us:.1} µs one way"));
    }
    for way in &link.ways {
        let (name, [there, back, both]) = (way.by.name(), [way.gb_s, way.back_gb_s, way.both_gb_s]);
        tip.push(format!("{name}: {there:.0} GB/s there, {back:.0} back, {both:.0} both at once"));
    }
    for gpu in machine.gpus.iter().filter(|gpu| [a, b].contains(&gpu.index)) {
        tip.extend(end_tip(machine, gpu));
    }
    if let Some(health) = health::of_link(machine, link) {
        tip.push(format!("health {} of 100", health.score()));
    }
    match (link.peer_proven, link.peer_reported) {
        (Some(true), _) => tip.push("peer access proven".into()),
        (Some(false), _) => tip.push("peer access does not work: data did not arrive".into()),
        (None, Some(true)) => tip.push("peer access reported by the driver, not proven".into()),
        (None, Some(false)) => tip.push("no peer access".into()),
        (None, None) => {}
    }
    if ring {
        tip.push("on libcomm's ring".into());
    }
    let nccl_channels = nccl::uses(channels, a, b);
    if nccl_channels > 0 {
        tip.push(format!("on NCCL's ring: {nccl_channels} of {} channels", channels.len()));
    }
    let depth = from.1.max(to.1) + sag((from.0 - to.0).abs());
    let [x1, x2] = ends;
    let path = format!("M{x1:.1} {:.1} C{x1:.1} {depth:.1} {x2:.1} {depth:.1} {x2:.1} {:.1}", from.1, to.1);
    Edge {
        id: format!("{}-{}", link.a, link.b),
        kind: link.kind,
        tip,
        path,
        in_ring: ring,
        nccl_channels,
        colour: colour(link.kind),
        width: match link.kind {
            LinkKind::Nvlink(links) => 2.0 + f64::from(links.min(18)) / 6.0,
            _ => 1.8,
        },
    }
}

/// What a GPU's end of a link shows: PCIe generation and lanes now and at best, error counters.
fn end_tip(machine: &Machine, gpu: &Gpu) -> Vec<String> {
    let Some(device) = machine.device_of(gpu) else { return Vec::new() };
    let name = gpu_name(gpu.index);
    let mut lines = vec![format!("{name}: PCIe now {}, at best {}", device.link.shown(), device.link.max_shown())];
    let aer = device.aer.by_severity();
    let counts: Vec<String> = aer
        .iter()
        .filter_map(|(severity, counts)| Some(format!("{} {}", Aer::total(counts)?, severity.name())))
        .chain(gpu.state.as_ref().and_then(|state| state.replays).map(|replays| format!("{replays} replays")))
        .collect();
    if !counts.is_empty() {
        lines.push(format!("{name}: {}", counts.join(", ")));
    }
    lines
}

/// Green is cheap, red is dear.
pub fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Nvlink(_) => "#1a7f37",
        LinkKind::Pix => "#4c9a2a",
        LinkKind::Pxb => "#8a8f00",
        LinkKind::Phb => "#b7791f",
        LinkKind::Node => "#c2570c",
        LinkKind::Sys => "#b91c1c",
        LinkKind::Unknown => "#6b7280",
    }
}

fn versions(machine: &Machine) -> String {
    let parts = [
        machine.driver.as_ref().map(|driver| format!("NVIDIA driver {driver}")),
        machine.cuda.as_ref().map(|cuda| format!("CUDA {cuda}")),
        Some(format!("from {}", machine.origin)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    fn overlap(a: &[f64; 4], b: &[f64; 4]) -> bool {
        a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3]
    }

    #[test]
    fn cards_of_a_table_stand_beside_their_closest_gpu_and_many_are_wrapped() {
        let mut machine = two_sockets();
        for at in 0..12 {
            machine.nics.push(crate::topology::Nic { name: format!("mlx5_{at}"), ..Default::default() });
        }
        machine.links.push(Link::new("GPU0", "NIC0", LinkKind::Sys));
        machine.links.push(Link::new("GPU3", "NIC0", LinkKind::Pix));
        let columns = columns(&machine);
        let shown: Vec<(&str, usize)> = columns.iter().map(|column| (column.id.as_str(), column.nics.len())).collect();
        assert_eq!(shown, [("NUMA0", 0), ("NUMA1", 1), ("NUMA?", 11)]);
        assert_eq!(columns[2].width(), 4);
        machine.nics[1].name = "0000:5e:00.0".into();
        machine.nics[1].address = "0000:5e:00.0".parse().ok();
        assert_eq!(nic_box(&machine, 1, [0.0; 4]).lines, ["NIC1", "0000:5e:00.0"]);
    }

    #[test]
    fn switches_that_gpus_share_have_a_strip_each() {
        let path = |text: &str| -> Vec<PciAddress> { text.split(' ').map(|part| part.parse().unwrap()).collect() };
        let (root, upper) = ("0000:00:01.0", "0000:01:00.0");
        let paths = [
            path(&format!("{root} {upper} 0000:02:00.0 0000:03:00.0 0000:04:00.0")),
            path(&format!("{root} {upper} 0000:02:00.0 0000:03:00.0 0000:04:01.0")),
            path(&format!("{root} {upper} 0000:02:01.0")),
            path("0000:00:02.0"),
        ];
        let paths: Vec<&[PciAddress]> = paths.iter().map(Vec::as_slice).collect();
        let found: Vec<String> = switches(&paths, 0, 1)
            .into_iter()
            .map(|(level, first, count, switch)| format!("{level}: {count} from {first} below {switch}"))
            .collect();
        assert_eq!(found, ["1: 3 from 0 below 0000:01:00.0", "2: 2 from 0 below 0000:03:00.0"]);
        // No switch between GPUs on root ports of their own.
        assert_eq!(strips(&two_sockets(), &[0, 1]).len(), 2);
    }

    #[test]
    fn boxes_of_devices_do_not_overlap_and_stay_inside() {
        let mut machine = two_sockets();
        for at in 0..5 {
            machine.nics.push(crate::topology::Nic {
                name: format!("mlx5_{at}"),
                numa: Some(at % 2),
                ..Default::default()
            });
        }
        let drawing = layout(&machine, &[]);
        let devices: Vec<&Box> = drawing.boxes.iter().filter(|its| its.kind != "numa").collect();
        assert_eq!(devices.len(), 13);
        for (at, one) in devices.iter().enumerate() {
            for other in &devices[at + 1..] {
                assert!(!overlap(&one.place, &other.place), "{} {}", one.id, other.id);
            }
            let inside = drawing.boxes.iter().any(|its| {
                its.kind == "numa"
                    && its.place[0] <= one.place[0]
                    && one.place[0] + one.place[2] <= its.place[0] + its.place[2]
                    && one.place[1] + one.place[3] <= its.place[1] + its.place[3]
            });
            assert!(inside, "{}", one.id);
        }
        assert_eq!(drawing.edges.len(), 6);
        assert_eq!(drawing.edges.iter().filter(|edge| edge.in_ring).count(), 4);
    }
}
