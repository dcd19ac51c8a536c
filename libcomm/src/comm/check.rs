//! What is called, before it has a number, and what is refused before anything is sent.

use std::ffi::c_void;

use crate::cuda::{self, PointerKind};
use crate::error::CommError;
use crate::signature::Signature;
use crate::types::{DataType, Op, Operation};

/// What is called, before it has a number.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) data_type: Option<DataType>,
    pub(super) op: Option<Op>,
    pub(super) root: Option<u32>,
    pub(super) count: usize,
}

impl Call {
    pub(super) fn plain(operation: Operation) -> Call {
        Call { operation, data_type: None, op: None, root: None, count: 0 }
    }

    pub(super) fn numbered(self, number: u64, communicator: u32) -> Signature {
        let Call { operation, data_type, op, root, count } = self;
        Signature { number, operation, data_type, op, root, count: count as u64, communicator, tag: None }
    }
}

pub(super) fn applies(operation: Operation, data_type: DataType, op: Op) -> Result<(), CommError> {
    match op.applies_to(data_type) {
        true => Ok(()),
        false => Err(CommError::invalid(operation, format!("{op} is for integers, not for {data_type}"))),
    }
}

pub(super) fn same_length(operation: Operation, send: usize, recv: usize) -> Result<(), CommError> {
    match send == recv {
        true => Ok(()),
        false => Err(CommError::invalid(operation, format!("the lengths of send and recv do not fit: {send}, {recv}"))),
    }
}

/// Two addresses as a caller gave them.
pub(super) struct Buffers {
    pub(super) operation: Operation,
    pub(super) send: *const c_void,
    pub(super) recv: *mut c_void,
    pub(super) data_type: DataType,
}

impl Buffers {
    /// Refuses memory of a GPU where only the host moves data, which would read and write it through no valid address.
    fn on_host(&self, send: usize, recv: usize) -> Result<(), CommError> {
        if matches!(self.operation, Operation::AllReduce | Operation::Broadcast) || !cuda::sys::is_loaded() {
            return Ok(());
        }
        let Some(driver) = cuda::Driver::with_gpu()? else { return Ok(()) };
        for (name, address) in [("send", send), ("recv", recv)] {
            if let PointerKind::Device(device) = PointerKind::of(driver, address as u64)? {
                let why = format!(
                    "{name} ({address:#x}) is memory of GPU {device}, where only AllReduce and broadcast work: copy it to the host"
                );
                return Err(CommError::invalid(self.operation, why));
            }
        }
        Ok(())
    }

    /// Refuses addresses that cannot be right: null, not aligned to the element, overlapping other than in place.
    /// `send` has `send_parts` times `count` elements, `recv` `recv_parts` times; in place means that the smaller
    /// one is part `own` of the larger. Returns the bytes of `count` elements.
    pub(super) fn check(
        &self,
        count: usize,
        send_parts: usize,
        recv_parts: usize,
        own: usize,
    ) -> Result<usize, CommError> {
        let refuse = |why: String| Err(CommError::invalid(self.operation, why));
        let size = self.data_type.bytes();
        let most = count.checked_mul(size).and_then(|bytes| bytes.checked_mul(send_parts.max(recv_parts)));
        if most.is_none_or(|most| most > isize::MAX as usize) {
            return refuse(format!("{count} elements are more than memory has addresses"));
        }
        if count == 0 {
            return Ok(0); // addresses of nothing may be anything
        }
        let (send, recv) = (self.send as usize, self.recv as usize);
        for (name, address) in [("send", send), ("recv", recv)] {
            if address == 0 {
                return refuse(format!("{name} is null, for {count} elements"));
            }
            if address % size != 0 {
                return refuse(format!("{name} ({address:#x}) is not aligned to {}, {size} bytes", self.data_type));
            }
        }
        let bytes = count * size;
        let in_place = match recv_parts > send_parts {
            true => send == recv + own * bytes,
            false => recv == send + own * bytes,
        };
        let apart = send + send_parts * bytes <= recv || recv + recv_parts * bytes <= send;
        self.on_host(send, recv)?;
        match in_place || apart {
            true => Ok(bytes),
            false => refuse("send and recv overlap in part; they must be the same place or apart".into()),
        }
    }
}
