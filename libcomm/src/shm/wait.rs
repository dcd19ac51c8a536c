//! Waiting for a peer: spin while there is a CPU for everyone, then yield, then sleep, and see all the while
//! whether the peer can still come.
//!
//! No wait is endless while rankd lives: it ends with the condition, with an abort, an exit, a failure or a leave
//! of a rank, with a peer that makes its calls in another order, or with the deadline where one is set. The condition
//! always wins: what a rank posted before it died counts.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::View;
use super::abort::{AbortReason, RankExit};
use super::atomic::{Acquire, Relaxed, relax, yield_now};
use super::bell::Naps;

/// A few µs. Longer waits are for a peer that computes or sleeps, or that the scheduler has put onto this very CPU although
/// there is one for each: with 2000, two ranks that shared one took 26 µs a call instead of 0.4. Who yields goes on
/// looking, and loses little where nobody else wants the CPU.
const SPINS: u32 = if cfg!(loom) { 0 } else { 160 };
/// The first looks come without a pause between them, which takes longer than a line needs from core to core.
const EAGER: u32 = 100;
const SPINS_PER_CHECK: u32 = 64;
/// With more ranks than CPUs a peer that is ready runs after a few of these, sooner than a futex wakes.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 100 };
/// How long to sleep before looking whether the processes still exist.
const SLEEP: Duration = Duration::from_millis(50);

/// How long a rank that has dropped its communicator may take to end, before those who wait for it give up.
const DROPPED_GRACE: Duration = Duration::from_secs(2);

/// How long a peer may stay ahead in calls on its GPU, without a further one and without coming to where it is awaited.
pub(crate) const ANOTHER_ORDER: Duration = Duration::from_secs(2);

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Aborted(AbortReason),
    Exited { rank: u32, exit: RankExit, joined: bool },
    Vanished { rank: u32, pid: u32 },
    Failed { rank: u32 },
    Left { rank: u32 },
    Deadline { rank: u32, waited: Duration },
    // `rank` has made calls on its GPU that `me`, in a call on the host, has not.
    OnDevice { me: u32, rank: u32 },
}

/// One rank's way to wait, in one generation.
pub(crate) struct Waiter {
    me: u32,
    generation: u32,
    spins: Cell<u32>,
    /// The longest wait of a call.
    limit: Option<Duration>,
    call_began: Cell<Option<Instant>>,
    /// The count of news up to which nothing was found that ends a wait.
    seen_news: Cell<u32>,
    /// Whether its waits are in an order with calls on the GPU.
    in_order: Cell<bool>,
    /// Shared by all waiters of the rank: its threads have one bell.
    naps: Arc<Naps>,
}

impl Waiter {
    pub(crate) fn new(me: u32, generation: u32, limit: Option<Duration>) -> Waiter {
        let (spins, call_began, seen_news) = (Cell::new(0), Cell::new(None), Cell::new(0));
        Waiter { me, generation, spins, limit, call_began, seen_news, in_order: Cell::new(false), naps: Arc::default() }
    }

    /// One more for the same rank, for calls that may wait while this one does.
    pub(crate) fn another(&self) -> Waiter {
        let new = Waiter::new(self.me, self.generation, self.limit);
        new.spins.set(self.spins.get());
        Waiter { naps: self.naps.clone(), ..new }
    }

    pub(crate) fn me(&self) -> u32 {
        self.me
    }

    /// Allows spinning: there is a CPU for each rank.
    pub(crate) fn allow_spinning(&self) {
        self.spins.set(SPINS);
    }

    /// Says that this is the waiter of all calls of the job's communicator on the host.
    pub(crate) fn keep_order(&self) {
        self.in_order.set(true);
    }

    /// Starts the deadline of a new call, where there are deadlines.
    pub(crate) fn begin_call(&self) {
        self.call_began.set(self.limit.map(|_| Instant::now()));
    }

    /// Returns once `arrived` is true, which `whom` brings about and then rings for.
    pub(crate) fn wait(&self, view: View<'_>, whom: u32, arrived: impl Fn() -> bool) -> Result<(), Stop> {
        self.wait_for_either(view, [whom; 2], arrived)
    }

    /// The same where either of two peers may bring it about, and both must be there to go on.
    pub(crate) fn wait_for_either(
        &self,
        view: View<'_>,
        whom: [u32; 2],
        arrived: impl Fn() -> bool,
    ) -> Result<(), Stop> {
        if arrived() {
            return Ok(());
        }
        for spin in 1..=self.spins.get() {
            if spin > EAGER {
                relax();
            }
            if arrived() {
                return Ok(());
            }
            if spin % SPINS_PER_CHECK == 0 {
                self.check(view, whom, &arrived)?;
            }
        }
        for _ in 0..YIELDS {
            yield_now();
            if arrived() {
                return Ok(());
            }
            self.check(view, whom, &arrived)?;
        }
        self.wait_asleep(view, whom, &arrived)
    }

    #[cold]
    fn wait_asleep(&self, view: View<'_>, whom: [u32; 2], arrived: &impl Fn() -> bool) -> Result<(), Stop> {
        let began = Instant::now();
        let mut looked_for_processes = began;
        let mut dropped_since = None;
        let mut ahead: Option<((u32, u64), Instant)> = None;
        let session = || whom.map(|rank| view.ranks[rank as usize].status.session.load(Acquire));
        loop {
            // Read before the look at what they announce: if they have changed when we are about to sleep, we have
            // something to look at again.
            let (news, was_in) = (view.shared.news.0.load(Acquire), session());
            if arrived() {
                return Ok(());
            }
            self.check(view, whom, arrived)?;
            if cfg!(not(loom)) && looked_for_processes.elapsed() >= 2 * SLEEP {
                self.look_for_processes(view, whom, arrived)?;
                looked_for_processes = Instant::now();
            }
            // Who has dropped its communicator is about to end, and then its exit says more; but it need not end.
            if let Some(rank) = whom.into_iter().find(|rank| cfg!(not(loom)) && self.dropped(view, *rank)) {
                let since = *dropped_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= DROPPED_GRACE {
                    return Err(Stop::Left { rank });
                }
            }
            // Looked at in this order: if it has still not come, the peer made those calls before it (`on_device.rs`).
            let found = self.ahead_on_device(view, whom).filter(|_| cfg!(not(loom)) && !arrived());
            ahead = found.map(|found| match ahead {
                Some((before, since)) if before == found => (found, since),
                _ => (found, Instant::now()),
            });
            if let Some(((rank, _), since)) = ahead
                && since.elapsed() >= ANOTHER_ORDER
            {
                return Err(Stop::OnDevice { me: self.me, rank });
            }
            let mut nap = SLEEP;
            if let (Some(limit), Some(call_began)) = (self.limit, self.call_began.get()) {
                let waited = call_began.elapsed();
                if waited >= limit {
                    return Err(Stop::Deadline { rank: whom[0], waited });
                }
                nap = nap.min(limit - waited);
            }
            view.sleep(self.me, whom, &self.naps, nap, || {
                arrived() || view.shared.news.0.load(Acquire) != news || session() != was_in
            });
        }
    }

    /// Whether anything ends this wait. Cheap while there is no news.
    fn check(&self, view: View<'_>, whom: [u32; 2], arrived: &impl Fn() -> bool) -> Result<(), Stop> {
        let second = || if whom[1] == whom[0] { None } else { self.trouble(view, whom[1]) };
        match self.trouble(view, whom[0]).or_else(second) {
            Some(_) if arrived() => Ok(()), // it came before the trouble did
            Some(stop) => Err(stop),
            None => Ok(()),
        }
    }

    /// The first reason, if any, why waiting for `whom` makes no sense.
    ///
    /// An exit names its rank, so it goes before the abort that it causes; a failure says why a rank left.
    pub(crate) fn trouble(&self, view: View<'_>, whom: u32) -> Option<Stop> {
        let left = 2 * self.generation;
        let news = view.shared.news.0.load(Acquire);
        if news != self.seen_news.get() {
            let abort = view.abort_reason();
            let found = self.dead_rank(view).or(abort.map(Stop::Aborted)).or_else(|| self.failed_rank(view));
            if found.is_some() {
                return found;
            }
            self.seen_news.set(news);
        }
        let gone = whom != self.me && view.ranks[whom as usize].status.session.load(Acquire) >= left;
        if !gone {
            let ended = whom != self.me && self.dropped(view, whom);
            let exit = view.exit_of(whom).filter(|_| ended)?;
            return self.failed_rank(view).or(Some(Stop::Exited { rank: whom, exit, joined: true }));
        }
        // It may have failed and left since we looked at the news.
        self.failed_rank(view).or(Some(Stop::Left { rank: whom }))
    }

    /// Whether `rank` has dropped the communicator of our generation without leaving in order.
    fn dropped(&self, view: View<'_>, rank: u32) -> bool {
        let status = &view.ranks[rank as usize].status;
        status.dropped.load(Acquire) == self.generation && status.session.load(Acquire) < 2 * self.generation
    }

    /// A peer that has made more calls on its GPU than this rank, and how many.
    fn ahead_on_device(&self, view: View<'_>, whom: [u32; 2]) -> Option<(u32, u64)> {
        if !self.in_order.get() {
            return None;
        }
        let ours = view.made_on_device(self.me, self.generation)?;
        let made = |rank: u32| view.made_on_device(rank, self.generation).map(|calls| (rank, calls));
        whom.into_iter().filter_map(made).find(|(_, calls)| *calls > ours)
    }

    /// A rank whose process ended before it left our generation; the first of them, since one death makes others
    /// give up. One that dropped its communicator and ended with status 0 has failed nobody but those who wait for it.
    fn dead_rank(&self, view: View<'_>) -> Option<Stop> {
        let first = match view.abort_reason() {
            Some(AbortReason::RankExited(rank)) => Some(rank),
            _ => None,
        };
        let ranks = first.into_iter().chain(0..view.exits.len() as u32);
        ranks.filter(|rank| *rank != self.me).find_map(|rank| {
            let exit = view.exit_of(rank)?;
            let session = view.ranks[rank as usize].status.session.load(Acquire);
            let joined = session >= 2 * self.generation - 1;
            let harmless = exit == RankExit::Code(0) && self.dropped(view, rank);
            (session < 2 * self.generation && !harmless).then_some(Stop::Exited { rank, exit, joined })
        })
    }

    /// A rank whose call failed; our own too, since another thread of ours may have made it, and then nobody waits for
    /// us any more.
    fn failed_rank(&self, view: View<'_>) -> Option<Stop> {
        view.failed_rank(self.generation).map(|rank| Stop::Failed { rank })
    }

    /// Finds a joined process that is gone while its rank lives on, because a wrapper goes on without it.
    fn look_for_processes(&self, view: View<'_>, whom: [u32; 2], arrived: &impl Fn() -> bool) -> Result<(), Stop> {
        let joined = 2 * self.generation - 1;
        let ranks = view.ranks.len() as u32;
        for rank in (0..ranks).filter(|rank| *rank != self.me) {
            let status = &view.ranks[rank as usize].status;
            let pid = status.pid.load(Relaxed);
            let uninvolved = !whom.contains(&rank) && self.dropped(view, rank);
            if status.session.load(Acquire) != joined || uninvolved || crate::process::exists(status) {
                continue;
            }
            std::thread::sleep(Duration::from_millis(10)); // rankd may be about to say how it ended
            self.check(view, whom, arrived)?;
            if !arrived() && status.session.load(Acquire) == joined {
                return Err(Stop::Vanished { rank, pid });
            }
        }
        Ok(())
    }
}
