//! Device memory of other processes.

use super::Address;
use super::context::Context;
use super::memory::DeviceBuffer;
use super::sys::{IpcHandle, Result};

/// What another process needs to map a buffer: made from it, valid while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub [u8; 64]);

impl Handle {
    /// The handle of a buffer.
    pub fn of(buffer: &DeviceBuffer) -> Result<Handle> {
        Handle::of_allocation(buffer.context(), buffer.address())
    }

    /// The handle of the allocation that begins there, whoever owns it; memory of some kinds has none.
    pub fn of_allocation(context: Context, base: Address) -> Result<Handle> {
        let _bound = context.bind()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes 64 bytes; an address that is none of an allocation is refused.
        unsafe { context.driver().ipc_handle(&mut handle, base) }?;
        Ok(Handle(handle.0))
    }
}

/// A buffer of another process, mapped here.
pub struct PeerBuffer {
    context: Context,
    address: Address,
}

impl PeerBuffer {
    const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

    /// Maps it.
    pub fn open(context: Context, handle: Handle) -> Result<PeerBuffer> {
        let _bound = context.bind()?;
        let mut address = 0;
        // SAFETY: writes one address; a handle that is none is refused.
        unsafe { context.driver().ipc_open(&mut address, IpcHandle(handle.0), PeerBuffer::LAZY_ENABLE_PEER_ACCESS) }?;
        Ok(PeerBuffer { context, address })
    }

    /// Where it is seen.
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for PeerBuffer {
    fn drop(&mut self) {
        let _bound = self.context.bind(); // Drop may run on a thread that has no CUDA context
        // SAFETY: `open` got this address, nothing else closes it, and whoever used it has waited for that use.
        // The owner frees only after the barrier that follows all closes.
        let _ = unsafe { self.context.driver().ipc_close(self.address) };
    }
}
