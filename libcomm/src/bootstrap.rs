//! Finding the segment, and joining it as a generation together with all other ranks.

use rustix::fd::{AsFd, BorrowedFd};

use crate::choose::Algorithm;
use crate::domains;
use crate::env;
use crate::error::CommError;
use crate::protocol::simple::{explain, publish_failure};
use crate::settings::Settings;
use crate::shm::View;
use crate::shm::atomic::{AcqRel, Acquire, Relaxed, Release};
use crate::shm::segment::{self, Mapping, SegmentError};
use crate::shm::step::{LAST_GENERATION, Stamp};
use crate::shm::wait::{Stop, Waiter};
use crate::{handover, numa, process, usable_cpus};

/// Maps the job's segment: by the inherited descriptor, or by one that the daemon gives out.
pub(crate) fn find_segment(settings: &Settings) -> Result<Mapping, CommError> {
    let job_id = &settings.job_id;
    let inherited = match env::number(env::SEGMENT_FD)? {
        Some(number) => match open_inherited(number, job_id) {
            Ok(mapping) => return Ok(mapping),
            Err(error) => error.to_string(),
        },
        None => format!("{} is not set", env::SEGMENT_FD),
    };
    let Some(socket) = env::text(env::SOCKET) else {
        return Err(CommError::no_segment(job_id, inherited, None));
    };
    match handover::fetch(&socket, job_id) {
        Ok(fd) => Ok(segment::open(fd.as_fd(), job_id)?),
        Err(error) => Err(CommError::no_segment(job_id, inherited, Some(error))),
    }
}

/// The descriptor stays open and inheritable: the next program of this rank needs it too.
#[expect(unsafe_code, reason = "the environment gives a descriptor as a number")]
fn open_inherited(number: u64, job_id: &str) -> Result<Mapping, SegmentError> {
    let not_ours = |why: &str| SegmentError::NotOurs { fd: number as i32, why: why.into() };
    let number = i32::try_from(number).map_err(|_| not_ours("no descriptor has that number"))?;
    // SAFETY: not -1. Whether it is open, and what it is, `segment::open` finds out by calls that fail on anything
    // else; the descriptor is borrowed for those calls only.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    segment::open(fd, job_id)
}

/// Joins as the next generation of this rank; returns once all ranks have joined that generation.
pub(crate) fn join(mapping: &Mapping, settings: &Settings) -> Result<(Waiter, u32), CommError> {
    let (view, me) = (mapping.view(), settings.local_rank);
    let found = mapping.identity();
    if found.world_size != settings.size || me >= found.local_size {
        let value = settings.size.to_string();
        let wanted = "the size of the job whose shared memory this is";
        return Err(CommError::Environment { name: env::SIZE, value, wanted });
    }
    let generation = enter(view, me)?;
    numa::bind_here(mapping.part(me));
    usable_cpus::publish(view, me, settings.usable_cpus);
    let forced = matches!(settings.algorithm, Some(Algorithm::Hierarchical { group: 0 }));
    if forced || settings.size >= domains::FROM_RANKS {
        domains::publish(view, me);
    }
    let waiter = Waiter::new(me, generation, settings.timeout);
    waiter.begin_call();
    if let Err(stop) = meet(view, &waiter, generation) {
        let error = explain(view, stop, None);
        publish_failure(view, me, generation, &error);
        leave(view, me, generation);
        return Err(error);
    }
    let cpus = settings.usable_cpus.unwrap_or_else(|| usable_cpus::together(view));
    if view.ranks.len() <= cpus {
        waiter.allow_spinning();
    }
    Ok((waiter, generation))
}

/// Takes the rank's place. Of two programs that try at once one gets it; a place whose process died without
/// leaving it is free again, in the next generation.
fn enter(view: View<'_>, me: u32) -> Result<u32, CommError> {
    let status = &view.ranks[me as usize].status;
    loop {
        let session = status.session.load(Acquire);
        let dropped = status.dropped.load(Acquire) == session.div_ceil(2);
        if session % 2 == 1 && !dropped && process::exists(status) {
            return Err(CommError::AlreadyJoined { rank: me, pid: status.pid.load(Relaxed) });
        }
        let generation = session.div_ceil(2) + 1;
        if generation > LAST_GENERATION {
            return Err(CommError::Internal(format!("rank {me} has joined {LAST_GENERATION} times already")));
        }
        if status.session.compare_exchange(session, 2 * generation - 1, AcqRel, Relaxed).is_ok() {
            process::sign(status);
            status.text_bytes.store(0, Relaxed);
            view.shared.joins.0.fetch_add(1, Release);
            view.tell_all();
            return Ok(generation);
        }
    }
}

/// First all have joined, then all have posted the generation's first step, before which they have published what
/// the others read from here on. Nobody posts before all have joined, since the stamps of a generation would
/// otherwise let those go on who still wait in the one before.
fn meet(view: View<'_>, waiter: &Waiter, generation: u32) -> Result<(), Stop> {
    let joined = 2 * generation - 1;
    for rank in 0..view.ranks.len() as u32 {
        let session = &view.ranks[rank as usize].status.session;
        waiter.wait(view, rank, || session.load(Acquire) >= joined)?;
    }
    let stamp = Stamp::new(generation, FIRST_STEPS);
    view.post(waiter.me(), stamp);
    view.await_all(waiter, stamp)
}

/// The steps that are posted once a generation has met.
pub(crate) const FIRST_STEPS: u64 = 1;

/// Notes that the communicator is gone, although the rank did not leave in order. It counts as joined until its
/// process ends, or joins again, so that peers who still wait for it learn what became of it.
pub(crate) fn note_dropped(view: View<'_>, me: u32, generation: u32) {
    view.ranks[me as usize].status.dropped.store(generation, Release);
    view.tell_all();
}

/// Gives the place up. Whoever waits for this rank from now on learns that it has left.
pub(crate) fn leave(view: View<'_>, me: u32, generation: u32) {
    let status = &view.ranks[me as usize].status;
    status.pid.store(0, Relaxed);
    status.session.store(2 * generation, Release);
    view.tell_all();
}
