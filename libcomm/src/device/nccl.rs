//! NCCL as a way for the data, where it is asked for (`PRUN_PROTO=nccl`): loaded at run time, never linked.
//!
//! Its kernels watch no abort word of ours, and wait for a dead peer for ever: `watched.rs` ends the communicator then, and
//! them with it. A call that is inside NCCL at that time is not cut short, and of a peer that has left in order, or dropped its
//! communicator and ended well, nobody tells the kernels that wait for it.

use std::ffi::{c_int, c_void};

use libloading::Library;

use super::DeviceCall;
use super::broadcast::BroadcastCall;
use crate::types::{DataType, Op};

type Raw = *mut c_void;
type AllReduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;
type Broadcast = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;

/// What NCCL's ranks find each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(crate) const BYTES: usize = 128;
}

/// The library, for the life of the process: its threads run on.
#[derive(Clone, Copy)]
pub(crate) struct Nccl {
    library: &'static Library,
}

/// A communicator of NCCL's over the same ranks; aborted when dropped.
pub(super) struct NcclComm {
    nccl: Nccl,
    comm: Raw,
    all_reduce: AllReduce,
    broadcast: Broadcast,
}

// SAFETY: NCCL lets any thread use a communicator, one at a time, as its lock does (`watched.rs`).
unsafe impl Send for NcclComm {}

impl Nccl {
    /// Loads it: the file that `NCCL_LIBRARY` names, or the one that the system finds.
    pub(crate) fn load() -> Result<Nccl, String> {
        let name = std::env::var("NCCL_LIBRARY").unwrap_or_else(|_| "libnccl.so.2".to_owned());
        // SAFETY: NCCL may be loaded into any process.
        let library = unsafe { Library::new(&name) }.map_err(|error| format!("cannot load NCCL: {error}"))?;
        Ok(Nccl { library: Box::leak(Box::new(library)) })
    }

    /// # Safety
    /// `F` is the type of that function.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: the caller's.
        unsafe { self.library.get::<F>(name.as_bytes()) }
            .map(|symbol| *symbol)
            .map_err(|_| format!("NCCL has no {name}"))
    }

    /// What one rank makes and all get.
    pub(crate) fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the documented signature.
        let get: unsafe extern "C" fn(*mut UniqueId) -> c_int = unsafe { self.function("ncclGetUniqueId") }?;
        // SAFETY: writes the id.
        success("ncclGetUniqueId", unsafe { get(&mut id) }).map(|()| id)
    }

    /// Joins all ranks, together with them; the current context's device is this rank's.
    pub(super) fn join(self, id: UniqueId, rank: u32, size: u32) -> Result<NcclComm, String> {
        type Init = unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int) -> c_int;
        let mut comm = std::ptr::null_mut();
        // SAFETY: the documented signatures.
        let (init, all_reduce, broadcast) = unsafe {
            let init = self.function::<Init>("ncclCommInitRank")?;
            (init, self.function("ncclAllReduce")?, self.function("ncclBroadcast")?)
        };
        // SAFETY: writes one pointer.
        success("ncclCommInitRank", unsafe { init(&mut comm, size as c_int, id, rank as c_int) })?;
        Ok(NcclComm { nccl: self, comm, all_reduce, broadcast })
    }
}

impl NcclComm {
    /// Puts one AllReduce into its stream.
    pub(super) fn all_reduce(&self, call: &DeviceCall) -> Result<(), String> {
        let DeviceCall { send, recv, count, data_type, op, stream, .. } = *call;
        let numbers = data_type_number(data_type).zip(op_number(op));
        let (data_type, op) = numbers.ok_or_else(|| format!("NCCL has no {op} of {data_type}"))?;
        // SAFETY: the caller's buffers, and a live communicator.
        success("ncclAllReduce", unsafe {
            (self.all_reduce)(send, recv, count as usize, data_type, op, self.comm, stream.raw())
        })
    }

    /// Puts one broadcast into its stream, as bytes.
    pub(super) fn broadcast(&self, call: &BroadcastCall) -> Result<(), String> {
        const BYTES: c_int = 1;
        let BroadcastCall { buffer, bytes, root, stream, .. } = *call;
        // SAFETY: the caller's buffer, and a live communicator.
        success("ncclBroadcast", unsafe {
            (self.broadcast)(buffer, buffer, bytes as usize, BYTES, root as c_int, self.comm, stream.raw())
        })
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        // SAFETY: the documented signature, and a communicator that nobody uses any more. Aborting waits for no peer.
        unsafe {
            if let Ok(abort) = self.nccl.function::<unsafe extern "C" fn(Raw) -> c_int>("ncclCommAbort") {
                abort(self.comm);
            }
        }
    }
}

fn success(call: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{call}: status {status}")),
    }
}

/// How NCCL numbers types.
fn data_type_number(data_type: DataType) -> Option<c_int> {
    use DataType::*;
    Some(match data_type {
        I8 => 0,
        U8 => 1,
        I32 => 2,
        U32 => 3,
        I64 => 4,
        U64 => 5,
        F16 => 6,
        F32 => 7,
        F64 => 8,
        BF16 => 9,
        _ => return None,
    })
}

/// How it numbers operations.
fn op_number(op: Op) -> Option<c_int> {
    Some(match op {
        Op::Sum => 0,
        Op::Prod => 1,
        Op::Max => 2,
        Op::Min => 3,
        Op::Avg => 4,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_gpus_reduce_has_a_number_of_its_own() {
        let mut types: Vec<c_int> = DataType::ON_DEVICE.into_iter().filter_map(data_type_number).collect();
        types.sort_unstable();
        assert_eq!(types, (0..10).collect::<Vec<_>>());
        let mut ops: Vec<c_int> = Op::ALL.into_iter().filter_map(op_number).collect();
        ops.sort_unstable();
        assert_eq!(ops, (0..5).collect::<Vec<_>>());
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error() {
        // Where NCCL is installed, it loads.
        if let Err(error) = Nccl::load() {
            assert!(error.starts_with("cannot load NCCL: "), "{error}");
        }
    }
}
