//! Tells when libcomm has not moved for too long while somebody waits.

use std::time::{Duration, Instant};

use comm::node::{CallState, RankReport};

/// Looks at libcomm's progress now and then. Knows nothing of clocks or shared memory.
#[derive(Debug)]
pub(crate) struct Stall {
    limit: Duration,
    progress: u64,
    moved: Instant,
    /// `None` while the job is stopped.
    next_look: Option<Instant>,
    told: bool,
}

impl Stall {
    /// Nothing has moved yet.
    pub(crate) fn new(limit: Duration, now: Instant) -> Stall {
        Stall { limit, progress: 0, moved: now, next_look: Some(now + limit / 4), told: false }
    }

    /// When [`Stall::look`] will next have something to see.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// The job is stopped: that nothing moves means nothing.
    pub(crate) fn pause(&mut self) {
        self.next_look = None;
    }

    /// The job goes on.
    pub(crate) fn resume(&mut self, now: Instant) {
        (self.moved, self.next_look) = (now, Some(now + self.limit / 4));
    }

    /// How long nothing has moved, once for each time that this is longer than the limit and somebody waits.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        progress: impl Fn() -> u64,
        waits: impl Fn() -> bool,
    ) -> Option<Duration> {
        self.next_look.filter(|&at| now >= at)?;
        self.next_look = Some(now + self.limit / 4);
        let progress = progress();
        if progress != self.progress {
            (self.progress, self.moved, self.told) = (progress, now, false);
            return None;
        }
        let still = now - self.moved;
        if still < self.limit || self.told || !waits() {
            return None;
        }
        self.told = true;
        Some(still)
    }
}

/// Whether a rank is in a call, or has joined and must wait for one that lives and has not.
pub(crate) fn somebody_waits(reports: &[RankReport]) -> bool {
    let in_call = |report: &RankReport| report.last_call().is_some_and(|call| call.state == CallState::Running);
    let newest = reports.iter().filter(|report| report.joined).map(|report| report.generation).max();
    let missing = |report: &RankReport| report.exit.is_none() && Some(report.generation) < newest;
    reports.iter().any(in_call) || reports.iter().any(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_stall_is_told_once_until_something_moves() {
        let start = Instant::now();
        let mut stall = Stall::new(LIMIT, start);
        assert_eq!(stall.look(at(start, 15), || 7, || true), None);
        assert_eq!(stall.look(at(start, 60), || 7, || true), None);
        assert_eq!(stall.look(at(start, 75), || 7, || true), Some(LIMIT));
        assert_eq!(stall.look(at(start, 200), || 7, || true), None);
        assert_eq!(stall.look(at(start, 215), || 8, || true), None);
        assert_eq!(stall.look(at(start, 300), || 8, || true), Some(Duration::from_secs(85)));
    }

    #[test]
    fn a_stall_that_nobody_waited_in_is_told_once_somebody_does() {
        let start = Instant::now();
        let mut stall = Stall::new(LIMIT, start);
        assert_eq!(stall.look(at(start, 100), || 0, || false), None);
        assert_eq!(stall.look(at(start, 200), || 0, || true), Some(Duration::from_secs(200)));
    }

    #[test]
    fn time_in_which_the_job_is_stopped_does_not_count() {
        let start = Instant::now();
        let mut stall = Stall::new(LIMIT, start);
        stall.pause();
        assert_eq!(stall.next_look(), None);
        assert_eq!(stall.look(at(start, 500), || 0, || true), None);
        stall.resume(at(start, 500));
        assert_eq!(stall.look(at(start, 559), || 0, || true), None);
        assert_eq!(stall.look(at(start, 580), || 0, || true), Some(Duration::from_secs(80)));
    }
}
