//! The C interface: check what C cannot promise, call, turn the error into a code. `include/libcomm.h` declares
//! the same functions; a test compares the two, prototype by prototype and number by number.
//!
//! No panic crosses it, and nothing here ends or signals the process. A pointer to a communicator comes from
//! `comm_init` and is used by nobody after `comm_finalize`; that, and the sizes of buffers, is what C must promise.
#![expect(unsafe_code, reason = "C calls this with pointers")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::comm::Comm;
use crate::error::CommError;
use crate::types::{DataType, Op, Operation};

/// Declares the codes, their C names for the test that reads the header, and their sentences.
macro_rules! codes {
    ($($rust:ident = $number:literal, $c:literal, $text:literal;)*) => {
        $(const $rust: c_int = $number;)*

        /// Each code with its C name.
        #[cfg(test)]
        pub(crate) const CODES: &[(&str, c_int)] = &[$(($c, $number)),*];

        fn sentence(code: c_int) -> &'static CStr {
            match code {
                $($number => $text,)*
                _ => c"no code of libcomm",
            }
        }
    };
}

codes! {
    OK = 0, "COMM_OK", c"success";
    INVALID_ARGUMENT = 1, "COMM_ERROR_INVALID_ARGUMENT", c"an argument makes no sense";
    ENVIRONMENT = 2, "COMM_ERROR_ENVIRONMENT", c"a variable of the launcher is missing or makes no sense";
    SEGMENT = 3, "COMM_ERROR_SEGMENT", c"the job's shared memory cannot be had";
    ALREADY_JOINED = 4, "COMM_ERROR_ALREADY_JOINED", c"another program of this rank has joined already";
    PEER = 5, "COMM_ERROR_PEER", c"a peer exited, left or failed";
    ABORTED = 6, "COMM_ERROR_ABORTED", c"the job is being ended";
    TIMEOUT = 7, "COMM_ERROR_TIMEOUT", c"a peer did not come before the deadline";
    MISMATCH = 8, "COMM_ERROR_MISMATCH", c"the ranks called different things";
    CORRUPT = 9, "COMM_ERROR_CORRUPT", c"data changed on its way";
    UNUSABLE = 10, "COMM_ERROR_UNUSABLE", c"an earlier call failed";
    FORKED = 11, "COMM_ERROR_FORKED", c"this process is a fork of the one that joined";
    INTERNAL = 12, "COMM_ERROR_INTERNAL", c"libcomm failed";
    DEVICE = 13, "COMM_ERROR_DEVICE", c"the CUDA driver is missing or a call of it failed";
    NO_MEMORY = 14, "COMM_ERROR_NO_MEMORY", c"this rank's part of the shared memory is full";
}

fn code_of(error: &CommError) -> c_int {
    match error {
        CommError::InvalidArgument { .. } => INVALID_ARGUMENT,
        CommError::NoMemory { .. } => NO_MEMORY,
        CommError::MissingVariable { .. } | CommError::Environment { .. } => ENVIRONMENT,
        CommError::Segment(_) | CommError::NoSegment { .. } => SEGMENT,
        CommError::AlreadyJoined { .. } => ALREADY_JOINED,
        CommError::RankExited { .. }
        | CommError::RankVanished { .. }
        | CommError::RankLeft { .. }
        | CommError::PeerFailed { .. } => PEER,
        CommError::Aborted { .. } => ABORTED,
        CommError::Timeout { .. } | CommError::DeviceTimeout { .. } => TIMEOUT,
        CommError::Cuda(_) => DEVICE,
        CommError::Mismatch { .. } | CommError::CountsDiffer { .. } => MISMATCH,
        CommError::ChunkCorrupt { .. } | CommError::ResultsDiffer { .. } => CORRUPT,
        CommError::Unusable { .. } => UNUSABLE,
        CommError::Forked => FORKED,
        CommError::Internal(_) => INTERNAL,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a call; its error, or panic, becomes a code here and the sentence that `comm_last_error` returns.
fn guarded(call: impl FnOnce() -> Result<(), CommError>) -> c_int {
    let caught = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        Err(CommError::Internal(text.to_owned()))
    });
    let Err(error) = caught else { return OK };
    // No text of ours has a NUL, except where an environment variable brought one, which it cannot.
    let text = CString::new(error.to_string()).unwrap_or_default();
    // A thread that is ending has no place for it any more; then the code must do.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    code_of(&error)
}

fn null(name: &str) -> CommError {
    CommError::InvalidArgument { operation: Operation::Barrier, why: format!("{name} is null") }
}

/// # Safety
/// `comm` is null or from `comm_init` and not yet finalized.
unsafe fn comm_at<'a>(comm: *const Comm, operation: Operation) -> Result<&'a Comm, CommError> {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.ok_or_else(|| CommError::invalid(operation, "the communicator is null"))
}

fn data_type(number: c_int, operation: Operation) -> Result<DataType, CommError> {
    let known = u8::try_from(number).ok().and_then(DataType::from_number);
    known.ok_or_else(|| CommError::invalid(operation, format!("{number} is no comm_type_t")))
}

fn op(number: c_int, operation: Operation) -> Result<Op, CommError> {
    let known = u8::try_from(number).ok().and_then(Op::from_number);
    known.ok_or_else(|| CommError::invalid(operation, format!("{number} is no comm_op_t")))
}

fn root_at(root: c_int, operation: Operation) -> Result<u32, CommError> {
    u32::try_from(root).map_err(|_| CommError::invalid(operation, format!("root {root} is no rank")))
}

/// Joins; see the header.
///
/// # Safety
/// `comm` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_init(comm: *mut *mut Comm) -> c_int {
    guarded(|| {
        if comm.is_null() {
            return Err(null("comm_init: comm"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *comm = std::ptr::null_mut() };
        let joined = Box::new(Comm::init()?);
        // SAFETY: as above.
        unsafe { *comm = Box::into_raw(joined) };
        Ok(())
    })
}

/// This rank's number, -1 for a null communicator.
///
/// # Safety
/// `comm` is null or from `comm_init` and not yet finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_rank(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.rank() as c_int)
}

/// How many ranks there are, -1 for a null communicator.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_size(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.size() as c_int)
}

/// This rank's number on its node, -1 for a null communicator.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_local_rank(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.local_rank() as c_int)
}

/// Waits for all.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_barrier(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    guarded(|| unsafe { comm_at(comm, Operation::Barrier) }?.barrier())
}

/// Reduces over all ranks; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allreduce(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::AllReduce;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let (data_type, op) = (data_type(type_, call)?, op(op_, call)?);
        // SAFETY: the caller's.
        unsafe { comm.all_reduce_raw(send, recv, count, data_type, op) }
    })
}

/// Reduces over all ranks in the order of a CUDA stream; see the header.
///
/// # Safety
/// As for `comm_allreduce`, until the stream is through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allreduce_stream(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
    stream: *mut c_void,
) -> c_int {
    let call = Operation::AllReduce;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let (data_type, op) = (data_type(type_, call)?, op(op_, call)?);
        // SAFETY: the caller's.
        unsafe { comm.all_reduce_stream_raw(send, recv, count, data_type, op, stream) }
    })
}

/// Whether a call that has returned has failed since; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_async_error(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    guarded(|| unsafe { comm_at(comm, Operation::AllReduce) }?.async_error())
}

/// Reduces over all ranks, a part for each; see the header.
///
/// # Safety
/// As for `comm_rank`; `send` holds `count` elements for each rank, and `recv` `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_reduce_scatter(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::ReduceScatter;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let (data_type, op) = (data_type(type_, call)?, op(op_, call)?);
        // SAFETY: the caller's.
        unsafe { comm.reduce_scatter_raw(send, recv, count, data_type, op) }
    })
}

/// Puts everyone's data together; see the header.
///
/// # Safety
/// As for `comm_rank`; `send` holds `count` elements, and `recv` `count` for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allgather(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
) -> c_int {
    let call = Operation::AllGather;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        // SAFETY: the caller's.
        unsafe { comm.all_gather_raw(send, recv, count, data_type) }
    })
}

/// Gives everyone the root's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and `buffer` holds `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_broadcast(
    comm: *const Comm,
    buffer: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Broadcast;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        let root = root_at(root, call)?;
        // SAFETY: the caller's.
        unsafe { comm.broadcast_raw(buffer, count, data_type, root) }
    })
}

/// Reduces over all ranks into the root; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` holds `count` elements, and the root's `recv` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_reduce(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Reduce;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        let op = op(op_, call)?;
        let root = root_at(root, call)?;
        // SAFETY: the caller's.
        unsafe { comm.reduce_raw(send, recv, count, data_type, op, root) }
    })
}

/// Reduces over ranks 0 to this one; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_scan(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::Scan;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        let op = op(op_, call)?;
        // SAFETY: the caller's.
        unsafe { comm.scan_raw(send, recv, count, data_type, op) }
    })
}

/// Puts everyone's data together at the root; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` holds `count` elements, and the root's `recv` that many for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_gather(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Gather;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        let root = root_at(root, call)?;
        // SAFETY: the caller's.
        unsafe { comm.gather_raw(send, recv, count, data_type, root) }
    })
}

/// Gives everyone their part of the root's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and the root's `send` holds `count` elements for each rank, and `recv` `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_scatter(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Scatter;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        let root = root_at(root, call)?;
        // SAFETY: the caller's.
        unsafe { comm.scatter_raw(send, recv, count, data_type, root) }
    })
}

/// Gives everyone their part of everyone's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_alltoall(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
) -> c_int {
    let call = Operation::AllToAll;
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm_at(comm, call) }?;
        let data_type = data_type(type_, call)?;
        // SAFETY: the caller's.
        unsafe { comm.all_to_all_raw(send, recv, count, data_type) }
    })
}

/// Memory that all ranks can reach; see the header.
///
/// # Safety
/// As for `comm_rank`, and `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_alloc(comm: *const Comm, bytes: usize, address: *mut *mut c_void) -> c_int {
    guarded(|| {
        if address.is_null() {
            return Err(null("comm_alloc: address"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *address = std::ptr::null_mut() };
        // SAFETY: the caller's.
        let memory = unsafe { comm.as_ref() }.ok_or_else(|| null("comm_alloc: comm"))?.alloc_raw(bytes)?;
        // SAFETY: as above.
        unsafe { *address = memory };
        Ok(())
    })
}

/// Gives it back; see the header.
///
/// # Safety
/// As for `comm_rank`, and `address` is null or from `comm_alloc` of it and used by nobody any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_free(comm: *const Comm, address: *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm.as_ref() }.ok_or_else(|| null("comm_free: comm"))?;
        // SAFETY: the caller's.
        unsafe { comm.free_raw(address) };
        Ok(())
    })
}

/// Leaves together with all; the communicator is gone afterwards, whatever the code. Null is fine.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_finalize(comm: *mut Comm) -> c_int {
    guarded(|| {
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: from the Box of `comm_init`, and given back once.
        unsafe { Box::from_raw(comm) }.finalize()
    })
}

/// Ends the job for all ranks; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_abort(comm: *const Comm) -> c_int {
    guarded(|| {
        // SAFETY: the caller's.
        unsafe { comm.as_ref() }.ok_or_else(|| null("comm_abort: comm"))?.abort();
        Ok(())
    })
}

/// Tells a figure of the program's own; see the header.
///
/// # Safety
/// `name` is null or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_report(name: *const c_char, value: f64) -> c_int {
    guarded(|| {
        if name.is_null() {
            return Err(null("comm_report: name"));
        }
        // SAFETY: the caller's, and not null.
        crate::report::report(&unsafe { CStr::from_ptr(name) }.to_string_lossy(), value);
        Ok(())
    })
}

/// The sentence of this thread's last error, empty before the first. Valid until its next one.
#[unsafe(no_mangle)]
pub extern "C" fn comm_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What a code means, for ever valid.
#[unsafe(no_mangle)]
pub extern "C" fn comm_error_string(code: c_int) -> *const c_char {
    sentence(code).as_ptr()
}

/// The version of the library: major * 10000 + minor * 100 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn comm_version() -> c_uint {
    VERSION
}

const VERSION: c_uint = version_number();

const fn version_number() -> c_uint {
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

const fn part(digits: &str) -> c_uint {
    let digits = digits.as_bytes();
    let (mut number, mut i) = (0, 0);
    while i < digits.len() {
        number = number * 10 + (digits[i] - b'0') as c_uint;
        i += 1;
    }
    number
}

#[cfg(test)]
mod tests;
