//! Memory of the device, memory of the host that the device sees, and what an address is.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use kernels::args::{Args, Fault};

use super::Address;
use super::context::Context;
use super::stream::StreamRef;
use super::sys::{Driver, Result};
use crate::element::Element;

/// What may be copied byte by byte from and to a device.
///
/// # Safety
/// Any bytes are a value, and every byte of a value is written: it has no padding.
pub unsafe trait Plain: Copy {}

// SAFETY: a number each. No other crate can add one, since it cannot name what an element must be able to do.
unsafe impl<T: Element> Plain for T {}
// SAFETY: addresses and numbers without a gap: 24 words of eight bytes, 7 of four, 4 bytes, and 2 of eight.
unsafe impl Plain for Args {}
// SAFETY: 2 numbers of four bytes and 3 of eight.
unsafe impl Plain for Fault {}

const _: () = assert!(size_of::<Args>() == 26 * 8 + 7 * 4 + 4 && size_of::<Fault>() == 2 * 4 + 3 * 8);

/// Device memory that this value owns.
pub struct DeviceBuffer {
    context: Context,
    address: Address,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates; what it holds is undefined.
    pub fn new(context: Context, bytes: usize) -> Result<DeviceBuffer> {
        let _bound = context.bind()?;
        let mut address = 0;
        // SAFETY: writes one address.
        unsafe { context.driver().memory_allocate(&mut address, bytes) }?;
        Ok(DeviceBuffer { context, address, bytes })
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its context.
    pub fn context(&self) -> Context {
        self.context
    }

    fn has(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Sets bytes and waits for it.
    pub fn fill(&self, at: usize, bytes: usize, value: u8) -> Result<()> {
        assert!(self.has(at, bytes));
        let _bound = self.context.bind()?;
        // SAFETY: inside the buffer.
        unsafe { self.context.driver().memory_set(self.address + at as u64, value, bytes) }?;
        self.wait()
    }

    /// Sets whole words of four bytes and waits for it.
    pub fn fill_words(&self, at: usize, bytes: usize, value: u32) -> Result<()> {
        assert!(self.has(at, bytes) && at.is_multiple_of(4) && bytes.is_multiple_of(4));
        let _bound = self.context.bind()?;
        // SAFETY: inside the buffer.
        unsafe { self.context.driver().memory_set_words(self.address + at as u64, value, bytes / 4) }?;
        self.wait()
    }

    /// Copies to the device and waits for it.
    pub fn write<T: Plain>(&self, at: usize, data: &[T]) -> Result<()> {
        assert!(self.has(at, size_of_val(data)));
        let _bound = self.context.bind()?;
        // SAFETY: both sides are that long.
        unsafe {
            self.context.driver().copy_to_device(self.address + at as u64, data.as_ptr().cast(), size_of_val(data))
        }?;
        self.wait()
    }

    /// Waits for the default stream, in which these calls are, and not for the context: in another stream a kernel
    /// may be waiting for what is done next here.
    fn wait(&self) -> Result<()> {
        StreamRef::DEFAULT.synchronize(self.context.driver())
    }

    /// Copies to the host and waits for it.
    pub fn read<T: Plain>(&self, at: usize, data: &mut [T]) -> Result<()> {
        assert!(self.has(at, size_of_val(data)));
        let _bound = self.context.bind()?;
        // SAFETY: both sides are that long, and any bytes are a T.
        unsafe {
            self.context.driver().copy_to_host(data.as_mut_ptr().cast(), self.address + at as u64, size_of_val(data))
        }
    }

    /// Gives it up without freeing it: a peer that may still write to it is no longer asked.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let _bound = self.context.bind(); // Drop may run on a thread that has no CUDA context
        // SAFETY: `new` got it and nothing else frees it; whoever used it has waited for that use.
        let _ = unsafe { self.context.driver().memory_free(self.address) };
    }
}

/// Pinned memory of the host, all zero at first, that the device sees.
pub struct HostBuffer {
    context: Context,
    host: *mut c_void,
    device: Address,
    bytes: usize,
}

// SAFETY: plain memory that this value owns; whoever looks at it while the device writes does so volatile.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    const PORTABLE_AND_MAPPED: u32 = 1 | 2;

    /// Allocates.
    pub fn new(context: Context, bytes: usize) -> Result<HostBuffer> {
        let _bound = context.bind()?;
        let driver = context.driver();
        let (mut host, mut device) = (null_mut(), 0);
        // SAFETY: writes one pointer.
        unsafe { driver.host_allocate(&mut host, bytes, HostBuffer::PORTABLE_AND_MAPPED) }?;
        // SAFETY: just allocated, that long.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        // SAFETY: mapped, by its flags.
        if let Err(error) = unsafe { driver.host_device_pointer(&mut device, host, 0) } {
            // SAFETY: just allocated and known to nobody.
            let _ = unsafe { driver.host_free(host) };
            return Err(error);
        }
        Ok(HostBuffer { context, host, device, bytes })
    }

    /// Where the host sees it.
    pub fn host(&self) -> *mut c_void {
        self.host
    }

    /// Where the device sees it.
    pub fn device(&self) -> Address {
        self.device
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it all zero again. No kernel writes to it meanwhile.
    pub fn clear(&mut self) {
        // SAFETY: ours, that long.
        unsafe { self.host.cast::<u8>().write_bytes(0, self.bytes) };
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: `new` got it and nothing else frees it; whoever used it has waited for that use.
        let _ = unsafe { self.context.driver().host_free(self.host) };
    }
}

/// Memory of the host that somebody else owns, made visible to the device.
pub struct Registered {
    context: Context,
    host: *mut c_void,
    device: Address,
}

// SAFETY: as for HostBuffer.
unsafe impl Send for Registered {}

impl Registered {
    /// Registers `bytes` bytes at `host`.
    ///
    /// # Safety
    /// They are mapped, whole pages, and stay so for as long as this value lives.
    pub unsafe fn new(context: Context, host: *mut c_void, bytes: usize) -> Result<Registered> {
        let _bound = context.bind()?;
        let driver = context.driver();
        // SAFETY: the caller's.
        unsafe { driver.host_register(host, bytes, HostBuffer::PORTABLE_AND_MAPPED) }?;
        let mut registered = Registered { context, host, device: 0 };
        // SAFETY: just registered as mapped.
        unsafe { driver.host_device_pointer(&mut registered.device, host, 0) }?;
        Ok(registered)
    }

    /// Where the device sees it.
    pub fn device(&self) -> Address {
        self.device
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: `new` registered it.
        let _ = unsafe { self.context.driver().host_unregister(self.host) };
    }
}

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Memory that CUDA does not know.
    Host,
    /// Memory of the host that the device sees.
    Pinned,
    /// Memory that moves between host and device.
    Managed,
    /// Memory of this device.
    Device(u32),
}

const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const BUFFER_ID: c_int = 7;

impl PointerKind {
    /// Finds out. That CUDA does not know an address is an answer here, and no error that the driver would note.
    pub fn of(driver: &Driver, address: Address) -> Result<PointerKind> {
        let (mut memory_type, mut managed, mut device) = (0u32, 0u32, 0u32);
        let mut attributes = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL];
        let mut values = [(&raw mut memory_type).cast(), (&raw mut managed).cast(), (&raw mut device).cast()];
        // SAFETY: each of these attributes is a number of four bytes, or fewer.
        unsafe { driver.pointer_attributes(3, attributes.as_mut_ptr(), values.as_mut_ptr(), address) }?;
        Ok(match memory_type {
            0 => PointerKind::Host,
            _ if managed & 0xff != 0 => PointerKind::Managed,
            2 => PointerKind::Device(device),
            _ => PointerKind::Pinned,
        })
    }

    /// The number of the allocation that an address lies in, never given out twice in a process.
    pub fn allocation_id(driver: &Driver, address: Address) -> Result<u64> {
        let mut id = 0u64;
        // SAFETY: this attribute is a number of eight bytes.
        unsafe { driver.pointer_attribute((&raw mut id).cast(), BUFFER_ID, address) }.map(|()| id)
    }

    /// Begin and length of the allocation that an address lies in.
    pub fn allocation(driver: &Driver, address: Address) -> Result<(Address, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { driver.memory_range(&mut base, &mut bytes, address) }.map(|()| (base, bytes))
    }
}

/// Copies between any two addresses that the device sees, in the order of the stream.
///
/// # Safety
/// Both are valid for `bytes` bytes until the copy is done, and apart.
pub unsafe fn copy_async(context: Context, to: Address, from: Address, bytes: usize, stream: StreamRef) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { context.driver().copy_async(to, from, bytes, stream.raw()) }
}
