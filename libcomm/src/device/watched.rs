//! What must end when the job does, and does not look for that itself, as NCCL's communicators.
//!
//! One thread at a time may use such a thing, also to end it: whoever uses it holds its lock, and the watcher waits for that.
//! What a call has put into a stream before it returned is what would wait for a dead peer for ever, and holds no lock.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::CommError;
use crate::threads;

/// How often the watcher looks. One look is one load while there is no news.
const LOOK: Duration = Duration::from_millis(100);
/// How long the owner waits for an end that is under way. NCCL's may wait for graphs that the program still has, which it may
/// destroy only afterwards.
const ENDING: Duration = Duration::from_secs(2);

/// A thing with its watcher. It is dropped once: when the job ends, or with this.
pub(super) struct Watched<T> {
    shared: Arc<Shared<T>>,
    /// Dropped to stop the watcher.
    stop: Option<Sender<()>>,
    /// Ends with the watcher.
    over: Receiver<()>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared<T> {
    /// `None` once the job has ended.
    thing: Mutex<Option<T>>,
    why: Arc<OnceLock<CommError>>,
}

impl<T> Shared<T> {
    fn end(&self, why: CommError) {
        let _ = self.why.set(why); // calls are refused from here on, also while another one is still inside
        let thing = self.thing.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(thing); // without the lock: it may take its time
    }
}

impl<T: Send + 'static> Watched<T> {
    /// Starts to watch: `look` says why the job ends, once it does.
    pub(super) fn new(
        thing: T,
        look: impl Fn() -> Option<CommError> + Send + 'static,
    ) -> Result<Watched<T>, std::io::Error> {
        let shared = Arc::new(Shared { thing: Mutex::new(Some(thing)), why: Arc::default() });
        let ((stop, stopped), (running, over)) = (mpsc::channel(), mpsc::channel::<()>());
        let theirs = shared.clone();
        let watcher = threads::start(move || {
            let _running = running;
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(why) = look() {
                    return theirs.end(why);
                }
            }
        })?;
        Ok(Watched { shared, stop: Some(stop), over, watcher: Some(watcher) })
    }
}

impl<T> Watched<T> {
    /// Where it will stand why it was ended, also when this is gone.
    pub(super) fn why(&self) -> Arc<OnceLock<CommError>> {
        self.shared.why.clone()
    }

    /// Why it was ended, if it was.
    pub(super) fn ended(&self) -> Option<CommError> {
        self.shared.why.get().cloned()
    }

    /// Uses it, unless the job has ended.
    pub(super) fn with(&self, call: impl FnOnce(&T) -> Result<(), CommError>) -> Result<(), CommError> {
        let thing = self.shared.thing.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.ended(), &*thing) {
            (None, Some(thing)) => call(thing),
            (why, _) => Err(why.unwrap_or_else(|| CommError::Internal("it ended for no reason".into()))),
        }
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.stop = None;
        let over = self.over.recv_timeout(ENDING) == Err(RecvTimeoutError::Disconnected);
        // One that takes longer owns all that it uses, and goes on alone.
        if let Some(watcher) = self.watcher.take().filter(|_| over) {
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    /// Counts how often it ends.
    struct Thing(Arc<AtomicU32>);

    impl Drop for Thing {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn watched() -> (Watched<Thing>, Arc<AtomicU32>, Arc<AtomicBool>) {
        let (ends, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let job_is_over = over.clone();
        let look = move || job_is_over.load(SeqCst).then_some(CommError::RankLeft { rank: 1, call: None });
        (Watched::new(Thing(ends.clone()), look).unwrap(), ends, over)
    }

    fn wait_for(what: impl Fn() -> bool) {
        while !what() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn while_the_job_lives_calls_go_through_and_the_owner_ends_it() {
        let (watched, ends, _) = watched();
        watched.with(|_| Ok(())).unwrap();
        assert!(watched.ended().is_none());
        drop(watched);
        assert_eq!(ends.load(SeqCst), 1);
    }

    #[test]
    fn when_the_job_ends_it_ends_once_and_calls_say_why_without_touching_it() {
        let (watched, ends, over) = watched();
        over.store(true, SeqCst);
        wait_for(|| ends.load(SeqCst) == 1);
        assert!(matches!(watched.ended(), Some(CommError::RankLeft { rank: 1, .. })));
        let refused = watched.with(|_| panic!("a call of what is gone"));
        assert!(matches!(refused, Err(CommError::RankLeft { rank: 1, .. })));
        drop(watched);
        assert_eq!(ends.load(SeqCst), 1);
    }

    #[test]
    fn a_call_that_is_inside_is_waited_for() {
        let (watched, ends, over) = watched();
        let inside = watched.with(|_| {
            over.store(true, SeqCst);
            wait_for(|| watched.ended().is_some());
            assert_eq!(ends.load(SeqCst), 0);
            Ok(())
        });
        assert!(inside.is_ok());
        wait_for(|| ends.load(SeqCst) == 1);
    }
}
