//! What to do about what happens: [`JobState::step`], pure.
//!
//! It is given every event and the time, and answers with actions; it never looks at a clock, a process or a
//! descriptor. So every rule about ending a job stands here and is tested as a table.

use std::time::{Duration, Instant};

use nix::libc;
use rankd::keeper::RankdEnd;
use rankd::proto::{ExitStatus, FromNode, Leftover, ReportReason, ToNode, Usage};

use crate::exit;
use crate::job::Ending;
use crate::output::SinkFailure;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// rankd says something.
    Node(FromNode),
    /// rankd's stream ended: it has said all, or was killed.
    NodeClosed,
    /// prun got a signal.
    Signal(i32),
    /// prun's own output cannot be written any more.
    SinkFailed(SinkFailure),
    /// A GPU or a link failed, and that ends the job.
    MachineFault(String),
    /// prun was stopped for so long and goes on now.
    Resumed(Duration),
    /// A moment that [`JobState::next_deadline`] asked for.
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send this to rankd.
    Tell(ToNode),
    /// Say this to the user.
    Note(String),
    /// The ranks are stopped: stop prun itself, as the user's Ctrl-Z asked.
    StopSelf,
    /// The terminal has another size.
    ResizeTerminals,
}

/// Why the job ended, or will end, other than by all its ranks being done.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// This rank failed first.
    Rank {
        /// Which.
        rank: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// A rank's program could not be started.
    Start {
        /// Which rank.
        rank: u32,
        /// Why, in sentences.
        reason: String,
        /// 125, 126 or 127.
        code: i32,
    },
    /// prun was asked to end.
    Signal(i32),
    /// `--timeout` is over.
    TimeLimit,
    /// prun's output cannot be written.
    Sink(SinkFailure),
    /// A GPU or a link failed: the sentence of the watch.
    Machine(String),
    /// rankd was asked to end by a signal.
    RankdAsked(i32),
    /// The keeper was killed.
    KeeperGone,
    /// rankd ended in the middle of the job.
    RankdGone(Option<RankdEnd>),
}

impl Cause {
    /// prun's exit code for it.
    pub fn exit_code(&self) -> i32 {
        match self {
            Cause::Rank { status, .. } => status.shell_code(),
            Cause::Start { code, .. } => *code,
            Cause::Signal(signal) | Cause::RankdAsked(signal) => 128 + signal,
            Cause::TimeLimit => i32::from(exit::TIME_LIMIT),
            Cause::Sink(SinkFailure::Closed { .. }) => i32::from(exit::CLOSED_STDOUT),
            Cause::Sink(_) | Cause::Machine(_) | Cause::KeeperGone | Cause::RankdGone(_) => i32::from(exit::REFUSED),
        }
    }
}

/// One rank as prun sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct RankState {
    /// Its process, once started.
    pub pid: Option<i32>,
    /// How it ended, once it has.
    pub end: Option<RankEnd>,
}

/// How and when a rank ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RankEnd {
    /// Its status.
    pub status: ExitStatus,
    /// What it used.
    pub usage: Usage,
    /// Since the start of the job.
    pub after: Duration,
    /// Whether the job was being ended already.
    pub was_asked: bool,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    /// The ranks were asked to end; those that go on get SIGTERM at `term_at` (if they were asked with another
    /// signal) and SIGKILL at `kill_at`.
    Asked {
        term_at: Option<Instant>,
        kill_at: Instant,
    },
    Killed,
}

/// Everything prun knows of a running job.
#[derive(Debug)]
pub struct JobState {
    /// All ranks.
    pub ranks: Vec<RankState>,
    /// What decided the job's end, the first thing only.
    pub cause: Option<Cause>,
    /// When it did, since the start.
    pub cause_after: Duration,
    /// Processes that outlived their ranks.
    pub leftovers: Vec<Leftover>,
    /// What each rank did last in libcomm, when the first rank failed or the job was ended.
    pub reports: Vec<comm::node::RankReport>,
    /// When the ranks had to be killed, since the start.
    pub killed_after: Option<Duration>,
    ending: Ending,
    started: Instant,
    stopping: Stopping,
    /// The first failure, which decides the exit code even when it does not end the job.
    first_failure: Option<Cause>,
    first_failure_after: Duration,
    warn_at: Option<Instant>,
    time_limit_at: Option<Instant>,
    pausing: bool,
    node_is_empty: bool,
    is_over: bool,
}

impl JobState {
    /// A job of `world_size` ranks that starts now.
    pub fn new(world_size: u32, ending: &Ending, now: Instant) -> JobState {
        let time_limit_at = ending.timeout.and_then(|limit| now.checked_add(limit));
        let warn_at = ending
            .warning
            .and_then(|(_, before)| time_limit_at.map(|limit| limit.checked_sub(before).map_or(now, |at| at.max(now))));
        JobState {
            ranks: vec![RankState { pid: None, end: None }; world_size as usize],
            cause: None,
            cause_after: Duration::ZERO,
            leftovers: Vec::new(),
            reports: Vec::new(),
            killed_after: None,
            ending: ending.clone(),
            started: now,
            stopping: Stopping::No,
            first_failure: None,
            first_failure_after: Duration::ZERO,
            warn_at,
            time_limit_at,
            pausing: false,
            node_is_empty: false,
            is_over: false,
        }
    }

    /// Takes one event and says what to do about it.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Node(message) => self.on_node(message, now),
            Event::NodeClosed => self.on_node_closed(now),
            Event::Signal(signal) => self.on_signal(signal, now),
            Event::SinkFailed(failure) => self.end_because(Cause::Sink(failure), libc::SIGTERM, now),
            Event::MachineFault(what) => self.end_because(Cause::Machine(what), libc::SIGTERM, now),
            Event::Resumed(pause) => self.on_resumed(pause),
            Event::Tick => self.on_tick(now),
        }
    }

    /// The next moment at which [`Event::Tick`] is wanted.
    pub fn next_deadline(&self) -> Option<Instant> {
        let stopping = match self.stopping {
            Stopping::Asked { term_at, kill_at } => Some(term_at.unwrap_or(kill_at)),
            Stopping::No | Stopping::Killed => None,
        };
        [stopping, self.warn_at, self.time_limit_at].into_iter().flatten().min()
    }

    /// Whether nothing more will happen: rankd has said its last word.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// What decides the exit code; `None` if all went well.
    pub fn verdict(&self) -> Option<(&Cause, Duration)> {
        let decided = self.cause.as_ref().map(|cause| (cause, self.cause_after));
        decided.or_else(|| self.first_failure.as_ref().map(|cause| (cause, self.first_failure_after)))
    }

    /// prun's exit code.
    pub fn exit_code(&self) -> i32 {
        self.verdict().map_or(i32::from(exit::SUCCESS), |(cause, _)| cause.exit_code())
    }

    fn on_node(&mut self, message: FromNode, now: Instant) -> Vec<Action> {
        match message {
            FromNode::Ready { .. } => Vec::new(),
            FromNode::Started { rank, pid } => {
                if let Some(state) = self.ranks.get_mut(rank as usize) {
                    state.pid = Some(pid);
                }
                Vec::new()
            }
            // rankd ends what it has started by itself.
            FromNode::StartFailed { rank, reason, code } => {
                self.decide(Cause::Start { rank, reason, code }, now);
                self.arm(None, now)
            }
            FromNode::Exited { rank, status, usage } => self.on_exited(rank, status, usage, now),
            FromNode::Stopped if self.pausing => {
                self.pausing = false;
                vec![Action::StopSelf]
            }
            FromNode::Stopped => Vec::new(),
            FromNode::Report { why, ranks } => self.on_report(why, ranks),
            FromNode::Leftovers(found) => {
                self.leftovers.extend(found);
                Vec::new()
            }
            FromNode::Asked(signal) => {
                self.decide(Cause::RankdAsked(signal), now);
                self.arm(None, now)
            }
            FromNode::KeeperGone => {
                self.decide(Cause::KeeperGone, now);
                self.arm(None, now)
            }
            FromNode::Empty => {
                self.node_is_empty = true;
                self.is_over = true;
                Vec::new()
            }
        }
    }

    fn on_exited(&mut self, rank: u32, status: ExitStatus, usage: Usage, now: Instant) -> Vec<Action> {
        let after = now - self.started;
        let was_asked = self.stopping != Stopping::No;
        if let Some(state) = self.ranks.get_mut(rank as usize) {
            state.end = Some(RankEnd { status, usage, after, was_asked });
        }
        // A death that we caused is never the cause.
        if status.is_success() || was_asked {
            return Vec::new();
        }
        let cause = Cause::Rank { rank, status };
        if self.ending.kill_on_fail {
            return self.end_because(cause, libc::SIGTERM, now);
        }
        if self.first_failure.is_none() {
            (self.first_failure, self.first_failure_after) = (Some(cause), after);
        }
        Vec::new()
    }

    fn on_report(&mut self, why: ReportReason, ranks: Vec<comm::node::RankReport>) -> Vec<Action> {
        match why {
            ReportReason::Stalled { ms } => vec![Action::Note(super::text::stalled(ms, &ranks))],
            ReportReason::Failure | ReportReason::Asked => {
                if self.reports.is_empty() {
                    self.reports = ranks;
                }
                Vec::new()
            }
        }
    }

    fn on_node_closed(&mut self, now: Instant) -> Vec<Action> {
        if !self.node_is_empty {
            self.decide(Cause::RankdGone(None), now);
        }
        self.is_over = true;
        Vec::new()
    }

    fn on_signal(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        match signal {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => self.on_interrupt(signal, now),
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => self.on_stop(),
            libc::SIGCONT => vec![Action::Tell(ToNode::Continue)],
            libc::SIGWINCH => vec![Action::ResizeTerminals, Action::Tell(ToNode::Signal(signal))],
            // Urgent data on a socket of prun's own, a pipe of prun's own: nobody sent these on purpose.
            libc::SIGURG | libc::SIGPIPE => Vec::new(),
            _ => vec![Action::Tell(ToNode::Signal(signal))],
        }
    }

    /// The first interrupt is passed on and starts the grace period; any later one kills at once, so that
    /// Ctrl-C twice always gives the terminal back.
    fn on_interrupt(&mut self, signal: i32, now: Instant) -> Vec<Action> {
        match self.stopping {
            Stopping::No => self.end_because(Cause::Signal(signal), signal, now),
            Stopping::Asked { .. } => self.kill(now),
            Stopping::Killed => Vec::new(),
        }
    }

    fn on_stop(&mut self) -> Vec<Action> {
        if self.pausing {
            return Vec::new();
        }
        self.pausing = true;
        vec![Action::Tell(ToNode::Stop)]
    }

    /// Time in which the job stood still does not count toward any limit.
    fn on_resumed(&mut self, pause: Duration) -> Vec<Action> {
        for deadline in [&mut self.warn_at, &mut self.time_limit_at].into_iter().flatten() {
            *deadline += pause;
        }
        if let Stopping::Asked { term_at, kill_at } = &mut self.stopping {
            *kill_at += pause;
            term_at.iter_mut().for_each(|at| *at += pause);
        }
        vec![Action::Tell(ToNode::Continue)]
    }

    fn on_tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.warn_at.is_some_and(|at| now >= at) {
            self.warn_at = None;
            if let Some((signal, _)) = self.ending.warning {
                actions.push(Action::Tell(ToNode::Signal(signal as i32)));
            }
        }
        if self.time_limit_at.is_some_and(|at| now >= at) {
            self.time_limit_at = None;
            actions.extend(self.end_because(Cause::TimeLimit, libc::SIGTERM, now));
        }
        match self.stopping {
            Stopping::Asked { kill_at, .. } if now >= kill_at => actions.extend(self.kill(now)),
            Stopping::Asked { term_at: Some(term_at), kill_at } if now >= term_at => {
                self.stopping = Stopping::Asked { term_at: None, kill_at };
                actions.push(Action::Tell(ToNode::Signal(libc::SIGTERM)));
            }
            _ => {}
        }
        actions
    }

    /// Begins the end: the cause is noted, the ranks are asked with `signal`. Does nothing once it has begun.
    fn end_because(&mut self, cause: Cause, signal: i32, now: Instant) -> Vec<Action> {
        if self.stopping != Stopping::No {
            return Vec::new();
        }
        self.decide(cause, now);
        self.arm(Some(signal), now)
    }

    /// Starts the grace period. Ranks that do not listen to `signal` get SIGTERM half way, since a program
    /// started in the background of a shell ignores SIGINT and SIGQUIT.
    fn arm(&mut self, signal: Option<i32>, now: Instant) -> Vec<Action> {
        if self.stopping != Stopping::No {
            return Vec::new();
        }
        let grace = self.ending.grace;
        let term_at = signal.filter(|&signal| signal != libc::SIGTERM).map(|_| now + grace / 2);
        self.stopping = Stopping::Asked { term_at, kill_at: now + grace };
        self.warn_at = None;
        self.time_limit_at = None;
        let report = self.reports.is_empty().then_some(Action::Tell(ToNode::AskReport));
        report.into_iter().chain(signal.map(|signal| Action::Tell(ToNode::Signal(signal)))).collect()
    }

    fn kill(&mut self, now: Instant) -> Vec<Action> {
        self.stopping = Stopping::Killed;
        self.killed_after = Some(now - self.started);
        vec![Action::Tell(ToNode::Kill)]
    }

    fn decide(&mut self, cause: Cause, now: Instant) {
        if self.cause.is_none() {
            (self.cause, self.cause_after) = (Some(cause), now - self.started);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);
    const EXIT_3: ExitStatus = ExitStatus::Code(3);
    const TERMED: ExitStatus = ExitStatus::Signal { signal: libc::SIGTERM, core: false };

    struct Run {
        job: JobState,
        start: Instant,
    }

    impl Run {
        fn new(ranks: u32, change: impl FnOnce(&mut Ending)) -> Run {
            let mut ending = Ending::default();
            change(&mut ending);
            let start = Instant::now();
            Run { job: JobState::new(ranks, &ending, start), start }
        }

        fn at(&mut self, ms: u64, event: Event) -> Vec<Action> {
            self.job.step(event, self.start + Duration::from_millis(ms))
        }

        fn exits(&mut self, ms: u64, rank: u32, status: ExitStatus) -> Vec<Action> {
            self.at(ms, Event::Node(FromNode::Exited { rank, status, usage: Usage::default() }))
        }

        fn deadline_ms(&self) -> Option<u128> {
            self.job.next_deadline().map(|at| (at - self.start).as_millis())
        }
    }

    fn signalled(signal: i32) -> Vec<Action> {
        vec![Action::Tell(ToNode::AskReport), Action::Tell(ToNode::Signal(signal))]
    }

    fn told(signal: i32) -> Vec<Action> {
        vec![Action::Tell(ToNode::Signal(signal))]
    }

    #[test]
    fn a_job_whose_ranks_all_end_with_0_ends_with_0() {
        let mut run = Run::new(2, |_| {});
        assert_eq!(run.exits(10, 1, ExitStatus::Code(0)), []);
        assert_eq!(run.exits(20, 0, ExitStatus::Code(0)), []);
        assert_eq!(run.at(21, Event::Node(FromNode::Empty)), []);
        assert!(run.job.is_over());
        assert_eq!(run.job.exit_code(), 0);
    }

    #[test]
    fn the_first_failure_ends_the_job_and_decides_its_code() {
        let mut run = Run::new(3, |_| {});
        assert_eq!(run.exits(100, 1, EXIT_3), signalled(libc::SIGTERM));
        assert_eq!(run.exits(101, 0, ExitStatus::Code(9)), []);
        assert_eq!(run.exits(102, 2, TERMED), []);
        assert_eq!(run.job.exit_code(), 3);
        assert_eq!(
            run.job.verdict().map(|(cause, after)| (cause.clone(), after.as_millis())),
            Some((Cause::Rank { rank: 1, status: EXIT_3 }, 100))
        );
    }

    #[test]
    fn with_keep_going_the_others_go_on_and_the_first_failure_still_decides() {
        let mut run = Run::new(2, |ending| ending.kill_on_fail = false);
        assert_eq!(run.exits(5, 0, EXIT_3), []);
        assert_eq!(run.exits(6, 1, ExitStatus::Code(4)), []);
        assert_eq!(run.job.exit_code(), 3);
    }

    #[test]
    fn ranks_that_ignore_sigterm_are_killed_after_the_grace_period_and_the_code_stays_the_first_failure_s() {
        let mut run = Run::new(2, |ending| ending.grace = GRACE);
        run.exits(1000, 0, ExitStatus::Code(7));
        assert_eq!(run.deadline_ms(), Some(11_000));
        assert_eq!(run.at(10_999, Event::Tick), []);
        assert_eq!(run.at(11_000, Event::Tick), [Action::Tell(ToNode::Kill)]);
        run.exits(11_001, 1, ExitStatus::Signal { signal: libc::SIGKILL, core: false });
        assert_eq!(run.job.exit_code(), 7);
        assert_eq!(run.deadline_ms(), None);
    }

    #[test]
    fn the_first_interrupt_is_passed_on_and_the_second_kills() {
        let mut run = Run::new(1, |_| {});
        assert_eq!(run.at(0, Event::Signal(libc::SIGINT)), signalled(libc::SIGINT));
        assert_eq!(run.at(300, Event::Signal(libc::SIGINT)), [Action::Tell(ToNode::Kill)]);
        assert_eq!(run.at(400, Event::Signal(libc::SIGINT)), []);
        assert_eq!(run.job.exit_code(), 130);
    }

    #[test]
    fn an_ignored_interrupt_becomes_sigterm_and_then_sigkill() {
        let mut run = Run::new(1, |_| {});
        run.at(0, Event::Signal(libc::SIGINT));
        assert_eq!(run.at(5000, Event::Tick), told(libc::SIGTERM));
        assert_eq!(run.at(5001, Event::Tick), []);
        assert_eq!(run.at(10_000, Event::Tick), [Action::Tell(ToNode::Kill)]);
    }

    #[test]
    fn each_signal_that_ends_the_job_gives_its_own_code() {
        for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129), (libc::SIGQUIT, 131)] {
            let mut run = Run::new(1, |_| {});
            assert_eq!(run.at(0, Event::Signal(signal)), signalled(signal));
            run.exits(1, 0, ExitStatus::Code(0));
            assert_eq!(run.job.exit_code(), code);
        }
    }

    #[test]
    fn other_signals_are_passed_on_and_end_nothing() {
        let mut run = Run::new(1, |_| {});
        for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, 40] {
            assert_eq!(run.at(0, Event::Signal(signal)), told(signal));
        }
        assert_eq!(
            run.at(0, Event::Signal(libc::SIGWINCH)),
            [Action::ResizeTerminals, Action::Tell(ToNode::Signal(libc::SIGWINCH))]
        );
        assert_eq!(run.job.exit_code(), 0);
    }

    #[test]
    fn prun_signals_tells_the_truth() {
        use crate::surface::signals::{Effect, TABLE};
        for (signal, effect) in TABLE {
            let number = signal as i32;
            let actions = Run::new(1, |_| {}).at(0, Event::Signal(number));
            let told = match effect {
                Effect::Ends | Effect::PassedOn => ToNode::Signal(number),
                Effect::Stops => ToNode::Stop,
                Effect::Continues => ToNode::Continue,
            };
            assert!(actions.contains(&Action::Tell(told)), "{signal}: {actions:?}");
            assert_eq!(actions.contains(&Action::Tell(ToNode::AskReport)), effect == Effect::Ends, "{signal}");
        }
    }

    #[test]
    fn the_ranks_stop_before_prun_and_the_pause_counts_toward_no_limit() {
        let mut run = Run::new(1, |ending| ending.timeout = Some(Duration::from_secs(60)));
        assert_eq!(run.at(1000, Event::Signal(libc::SIGTSTP)), [Action::Tell(ToNode::Stop)]);
        assert_eq!(run.at(1001, Event::Signal(libc::SIGTSTP)), []);
        assert_eq!(run.at(1010, Event::Node(FromNode::Stopped)), [Action::StopSelf]);
        assert_eq!(run.at(501_000, Event::Resumed(Duration::from_secs(500))), [Action::Tell(ToNode::Continue)]);
        assert_eq!(run.deadline_ms(), Some(560_000));
        assert_eq!(run.at(559_999, Event::Tick), []);
        assert_eq!(run.at(560_000, Event::Tick), signalled(libc::SIGTERM));
        assert_eq!(run.job.exit_code(), 124);
    }

    #[test]
    fn the_warning_signal_comes_so_long_before_the_limit() {
        let mut run = Run::new(1, |ending| {
            ending.timeout = Some(Duration::from_secs(60));
            ending.warning = Some((nix::sys::signal::Signal::SIGUSR1, Duration::from_secs(20)));
        });
        assert_eq!(run.deadline_ms(), Some(40_000));
        assert_eq!(run.at(40_000, Event::Tick), told(libc::SIGUSR1));
        assert_eq!(run.deadline_ms(), Some(60_000));
    }

    #[test]
    fn a_closed_stdout_ends_the_job_with_141() {
        let mut run = Run::new(1, |_| {});
        let closed = SinkFailure::Closed { stream: crate::output::Stream::Stdout };
        assert_eq!(run.at(5, Event::SinkFailed(closed)), signalled(libc::SIGTERM));
        assert_eq!(run.job.exit_code(), 141);
    }

    #[test]
    fn a_fault_of_the_machine_ends_the_job_and_is_its_cause_whatever_ranks_do_then() {
        let mut run = Run::new(2, |_| {});
        assert_eq!(run.at(5, Event::MachineFault("GPU1 fell off the bus".into())), signalled(libc::SIGTERM));
        run.exits(6, 1, EXIT_3);
        assert_eq!(run.job.exit_code(), 125);
        assert_eq!(run.job.cause, Some(Cause::Machine("GPU1 fell off the bus".into())));
    }

    #[test]
    fn rankd_gone_without_a_last_word_is_the_cause_only_if_nothing_came_before() {
        let mut run = Run::new(1, |_| {});
        run.at(5, Event::NodeClosed);
        assert!(run.job.is_over());
        assert_eq!(run.job.exit_code(), 125);
        let mut run = Run::new(1, |_| {});
        run.exits(5, 0, EXIT_3);
        run.at(6, Event::NodeClosed);
        assert_eq!(run.job.exit_code(), 3);
    }

    #[test]
    fn a_program_that_cannot_start_gives_the_shell_s_code_and_the_started_ranks_their_grace() {
        let mut run = Run::new(2, |_| {});
        let actions = run.at(1, Event::Node(FromNode::StartFailed { rank: 0, reason: "x".into(), code: 127 }));
        assert_eq!(actions, [Action::Tell(ToNode::AskReport)]);
        assert_eq!((run.job.exit_code(), run.deadline_ms()), (127, Some(10_001)));
    }
}
