//! Registered memory as the driver knows it: what a rank offers, how it maps what the others offer, and what the kernels are
//! told of it. `registry.rs` decides; `kernels/device/zero.cuh` uses it.

use kernels::args;

use super::registry::{Allocation, Memory, Misuse, Offer, Part, Registry};
use super::{Device, Peer};
use crate::cuda::{Address, Context, CudaError, DeviceBuffer, Handle, PeerBuffer, PointerKind};

/// This process's driver, in its context.
pub(super) struct OnDriver {
    context: Context,
    pid: u64,
    pid_namespace: u64,
}

/// What is registered, and what was allocated for it.
pub(super) struct Windows {
    memory: OnDriver,
    registry: Registry<OnDriver>,
    /// From `comm_alloc_device`.
    allocated: Vec<DeviceBuffer>,
}

/// What this rank tells of the memory that it registers.
pub(crate) struct Offered(Result<Offer, String>);

impl Offered {
    pub(crate) const BYTES: usize = Offer::BYTES;

    /// For the mailbox; zeros where there is none.
    pub(crate) fn to_bytes(&self) -> [u8; Offered::BYTES] {
        self.0.as_ref().map_or([0; Offer::BYTES], |offer| offer.to_bytes())
    }
}

/// A peer's part of what is being registered.
pub(crate) struct Opened(Part<Peer>);

impl Memory for OnDriver {
    type Mapping = Peer;

    fn allocation(&self, address: Address) -> Result<Allocation, String> {
        let driver = self.context.driver();
        let _bound = self.context.bind().map_err(|error| error.to_string())?;
        match PointerKind::of(driver, address) {
            Ok(PointerKind::Device(device)) if device == self.context.device() => {}
            _ => return Err(format!("{address:#x} is not memory of this rank's GPU")),
        }
        let (base, bytes) = PointerKind::allocation(driver, address).map_err(|error| error.to_string())?;
        let id = PointerKind::allocation_id(driver, address).map_err(|error| error.to_string())?;
        Ok(Allocation { id, base, bytes: bytes as u64 })
    }

    fn export(&self, base: Address) -> Result<[u8; 64], String> {
        let handle = Handle::of_allocation(self.context, base);
        handle.map(|handle| handle.0).map_err(|error| format!("this kind of memory cannot be shared ({error})"))
    }

    fn open(&self, offer: &Offer) -> Result<Peer, String> {
        if (offer.pid, offer.pid_namespace) == (self.pid, self.pid_namespace) {
            return Ok(Peer::Local(offer.allocation.base));
        }
        let opened = PeerBuffer::open(self.context, Handle(offer.handle));
        opened.map(Peer::Mapped).map_err(|error| error.to_string())
    }

    fn address(mapping: &Peer) -> Address {
        mapping.address()
    }
}

impl Windows {
    pub(super) fn new(context: Context, pid_namespace: u64) -> Windows {
        let memory = OnDriver { context, pid: u64::from(std::process::id()), pid_namespace };
        Windows { memory, registry: Registry::default(), allocated: Vec::new() }
    }

    /// Closes what is the peers'.
    pub(super) fn close(&mut self) {
        self.registry.forget_all();
    }

    /// Leaves its memory to the end of the process.
    pub(super) fn leak(self) {
        self.allocated.into_iter().for_each(DeviceBuffer::leak);
    }
}

impl Device {
    /// Whether registering means anything: the ranks' GPUs map each other's memory.
    pub(crate) fn has_windows(&self) -> bool {
        self.machine.ranks > 1 && !self.staged && !self.machine.in_host
    }

    /// What this rank offers of `bytes` bytes at `address`.
    pub(crate) fn offer(&self, address: Address, bytes: u64) -> Offered {
        let Windows { memory, registry, .. } = &self.windows;
        let none = Allocation { id: 0, base: 0, bytes: 0 };
        let (pid, pid_namespace, device) = (memory.pid, memory.pid_namespace, u64::from(self.context.device()));
        let own = Offer { pid, pid_namespace, device, allocation: none, offset: 0, handle: [0; 64] };
        Offered(registry.offer(memory, address, bytes, &own))
    }

    /// Maps a peer's part; why not, if this rank, the peer or the driver has none.
    pub(crate) fn open_window(&mut self, own: &Offered, peer: u32, bytes: &[u8]) -> Result<Opened, String> {
        own.0.as_ref().map_err(Clone::clone)?;
        let theirs = Offer::from_bytes(bytes);
        if theirs.pid == 0 {
            return Err("it has no such memory".into());
        }
        let Windows { memory, registry, .. } = &mut self.windows;
        registry.open(memory, peer, &theirs).map(Opened)
    }

    /// Keeps what all ranks have opened, and tells the kernels.
    pub(crate) fn keep_window(
        &mut self,
        own: &Offered,
        bytes: u64,
        peers: Vec<Option<Opened>>,
    ) -> Result<(), CudaError> {
        let Ok(offer) = &own.0 else { return Ok(()) };
        let parts = peers.into_iter().map(|peer| peer.map(|Opened(part)| part)).collect();
        let number = self.windows.registry.keep(offer, bytes, parts);
        self.tell_window(number)
    }

    /// The number of the window that begins there.
    pub(crate) fn window_at(&self, address: Address) -> Option<usize> {
        self.windows.registry.number_of(address)
    }

    /// Waits for all work, then lets go of what the peers have in a window.
    pub(crate) fn forget_window(&mut self, number: usize) -> Result<(), CudaError> {
        self.context.synchronize()?;
        self.windows.registry.forget(number);
        self.tell_window(number)
    }

    /// Where the kernels find the peers' parts of a window: read by calls that come after this.
    fn tell_window(&self, number: usize) -> Result<(), CudaError> {
        for peer in 0..self.machine.ranks as usize {
            let address = self.windows.registry.address_of(number, peer).unwrap_or(0);
            let at = args::WINDOWS_AT as usize + 8 * (peer * args::WINDOWS + number);
            self.arena.write(at, &[address])?;
        }
        Ok(())
    }

    /// Where a result lies, as a zero-copy call tells the peer: 0 if it is not registered.
    pub(crate) fn place_of(&self, address: Address, bytes: u64) -> Result<u64, String> {
        let Windows { memory, registry, .. } = &self.windows;
        if registry.is_empty() {
            return Ok(0);
        }
        let found = registry.find(memory, address, bytes).map_err(|misuse: Misuse| misuse.to_string())?;
        Ok(found.map_or(0, |(number, offset)| (number as u64 + 1) << 48 | offset))
    }

    /// Takes over memory that was allocated for the caller: it lives until it is released, or the communicator is left.
    pub(crate) fn adopt(&mut self, buffer: DeviceBuffer) {
        self.windows.allocated.push(buffer);
    }

    /// Whether it was.
    pub(crate) fn has_allocated(&self, address: Address) -> bool {
        self.windows.allocated.iter().any(|buffer| buffer.address() == address)
    }

    /// Frees such memory, which no peer maps any more.
    pub(crate) fn release(&mut self, address: Address) {
        self.windows.allocated.retain(|buffer| buffer.address() != address);
    }
}
