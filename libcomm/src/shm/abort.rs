//! The two words with which rankd ends waits: the abort word and the exit words, and what they say.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::View;
use super::atomic::{AcqRel, Acquire, Relaxed, Release};

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RankExit {
    /// It returned this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

const EXITED: u32 = 1 << 30;
const SIGNALED: u32 = 1 << 31;

impl RankExit {
    /// As the exit word, never 0.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            RankExit::Code(code) => EXITED | (code as u32 & 0xffff),
            RankExit::Signal(signal) => SIGNALED | (signal as u32 & 0xffff),
        }
    }

    /// From the exit word; `None` while the rank lives.
    pub(crate) fn from_word(word: u32) -> Option<RankExit> {
        let value = (word & 0xffff) as i32;
        match word {
            0 => None,
            word if word & SIGNALED != 0 => Some(RankExit::Signal(value)),
            _ => Some(RankExit::Code(value)),
        }
    }
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankExit::Code(code) => write!(f, "status {code}"),
            RankExit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal}, {name}"),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        _ => return None,
    })
}

/// Why a job is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AbortReason {
    /// Someone interrupted it.
    Interrupted,
    /// Its time was over.
    TimeLimit,
    /// The launcher is gone.
    LauncherGone,
    /// This rank ended while it was still in the job's communicator.
    RankExited(u32),
    /// This rank called `abort`.
    Called(u32),
}

impl AbortReason {
    fn to_word(self) -> u32 {
        let (kind, rank) = match self {
            AbortReason::Interrupted => (1, 0),
            AbortReason::TimeLimit => (2, 0),
            AbortReason::LauncherGone => (3, 0),
            AbortReason::RankExited(rank) => (4, rank),
            AbortReason::Called(rank) => (5, rank),
        };
        kind << 24 | (rank & 0xff_ffff)
    }

    /// From the abort word; `None` while nothing aborts the job.
    pub(crate) fn from_word(word: u32) -> Option<AbortReason> {
        let rank = word & 0xff_ffff;
        Some(match word >> 24 {
            1 => AbortReason::Interrupted,
            2 => AbortReason::TimeLimit,
            3 => AbortReason::LauncherGone,
            4 => AbortReason::RankExited(rank),
            5 => AbortReason::Called(rank),
            _ => return None,
        })
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbortReason::Interrupted => write!(f, "it was interrupted"),
            AbortReason::TimeLimit => write!(f, "its time limit is over"),
            AbortReason::LauncherGone => write!(f, "the launcher is gone"),
            AbortReason::RankExited(rank) => write!(f, "rank {rank} ended without leaving"),
            AbortReason::Called(rank) => write!(f, "rank {rank} called abort"),
        }
    }
}

impl View<'_> {
    /// Sets the abort word, unless it is set already: the first reason is the one that counts.
    ///
    /// A waiter that slept before learns it from its bell; one that is about to sleep has announced itself in
    /// `sleepers` before it looks at `news`, so either it sees our news or we see it.
    pub(crate) fn set_abort(&self, reason: AbortReason) {
        let _ = self.shared.abort.0.compare_exchange(0, reason.to_word(), Release, Relaxed);
        self.tell_all();
    }

    /// Why the job is being ended, if it is.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        AbortReason::from_word(self.shared.abort.0.load(Acquire))
    }

    /// Records how a rank ended. Whoever waits judges by itself whether that rank still owed it something.
    ///
    /// The record is stored before the abort word and the news, so whoever has seen either sees the record.
    pub(crate) fn record_exit(&self, rank: u32, exit: RankExit) {
        self.exits[rank as usize].store(exit.to_word(), Release);
        // A segment that nobody joined is not looked at: each block would cost a page.
        let was_in = || {
            let status = &self.ranks[rank as usize].status;
            let session = status.session.load(Acquire);
            session % 2 == 1 && !(exit == RankExit::Code(0) && status.dropped.load(Acquire) == session.div_ceil(2))
        };
        match self.shared.joins.0.load(Acquire) != 0 && was_in() {
            true => self.set_abort(AbortReason::RankExited(rank)),
            false => self.tell_all(),
        }
    }

    /// A rank whose call failed in that generation: the one in which it began, where others have passed it on.
    pub(crate) fn failed_rank(&self, generation: u32) -> Option<u32> {
        let is_failed = |rank: &u32| self.ranks[*rank as usize].status.failed.load(Acquire) == generation;
        let is_first = |rank: &u32| self.ranks[*rank as usize].status.second_hand.load(Relaxed) != generation;
        let failed = || (0..self.ranks.len() as u32).filter(is_failed);
        // Who has seen one that was passed on sees the first one, too, if it looks once more.
        let any = failed().next()?;
        failed().find(is_first).or(Some(any))
    }

    /// How a rank ended, if it has.
    pub(crate) fn exit_of(&self, rank: u32) -> Option<RankExit> {
        RankExit::from_word(self.exits[rank as usize].load(Acquire))
    }

    /// Counts one more piece of news and wakes everyone.
    pub(crate) fn tell_all(&self) {
        self.shared.news.0.fetch_add(1, AcqRel);
        self.ring(|_| true);
    }
}
