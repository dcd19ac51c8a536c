//! A device's context: found, or the primary one retained, and bound around calls.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr::null_mut;

use super::sys::{CudaError, Driver, Opaque, Result};

/// A context and its device. Retained for the life of the process where it is the primary one: others may be using
/// it, and releasing the last reference would destroy their memory.
#[derive(Clone, Copy)]
pub struct Context {
    driver: &'static Driver,
    raw: Opaque,
    device: c_int,
}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.raw == other.raw
    }
}

// SAFETY: a context may be made current on any thread; the driver locks for itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Keeps a context current on this thread; the one before is current again afterwards.
pub struct Bound {
    driver: &'static Driver,
    pushed: bool,
    /// What is current is so on one thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = null_mut();
            // SAFETY: `bind` pushed one on this thread (a Bound is not Send), and everything since was popped by its own Bound.
            let _ = unsafe { self.driver.context_pop(&mut popped) };
        }
    }
}

const MULTIPROCESSORS: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

impl Context {
    /// The context that is current on this thread, if one is.
    pub fn current(driver: &'static Driver) -> Result<Option<Context>> {
        let mut raw = null_mut();
        // SAFETY: writes one pointer.
        unsafe { driver.context_current(&mut raw) }?;
        if raw.is_null() {
            return Ok(None);
        }
        let mut device = 0;
        // SAFETY: a context is current.
        unsafe { driver.context_device(&mut device) }?;
        Ok(Some(Context { driver, raw, device }))
    }

    /// The primary context of device `ordinal`, which CUDA's runtime uses, too.
    pub fn primary(driver: &'static Driver, ordinal: u32) -> Result<Context> {
        let (mut device, mut raw) = (0, null_mut());
        // SAFETY: writes one number and one pointer.
        unsafe {
            driver.device_get(&mut device, ordinal as c_int)?;
            driver.primary_retain(&mut raw, device)?;
        }
        Ok(Context { driver, raw, device })
    }

    /// How many devices this process sees.
    pub fn devices(driver: &'static Driver) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one number.
        unsafe { driver.device_count(&mut count) }?;
        Ok(count.max(0) as u32)
    }

    /// Makes it current until the value is dropped. Free where it is current already.
    pub fn bind(&self) -> Result<Bound> {
        let mut current = null_mut();
        // SAFETY: writes one pointer; the context lives as long as the process.
        unsafe {
            self.driver.context_current(&mut current)?;
            if current != self.raw {
                self.driver.context_push(self.raw)?;
            }
        }
        Ok(Bound { driver: self.driver, pushed: current != self.raw, _not_send: PhantomData })
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The device's number in this process.
    pub fn device(&self) -> u32 {
        self.device as u32
    }

    /// Makes another device's memory of this process addressable from here. That it already was is no error.
    pub fn enable_peer(&self, peer: &Context) -> Result<()> {
        const ALREADY_ENABLED: i32 = 704;
        let _bound = self.bind()?;
        // SAFETY: both contexts live as long as the process.
        match unsafe { self.driver.enable_peer(peer.raw, 0) } {
            Err(CudaError::Status { status: ALREADY_ENABLED, .. }) => Ok(()),
            other => other,
        }
    }

    /// Takes that away again, as a program may.
    pub fn disable_peer(&self, peer: &Context) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: both contexts live as long as the process.
        unsafe { self.driver.disable_peer(peer.raw) }
    }

    /// Whether the driver says that this device can write to the memory of that one.
    pub fn can_reach(&self, peer: &Context) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes one number.
        unsafe { self.driver.can_access_peer(&mut can, self.device, peer.device) }?;
        Ok(can != 0)
    }

    /// Where the device sits on the PCI bus, as `00000000:41:00.0` or shorter.
    pub fn pci_address(&self) -> Result<String> {
        let mut name = [0; 32];
        // SAFETY: writes a NUL-terminated text of at most that many bytes.
        unsafe { self.driver.device_pci(name.as_mut_ptr(), name.len() as c_int, self.device) }?;
        // SAFETY: as above.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Waits for all work of the context.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: a context is current.
        unsafe { self.driver.context_synchronize() }
    }

    fn attribute(&self, attribute: c_int) -> Result<u32> {
        let mut value = 0;
        // SAFETY: writes one number.
        unsafe { self.driver.device_attribute(&mut value, attribute, self.device) }?;
        Ok(value.max(0) as u32)
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32> {
        self.attribute(MULTIPROCESSORS)
    }

    /// Compute capability, e.g. (9, 0).
    pub fn capability(&self) -> Result<(u32, u32)> {
        Ok((self.attribute(MAJOR)?, self.attribute(MINOR)?))
    }

    /// Bytes of the device's memory.
    pub fn memory_bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        unsafe { self.driver.device_memory(&mut bytes, self.device) }?;
        Ok(bytes)
    }

    /// What tells the device from all others, in any process.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        // SAFETY: writes 16 bytes.
        unsafe { self.driver.device_uuid(&mut uuid, self.device) }?;
        Ok(uuid)
    }

    /// The same of device `ordinal`, of which no context is needed.
    pub fn uuid_of(driver: &Driver, ordinal: u32) -> Result<[u8; 16]> {
        let (mut device, mut uuid) = (0, [0; 16]);
        // SAFETY: writes one number and 16 bytes.
        unsafe {
            driver.device_get(&mut device, ordinal as c_int)?;
            driver.device_uuid(&mut uuid, device)?;
        }
        Ok(uuid)
    }

    /// The device's name.
    pub fn name(&self) -> Result<String> {
        let mut name = [0; 128];
        // SAFETY: writes a NUL-terminated text of at most that many bytes.
        unsafe { self.driver.device_name(name.as_mut_ptr(), name.len() as c_int, self.device) }?;
        // SAFETY: as above.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }
}
