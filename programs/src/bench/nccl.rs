//! NCCL as a rival: loaded at run time, where it is.
#![expect(unsafe_code, reason = "calls a C library")]

use std::ffi::{c_int, c_void};

use anyhow::{Context as _, bail};
use comm::{Comm, DataType, Op};
use libloading::Library;

type Raw = *mut c_void;
type Broadcast = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;
type AllReduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;

/// A communicator of NCCL's over the same ranks.
pub struct Nccl {
    /// Never unloaded: its threads run on.
    library: &'static Library,
    comm: Raw,
    all_reduce: AllReduce,
    broadcast: Broadcast,
    /// As ncclGetVersion gives it.
    pub version: c_int,
}

const SYMMETRIC: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

impl Nccl {
    /// Loads the library: `NCCL_LIBRARY`, or `libnccl.so.2`.
    pub fn find() -> anyhow::Result<Library> {
        let name = std::env::var("NCCL_LIBRARY").unwrap_or_else(|_| "libnccl.so.2".to_owned());
        // SAFETY: NCCL may be loaded into any process.
        let loaded = unsafe { Library::new(&name) };
        loaded.with_context(|| format!("cannot load NCCL as {name}; NCCL_LIBRARY names another file"))
    }

    /// Loads it and joins all ranks.
    pub fn init(comm: &Comm) -> anyhow::Result<Nccl> {
        let loaded = Nccl::find();
        let mut all = [u8::from(loaded.is_ok())];
        comm.all_reduce_in_place(&mut all, Op::Min)?;
        let library = loaded?;
        if all == [0] {
            bail!("another rank cannot load NCCL");
        }
        let library: &'static Library = Box::leak(Box::new(library));
        let mut id = UniqueId([0; 128]);
        let (mut raw, mut version) = (std::ptr::null_mut(), 0);
        // SAFETY: the documented signatures, and values that live as long as the calls.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = function(library, "ncclGetVersion")?;
            check("ncclGetVersion", get_version(&mut version))?;
            if comm.rank() == 0 {
                let get: unsafe extern "C" fn(*mut UniqueId) -> c_int = function(library, "ncclGetUniqueId")?;
                check("ncclGetUniqueId", get(&mut id))?;
            }
            comm.broadcast(&mut id.0, 0)?;
            let init: unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int) -> c_int =
                function(library, "ncclCommInitRank")?;
            check("ncclCommInitRank", init(&mut raw, comm.size() as c_int, id, comm.rank() as c_int))?;
            let (all_reduce, broadcast) = (function(library, "ncclAllReduce")?, function(library, "ncclBroadcast")?);
            Ok(Nccl { library, comm: raw, all_reduce, broadcast, version })
        }
    }

    /// Puts an AllReduce into the stream.
    ///
    /// # Safety
    /// Device addresses that are valid for so many elements until the stream is through.
    pub unsafe fn all_reduce(&self, send: u64, recv: u64, count: usize, kind: Kind, stream: Raw) -> anyhow::Result<()> {
        // SAFETY: the caller's; the communicator lives.
        let status = unsafe { (self.all_reduce)(send, recv, count, kind.data_type, kind.op, self.comm, stream) };
        check("ncclAllReduce", status)
    }

    /// Puts a broadcast into the stream.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn broadcast(
        &self,
        buffer: u64,
        count: usize,
        kind: Kind,
        root: u32,
        stream: Raw,
    ) -> anyhow::Result<()> {
        // SAFETY: the caller's; the communicator lives.
        let status =
            unsafe { (self.broadcast)(buffer, buffer, count, kind.data_type, root as c_int, self.comm, stream) };
        check("ncclBroadcast", status)
    }

    /// Memory that it can register, registered as a symmetric window. It stays until the process ends.
    pub fn window(&self, bytes: usize) -> anyhow::Result<u64> {
        let (mut address, mut window) = (0u64, std::ptr::null_mut());
        // SAFETY: the documented signatures.
        unsafe {
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = function(self.library, "ncclMemAlloc")?;
            check("ncclMemAlloc", allocate(&mut address, bytes))?;
            let register: unsafe extern "C" fn(Raw, u64, usize, *mut Raw, c_int) -> c_int =
                function(self.library, "ncclCommWindowRegister")?;
            check("ncclCommWindowRegister", register(self.comm, address, bytes, &mut window, SYMMETRIC))?;
        }
        Ok(address)
    }

    /// `2.28.9`.
    pub fn version_text(&self) -> String {
        format!("{}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }
}

/// NCCL's numbers for a type and an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    data_type: c_int,
    op: c_int,
}

impl Kind {
    /// An error where NCCL has none.
    pub fn of(data_type: DataType, op: Op) -> anyhow::Result<Kind> {
        let data_type = match data_type {
            DataType::I8 => 0,
            DataType::U8 => 1,
            DataType::I32 => 2,
            DataType::U32 => 3,
            DataType::I64 => 4,
            DataType::U64 => 5,
            DataType::F16 => 6,
            DataType::F32 => 7,
            DataType::F64 => 8,
            DataType::BF16 => 9,
            DataType::E4M3 => 10,
            DataType::E5M2 => 11,
            DataType::I16 | DataType::U16 => bail!("NCCL has no type {data_type}"),
        };
        let op = match op {
            Op::Sum => 0,
            Op::Prod => 1,
            Op::Max => 2,
            Op::Min => 3,
            Op::Avg => 4,
            _ => bail!("NCCL has no operation {op}"),
        };
        Ok(Kind { data_type, op })
    }
}

unsafe fn function<F: Copy>(library: &Library, name: &str) -> anyhow::Result<F> {
    // SAFETY: the caller's signature.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol).with_context(|| format!("NCCL has no {name}"))
}

fn check(call: &str, status: c_int) -> anyhow::Result<()> {
    if status != 0 {
        bail!("{call}: status {status}");
    }
    Ok(())
}
