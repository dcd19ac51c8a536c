//! NCCL as a rival: loaded at run time, where it is.

use anyhow::{Context as _, bail};
use comm::Comm;
use libloading::Library;
use std::ffi::{c_int, c_void};

type Raw = *mut c_void;

/// A communicator of NCCL's over the same ranks.
pub struct Nccl {
    /// Never unloaded: its threads run on.
    library: &'static Library,
    comm: Raw,
    pub version: c_int,
}

const FLOAT: c_int = 7;
const SUM: c_int = 0;
const SYMMETRIC: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

impl Nccl {
    /// Loads the library and joins all ranks; `None` where one of them has none.
    pub fn init(comm: &Comm) -> anyhow::Result<Option<Nccl>> {
        let name = std::env::var("NCCL_LIBRARY").unwrap_or_else(|_| "libnccl.so.2".to_owned());
        // SAFETY: NCCL may be loaded into any process.
        let library = unsafe { Library::new(&name) };
        let mut all = [u8::from(library.is_ok())];
        comm.all_reduce_in_place(&mut all, comm::Op::Min)?;
        let (Ok(library), [1]) = (library, all) else { return Ok(None) };
        let library = Box::leak(Box::new(library));
        let mut nccl = Nccl { library, comm: std::ptr::null_mut(), version: 0 };
        let mut id = UniqueId([0; 128]);
        // SAFETY: the documented signatures.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int) -> c_int = nccl.function("ncclGetVersion")?;
            version(&mut nccl.version);
            if comm.rank() == 0 {
                let get: unsafe extern "C" fn(*mut UniqueId) -> c_int = nccl.function("ncclGetUniqueId")?;
                nccl.check("ncclGetUniqueId", get(&mut id))?;
            }
            comm.broadcast(&mut id.0, 0)?;
            let init: unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int) -> c_int =
                nccl.function("ncclCommInitRank")?;
            let status = init(&mut nccl.comm, comm.size() as c_int, id, comm.rank() as c_int);
            nccl.check("ncclCommInitRank", status)?;
        }
        Ok(Some(nccl))
    }

    unsafe fn function<F: Copy>(&self, name: &str) -> anyhow::Result<F> {
        // SAFETY: the caller's signature.
        unsafe { self.library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol).with_context(|| name.to_owned())
    }

    fn check(&self, call: &str, status: c_int) -> anyhow::Result<()> {
        if status != 0 {
            bail!("{call}: {status}");
        }
        Ok(())
    }

    /// The f32 sum. The function is looked up once.
    pub fn all_reduce(&self) -> anyhow::Result<impl Fn(u64, u64, usize, Raw) + Clone + use<>> {
        type AllReduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;
        // SAFETY: the documented signature.
        let function: AllReduce = unsafe { self.function("ncclAllReduce") }?;
        let comm = self.comm as usize;
        // SAFETY: the buffers of the benchmark, and a live communicator.
        Ok(move |send, recv, count, stream| unsafe {
            assert_eq!(function(send, recv, count, FLOAT, SUM, comm as Raw, stream), 0, "ncclAllReduce");
        })
    }

    /// Memory that it can register, registered as a symmetric window.
    pub fn window(&self, bytes: usize) -> anyhow::Result<u64> {
        let (mut address, mut window) = (0u64, std::ptr::null_mut());
        // SAFETY: the documented signatures.
        unsafe {
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = self.function("ncclMemAlloc")?;
            self.check("ncclMemAlloc", allocate(&mut address, bytes))?;
            let register: unsafe extern "C" fn(Raw, u64, usize, *mut Raw, c_int) -> c_int =
                self.function("ncclCommWindowRegister")?;
            self.check("ncclCommWindowRegister", register(self.comm, address, bytes, &mut window, SYMMETRIC))?;
        }
        Ok(address)
    }
}
