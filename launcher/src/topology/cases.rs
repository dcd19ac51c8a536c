//! Machines of public bug reports, by the numbers of the list of cases: made-up files and tables with the reports' values.

use super::read::{Detail, machine as read_machine};
use super::tree::Tree;
use super::{DeviceKind, GpuState, Machine, smi_topo, tests_support};
use crate::doctor::link::{self, Verdict};
use crate::placement::cpuset::CpuSet;
use crate::placement::tests::{context, job};
use crate::placement::{Node, Plan, PlanError, plan};

/// A table of `nvidia-smi topo -m` with these rows, which are its columns, too.
fn table(
    names: &[String],
    kind: &dyn Fn(usize, usize) -> String,
    affinity: &dyn Fn(usize) -> String,
    gap: &str,
) -> String {
    let mut text = format!("\t{}{gap}CPU Affinity\n", names.join("\t"));
    for (row, name) in names.iter().enumerate() {
        let cells: Vec<String> =
            (0..names.len()).map(|column| if row == column { " X ".into() } else { kind(row, column) }).collect();
        text.push_str(format!("{name}\t{}{gap}{}", cells.join("\t"), affinity(row)).trim_end());
        text.push('\n');
    }
    text
}

fn names(gpus: usize, cards: &[&str]) -> Vec<String> {
    (0..gpus).map(|gpu| format!("GPU{gpu}")).chain(cards.iter().map(|&card| card.to_owned())).collect()
}

fn kind(machine: &Machine, a: &str, b: &str) -> String {
    machine.link(a, b).unwrap_or_else(|| panic!("{a}-{b}")).kind.to_string()
}

fn planned(machine: Machine, options: &str, inherited: &[(&str, &str)]) -> Result<Plan, PlanError> {
    plan(&job(&format!("program = ['a']\n{options}")), &Node::of(machine), &context(inherited))
}

fn cpus(plan: &Plan) -> Vec<String> {
    let set = |cpus: &Vec<usize>| cpus.iter().copied().collect::<CpuSet>().to_string();
    plan.node.ranks.iter().map(|rank| rank.cpus.as_ref().map(set).unwrap_or_default()).collect()
}

fn visible(plan: &Plan, rank: usize) -> String {
    plan.gpus.visible(rank)
}

/// CPUs of `count` cores with threads `i` and `i + count`.
fn siblings(tree: &Tree, count: usize) {
    for cpu in 0..2 * count {
        let pair = format!("{},{}\n", cpu % count, cpu % count + count);
        tree.file(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), &pair);
    }
}

// C01
#[test]
fn first_threads_alone_are_cores_of_their_own() {
    let tree = Tree::new("c01").cpus(8, 1);
    siblings(&tree, 4);
    tree.file("proc/self/status", "Cpus_allowed_list:\t0-3\n");
    let machine = read_machine(tree.root(), Detail::Launch);
    assert_eq!(machine.cpus.as_ref().unwrap().cores.len(), 4);
    let four = planned(machine, "ranks = 4\nbind = 'core'", &[]).unwrap();
    assert_eq!((cpus(&four), four.notes), (vec!["0".into(), "1".into(), "2".into(), "3".into()], vec![]));
}

// C02
#[test]
fn usable_is_what_mask_cgroup_and_kernel_allow_together() {
    let v1 = Tree::new("c02-v1").cpus(16, 0);
    v1.file("sys/devices/system/cpu/online", "0-3,5-15\n");
    v1.file("proc/self/mountinfo", "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
    v1.file("proc/self/cgroup", "3:cpuset:/job\n");
    v1.file("sys/fs/cgroup/cpuset/job/cpuset.cpus", "0-6,12-15\n");
    v1.file("sys/fs/cgroup/cpuset/job/cpuset.mems", "1-4\n");
    let found = read_machine(v1.root(), Detail::Launch).cpus.unwrap();
    assert_eq!(found.usable.to_string(), "0-3,5-6,12-15");
    assert_eq!(found.memory_nodes.unwrap().to_string(), "1-4");

    let v2 = Tree::new("c02-v2").cpus(48, 0);
    v2.file("sys/devices/system/cpu/online", "0-31\n");
    v2.file("proc/self/mountinfo", "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    v2.file("proc/self/cgroup", "0::/job\n");
    v2.file("sys/fs/cgroup/job/cpuset.cpus.effective", "0-5\n");
    v2.file("sys/fs/cgroup/job/cpuset.mems.effective", "0-5\n");
    let found = read_machine(v2.root(), Detail::Launch).cpus.unwrap();
    assert_eq!((found.usable.to_string(), found.online.as_ref().unwrap().len()), ("0-5".into(), 32));
    assert_eq!(found.memory_nodes.clone().unwrap().to_string(), "0-5");
    assert!(found.why_not(40).unwrap().contains("offline") && found.why_not(6).unwrap().contains("cgroup"));

    // `docker --cpuset-cpus=1,2`.
    let two = Tree::new("c02-two").cpus(4, 0);
    two.file("proc/self/status", "Cpus_allowed_list:\t1-2\n");
    let machine = || read_machine(two.root(), Detail::Launch);
    let four = planned(machine(), "ranks = 4\nbind = 'core'", &[]).unwrap();
    assert_eq!(cpus(&four), ["1", "2", "1", "2"]);
    assert_eq!(four.notes, ["oversubscribed: 4 ranks on 2 CPUs"]);
    let refused = planned(machine(), "ranks = 2\nbind = '0,1'", &[]).unwrap_err().to_string();
    assert_eq!(refused, "--bind names CPU 0, which prun may not use");
}

// C04
#[test]
fn sparse_nodes_keep_their_numbers() {
    let tree = Tree::new("c04-sparse").cpus(48, 0);
    let nodes = [0, 1, 2, 33, 34, 45, 72, 73];
    for (at, node) in nodes.into_iter().enumerate() {
        let list = format!("{}-{}\n", at * 6, at * 6 + 5);
        tree.file(&format!("sys/devices/system/node/node{node}/cpulist"), &list);
    }
    let machine = read_machine(tree.root(), Detail::Launch);
    let found: Vec<(usize, usize)> =
        machine.cpus.as_ref().unwrap().numa.iter().map(|node| (node.id, node.cpus.len())).collect();
    assert_eq!(found, nodes.map(|node| (node, 6)));
    let plan = planned(machine, "ranks = 8\n[placement]\nmap-by = 'numa'", &[]).unwrap();
    assert_eq!((cpus(&plan)[6].as_str(), cpus(&plan)[7].as_str()), ("36-41", "42-47"));
    assert_eq!(plan.node.ranks.iter().map(|rank| rank.memory_node).collect::<Vec<_>>(), nodes.map(Some));
}

// C04
#[test]
fn gpu_memory_nodes_are_no_place_for_ranks_and_masks_tell_what_is_near() {
    let mut tree = Tree::new("c04-power9").cpus(176, 0);
    for list in ["sys/devices/system/cpu/online", "sys/devices/system/cpu/present"] {
        tree.file(list, "0-15,88-103\n");
    }
    for (node, list) in [(0, "0-87\n"), (8, "88-175\n")].into_iter().chain((250..=255).map(|node| (node, "\n"))) {
        tree.file(&format!("sys/devices/system/node/node{node}/cpulist"), list);
    }
    // Masks as the kernel writes them: the highest 32 CPUs first.
    let (low, high) = ("00000000,00000000,0000ffff", "000000ff,ff000000,00000000,00000000");
    let gpus = [
        ("0004:05:00.0", low, 255),
        ("0004:06:00.0", low, 254),
        ("0006:00:00.0", low, 253),
        ("0007:00:00.0", high, 252),
        ("0035:04:00.0", high, 251),
        ("0035:05:00.0", high, 250),
    ];
    for (minor, (address, mask, node)) in gpus.into_iter().enumerate() {
        tree = tree.gpu(address, minor as u32, None);
        std::fs::remove_file(tree.root().join(format!("sys/bus/pci/devices/{address}/numa_node"))).unwrap();
        tree.file(&format!("sys/bus/pci/devices/{address}/local_cpus"), &format!("{mask}\n"));
        let status = format!("Node:      {node}\nStatus:    online\n");
        tree.file(&format!("proc/driver/nvidia/gpus/{address}/numa_status"), &status);
    }
    let machine = read_machine(tree.root(), Detail::Launch);
    let told: Vec<(String, Vec<usize>, Option<usize>)> = machine
        .gpus
        .iter()
        .map(|gpu| (gpu.local_cpus.as_ref().unwrap().to_string(), gpu.numa.clone(), gpu.memory_numa))
        .collect();
    let expected = |at: usize| if at < 3 { ("0-15".to_owned(), vec![0]) } else { ("88-103".to_owned(), vec![8]) };
    for (at, found) in told.into_iter().enumerate() {
        let (cpus, numa) = expected(at);
        assert_eq!(found, (cpus, numa, Some(255 - at)), "GPU{at}");
    }
    let six = planned(machine, "ranks = 6", &[]).unwrap();
    assert_eq!(cpus(&six), ["0-4", "5-9", "10-15", "88-92", "93-97", "98-103"]);
    let memory: Vec<_> = six.node.ranks.iter().map(|rank| rank.memory_node).collect();
    assert_eq!(memory, [Some(0), Some(0), Some(0), Some(8), Some(8), Some(8)]);
}

// C05
#[test]
fn a_node_of_minus_one_falls_back_and_is_told_once() {
    // Two nodes, and none of the GPUs tells which is near: the list of local CPUs does, or all CPUs.
    let tree = Tree::new("c05").cpus(44, 2).gpu("0000:1b:00.0", 0, None).gpu("0000:3b:00.0", 1, None).gpu(
        "0000:5e:00.0",
        2,
        None,
    );
    tree.file("sys/bus/pci/devices/0000:1b:00.0/local_cpulist", "0-21\n");
    for all in ["0000:3b:00.0", "0000:5e:00.0"] {
        tree.file(&format!("sys/bus/pci/devices/{all}/local_cpulist"), "0-43\n");
    }
    let plan = planned(read_machine(tree.root(), Detail::Launch), "ranks = 3", &[]).unwrap();
    // GPU1 could have the first half of everything, which is all that GPU0 has: its rank and that of GPU0 divide it.
    assert_eq!(cpus(&plan), ["0-10", "11-21", "22-43"]);
    assert_eq!(
        plan.notes,
        ["the machine does not tell which NUMA node GPU1 and GPU2 are near to: their ranks may use all CPUs"]
    );
    assert_eq!(plan.node.ranks[0].memory_node, Some(0));

    // No directory of nodes: one node with everything, and no word of what would be near.
    let none = Tree::new("c05-none").cpus(8, 0).gpu("0000:1b:00.0", 0, None).gpu("0000:3b:00.0", 1, None);
    let machine = read_machine(none.root(), Detail::Launch);
    let node = Node::of(machine.clone());
    let plan = planned(machine, "ranks = 2", &[]).unwrap();
    assert_eq!((cpus(&plan), plan.node.ranks[0].memory_node), (vec!["0-3".into(), "4-7".into()], None));
    let text = crate::placement::table::text(&plan, &node, "none");
    assert!(text.contains("nothing tells which are near") && !text.contains("near to the rank's GPU"), "{text}");
}

// C07
#[test]
fn a_rank_s_cpus_are_near_to_the_gpu_that_it_sees() {
    let mixed = || {
        let mut machine = tests_support::two_sockets();
        // The slow card has the lower address, and lies on the other socket than the fast one.
        machine.gpus.retain(|gpu| [1, 2].contains(&gpu.index));
        machine.links.clear();
        machine.gpus.iter_mut().enumerate().for_each(|(index, gpu)| gpu.index = index);
        machine.gpus[0].name = Some("NVIDIA Slow".into());
        machine.derive_links();
        machine
    };
    for inherited in [&[][..], &[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")][..]] {
        let plan = planned(mixed(), "ranks = 2", inherited).unwrap();
        let names = ["GPU-00000001-0000-0000-0000-000000000000", "GPU-00000002-0000-0000-0000-000000000000"];
        // By UUID, so that no order of CUDA's can mix them up.
        assert_eq!(visible(&plan, 0), names.join(","));
        assert_eq!(cpus(&plan), ["0-3,8-11", "4-7,12-15"]);
        let env = String::from_utf8_lossy(&plan.node.base_env.join(&b'\n')).into_owned();
        assert!(env.contains("CUDA_VISIBLE_DEVICES=GPU-00000001"), "{env}");
        let order =
            if inherited.is_empty() { "CUDA_DEVICE_ORDER=PCI_BUS_ID" } else { "CUDA_DEVICE_ORDER=FASTEST_FIRST" };
        assert!(env.contains(order), "{env}");
        assert_eq!(plan.notes.iter().any(|note| note.contains("FASTEST_FIRST")), !inherited.is_empty());
        // The fast card alone: its own CPUs.
        let fast = planned(mixed(), "ranks = 1\n[placement]\ngpus = '1'", inherited).unwrap();
        assert_eq!((visible(&fast, 0).as_str(), cpus(&fast)[0].as_str()), (names[1], "4-7,12-15"));
    }
}

// C08
#[test]
fn more_ranks_than_gpus_are_refused_or_share_in_turn() {
    let gpus = |count: usize| {
        let mut tree = Tree::new(&format!("c08-{count}")).cpus(16, 1);
        for at in 0..count {
            tree = tree.gpu(&format!("0000:{:02x}:00.0", 0x10 + at), at as u32, Some(0));
        }
        read_machine(tree.root(), Detail::Launch)
    };
    let refused = |machine: Machine, ranks: u32, inherited: &[(&str, &str)]| {
        planned(machine, &format!("ranks = {ranks}"), inherited).unwrap_err().to_string()
    };
    let two = [("CUDA_VISIBLE_DEVICES", "2,5")];
    assert_eq!(refused(gpus(8), 16, &[]), "16 ranks, 8 GPUs");
    assert_eq!(refused(gpus(1), 2, &[]), "2 ranks, 1 GPU");
    assert_eq!(refused(gpus(8), 4, &two), "4 ranks, 2 GPUs");
    let shared = planned(gpus(8), "ranks = 4\n[placement]\nshare-gpus = true", &two).unwrap();
    let given: Vec<usize> = (0..4).map(|rank| shared.gpus.unit(rank).unwrap().gpu).collect();
    assert_eq!(given, [2, 5, 2, 5]);
    assert_eq!(visible(&shared, 0).split(',').count(), 2, "no number is as large as the count");
    let many = planned(gpus(8), "ranks = 16\n[placement]\nshare-gpus = true", &[]).unwrap();
    assert_eq!(
        (0..16).map(|rank| many.gpus.of_rank[rank]).collect::<Vec<_>>(),
        (0..16).map(|rank| rank % 8).collect::<Vec<_>>()
    );
    assert!(planned(gpus(0), "ranks = 2", &[]).unwrap().gpus.seen.is_empty());
}

// F04
#[test]
fn thirty_six_cards_with_cells_that_run_together_stay_in_their_columns() {
    // Cards 0-7 are beside GPU0, 8-15 beside GPU2 and so on; the last four in another order.
    let beside = |card: usize| match card {
        0..32 => card / 8 * 2,
        32 => 4,
        33 => 6,
        34 => 2,
        _ => 0,
    };
    let owner = |at: usize| if at < 8 { at } else { beside(at - 8) };
    let between = |a: usize, b: usize| match (owner(a), owner(b)) {
        _ if a < 8 && b < 8 => "NV18",
        (one, other) if one == other => "PIX",
        (one, other) if one / 4 == other / 4 => "NODE",
        _ => "SYS",
    };
    let cards: Vec<String> = (0..36).map(|card| format!("NIC{card}")).collect();
    let names = names(8, &cards.iter().map(String::as_str).collect::<Vec<_>>());
    // Cells are eight wide, and the column of NIC12 has lost its spaces.
    let padded = |cell: &str, column: usize| if column == 20 { cell.to_owned() } else { format!("{cell:<8}") };
    let mut text = format!("{:8}", "");
    names.iter().enumerate().for_each(|(column, name)| text.push_str(&padded(name, column)));
    text.push_str("CPU Affinity    NUMA Affinity   GPU NUMA ID\n");
    for (row, name) in names.iter().enumerate() {
        text.push_str(&format!("{name:<8}"));
        for column in 0..names.len() {
            text.push_str(&padded(if row == column { " X" } else { between(row, column) }, column));
        }
        match row {
            0..4 => text.push_str("0-55,112-167    0               N/A"),
            4..8 => text.push_str("70-99,102-107   1               N/A"),
            _ => {}
        }
        text.push('\n');
    }
    assert!(text.contains("NODENODE") && text.contains("SYSSYS") && text.contains("PIXPIX") && text.contains("PIX X"));
    let machine = smi_topo::read(&text).unwrap();
    assert_eq!((machine.gpus.len(), machine.nics.len()), (8, 36));
    for a in 0..8 {
        for b in (0..44).filter(|b| *b > a) {
            assert_eq!(kind(&machine, &names[a], &names[b]), between(a, b), "{}-{}", names[a], names[b]);
        }
    }
    let told = [
        ("GPU0", "NIC34", "NODE"),
        ("GPU0", "NIC35", "PIX"),
        ("GPU2", "NIC34", "PIX"),
        ("GPU4", "NIC32", "PIX"),
        ("GPU6", "NIC33", "PIX"),
        ("GPU4", "NIC12", "SYS"),
    ];
    for (a, b, expected) in told {
        assert_eq!(kind(&machine, a, b), expected, "{a}-{b}");
    }
    let near: Vec<_> = [0, 7]
        .map(|gpu| (machine.gpus[gpu].local_cpus.as_ref().unwrap().to_string(), machine.gpus[gpu].numa.clone()))
        .to_vec();
    assert_eq!(near, [("0-55,112-167".into(), vec![0]), ("70-99,102-107".into(), vec![1])]);
    // One cell less, and the row is named.
    let cut = text.replacen("GPU1    NV18    ", "GPU1    ", 1);
    assert!(smi_topo::read(&cut).unwrap_err().to_string().starts_with("line 3: GPU1 has 43 cells and not 44"));
}

// F05
#[test]
fn old_drivers_say_soc_and_name_cards_by_themselves() {
    // Eight P40 on one socket, the card on the other.
    let p40 = table(
        &names(8, &["mlx5_0"]),
        &|a, b| {
            if a == 8 || b == 8 {
                "SOC"
            } else if a / 4 == b / 4 {
                "PIX"
            } else {
                "PXB"
            }
            .into()
        },
        &|row| if row < 8 { "0-13".into() } else { String::new() },
        "\t",
    );
    let machine = smi_topo::read(&p40).unwrap();
    assert_eq!((kind(&machine, "GPU0", "GPU3"), kind(&machine, "GPU0", "GPU4")), ("PIX".into(), "PXB".into()));
    assert!((0..8).all(|gpu| kind(&machine, &format!("GPU{gpu}"), "NIC0") == "SYS"));
    assert!(
        machine.gpus.iter().all(|gpu| gpu.local_cpus.as_ref().unwrap().to_string() == "0-13" && gpu.numa.is_empty())
    );

    // Four GPUs on two sockets with an older card.
    let socket = |at: usize| if at < 2 { 0 } else { 1 };
    let mlx4 = table(
        &names(4, &["mlx4_0"]),
        &|a, b| if socket(a) == socket(b) { "PHB" } else { "SOC" }.into(),
        &|row| ["0-5", "0-5", "6-11", "6-11", ""][row].into(),
        "\t",
    );
    let machine = smi_topo::read(&mlx4).unwrap();
    assert_eq!((machine.nics.len(), machine.nics[0].name.as_str()), (1, "mlx4_0"));
    assert_eq!((kind(&machine, "GPU1", "NIC0"), kind(&machine, "GPU3", "NIC0")), ("SYS".into(), "PHB".into()));
    assert_eq!(cpus(&planned(machine, "ranks = 4", &[]).unwrap()), ["0-2", "3-5", "6-8", "9-11"]);

    // A DGX-1: four cards out of order, no spaces in the header.
    let cards = ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"];
    let owner = |at: usize| if at < 8 { at / 2 } else { [0, 2, 1, 3][at - 8] };
    let between = |a: usize, b: usize| -> String {
        let nvlink = a < 8 && b < 8 && (a / 4 == b / 4 || a % 4 == b % 4);
        let kind = match (owner(a), owner(b)) {
            _ if nvlink => "NV1",
            (one, other) if one == other => "PIX",
            (one, other) if one / 2 == other / 2 => "PHB",
            _ => "SOC",
        };
        kind.into()
    };
    let dgx = table(
        &names(8, &cards),
        &between,
        &|row| if row < 8 { format!("{0}-{0}", row / 4) } else { String::new() },
        "\t",
    );
    let dgx = dgx.replacen("\tGPU1\tGPU2\tGPU3", "GPU1GPU2GPU3", 1);
    let machine = smi_topo::read(&dgx).unwrap();
    assert_eq!(machine.nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), cards);
    let card = |name: &str| format!("NIC{}", cards.iter().position(|its| *its == name).unwrap());
    let told = [
        ("GPU0", "GPU1".into(), "NV1"),
        ("GPU0", "GPU5".into(), "SYS"),
        ("GPU0", card("mlx5_0"), "PIX"),
        ("GPU2", card("mlx5_1"), "PIX"),
        ("GPU4", card("mlx5_2"), "PIX"),
    ];
    for (a, b, expected) in told {
        assert_eq!(kind(&machine, a, &b), expected, "{a}-{b}");
    }
}

// F06
#[test]
fn four_domains_with_the_same_bus_are_four_gpus() {
    let every_eighth =
        |first: usize| (0..10).map(|at| format!("{0}-{0}", first + 8 * at)).collect::<Vec<_>>().join(",");
    let text = table(
        &names(4, &["mlx5_0", "mlx5_1"]),
        &|a, b| match (a.min(b), a.max(b)) {
            (0, 1) | (2, 3) => "NV2".into(),
            (4, 5) => "PIX".into(),
            _ => "SOC".into(),
        },
        &|row| if row < 4 { every_eighth(row / 2 * 80) } else { String::new() },
        "\t",
    );
    let text = text + "\nGPU 0: 0002:01:00.0\nGPU 1: 0003:01:00.0\nGPU 2: 0006:01:00.0\nGPU 3: 0007:01:00.0\n";
    let machine = smi_topo::read(&text).unwrap();
    let addresses: Vec<String> = machine.gpus.iter().map(|gpu| gpu.address.unwrap().to_string()).collect();
    assert_eq!(addresses, ["0002:01:00.0", "0003:01:00.0", "0006:01:00.0", "0007:01:00.0"]);
    let local: Vec<String> = machine.gpus.iter().map(|gpu| gpu.local_cpus.as_ref().unwrap().to_string()).collect();
    assert_eq!(local[1], "0,8,16,24,32,40,48,56,64,72");
    assert_eq!(local[2], "80,88,96,104,112,120,128,136,144,152");
    assert!(machine.gpus.iter().all(|gpu| gpu.local_cpus.as_ref().unwrap().len() == 10));
    let told = [("GPU0", "GPU1", "NV2"), ("GPU2", "GPU3", "NV2"), ("GPU0", "GPU2", "SYS"), ("GPU1", "NIC0", "SYS")];
    for (a, b, expected) in told {
        assert_eq!(kind(&machine, a, b), expected, "{a}-{b}");
    }
    assert_eq!(cpus(&planned(machine, "ranks = 4", &[]).unwrap())[2], "80,88,96,104,112");
}

/// A PCI device with these two ends of its link: generation and lanes now, then at best.
fn bus_device(tree: &Tree, address: &str, above: &[&str], class: &str, now: (&str, &str), best: (&str, &str)) {
    let files = [
        ("class", class),
        ("vendor", "0x10de"),
        ("current_link_speed", now.0),
        ("current_link_width", now.1),
        ("max_link_speed", best.0),
        ("max_link_width", best.1),
    ];
    tree.device(address, above, &files);
}

// F07
#[test]
fn a_stuck_link_is_a_fault_under_load_and_not_judged_otherwise() {
    let tree = Tree::new("f07").cpus(4, 1);
    let (now, best) = (("5.0 GT/s PCIe", "16"), ("32.0 GT/s PCIe", "16"));
    bus_device(&tree, "0000:41:00.0", &[], "0x030200", now, best);
    let mut machine = read_machine(tree.root(), Detail::Full);
    // A copy of the bus that says nothing of drivers: what looks like a GPU is one.
    assert_eq!(machine.gpus.len(), 1);
    let verdict = |machine: &Machine| link::judged(machine)[0].verdict.clone();
    assert_eq!(verdict(&machine), Verdict::SlowAtUnknownLoad);
    let working = |percent| Some(GpuState { busy_percent: Some(percent), ..GpuState::default() });
    machine.gpus[0].state = working(0);
    assert_eq!(verdict(&machine), Verdict::Idle);
    machine.gpus[0].state = working(100);
    assert!(matches!(verdict(&machine), Verdict::Slow { .. }));
    let examined = crate::doctor::Examination { machine, ..Default::default() };
    assert_eq!(crate::doctor::exit_code(&crate::doctor::judge(&examined)), 2);
}

// F08
#[test]
fn ports_are_not_judged_and_devices_by_what_both_ends_can_do() {
    let tree = Tree::new("f08").cpus(4, 1);
    let gen3 = "8.0 GT/s PCIe";
    bus_device(&tree, "0000:00:03.0", &[], "0x060400", (gen3, "8"), (gen3, "16"));
    bus_device(&tree, "0000:03:00.0", &["0000:00:03.0"], "0x010700", (gen3, "8"), (gen3, "8"));
    bus_device(&tree, "0000:00:02.1", &[], "0x060400", (gen3, "4"), (gen3, "8"));
    bus_device(&tree, "0000:01:00.0", &["0000:00:02.1"], "0x010802", (gen3, "4"), (gen3, "4"));
    bus_device(&tree, "0000:00:1c.0", &[], "0x060400", ("2.5 GT/s PCIe", "1"), ("5.0 GT/s PCIe", "1"));
    let machine = read_machine(tree.root(), Detail::Full);
    assert_eq!(machine.devices.iter().filter(|device| device.kind == DeviceKind::Port).count(), 3);
    let judged: Vec<(String, Verdict)> =
        link::judged(&machine).into_iter().map(|its| (its.address.to_string(), its.verdict)).collect();
    let expected = [
        ("0000:00:02.1", Verdict::Port),
        ("0000:00:03.0", Verdict::Port),
        ("0000:00:1c.0", Verdict::Empty),
        ("0000:01:00.0", Verdict::Fine),
        ("0000:03:00.0", Verdict::Fine),
    ];
    assert_eq!(judged, expected.map(|(address, verdict)| (address.to_owned(), verdict)));
    assert_eq!(link::findings(&machine, &[]), []);
}

// F09, F10
#[test]
fn what_a_virtual_function_and_an_old_lspci_do_not_tell_is_not_judged() {
    let text = "d6f5:00:02.0 Ethernet controller: Maker Family [Card Virtual Function] (rev 80)\n\
                \t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM not supported\n\
                \t\tLnkSta:\tSpeed unknown (downgraded), Width x0 (downgraded)\n\
                18:00.0 Infiniband controller: Maker Family [Card]\n\
                \t\tLnkCap:\tPort #0, Speed unknown, Width x16, ASPM not supported\n\
                \t\tLnkSta:\tSpeed 16GT/s, Width x16\n";
    let machine = super::lspci::machine(text);
    let judged = link::judged(&machine);
    let shown: Vec<(String, &Verdict)> = judged.iter().map(|its| (its.address.to_string(), &its.verdict)).collect();
    assert_eq!(shown, [("0000:18:00.0".into(), &Verdict::Unknown), ("d6f5:00:02.0".into(), &Verdict::VirtualFunction)]);
    assert_eq!(link::summary(&judged).unwrap(), "links: 1 not known, 1 virtual function");
    assert_eq!(link::findings(&machine, &[]), []);

    let tree = Tree::new("f10").cpus(4, 1);
    bus_device(&tree, "0000:01:00.0", &[], "0x030200", ("Unknown", "63"), ("Unknown speed", "255"));
    bus_device(&tree, "0000:02:00.0", &[], "0x030200", ("64.0 GT/s PCIe", "16"), ("64.0 GT/s PCIe", "16"));
    let machine = read_machine(tree.root(), Detail::Full);
    assert!(machine.devices[0].link.is_unknown());
    assert_eq!(machine.devices[1].link.shown(), "Gen6 x16");
    assert_eq!(link::judged(&machine)[0].verdict, Verdict::Unknown);
    assert_eq!(crate::doctor::health::of_gpu(&machine, &machine.gpus[0]), None);
}

// F12
#[test]
fn nine_devices_in_two_domains_are_nine() {
    let tree = Tree::new("f12").cpus(4, 1);
    let low = [
        "0000:00:00.0",
        "0000:00:01.0",
        "0000:00:02.0",
        "0000:00:1f.0",
        "0000:00:1f.3",
        "0000:00:1f.4",
        "0000:00:1f.6",
    ];
    for address in ["10000:00:04.0", "10000:00:00.0"].into_iter().chain(low) {
        tree.device(address, &[], &[("class", "0x088000"), ("numa_node", "-1")]);
    }
    let machine = read_machine(tree.root(), Detail::Full);
    let found: Vec<String> = machine.devices.iter().map(|device| device.address.to_string()).collect();
    assert_eq!(found, [&low[..], &["10000:00:00.0", "10000:00:04.0"]].concat());
    // NVML writes eight digits.
    assert!(machine.device("00000000:00:02.0".parse().unwrap()).is_some());
    assert!(machine.device("00010000:00:04.0".parse().unwrap()).is_some());
}
