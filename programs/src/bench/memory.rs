//! The buffers of a call in host memory.
#![expect(unsafe_code, reason = "buffers from comm_alloc come as plain addresses")]

use std::ffi::c_void;
use std::ptr::NonNull;

use comm::{Comm, CommError};

use super::collective::Call;
use super::data::Expected;
use super::wire::{Buffers, Place};

/// What unwritten bytes look like.
const POISON: u8 = 0xa5;

/// Bytes of one rank.
pub struct Memory<'a> {
    kind: Kind<'a>,
    bytes: usize,
}

enum Kind<'a> {
    /// In units that any element is aligned to.
    Malloc(Vec<u128>),
    Comm(&'a Comm, NonNull<u8>),
}

impl Memory<'_> {
    /// Allocates; all zero.
    pub fn new(comm: &Comm, buffers: Buffers, bytes: usize) -> Result<Memory<'_>, CommError> {
        let kind = match buffers {
            Buffers::Malloc => Kind::Malloc(vec![0; bytes.div_ceil(size_of::<u128>()).max(1)]),
            Buffers::Comm => {
                let address = NonNull::new(comm.alloc_raw(bytes.max(1))?.cast());
                Kind::Comm(comm, address.ok_or(CommError::NoMemory { bytes })?)
            }
        };
        Ok(Memory { kind, bytes })
    }

    fn address(&self) -> *mut u8 {
        match &self.kind {
            Kind::Malloc(units) => units.as_ptr().cast_mut().cast(),
            Kind::Comm(_, address) => address.as_ptr(),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: ours alone, that long, and always initialized: allocated as zeros.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes) }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if let Kind::Comm(comm, address) = &self.kind {
            // SAFETY: from `alloc_raw`, given back once.
            unsafe { comm.free_raw(address.as_ptr().cast()) };
        }
    }
}

/// A call with its buffers, ready to be made again and again.
pub struct Ready<'a> {
    comm: &'a Comm,
    call: Call,
    expected: &'a Expected,
    send: Memory<'a>,
    /// None where all is in one buffer.
    recv: Option<Memory<'a>>,
    send_at: usize,
    recv_at: usize,
    send_bytes: usize,
    recv_bytes: usize,
}

impl Ready<'_> {
    /// Allocates and fills what this rank needs. `offset` bytes of each buffer are left free before the data.
    /// `expected` is of such a call, whatever its count and root.
    pub fn new<'a>(
        comm: &'a Comm,
        call: Call,
        expected: &'a Expected,
        buffers: Buffers,
        place: Place,
        offset: usize,
    ) -> Result<Ready<'a>, CommError> {
        let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
        let part = call.count * call.data_type.bytes();
        let send_bytes = part * call.collective.send_parts(ranks);
        let recv_bytes = part * call.collective.recv_parts(ranks);
        let own = rank * part;
        // In place: the smaller one is this rank's part of the larger.
        let (send_at, recv_at) = match place {
            Place::Out => (0, 0),
            Place::In if send_bytes < recv_bytes => (own, 0),
            Place::In if send_bytes > recv_bytes => (0, own),
            Place::In => (0, 0),
        };
        let in_place = place == Place::In;
        let send = Memory::new(comm, buffers, offset + if in_place { send_bytes.max(recv_bytes) } else { send_bytes })?;
        let recv = match in_place {
            true => None,
            false => Some(Memory::new(comm, buffers, offset + recv_bytes)?),
        };
        let (send_at, recv_at) = (offset + send_at, offset + recv_at);
        let mut ready = Ready { comm, call, expected, send, recv, send_at, recv_at, send_bytes, recv_bytes };
        ready.fill();
        Ok(ready)
    }

    /// Poisons what is received and writes what is sent.
    fn fill(&mut self) {
        match &mut self.recv {
            Some(recv) => recv.bytes().fill(POISON),
            None => self.send.bytes().fill(POISON),
        }
        let Ready { expected, send, send_at, send_bytes, .. } = self;
        expected.sent.fill(&mut send.bytes()[*send_at..*send_at + *send_bytes], expected.phase);
    }

    /// Makes the call.
    pub fn make(&mut self) -> Result<(), CommError> {
        let send = self.send.address().wrapping_add(self.send_at);
        let recv = self.recv.as_ref().unwrap_or(&self.send).address().wrapping_add(self.recv_at);
        // SAFETY: buffers of those lengths, in place or apart, which live in self.
        unsafe { self.call.make(self.comm, send.cast::<c_void>(), recv.cast::<c_void>()) }
    }

    /// Makes it once on fresh data and counts this rank's wrong elements.
    pub fn check(&mut self) -> Result<u64, CommError> {
        self.fill();
        self.make()?;
        let (rank, ranks) = (self.comm.rank() as usize, self.comm.size() as usize);
        let (at, bytes) = (self.recv_at, self.recv_bytes);
        let found = &self.recv.as_mut().unwrap_or(&mut self.send).bytes()[at..at + bytes];
        Ok(self.expected.wrong(&self.call, rank, ranks, found))
    }
}
