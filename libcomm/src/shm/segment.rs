//! The memory itself: made without a name by rankd, mapped by each rank, gone with the last descriptor.
//!
//! Owns descriptor and mapping. What the words in it mean is the business of the files beside this one.
#![expect(unsafe_code, reason = "maps memory and looks at it as the layout says")]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::ptr::NonNull;

use super::View;
use super::layout::{self, Geometry, Identity, JOB_ID_BYTES, RankBlock, Shared};

/// Why there is no segment.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// No nameless file.
    #[error("cannot make the job's shared memory: memfd_create: {0}")]
    Create(Errno),
    /// It cannot have its size, or not keep it.
    #[error("cannot give the job's shared memory its size of {bytes} bytes: {cause}")]
    Size {
        /// What was wanted.
        bytes: usize,
        /// What the kernel said.
        cause: Errno,
    },
    /// It cannot be mapped.
    #[error("cannot map {bytes} bytes of the job's shared memory: {cause}")]
    Map {
        /// What was wanted.
        bytes: usize,
        /// What the kernel said.
        cause: Errno,
    },
    /// The job id does not fit.
    #[error("the job id has {0} bytes; {JOB_ID_BYTES} are the most")]
    JobIdTooLong(usize),
    /// More ranks, or none, than a segment can serve.
    #[error("cannot serve {local_size} ranks of {world_size}: a segment is for 1 to {most}, all on one node", most = layout::MAX_RANKS)]
    Ranks {
        /// Ranks of the job.
        world_size: u32,
        /// Of them here.
        local_size: u32,
    },
    /// The descriptor is something else.
    #[error("descriptor {fd} is not this job's shared memory: {why}")]
    NotOurs {
        /// Its number.
        fd: i32,
        /// How that was found out.
        why: String,
    },
}

/// Our duplicate of the descriptor stays clear of the low numbers, which programs count on.
const LEAST_FD: i32 = 64;

/// A mapping of a segment, or of its front part.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<c_void>,
    mapped_bytes: usize,
    geometry: Geometry,
    /// The file, for mapping more of it; none where the memory is in no file.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping is a plain range of addresses that this value owns; everything in it that changes while
// others look is atomic, and slots are handed over by `step.rs`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `mapped_bytes` came from one mmap, and every reference into the mapping borrows from
        // this value, which ends here.
        let _ = unsafe { munmap(self.base.as_ptr(), self.mapped_bytes) };
    }
}

/// How much of a segment to map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything before the slots: all that rankd looks at.
    Front,
    /// All but the windows.
    Whole,
}

/// Makes the nameless file, sealed to its size and zero except for the identity.
pub(crate) fn create(
    job_id: &str,
    world_size: u32,
    local_size: u32,
    chunk_bytes: usize,
) -> Result<(OwnedFd, Mapping), SegmentError> {
    let (identity, geometry) = identity(job_id, world_size, local_size, chunk_bytes)?;
    let bytes = geometry.total_bytes();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"libcomm", flags).map_err(SegmentError::Create)?;
    ftruncate(&fd, bytes as u64).map_err(|cause| SegmentError::Size { bytes, cause })?;
    // A rank cannot shrink it under the others, which is what would make a touched page a SIGBUS.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|cause| SegmentError::Size { bytes, cause })?;
    let mapping = Mapping::of(fd.as_fd(), geometry, Part::Front)?;
    mapping.write_identity(identity);
    Ok((fd, mapping))
}

/// Memory for a program that is alone: the same layout, in no file at all.
pub(crate) fn private(job_id: &str) -> Result<Mapping, SegmentError> {
    let (identity, geometry) = identity(job_id, 1, 1, Geometry::DEFAULT_CHUNK_BYTES)?;
    let bytes = geometry.heap_at();
    // SAFETY: a fresh anonymous mapping, placed by the kernel.
    let base =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let base = base.map_err(|cause| SegmentError::Map { bytes, cause })?;
    let base = NonNull::new(base).ok_or(SegmentError::Map { bytes, cause: Errno::NOMEM })?;
    let mapping = Mapping { base, mapped_bytes: bytes, geometry, file: None };
    mapping.write_identity(identity);
    Ok(mapping)
}

/// Maps a segment that someone else made, once its identity says that it is the one of `job_id`.
pub(crate) fn open(fd: BorrowedFd<'_>, job_id: &str) -> Result<Mapping, SegmentError> {
    Mapping::of(fd, known(fd, job_id)?, Part::Whole)
}

/// The same for one who only looks: everything before the slots, which it cannot write to.
pub(crate) fn open_to_read(fd: BorrowedFd<'_>, job_id: &str) -> Result<Mapping, SegmentError> {
    Mapping::with(fd, known(fd, job_id)?, Part::Front, ProtFlags::READ)
}

/// The geometry of the segment of `job_id`, if that is what the descriptor is.
fn known(fd: BorrowedFd<'_>, job_id: &str) -> Result<Geometry, SegmentError> {
    use rustix::fd::AsRawFd;
    let not_ours = |why: String| SegmentError::NotOurs { fd: fd.as_raw_fd(), why };
    let seals = fcntl_get_seals(fd).map_err(|_| not_ours("it is no memory file".into()))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(not_ours("its size is not sealed".into()));
    }
    let found = read_identity(fd).ok_or_else(|| not_ours("it is too short".into()))?;
    if found.magic != layout::MAGIC {
        return Err(not_ours("it does not begin as one".into()));
    }
    if found.layout_version != layout::LAYOUT_VERSION {
        let (theirs, ours) = (found.layout_version, layout::LAYOUT_VERSION);
        return Err(not_ours(format!("its layout is version {theirs}, this libcomm knows version {ours}")));
    }
    let id_bytes = (found.job_id_bytes as usize).min(JOB_ID_BYTES);
    let theirs = String::from_utf8_lossy(&found.job_id[..id_bytes]);
    if theirs != job_id {
        return Err(not_ours(format!("it belongs to job {theirs}, this is job {job_id}")));
    }
    let mut geometry = Geometry::new(found.local_size, found.chunk_bytes as usize);
    let bytes = fstat(fd).map_err(|e| not_ours(format!("fstat: {e}")))?.st_size as u64;
    if bytes == geometry.heap_at() as u64 {
        geometry.window_bytes = 0;
    }
    if found.local_size == 0 || found.local_size > layout::MAX_RANKS || geometry.total_bytes() as u64 != bytes {
        return Err(not_ours(format!("its {bytes} bytes do not fit {} ranks", found.local_size)));
    }
    Ok(geometry)
}

fn identity(
    job_id: &str,
    world_size: u32,
    local_size: u32,
    chunk_bytes: usize,
) -> Result<(Identity, Geometry), SegmentError> {
    if job_id.len() > JOB_ID_BYTES {
        return Err(SegmentError::JobIdTooLong(job_id.len()));
    }
    if local_size == 0 || local_size > layout::MAX_RANKS || local_size != world_size {
        return Err(SegmentError::Ranks { world_size, local_size });
    }
    let mut geometry = Geometry::new(local_size, chunk_bytes);
    // Past that limit (`ulimit -f`) a file cannot grow, and trying is a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < geometry.total_bytes() as u64) {
        geometry.window_bytes = 0;
    }
    let mut id = [0; JOB_ID_BYTES];
    id[..job_id.len()].copy_from_slice(job_id.as_bytes());
    let identity = Identity {
        magic: layout::MAGIC,
        layout_version: layout::LAYOUT_VERSION,
        world_size,
        local_size,
        chunk_bytes: geometry.chunk_bytes as u32,
        total_bytes: geometry.total_bytes() as u64,
        job_id_bytes: job_id.len() as u32,
        reserved: 0,
        job_id: id,
    };
    Ok((identity, geometry))
}

/// Reads the identity without mapping anything, since the descriptor may be anything.
fn read_identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    let mut bytes = [0u8; size_of::<Identity>()];
    let read = rustix::io::pread(fd, &mut bytes, 0).ok()?;
    // SAFETY: Identity is integers and bytes only, without padding (its size is asserted to be the sum of its
    // fields), so any bytes of its size are one.
    (read == bytes.len()).then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

impl Mapping {
    fn of(fd: BorrowedFd<'_>, geometry: Geometry, part: Part) -> Result<Mapping, SegmentError> {
        Mapping::with(fd, geometry, part, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(fd: BorrowedFd<'_>, geometry: Geometry, part: Part, may: ProtFlags) -> Result<Mapping, SegmentError> {
        let bytes = match part {
            Part::Front => geometry.slots_at(),
            Part::Whole => geometry.heap_at(),
        };
        // SAFETY: a fresh shared mapping, placed by the kernel, of a file whose size is sealed at no less.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, may, MapFlags::SHARED, fd, 0) };
        let base = base.map_err(|cause| SegmentError::Map { bytes, cause })?;
        let base = NonNull::new(base).ok_or(SegmentError::Map { bytes, cause: Errno::NOMEM })?;
        let mut mapping = Mapping { base, mapped_bytes: bytes, geometry, file: None };
        if part == Part::Whole {
            let file = rustix::io::fcntl_dupfd_cloexec(fd, LEAST_FD);
            mapping.file = Some(file.map_err(|cause| SegmentError::Map { bytes, cause })?);
        }
        Ok(mapping)
    }

    fn write_identity(&self, identity: Identity) {
        // SAFETY: the mapping begins at a page, is longer than an Identity, and nobody else knows of it yet.
        unsafe { self.base.as_ptr().cast::<Identity>().write(identity) }
    }

    /// What was written when the segment was made.
    pub(crate) fn identity(&self) -> Identity {
        // SAFETY: as above; the identity does not change once others can see it.
        unsafe { self.base.as_ptr().cast::<Identity>().read() }
    }

    /// The file, where the memory is in one.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }

    /// Sizes and offsets.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The words that are shared between processes.
    pub(crate) fn view(&self) -> View<'_> {
        let ranks = self.geometry.ranks;
        let base = self.base.as_ptr().cast::<u8>();
        // SAFETY: all three parts lie inside the mapping, aligned (their offsets are multiples of their alignment
        // and the mapping of a page), apart from each other, and hold nothing but atomics, for which every bit
        // pattern is valid; they live as long as the mapping, from which the view borrows.
        unsafe {
            View {
                shared: &*base.add(layout::SHARED_AT).cast::<Shared>(),
                exits: std::slice::from_raw_parts(base.add(layout::EXITS_AT).cast(), ranks),
                ranks: std::slice::from_raw_parts(base.add(self.geometry.blocks_at()).cast::<RankBlock>(), ranks),
            }
        }
    }

    /// Slot `parity` of part `part`: `slot_bytes` bytes that belong to whoever `step.rs` says.
    pub(crate) fn slot(&self, part: u32, parity: u64) -> *mut u8 {
        let at = self.geometry.part_at(part as usize) + (parity as usize % 2) * self.geometry.slot_bytes();
        debug_assert!(at + self.geometry.slot_bytes() <= self.mapped_bytes);
        // SAFETY: inside the mapping, as asserted: only whole mappings are asked for slots.
        unsafe { self.base.as_ptr().cast::<u8>().add(at) }
    }

    /// Address and length of everything before the slots, in whole pages: what a GPU watches.
    pub(crate) fn front(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr(), self.geometry.slots_at())
    }

    /// Address and length of rank `rank`'s slots.
    pub(crate) fn part(&self, rank: u32) -> (*mut c_void, usize) {
        (self.slot(rank, 0).cast(), self.geometry.part_bytes())
    }
}
