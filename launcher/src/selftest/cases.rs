//! The cases, and how the job of each is started. What a rank does in it is in the crate `programs`.

/// A case: one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// As `--only` names it.
    pub name: &'static str,
    /// What it tries.
    pub tries: &'static str,
    /// GPUs without which it is skipped.
    pub gpus: usize,
    /// Ranks of the job.
    pub ranks: u32,
    /// The word for the rank program.
    pub word: &'static str,
    /// Further options of the job.
    pub options: &'static [&'static str],
    /// Whether the job is to end with 0; otherwise a rank is to fail, and what the ranks say decides.
    pub ends_well: bool,
    /// Seconds after which it hangs.
    pub limit_s: u64,
    /// Jobs that are started after it, one after the other, and whose starts are compared.
    pub starts: u32,
}

const fn host(name: &'static str, ranks: u32, word: &'static str, tries: &'static str) -> Case {
    let options: &[&str] = &["--map-by", "none"];
    Case { name, tries, gpus: 0, ranks, word, options, ends_well: true, limit_s: 120, starts: 0 }
}

const fn pair(name: &'static str, word: &'static str, tries: &'static str) -> Case {
    Case { name, tries, gpus: 2, ranks: 2, word, options: &[], ends_well: true, limit_s: 60, starts: 0 }
}

const fn killed(name: &'static str, options: &'static [&'static str], tries: &'static str) -> Case {
    Case { options, ends_well: false, limit_s: 30, ..pair(name, "killed", tries) }
}

const fn damaged(name: &'static str, options: &'static [&'static str], tries: &'static str) -> Case {
    Case { options, ends_well: false, limit_s: 30, ..pair(name, "damaged", tries) }
}

const fn one_gpu(name: &'static str, ranks: u32, tries: &'static str) -> Case {
    Case { gpus: 1, ranks, options: &["--share-gpus", "--gpus", "0"], ..pair(name, "pair", tries) }
}

/// Whose ranks are threads of one process, each with queues of its own on the GPU.
const fn in_threads(name: &'static str, tries: &'static str) -> Case {
    let options: &[&str] = &["-x", "CUDA_DEVICE_MAX_CONNECTIONS=32"];
    Case { gpus: 1, ranks: 1, options, limit_s: 120, ..pair(name, name, tries) }
}

/// All cases, in the order in which they run.
pub const CASES: [Case; 37] = [
    host("host-2", 2, "host", "every collective, type and operation in host memory"),
    host("host-5", 5, "host", "the same"),
    Case {
        options: &["--map-by", "none", "--verify"],
        ..host("host-verify", 2, "host", "the same, every transfer verified")
    },
    Case { ends_well: false, ..host("host-mismatch", 3, "host-mismatch", "ranks that call different things") },
    Case { ends_well: false, ..host("host-killed", 3, "host-killed", "a rank killed in the middle of calls") },
    Case { limit_s: 120, ..pair("pair", "pair", "two GPUs: types, operations, paths, lengths, graphs, streams") },
    Case { ends_well: false, limit_s: 20, ..pair("mismatch", "mismatch", "ranks that call different things") },
    killed("killed", &[], "a rank killed in the middle of calls"),
    killed("killed-copy", &["-x", "PRUN_PROTO=copy"], "a rank killed while the copy engine moves the data"),
    killed("killed-ring", &["-x", "PRUN_PROTO=ring"], "a rank killed while data goes around a ring"),
    killed(
        "killed-zero",
        &["-x", "PRUN_PROTO=zero-copy"],
        "a rank killed while results go straight into the peer's memory",
    ),
    killed("killed-host", &["-x", "PRUN_P2P=off"], "a rank killed while data goes through the host"),
    Case {
        ends_well: false,
        limit_s: 20,
        ..pair("mismatch-graph", "mismatch-graph", "ranks that replay different graphs")
    },
    Case {
        ends_well: false,
        limit_s: 30,
        ..pair("killed-graph", "killed-graph", "a rank killed in the middle of replays")
    },
    Case { starts: 20, ..killed("restart", &[], "memory and starts after a rank was killed") },
    Case { limit_s: 20, ..pair("late", "late", "a rank that comes two seconds late") },
    Case { options: &["--verify"], limit_s: 120, ..pair("verify", "pair", "the case pair, every transfer verified") },
    Case { options: &["-x", "PRUN_P2P=off"], ..pair("p2p-off", "pair", "data through the host") },
    Case {
        options: &["-x", "PRUN_FAULT=refuse:rank=1"],
        ..pair("refused", "refused", "a rank that cannot map its peer")
    },
    Case { limit_s: 120, ..pair("peer-access", "peer-access", "peer access enabled before, joined twice, taken away") },
    damaged(
        "flipped",
        &["--verify", "-x", "PRUN_FAULT=flip:rank=1,call=3,chunk=17,bit=8000"],
        "a bit flipped on its way",
    ),
    damaged(
        "dropped",
        &["--verify", "-x", "PRUN_FAULT=drop:rank=0,call=3,chunk=17", "-x", "PRUN_COMM_TIMEOUT_MS=2000"],
        "data lost on its way",
    ),
    damaged(
        "result",
        &["--verify", "-x", "PRUN_FAULT=flip:rank=0,call=3,chunk=2,bit=5,stage=result"],
        "a result changed where it lies",
    ),
    Case {
        options: &["-x", "PRUN_PROTO=nccl"],
        ends_well: false,
        ..pair("killed-nccl", "killed-nccl", "a rank killed in the middle of calls that NCCL does")
    },
    Case { ends_well: false, ..pair("stale", "stale", "a graph replayed after its memory was deregistered") },
    Case { gpus: 4, ranks: 4, limit_s: 120, ..pair("four", "pair", "four GPUs: the same") },
    Case { ranks: 4, options: &["--share-gpus"], ..pair("four-on-two", "pair", "two ranks on each GPU") },
    one_gpu("one-gpu", 2, "two ranks on one GPU"),
    one_gpu("one-gpu-3", 3, "three ranks on one GPU"),
    one_gpu("one-gpu-4", 4, "four ranks on one GPU"),
    one_gpu("one-gpu-5", 5, "five ranks on one GPU"),
    one_gpu("one-gpu-6", 6, "six ranks on one GPU"),
    one_gpu("one-gpu-7", 7, "seven ranks on one GPU"),
    one_gpu("one-gpu-8", 8, "eight ranks on one GPU"),
    in_threads("virtual", "two to eight ranks in one process on one GPU"),
    in_threads("faults", "data damaged on purpose is found, a late rank harms nothing"),
    in_threads("mismatches", "calls that differ, on every path"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_no_case_waits_for_ever() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.iter().all(|case| case.limit_s > 0 && case.ranks > 0));
    }

    #[test]
    fn ranks_know_every_word() {
        let unknown: Vec<_> = CASES.iter().filter(|case| !programs::selftest::is_case(case.word)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
