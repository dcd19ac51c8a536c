//! Memory of every kind: from pools in stream order, mapped by hand, pinned, and plain host memory; sub-allocations of
//! each. And CUDA's runtime, whose last error stays clean.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::ffi::{c_int, c_void};

use anyhow::{Context as _, bail, ensure};
use comm::{CommError, DataType, Op};
use libloading::Library;

use super::NotHere;
use super::rank::{Rank, data};
use super::registered;

const COUNT: usize = 70_001;
const BYTES: usize = 4 * COUNT;
/// What drivers map memory in.
const GRANULE: usize = 2 << 20;

/// One buffer after the other on both sides.
pub(super) fn kinds(rank: &Rank<'_>) -> anyhow::Result<()> {
    // SAFETY: the driver is loaded already.
    let driver = unsafe { Library::new("libcuda.so.1") }?;
    let _bound = rank.context.bind()?;
    let pool = from_pool(&driver, rank).context("cuMemAllocAsync")?;
    check(rank, pool).context("memory of a pool, in stream order")?;
    check(rank, pool + 4 * 1001).context("the same, from the middle")?;
    let mapped = mapped_by_hand(&driver, rank.context.device()).context("cuMemCreate")?;
    check(rank, mapped).context("memory mapped by hand")?;
    check(rank, mapped + 4 * 333).context("the same, from the middle")?;
    if rank.comm.detour().is_none() {
        registered::cannot_be_shared(rank, pool).context("memory of a pool, registered")?;
        registered::cannot_be_shared(rank, mapped).context("memory mapped by hand, registered")?;
    }
    let pinned = comm::cuda::HostBuffer::new(rank.context, 2 * BYTES)?;
    mixed(rank, pinned.host() as u64).context("pinned memory of the host beside the device's")?;
    plain(rank)?;
    of_the_host(rank)
}

/// A buffer of two times `BYTES` at `base`, whose halves are sent and received.
fn check(rank: &Rank<'_>, base: u64) -> anyhow::Result<()> {
    let recv = base + (BYTES as u64).next_multiple_of(16) + 4;
    pair(rank, base, recv)
}

/// Sent from there, received in the device's.
fn mixed(rank: &Rank<'_>, send: u64) -> anyhow::Result<()> {
    pair(rank, send, rank.buffer.address())
}

fn pair(rank: &Rank<'_>, send: u64, recv: u64) -> anyhow::Result<()> {
    let (comm, stream, driver) = (rank.comm, rank.stream.get(), rank.context.driver());
    let sends: Vec<Vec<f32>> = (0..comm.size()).map(|rank| data(rank, COUNT, 5)).collect();
    let own = &sends[comm.rank() as usize];
    let mut result = vec![0f32; COUNT];
    // SAFETY: all are that long; the copies and the call are waited for.
    unsafe {
        driver.copy_async(send, own.as_ptr() as u64, BYTES, stream.raw())?;
        comm.all_reduce_stream_raw(send as *const _, recv as *mut _, COUNT, DataType::F32, Op::Sum, stream.raw())?;
        driver.copy_async(result.as_mut_ptr() as u64, recv, BYTES, stream.raw())?;
        stream.synchronize(driver)?;
    }
    comm.async_error()?;
    let wrong = (0..COUNT).find(|i| result[*i] != sends.iter().map(|send| send[*i]).sum::<f32>());
    ensure!(wrong.is_none(), "element {wrong:?} is wrong");
    Ok(())
}

/// Plain host memory beside a device's is refused, by every rank, and harms nothing.
fn plain(rank: &Rank<'_>) -> anyhow::Result<()> {
    let host = vec![1f32; COUNT];
    let recv = rank.buffer.address() as *mut c_void;
    // SAFETY: both are that long.
    let refused = unsafe { rank.comm.all_reduce_raw(host.as_ptr().cast(), recv, COUNT, DataType::F32, Op::Sum) };
    match refused {
        Err(CommError::InvalidArgument { why, .. }) if why.contains("plain host memory") => Ok(rank.comm.barrier()?),
        other => bail!("plain host memory: {other:?}"),
    }
}

/// Calls that only the host carries out refuse the device's memory, on every rank, and harm nothing.
fn of_the_host(rank: &Rank<'_>) -> anyhow::Result<()> {
    let (comm, address) = (rank.comm, rank.buffer.address() as *mut c_void);
    // SAFETY: the buffer is longer than that.
    let refused = unsafe {
        [
            comm.reduce_raw(address, address, 8, DataType::F32, Op::Sum, 0),
            comm.all_gather_raw(address, address.wrapping_add(1024), 8, DataType::F32),
            comm.scan_raw(address, address, 8, DataType::F32, Op::Sum),
        ]
    };
    for refused in refused {
        match refused {
            Err(CommError::InvalidArgument { why, .. }) if why.contains("is memory of GPU") => {}
            other => bail!("memory of the device in a call of the host: {other:?}"),
        }
    }
    Ok(comm.barrier()?)
}

fn from_pool(driver: &Library, rank: &Rank<'_>) -> anyhow::Result<u64> {
    type Allocate = unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> c_int;
    let mut address = 0;
    // SAFETY: the documented signature.
    let status =
        unsafe { driver.get::<Allocate>(b"cuMemAllocAsync")?(&mut address, 3 * BYTES, rank.stream.get().raw()) };
    ensure!(status == 0, "status {status}");
    Ok(address)
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Default)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    security: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

/// Memory that has no handle of the kind that other processes can open. Stays until the process ends.
fn mapped_by_hand(driver: &Library, device: u32) -> anyhow::Result<u64> {
    const PINNED: c_int = 1;
    const DEVICE: c_int = 1;
    const READ_WRITE: c_int = 3;
    type Create = unsafe extern "C" fn(*mut u64, usize, *const Properties, u64) -> c_int;
    type Reserve = unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int;
    type Map = unsafe extern "C" fn(u64, usize, usize, u64, u64) -> c_int;
    type SetAccess = unsafe extern "C" fn(u64, usize, *const Access, usize) -> c_int;
    let bytes = (3 * BYTES).next_multiple_of(GRANULE);
    let location = Location { kind: DEVICE, id: device as c_int };
    let properties = Properties { kind: PINNED, location, ..Properties::default() };
    let access = Access { location, flags: READ_WRITE };
    let (mut handle, mut address) = (0, 0);
    // SAFETY: the documented signatures; each call has what the one before it made.
    let statuses = unsafe {
        [
            driver.get::<Create>(b"cuMemCreate")?(&mut handle, bytes, &properties, 0),
            driver.get::<Reserve>(b"cuMemAddressReserve")?(&mut address, bytes, GRANULE, 0, 0),
            driver.get::<Map>(b"cuMemMap")?(address, bytes, 0, handle, 0),
            driver.get::<SetAccess>(b"cuMemSetAccess")?(address, bytes, &access, 1),
        ]
    };
    ensure!(statuses == [0; 4], "statuses {statuses:?}");
    Ok(address)
}

/// A program that uses CUDA's runtime, and has enabled peer access itself: its last error stays clean whatever libcomm
/// does, and a capture works right after.
pub(super) fn runtime(rank: &Rank<'_>) -> anyhow::Result<()> {
    let names = ["libcudart.so.13", "libcudart.so.12", "libcudart.so", "/usr/local/cuda/lib64/libcudart.so"];
    // SAFETY: CUDA's runtime may be loaded into any process.
    let Some(runtime) = names.iter().find_map(|name| unsafe { Library::new(*name) }.ok()) else {
        bail!(NotHere("there is no CUDA runtime to load".into()));
    };
    type Plain = unsafe extern "C" fn() -> c_int;
    type EnablePeer = unsafe extern "C" fn(c_int, u32) -> c_int;
    // SAFETY: the documented signatures.
    let (last_error, enable) = unsafe {
        (runtime.get::<Plain>(b"cudaGetLastError")?, runtime.get::<EnablePeer>(b"cudaDeviceEnablePeerAccess")?)
    };
    let _bound = rank.context.bind()?;
    let peer = 1 - rank.context.device() as c_int;
    let clean = |after: &str| {
        // SAFETY: no preconditions.
        let status = unsafe { last_error() };
        ensure!(status == 0, "the last error after {after} is {status}");
        Ok(())
    };
    // SAFETY: no preconditions; that it is enabled already is an error that is cleared.
    unsafe {
        enable(peer, 0);
        last_error();
    }
    rank.call::<f32>(1000, Op::Sum, None, false, 0)?;
    clean("a call")?;
    for count in [300_000, 3_000_000] {
        rank.call::<f32>(count, Op::Sum, None, true, 0)?;
        clean("a longer call")?;
    }
    let (base, stream, driver) = (rank.buffer.address(), rank.stream.get(), rank.context.driver());
    stream.begin_capture(driver)?;
    // SAFETY: inside the buffer.
    unsafe {
        rank.comm.all_reduce_stream_raw(
            base as *const _,
            base as *mut _,
            1000,
            DataType::F32,
            Op::Sum,
            stream.raw(),
        )?;
    }
    let graph = stream.end_capture(rank.context)?;
    graph.launch(stream)?;
    stream.synchronize(driver)?;
    clean("a replayed graph")?;
    rank.comm.async_error()?;
    Ok(rank.comm.barrier()?)
}
