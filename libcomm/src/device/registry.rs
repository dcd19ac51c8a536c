//! Memory that all ranks have registered together: windows, each at the same number on every rank, whose parts on the peers
//! are mapped here.
//!
//! A mapping is of a whole allocation, and is kept as long as a window lies in it, so that windows in one allocation share
//! it. Allocations are told apart by their number, which the driver never gives out twice, and their begin: memory that was
//! freed and allocated again at the same address is another one. What the driver does comes through [`Memory`], so that all
//! this is tested without a GPU.

use std::sync::{Arc, Weak};

use kernels::args;

use crate::cuda::Address;

/// What the driver does for a registration.
pub(super) trait Memory {
    /// A peer's allocation, mapped here until dropped.
    type Mapping;
    /// The allocation that an address lies in.
    fn allocation(&self, address: Address) -> Result<Allocation, String>;
    /// What a peer needs to map the allocation that begins there.
    fn export(&self, base: Address) -> Result<[u8; 64], String>;
    /// Maps a peer's allocation.
    fn open(&self, offer: &Offer) -> Result<Self::Mapping, String>;
    /// Where it is seen.
    fn address(mapping: &Self::Mapping) -> Address;
}

/// An allocation of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Never given out twice in a process.
    pub(super) id: u64,
    pub(super) base: Address,
    pub(super) bytes: u64,
}

/// What a rank tells the others about its part of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) pid: u64,
    pub(super) pid_namespace: u64,
    pub(super) device: u64,
    pub(super) allocation: Allocation,
    /// Where the part begins in the allocation.
    pub(super) offset: u64,
    pub(super) handle: [u8; 64],
}

impl Offer {
    pub(super) const BYTES: usize = 7 * 8 + 64;

    pub(super) fn to_bytes(self) -> [u8; Offer::BYTES] {
        let mut bytes = [0; Offer::BYTES];
        let Allocation { id, base, bytes: length } = self.allocation;
        let words = [self.pid, self.pid_namespace, self.device, id, base, length, self.offset];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[56..].copy_from_slice(&self.handle);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Offer {
        let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
        Offer {
            pid: word(0),
            pid_namespace: word(1),
            device: word(2),
            allocation: Allocation { id: word(3), base: word(4), bytes: word(5) },
            offset: word(6),
            handle: std::array::from_fn(|k| bytes[56 + k]),
        }
    }
}

/// A peer's part of a window, mapped here.
#[derive(Debug)]
pub(super) struct Part<M> {
    mapping: Arc<M>,
    offset: u64,
}

/// This rank's part of a window, with the peers' parts.
#[derive(Debug)]
struct Window<M> {
    address: Address,
    bytes: u64,
    id: u64,
    peers: Vec<Option<Part<M>>>,
}

/// A part of a registration that does not lie in memory as it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// It begins in a window and ends behind it.
    PastEnd { address: Address, bytes: u64 },
    /// The memory was freed since.
    Freed { address: Address },
}

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Misuse::PastEnd { address, bytes } => {
                write!(f, "recv begins in the {bytes} bytes registered at {address:#x} and ends behind them")
            }
            Misuse::Freed { address } => {
                write!(f, "the memory registered at {address:#x} was freed; comm_deregister comes before that")
            }
        }
    }
}

/// All windows of a rank.
#[derive(Debug)]
pub(super) struct Registry<M: Memory> {
    windows: Vec<Option<Window<M::Mapping>>>,
    /// Windows that were ever kept. Numbers are given out in turn, so that a graph which was captured with a window that is no
    /// more finds an empty place for long, and not another window.
    kept: usize,
    /// What is mapped, by rank, number and begin.
    mapped: Vec<(u32, u64, Address, Weak<M::Mapping>)>,
}

impl<M: Memory> Default for Registry<M> {
    fn default() -> Self {
        Registry { windows: Vec::new(), kept: 0, mapped: Vec::new() }
    }
}

impl<M: Memory> Registry<M> {
    pub(super) fn is_empty(&self) -> bool {
        self.windows.iter().all(Option::is_none)
    }

    /// What this rank tells the others about the memory that it registers; why it cannot be, if so.
    pub(super) fn offer(&self, memory: &M, address: Address, bytes: u64, own: &Offer) -> Result<Offer, String> {
        if self.window_of(address).is_some() {
            return Err(format!("memory at {address:#x} is registered already"));
        }
        if self.next_free().is_none() {
            return Err(format!("{} windows are registered, which is all there are", args::WINDOWS));
        }
        let allocation = memory.allocation(address)?;
        let offset = address - allocation.base;
        if bytes == 0 || bytes > allocation.bytes - offset {
            let length = allocation.bytes - offset;
            return Err(format!("{bytes} bytes are registered at {address:#x}, where the allocation has {length}"));
        }
        Ok(Offer { allocation, offset, handle: memory.export(allocation.base)?, ..*own })
    }

    /// Maps a peer's part; an allocation that is mapped already is not mapped again.
    pub(super) fn open(&mut self, memory: &M, peer: u32, offer: &Offer) -> Result<Part<M::Mapping>, String> {
        self.mapped.retain(|(.., mapping)| mapping.strong_count() != 0);
        let Allocation { id, base, .. } = offer.allocation;
        let known = self.mapped.iter().find(|(rank, i, b, _)| (*rank, *i, *b) == (peer, id, base));
        let mapping = match known.and_then(|(.., mapping)| mapping.upgrade()) {
            Some(mapping) => mapping,
            None => {
                let mapping = Arc::new(memory.open(offer)?);
                self.mapped.push((peer, id, base, Arc::downgrade(&mapping)));
                mapping
            }
        };
        Ok(Part { mapping, offset: offer.offset })
    }

    /// Keeps a window that all ranks have opened: its number, the same on all of them, since all register and deregister
    /// the same in the same order.
    pub(super) fn keep(&mut self, offer: &Offer, bytes: u64, peers: Vec<Option<Part<M::Mapping>>>) -> usize {
        let window = Window { address: offer.allocation.base + offer.offset, bytes, id: offer.allocation.id, peers };
        let number = self.next_free().unwrap_or(0); // `offer` has seen one
        if number >= self.windows.len() {
            self.windows.resize_with(number + 1, || None);
        }
        self.windows[number] = Some(window);
        self.kept += 1;
        number
    }

    /// Where a peer's part of a window is seen here.
    pub(super) fn address_of(&self, number: usize, peer: usize) -> Option<Address> {
        let part = self.windows.get(number)?.as_ref()?.peers.get(peer)?.as_ref()?;
        Some(M::address(&part.mapping) + part.offset)
    }

    /// The window that begins there.
    pub(super) fn number_of(&self, address: Address) -> Option<usize> {
        self.windows.iter().position(|window| window.as_ref().is_some_and(|window| window.address == address))
    }

    /// Lets go of a window: what the peers have in it is no longer mapped, unless another window lies there, too.
    pub(super) fn forget(&mut self, number: usize) {
        if let Some(window) = self.windows.get_mut(number) {
            *window = None;
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.windows.clear();
        self.mapped.clear();
    }

    /// Number and offset of the window that a result lies in; `None` if it lies in none.
    pub(super) fn find(&self, memory: &M, address: Address, bytes: u64) -> Result<Option<(usize, u64)>, Misuse> {
        let Some((number, window)) = self.window_of(address) else { return Ok(None) };
        let offset = address - window.address;
        if memory.allocation(address).map(|allocation| allocation.id) != Ok(window.id) {
            return Err(Misuse::Freed { address: window.address });
        }
        match bytes <= window.bytes - offset {
            true => Ok(Some((number, offset))),
            false => Err(Misuse::PastEnd { address: window.address, bytes: window.bytes }),
        }
    }

    fn window_of(&self, address: Address) -> Option<(usize, &Window<M::Mapping>)> {
        let holds = |window: &Window<M::Mapping>| (window.address..window.address + window.bytes).contains(&address);
        let numbered = self.windows.iter().enumerate().filter_map(|(number, window)| Some((number, window.as_ref()?)));
        numbered.into_iter().find(|(_, window)| holds(window))
    }

    fn next_free(&self) -> Option<usize> {
        let mut numbers = (self.kept..self.kept + args::WINDOWS).map(|turn| turn % args::WINDOWS);
        numbers.find(|number| self.windows.get(*number).is_none_or(Option::is_none))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A driver that knows allocations by number, counts what is mapped, and fails when told to.
    #[derive(Default)]
    struct Fake {
        allocations: RefCell<Vec<Allocation>>,
        next: Cell<u64>,
        mapped: Rc<Cell<usize>>,
        opened: Cell<usize>,
        refuses_to_open: Cell<bool>,
        cannot_export: Cell<bool>,
    }

    struct Mapped(Address, Rc<Cell<usize>>);

    impl Drop for Mapped {
        fn drop(&mut self) {
            self.1.set(self.1.get() - 1);
        }
    }

    impl Fake {
        fn allocate(&self, base: Address, bytes: u64) {
            self.next.set(self.next.get() + 1);
            self.allocations.borrow_mut().push(Allocation { id: self.next.get(), base, bytes });
        }

        fn free(&self, base: Address) {
            self.allocations.borrow_mut().retain(|allocation| allocation.base != base);
        }
    }

    impl Memory for Fake {
        type Mapping = Mapped;

        fn allocation(&self, address: Address) -> Result<Allocation, String> {
            let holds = |a: &&Allocation| (a.base..a.base + a.bytes).contains(&address);
            self.allocations.borrow().iter().find(holds).copied().ok_or_else(|| "no such memory".into())
        }

        fn export(&self, base: Address) -> Result<[u8; 64], String> {
            if self.cannot_export.get() { Err("it has no handle".into()) } else { Ok([base as u8; 64]) }
        }

        fn open(&self, offer: &Offer) -> Result<Mapped, String> {
            if self.refuses_to_open.get() {
                return Err("refused".into());
            }
            self.mapped.set(self.mapped.get() + 1);
            self.opened.set(self.opened.get() + 1);
            Ok(Mapped(offer.allocation.base + 0x1_0000_0000, self.mapped.clone()))
        }

        fn address(mapping: &Mapped) -> Address {
            mapping.0
        }
    }

    fn own(pid: u64) -> Offer {
        let allocation = Allocation { id: 0, base: 0, bytes: 0 };
        Offer { pid, pid_namespace: 7, device: pid, allocation, offset: 0, handle: [0; 64] }
    }

    /// Two ranks that register and deregister together, as the mailbox has them do it.
    #[derive(Default)]
    struct Two {
        drivers: [Fake; 2],
        registries: [Registry<Fake>; 2],
    }

    impl Two {
        /// All or none, as an exchange ends.
        fn register(&mut self, addresses: [Address; 2], bytes: u64) -> Result<usize, String> {
            let offers: Vec<Result<Offer, String>> = (0..2)
                .map(|r| self.registries[r].offer(&self.drivers[r], addresses[r], bytes, &own(r as u64 + 1)))
                .collect();
            let mut parts = Vec::new();
            for r in 0..2 {
                let opened = offers[r].clone().and(offers[1 - r].clone()).and_then(|offer| {
                    let sent = Offer::from_bytes(&offer.to_bytes());
                    self.registries[r].open(&self.drivers[r], 1 - r as u32, &sent)
                });
                parts.push(opened);
            }
            let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
            let mut numbers = Vec::new();
            for (r, part) in parts.into_iter().enumerate() {
                let mut peers = vec![None, None];
                peers[1 - r] = Some(part);
                numbers.push(self.registries[r].keep(offers[r].as_ref().unwrap(), bytes, peers));
            }
            assert_eq!(numbers[0], numbers[1]);
            Ok(numbers[0])
        }

        fn deregister(&mut self, number: usize) {
            self.registries.iter_mut().for_each(|registry| registry.forget(number));
        }

        fn mapped(&self) -> [usize; 2] {
            [0, 1].map(|r| self.drivers[r].mapped.get())
        }
    }

    #[test]
    fn offers_survive_the_mailbox() {
        let allocation = Allocation { id: 9, base: 0x7000_0000, bytes: 4096 };
        let offer = Offer { allocation, offset: 512, handle: [3; 64], ..own(300) };
        assert_eq!(Offer::from_bytes(&offer.to_bytes()), offer);
        #[cfg(not(loom))]
        const {
            assert!(Offer::BYTES <= crate::shm::mailbox::MAILBOX_BYTES)
        };
    }

    #[test]
    fn windows_in_one_allocation_share_its_mapping_and_the_last_one_closes_it() {
        let mut two = Two::default();
        two.drivers.iter().for_each(|driver| driver.allocate(0x1000, 0x4000));
        let first = two.register([0x1000, 0x1800], 0x800).unwrap();
        let second = two.register([0x2000, 0x3000], 0x800).unwrap();
        assert_eq!((first, second, two.mapped(), two.drivers[0].opened.get()), (0, 1, [1, 1], 1));
        assert_eq!(two.registries[0].address_of(0, 1), Some(0x1_0000_1800));
        assert_eq!(two.registries[1].address_of(1, 0), Some(0x1_0000_2000));
        assert_eq!(two.registries[0].find(&two.drivers[0], 0x2010, 16), Ok(Some((1, 0x10))));
        two.deregister(first);
        assert_eq!(two.mapped(), [1, 1]);
        assert_eq!(two.registries[0].find(&two.drivers[0], 0x1000, 16), Ok(None));
        two.deregister(second);
        assert_eq!(two.mapped(), [0, 0]);
        // Numbers come round.
        for turn in 2..3 * args::WINDOWS {
            let window = two.register([0x1000, 0x1000], 16).unwrap();
            assert_eq!(window, turn % args::WINDOWS);
            two.deregister(window);
        }
        two.register([0x1000, 0x1000], 16).unwrap();
        two.registries[0].forget_all();
        assert_eq!(two.mapped(), [0, 1]);
        assert!(two.registries[0].is_empty());
    }

    #[test]
    fn memory_that_was_freed_and_allocated_again_at_the_same_address_is_noticed() {
        let mut two = Two::default();
        two.drivers.iter().for_each(|driver| driver.allocate(0x1000, 0x1000));
        let old = two.register([0x1000, 0x1000], 0x1000).unwrap();
        two.drivers[0].free(0x1000);
        let freed = Err(Misuse::Freed { address: 0x1000 });
        assert_eq!(two.registries[0].find(&two.drivers[0], 0x1000, 16), freed);
        two.drivers[0].allocate(0x1000, 0x1000);
        assert_eq!(two.registries[0].find(&two.drivers[0], 0x1000, 16), freed);
        assert!(two.register([0x1000, 0x1000], 16).unwrap_err().contains("registered already"));
        two.deregister(old);
        two.register([0x1000, 0x1000], 0x1000).unwrap();
        // The peer has mapped the new one, although begin and handle are the same.
        assert_eq!((two.drivers[1].opened.get(), two.mapped()), (2, [1, 1]));
        // While a window keeps the old one mapped, the new one is still another.
        two.drivers[0].allocate(0x9000, 0x1000);
        two.drivers[1].allocate(0x9000, 0x1000);
        two.register([0x9000, 0x9000], 16).unwrap();
        two.drivers[0].free(0x9000);
        two.drivers[0].allocate(0x9000, 0x1000);
        two.register([0x9100, 0x9100], 16).unwrap();
        assert_eq!(two.drivers[1].opened.get(), 4);
    }

    #[test]
    fn a_failure_on_one_rank_leaves_nothing_registered_or_mapped_on_any() {
        let mut two = Two::default();
        two.drivers.iter().for_each(|driver| driver.allocate(0x1000, 0x1000));
        two.drivers[1].refuses_to_open.set(true);
        assert_eq!(two.register([0x1000, 0x1000], 16), Err("refused".into()));
        two.drivers[1].refuses_to_open.set(false);
        two.drivers[0].cannot_export.set(true);
        assert_eq!(two.register([0x1000, 0x1000], 16), Err("it has no handle".into()));
        assert_eq!(two.register([0x1000, 0x8000], 16), Err("it has no handle".into()));
        two.drivers[0].cannot_export.set(false);
        assert_eq!(two.register([0x1000, 0x8000], 16), Err("no such memory".into()));
        assert!(two.register([0x1000, 0x1800], 0x1000).unwrap_err().contains("the allocation has 2048"));
        assert_eq!(two.mapped(), [0, 0]);
        assert!(two.registries.iter().all(Registry::is_empty));
        assert_eq!(two.register([0x1000, 0x1000], 16), Ok(0));
    }

    #[test]
    fn a_call_that_goes_beyond_a_window_is_refused_and_one_outside_is_not_registered() {
        let mut two = Two::default();
        two.drivers.iter().for_each(|driver| driver.allocate(0x1000, 0x1000));
        two.register([0x1400, 0x1400], 0x100).unwrap();
        let find = |address, bytes| two.registries[0].find(&two.drivers[0], address, bytes);
        assert_eq!(find(0x1400, 0x100), Ok(Some((0, 0))));
        assert_eq!(find(0x14ff, 1), Ok(Some((0, 0xff))));
        assert_eq!(find(0x1400, 0x101), Err(Misuse::PastEnd { address: 0x1400, bytes: 0x100 }));
        assert_eq!(find(0x1500, 16), Ok(None));
        assert_eq!(find(0x1000, 0x800), Ok(None));
    }

    #[test]
    fn there_are_as_many_windows_as_the_kernels_have_room_for() {
        let mut two = Two::default();
        two.drivers.iter().for_each(|driver| driver.allocate(0x1000, 0x10_0000));
        for number in 0..args::WINDOWS {
            let address = 0x1000 + 0x100 * number as u64;
            assert_eq!(two.register([address, address], 0x100), Ok(number));
        }
        assert!(two.register([0x8_0000, 0x8_0000], 0x100).unwrap_err().contains("all there are"));
    }
}
