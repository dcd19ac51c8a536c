//! Writes `tests/nodes/*.toml`: machines built from published layouts, labelled as synthetic.
//!
//! `cargo run -p launcher --example machines -- tests/nodes`, then `UPDATE_PLANS=1 cargo test -p tests --test plan`.

use launcher::placement::cpuset::CpuSet;
use launcher::placement::node::{Cpus, NumaNode};
use launcher::topology::{
    Device, DeviceKind, Gpu, Link, LinkKind, Machine, MemoryNode, NVIDIA, PciAddress, PciLink, Speed, gpu_name,
    snapshot,
};

/// CPUs by NUMA node and core: `numa[node] = (id, cores)`.
struct Layout {
    numa: Vec<(usize, Vec<Vec<usize>>)>,
    sockets: usize,
}

impl Layout {
    /// `nodes` nodes of `cores` cores; the second thread of a core comes after all first ones.
    fn even(nodes: usize, cores: usize, threads: usize, sockets: usize) -> Layout {
        let all = nodes * cores;
        let core = |at: usize| (0..threads).map(|thread| at + thread * all).collect();
        Layout {
            numa: (0..nodes).map(|node| (node, (0..cores).map(|at| core(node * cores + at)).collect())).collect(),
            sockets,
        }
    }

    fn cpus(&self) -> Cpus {
        let cores: Vec<CpuSet> =
            self.numa.iter().flat_map(|(_, cores)| cores.iter().map(|core| core.iter().copied().collect())).collect();
        let usable: CpuSet = cores.iter().flat_map(CpuSet::iter).collect();
        let numa: Vec<NumaNode> = self
            .numa
            .iter()
            .map(|(id, cores)| NumaNode { id: *id, cpus: cores.iter().flatten().copied().collect() })
            .collect();
        let each = numa.len().div_ceil(self.sockets);
        let sockets = numa.chunks(each).map(|nodes| nodes.iter().flat_map(|node| node.cpus.iter()).collect()).collect();
        Cpus { affinity: usable.clone(), online: Some(usable.clone()), usable, cores, sockets, numa, ..Cpus::default() }
    }
}

fn machine(name: &str, what: &str, layout: &Layout, memory_gib: u64) -> Machine {
    let cpus = layout.cpus();
    let nodes = cpus.numa.len();
    let memory = cpus.numa.iter().enumerate().map(|(at, node)| MemoryNode {
        node: node.id,
        cpus: node.cpus.clone(),
        memory_mib: Some(memory_gib * 1024),
        distance: (0..nodes).map(|other| if other == at { 10 } else { 20 }).collect(),
    });
    Machine {
        name: name.into(),
        origin: format!("synthetic: {what}"),
        memory: memory.collect(),
        cpus: Some(cpus),
        ..Machine::default()
    }
}

struct Card<'a> {
    name: &'a str,
    memory_gib: u64,
    generation: u32,
}

/// Adds a GPU below `above`, on the host bridge of the first of them.
fn add(machine: &mut Machine, address: &str, above: &[&str], numa: Option<usize>, card: &Card<'_>) {
    let parse = |text: &str| text.parse::<PciAddress>().expect("an address");
    let link = PciLink {
        speed: Speed::of_generation(card.generation),
        width: Some(16),
        max_speed: Speed::of_generation(card.generation),
        max_width: Some(16),
    };
    let address = parse(address);
    let root = parse(above.first().expect("a port"));
    let root = Some(format!("pci{:04x}:{:02x}", root.domain, root.bus));
    let index = machine.gpus.len();
    for (at, bridge) in above.iter().map(|text| parse(text)).enumerate() {
        if machine.device(bridge).is_none() {
            let above = above[..at].iter().map(|text| parse(text)).collect();
            machine.devices.push(Device {
                kind: DeviceKind::Port,
                class: 0x060400,
                link,
                root: root.clone(),
                above,
                is_empty: Some(false),
                ..Device::at(bridge)
            });
        }
    }
    machine.devices.push(Device {
        class: 0x030200,
        vendor: NVIDIA,
        driver: Some("nvidia".into()),
        numa,
        root,
        above: above.iter().map(|text| parse(text)).collect(),
        link,
        ..Device::at(address)
    });
    machine.gpus.push(Gpu {
        index,
        address: Some(address),
        uuid: Some(format!("GPU-{index:08}-0000-0000-0000-000000000000")),
        name: Some(card.name.into()),
        vendor: Some(NVIDIA),
        minor: Some(index as u32),
        numa: numa.into_iter().collect(),
        memory_mib: Some(card.memory_gib * 1024),
        ..Gpu::default()
    });
}

fn nvlink(machine: &mut Machine, pairs: impl IntoIterator<Item = (usize, usize, u32)>) {
    for (a, b, links) in pairs {
        machine.links.push(Link::new(gpu_name(a), gpu_name(b), LinkKind::Nvlink(links)));
    }
}

fn all_pairs(count: usize, links: u32) -> Vec<(usize, usize, u32)> {
    (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b, links))).collect()
}

fn machines() -> Vec<(&'static str, Machine)> {
    let a6000 = Card { name: "NVIDIA RTX A6000", memory_gib: 48, generation: 4 };
    let v100 = Card { name: "Tesla V100-SXM2-32GB", memory_gib: 32, generation: 3 };
    let a100 = Card { name: "NVIDIA A100-SXM4-80GB", memory_gib: 80, generation: 4 };
    let h200 = Card { name: "NVIDIA H200", memory_gib: 141, generation: 5 };
    let l40 = Card { name: "NVIDIA L40S", memory_gib: 48, generation: 4 };
    let mut made = Vec::new();

    let mut workstation =
        machine("workstation", "one socket, two GPUs on ports of one host bridge", &Layout::even(1, 16, 2, 1), 128);
    add(&mut workstation, "0000:21:00.0", &["0000:20:01.1"], Some(0), &a6000);
    add(&mut workstation, "0000:22:00.0", &["0000:20:03.1"], Some(0), &a6000);
    made.push(("workstation-2gpu", workstation));

    let mut two = machine("two-sockets", "two sockets, two GPUs on each", &Layout::even(2, 16, 2, 2), 256);
    for (address, port, numa) in [
        ("0000:1b:00.0", "0000:1a:01.0", 0),
        ("0000:3b:00.0", "0000:3a:01.0", 0),
        ("0000:9b:00.0", "0000:9a:01.0", 1),
        ("0000:bb:00.0", "0000:ba:01.0", 1),
    ] {
        add(&mut two, address, &[port], Some(numa), &l40);
    }
    made.push(("two-sockets-4gpu", two.clone()));

    let mut limited = two.clone();
    limited.name = "limited".into();
    limited.origin =
        "synthetic: two sockets and four GPUs, of which the cgroup allows eight CPUs of the second socket".into();
    if let Some(cpus) = &mut limited.cpus {
        let allowed: CpuSet = (20..24).chain(52..56).collect();
        cpus.cgroup = Some(allowed.clone());
        cpus.quota = Some(6.0);
        cpus.memory_nodes = Some(CpuSet::from_iter([1]));
        let cut = |sets: &[CpuSet]| {
            sets.iter().map(|set| set.and(&allowed)).filter(|set| !set.is_empty()).collect::<Vec<_>>()
        };
        (cpus.cores, cpus.sockets) = (cut(&cpus.cores), cut(&cpus.sockets));
        cpus.numa = vec![NumaNode { id: 1, cpus: allowed.clone() }];
        cpus.usable = allowed;
    }
    made.push(("cgroup-limited", limited));

    let mut dgx1 = machine(
        "dgx-1",
        "DGX-1: two sockets, eight GPUs in a cube of NVLinks, two to a PCIe switch",
        &Layout::even(2, 20, 2, 2),
        256,
    );
    for (at, address) in ["06", "07", "0a", "0b", "85", "86", "89", "8a"].iter().enumerate() {
        let port = [
            "0000:00:02.0",
            "0000:00:02.0",
            "0000:00:03.0",
            "0000:00:03.0",
            "0000:80:02.0",
            "0000:80:02.0",
            "0000:80:03.0",
            "0000:80:03.0",
        ][at];
        let bus = ["04", "04", "08", "08", "83", "83", "87", "87"][at];
        let (up, down) = (
            format!("0000:{bus}:00.0"),
            format!("0000:{:02x}:{:02x}.0", u8::from_str_radix(bus, 16).unwrap_or(0) + 1, 8 + 8 * (at % 2)),
        );
        add(&mut dgx1, &format!("0000:{address}:00.0"), &[port, &up, &down], Some(at / 4), &v100);
    }
    nvlink(
        &mut dgx1,
        [
            (0, 1, 1),
            (0, 2, 1),
            (0, 3, 2),
            (0, 4, 2),
            (1, 2, 2),
            (1, 3, 1),
            (1, 5, 2),
            (2, 3, 2),
            (2, 6, 1),
            (3, 7, 1),
            (4, 5, 1),
            (4, 6, 1),
            (4, 7, 2),
            (5, 6, 2),
            (5, 7, 1),
            (6, 7, 2),
        ],
    );
    made.push(("dgx-1", dgx1));

    let mut dgx = machine(
        "dgx-a100",
        "DGX A100: two sockets of four NUMA nodes, eight GPUs, NVSwitch",
        &Layout::even(8, 16, 2, 2),
        256,
    );
    for (at, (address, port, numa)) in [
        ("07", "00", 3),
        ("0f", "00", 3),
        ("47", "40", 1),
        ("4e", "40", 1),
        ("87", "80", 7),
        ("90", "80", 7),
        ("b7", "b0", 5),
        ("bd", "b0", 5),
    ]
    .into_iter()
    .enumerate()
    {
        add(
            &mut dgx,
            &format!("0000:{address}:00.0"),
            &[&format!("0000:{port}:{:02x}.1", 1 + 2 * (at % 2))],
            Some(numa),
            &a100,
        );
    }
    nvlink(&mut dgx, all_pairs(8, 12));
    made.push(("dgx-a100", dgx));

    let mut hgx = machine("hgx-h200", "HGX H200: two sockets, eight GPUs, NVSwitch", &Layout::even(2, 48, 2, 2), 1024);
    for (at, address) in ["18", "2a", "3a", "5d", "9a", "ab", "ba", "db"].iter().enumerate() {
        add(
            &mut hgx,
            &format!("0000:{address}:00.0"),
            &[&format!("0000:{:02x}:01.0", u8::from_str_radix(address, 16).unwrap_or(1) - 1)],
            Some(at / 4),
            &h200,
        );
    }
    nvlink(&mut hgx, all_pairs(8, 18));
    made.push(("hgx-h200", hgx));

    let core = |first: usize| (first..first + 4).collect::<Vec<_>>();
    let power = Layout {
        numa: vec![(0, (0..16).step_by(4).map(core).collect()), (8, (88..104).step_by(4).map(core).collect())],
        sockets: 2,
    };
    let mut power9 = machine(
        "power9",
        "POWER9: two sockets with NUMA numbers 0 and 8, six GPUs whose memory is NUMA nodes 250 to 255",
        &power,
        256,
    );
    for (at, (address, port)) in [
        ("0004:05:00.0", "0004:00:00.0"),
        ("0004:06:00.0", "0004:00:00.0"),
        ("0006:00:00.0", "0006:00:01.0"),
        ("0007:00:00.0", "0007:00:01.0"),
        ("0035:04:00.0", "0035:00:00.0"),
        ("0035:05:00.0", "0035:00:00.0"),
    ]
    .into_iter()
    .enumerate()
    {
        add(&mut power9, address, &[port], Some(if at < 3 { 0 } else { 8 }), &v100);
        power9.gpus[at].memory_numa = Some(255 - at);
    }
    for node in 250..=255 {
        power9.memory.push(MemoryNode { node, memory_mib: Some(16_128), ..MemoryNode::default() });
    }
    nvlink(&mut power9, [(0, 1, 2), (0, 2, 2), (1, 2, 2), (3, 4, 2), (3, 5, 2), (4, 5, 2)]);
    made.push(("power9-6gpu", power9));

    let numbers = [0, 1, 2, 33, 34, 45, 72, 73];
    let sparse = Layout {
        numa: numbers
            .iter()
            .enumerate()
            .map(|(at, id)| (*id, (at * 6..at * 6 + 6).map(|cpu| vec![cpu]).collect()))
            .collect(),
        sockets: 4,
    };
    made.push((
        "sparse-numa",
        machine("sparse", "eight NUMA nodes whose numbers have gaps and exceed 63", &sparse, 16),
    ));

    let mut cores: Vec<Vec<usize>> = (0..6).map(|core| vec![2 * core, 2 * core + 1]).collect();
    cores.extend((12..20).map(|cpu| vec![cpu]));
    let mut hybrid = machine(
        "hybrid",
        "six fast cores with two threads and eight slow ones with one",
        &Layout { numa: vec![(0, cores)], sockets: 1 },
        32,
    );
    if let Some(cpus) = &mut hybrid.cpus {
        cpus.slower = (12..20).collect();
    }
    made.push(("hybrid-cores", hybrid));

    let mut wide = machine(
        "wide-domain",
        "two GPUs behind a controller that opens PCI domain 10000",
        &Layout::even(1, 8, 1, 1),
        64,
    );
    add(&mut wide, "10000:01:00.0", &["10000:00:02.0"], None, &l40);
    add(&mut wide, "10000:02:00.0", &["10000:00:04.0"], None, &l40);
    made.push(("pci-domain-10000", wide));

    let mut virtual_machine =
        machine("virtual", "a virtual machine with two GPUs and no NUMA directory", &Layout::even(1, 16, 1, 1), 128);
    virtual_machine.memory.clear();
    add(&mut virtual_machine, "0000:08:00.0", &["0000:00:01.0"], None, &h200);
    add(&mut virtual_machine, "0000:09:00.0", &["0000:00:02.0"], None, &h200);
    nvlink(&mut virtual_machine, all_pairs(2, 18));
    made.push(("no-numa-directory", virtual_machine));

    made.push(("no-gpu", machine("no-gpu", "two sockets and no GPU", &Layout::even(2, 8, 2, 2), 64)));

    let mut switches =
        machine("switches", "one socket, four GPUs behind two switches in a row", &Layout::even(1, 32, 2, 1), 512);
    for (address, above) in [
        ("0000:04:00.0", ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"].as_slice()),
        ("0000:05:00.0", &["0000:00:01.0", "0000:01:00.0", "0000:02:01.0"]),
        ("0000:0a:00.0", &["0000:00:01.0", "0000:01:00.0", "0000:02:02.0", "0000:06:00.0", "0000:07:00.0"]),
        ("0000:0b:00.0", &["0000:00:01.0", "0000:01:00.0", "0000:02:02.0", "0000:06:00.0", "0000:07:01.0"]),
    ] {
        add(&mut switches, address, above, Some(0), &l40);
    }
    made.push(("pcie-switches", switches));

    let mut slices = machine("slices", "one socket, one GPU cut into four MIG slices", &Layout::even(1, 16, 2, 1), 128);
    add(&mut slices, "0000:41:00.0", &["0000:40:01.1"], Some(0), &a100);
    slices.gpus[0].mig = (0..4).map(|slice| format!("MIG-{slice:08}-0000-0000-0000-000000000000")).collect();
    made.push(("mig-slices", slices));

    for (_, machine) in &mut made {
        machine.derive_links();
    }
    made
}

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).unwrap_or_else(|| "tests/nodes".into());
    std::fs::create_dir_all(&directory)?;
    for (name, machine) in machines() {
        std::fs::write(std::path::Path::new(&directory).join(format!("{name}.toml")), snapshot::save(&machine))?;
    }
    Ok(())
}
