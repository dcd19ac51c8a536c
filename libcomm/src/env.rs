//! Every environment variable that libcomm reads, in one place.
//!
//! The launcher writes them through the same constants, so that the two sides cannot drift apart.

use crate::error::CommError;

/// This rank's number among all ranks of the job, from 0.
pub const RANK: &str = "PRUN_RANK";
/// How many ranks the job has: the world size.
pub const SIZE: &str = "PRUN_SIZE";
/// This rank's number among the ranks of its node, from 0.
pub const LOCAL_RANK: &str = "PRUN_LOCAL_RANK";
/// How many ranks of the job run on this node.
pub const LOCAL_SIZE: &str = "PRUN_LOCAL_SIZE";
/// The number of this node in the job, from 0.
pub const NODE: &str = "PRUN_NODE";
/// The job's id; the segment carries it too, and a program compares the two before it trusts a descriptor.
pub const JOB_ID: &str = "PRUN_JOB_ID";
/// The number of the inherited descriptor of the job's segment.
pub const SEGMENT_FD: &str = "PRUN_SEGMENT_FD";
/// The abstract socket, without its leading NUL, from which a program gets the segment when the
/// descriptor was closed on the way or its number was reused.
pub const SOCKET: &str = "PRUN_SOCKET";
/// What is checked: `off`; `probe`, paths between GPUs at the first call; `every`, each transfer and each result against the
/// other ranks'; `full`, results recomputed too.
pub const VERIFY: &str = "PRUN_VERIFY";
/// How often this job was started again after a failure.
pub const RESTART_COUNT: &str = "PRUN_RESTART_COUNT";
/// How many CPUs the ranks of this node may use together; optional, libcomm finds out by itself.
pub const USABLE_CPUS: &str = "PRUN_USABLE_CPUS";
/// The longest that a call may wait for its peers, in milliseconds; unset means as long as they live.
pub const TIMEOUT_MS: &str = "PRUN_COMM_TIMEOUT_MS";
/// The position of this rank's GPU among those that it sees (`CUDA_VISIBLE_DEVICES`); unset without a GPU of its own.
pub const GPU: &str = "PRUN_GPU";
/// How many ranks of this node have the same GPU, where that is more than one.
pub const RANKS_PER_GPU: &str = "PRUN_RANKS_PER_GPU";
/// Local ranks in the order in which data should go round: `0,1,3,2`.
pub const RING: &str = "PRUN_RING";
/// Health of the worst link between the GPUs of the job, from 0 to 100, where it is known: libcomm sends smaller chunks
/// over a link below 60.
pub const LINK_HEALTH: &str = "PRUN_LINK_HEALTH";

/// Variables by which a launcher tells each rank who and where it is. Nobody sets them by hand, and those of an outer
/// job are of no use to an inner one.
pub const OF_LAUNCHER: [&str; 13] = [
    RANK,
    SIZE,
    LOCAL_RANK,
    LOCAL_SIZE,
    NODE,
    JOB_ID,
    RESTART_COUNT,
    SEGMENT_FD,
    SOCKET,
    GPU,
    RANKS_PER_GPU,
    RING,
    LINK_HEALTH,
];

/// Forces the algorithm of an AllReduce: `one_shot`, `two_shot`, `ring`, `chain`, `hierarchical` (by the machine's caches,
/// nodes or packages) or `hierarchical:N` (groups of N ranks).
pub const ALGO: &str = "PRUN_ALGO";
/// `invariant`: an AllReduce has the same bits whatever its algorithm, size and place in memory are, as if reduced in the
/// order of the ranks with one rounding. A forced ring is not used by three ranks and more then.
pub const REPRODUCIBLE: &str = "PRUN_REPRODUCIBLE";
/// Forces how data travels: on the host `ll` (in the posts) or `simple` (through slots), between GPUs `ll`, `push`, `copy`,
/// `ring`, `zero-copy` (into memory that is registered), `staged` or `nccl`. What the one does not know is the other's; where
/// one cannot take a message, the next that can does.
pub const PROTO: &str = "PRUN_PROTO";
/// Whether GPUs may write to each other's memory: `on`, or `off` to go through the host.
pub const P2P: &str = "PRUN_P2P";
/// A file to which `comm_report` adds a line for each figure; unset, figures are dropped.
pub const REPORT_FILE: &str = "PRUN_REPORT_FILE";
/// Test hook: damages one bit on purpose, to prove that verification finds it. See the module `fault`.
pub const FAULT: &str = "PRUN_FAULT";

/// The text of a variable, `None` where it is unset or empty.
pub(crate) fn text(name: &'static str) -> Option<String> {
    let value = std::env::var_os(name)?;
    let value = value.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

/// A variable as a number, `None` where it is unset or empty.
pub(crate) fn number(name: &'static str) -> Result<Option<u64>, CommError> {
    let Some(value) = text(name) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(CommError::Environment { name, value, wanted: "a whole number" }),
    }
}

/// A variable as a 32-bit number that must be there.
pub(crate) fn required(name: &'static str) -> Result<u32, CommError> {
    let number = number(name)?.ok_or(CommError::MissingVariable { name })?;
    u32::try_from(number).map_err(|_| CommError::Environment {
        name,
        value: number.to_string(),
        wanted: "a number below 2^32",
    })
}
