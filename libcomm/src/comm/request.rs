//! Calls that return before they are done.
//!
//! A communicator's requests wait in a queue, in the order in which they were started. Whoever comes first carries the
//! next one out: a thread that the first request starts, somebody who waits for a request, or the next blocking call,
//! which goes after all that was started before it. So the ranks make their calls in the same order whoever makes them,
//! data moves while the program computes, and a program that waits at once pays for no switch of threads.
#![expect(unsafe_code, reason = "requests hold addresses")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::Comm;
use super::check::{Buffers, Call, applies};
use super::core::Core;
use super::queue::{Queue, State};
use crate::cuda;
use crate::device;
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::publish_failure;
use crate::threads;
use crate::types::{DataType, Op, Operation};

impl Comm {
    /// Starts a [`barrier`](Comm::barrier): the request is done once all ranks have started theirs.
    pub fn start_barrier(&self) -> Result<Request<'_, ()>, CommError> {
        self.start(Work::Barrier, None)
    }

    /// Starts an [`all_reduce_in_place`](Comm::all_reduce_in_place) of `data`, which [`wait`](Request::wait) gives back.
    pub fn start_all_reduce<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Request<'_, Vec<T>>, CommError> {
        let kept = Arc::new(Kept(UnsafeCell::new(data)));
        // SAFETY: nobody else has it yet.
        let (address, count) = unsafe { ((*kept.0.get()).as_mut_ptr(), (*kept.0.get()).len()) };
        let address = address.cast::<c_void>();
        let work = Work::all_reduce(address, address, count, T::TYPE, op)?;
        let Request { queue, core, task, claimed, .. } = self.start(work, Some(kept.clone()))?;
        Ok(Request { queue, core, task, data: kept, claimed, comm: PhantomData })
    }

    /// Starts an [`all_reduce_raw`](Comm::all_reduce_raw) on host memory.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements, and nobody else touches them, until the request is
    /// done or the communicator is gone.
    pub unsafe fn start_all_reduce_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<Request<'_, ()>, CommError> {
        if cuda::sys::is_loaded()
            && count != 0
            && device::device_of(Operation::AllReduce, send as u64, recv as u64)?.is_some()
        {
            let why = "on GPU memory the call in a stream returns at once anyway";
            return Err(CommError::invalid(Operation::AllReduce, why));
        }
        self.start(Work::all_reduce(send.cast_mut(), recv, count, data_type, op)?, None)
    }

    fn start(&self, work: Work, data: Option<Arc<dyn Any + Send + Sync>>) -> Result<Request<'_, ()>, CommError> {
        if self.core.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let requests = match self.requests.get() {
            Some(requests) => requests,
            None => {
                let new = Requests::new(&self.core)?;
                self.requests.get_or_init(|| new)
            }
        };
        let task = Arc::new(Task { work, state: Mutex::new(TaskState { data, result: None }) });
        requests.queue.add(task.clone());
        let (queue, core, data) = (requests.queue.clone(), self.core.clone(), Arc::new(Kept(UnsafeCell::new(()))));
        Ok(Request { queue, core, task, data, claimed: false, comm: PhantomData })
    }
}

/// A call that has returned before it is done, from [`Comm::start_barrier`] or [`Comm::start_all_reduce`].
///
/// It must be waited for: [`finalize`](Comm::finalize) returns an error otherwise, after it has carried all requests out.
#[must_use = "a request must be waited for"]
pub struct Request<'c, D> {
    queue: Arc<Queue<Arc<Task>>>,
    core: Arc<Core>,
    task: Arc<Task>,
    data: Arc<Kept<D>>,
    claimed: bool,
    comm: PhantomData<&'c Comm>,
}

impl<D> Request<'_, D> {
    /// Whether it is done. Waits for nothing.
    pub fn test(&self) -> bool {
        self.task.is_done()
    }

    /// Returns once it is done, with what it was started with.
    pub fn wait(mut self) -> Result<D, CommError> {
        self.finish()?;
        // The task has let go of its share of the data before it was done.
        let data = self.data;
        let kept = Arc::into_inner(data).ok_or_else(|| CommError::Internal("a request still has its data".into()))?;
        Ok(kept.0.into_inner())
    }

    /// The same without the borrow: C promises by itself that the communicator stays.
    pub(crate) fn detached(self) -> Request<'static, D> {
        let Request { queue, core, task, data, claimed, .. } = self;
        Request { queue, core, task, data, claimed, comm: PhantomData }
    }

    /// Waits for the result, which is told once.
    pub(crate) fn finish(&mut self) -> Result<(), CommError> {
        if self.core.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        self.queue.work_until(|task| task.run(&self.core), |_| self.task.is_done());
        if !self.claimed {
            self.claimed = true;
            self.queue.lock().unclaimed -= 1;
        }
        self.task.lock().result.clone().unwrap_or(Ok(()))
    }
}

impl<D> fmt::Debug for Request<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:?}, {})", self.task.work, if self.test() { "done" } else { "not done" })
    }
}

/// Data that a request works on. Nobody looks at it between its start and its end.
struct Kept<D>(UnsafeCell<D>);

// SAFETY: only `wait` gets at the data, and it owns the value then.
unsafe impl<D: Send> Send for Kept<D> {}
// SAFETY: as above.
unsafe impl<D: Send> Sync for Kept<D> {}

/// What is to be done.
#[derive(Debug)]
enum Work {
    Barrier,
    AllReduce { send: *mut c_void, recv: *mut c_void, count: usize, data_type: DataType, op: Op },
}

// SAFETY: whoever started the call has promised that the addresses stay good until it is done, whoever does it.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    fn all_reduce(
        send: *mut c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<Work, CommError> {
        applies(Operation::AllReduce, data_type, op)?;
        Buffers { operation: Operation::AllReduce, send, recv, data_type }.check(count, 1, 1, 0)?;
        Ok(Work::AllReduce { send, recv, count, data_type, op })
    }

    fn run(&self, core: &Core) -> Result<(), CommError> {
        match *self {
            Work::Barrier => core.call(Call::plain(Operation::Barrier), |steps| steps.meet()),
            // SAFETY: the starter's buffers, checked then.
            Work::AllReduce { send, recv, count, data_type, op } => unsafe {
                core.all_reduce(send, recv, count, data_type, op)
            },
        }
    }
}

/// A request in the queue.
struct Task {
    work: Work,
    state: Mutex<TaskState>,
}

struct TaskState {
    /// Kept until the work is done, also where the request is not.
    data: Option<Arc<dyn Any + Send + Sync>>,
    result: Option<Result<(), CommError>>,
}

impl Task {
    fn is_done(&self) -> bool {
        self.lock().result.is_some()
    }

    fn run(&self, core: &Core) {
        let result = catch_unwind(AssertUnwindSafe(|| self.work.run(core)));
        let result = result.unwrap_or_else(|_| Err(CommError::Internal("a request panicked".into())));
        let mut state = self.lock();
        state.data = None;
        state.result = Some(result);
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of a communicator, and the thread that does them where nobody else does.
pub(super) struct Requests {
    queue: Arc<Queue<Arc<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Requests {
    fn new(core: &Arc<Core>) -> Result<Requests, CommError> {
        let queue = Arc::new(Queue::<Arc<Task>>::new());
        let (theirs, core) = (queue.clone(), core.clone());
        let carry_on = move || theirs.work_until(|task| task.run(&core), State::is_over);
        let thread = threads::start(carry_on);
        let thread = thread.map_err(|cause| CommError::NoThread { why: cause.to_string() })?;
        Ok(Requests { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Returns once all that was started is done.
    pub(super) fn drain(&self, core: &Core) {
        if core.job.guard.is_fork() {
            return; // whoever carries one out is not in this process; the call itself says so
        }
        self.queue.work_until(|task| task.run(core), State::is_idle);
    }

    /// The end: what was started is done. An error if nobody has waited for it.
    pub(super) fn close(&self, core: &Core) -> Result<(), CommError> {
        self.drain(core);
        self.end();
        match self.queue.lock().unclaimed {
            0 => Ok(()),
            1 => Err(CommError::invalid(Operation::Finalize, "1 request was never waited for")),
            open => Err(CommError::invalid(Operation::Finalize, format!("{open} requests were never waited for"))),
        }
    }

    /// The end where the communicator is dropped: what is not done fails, here and for the peers.
    pub(super) fn abandon(&self, core: &Core) {
        if !self.queue.lock().is_idle() {
            let error = CommError::Unusable { because: "it was dropped while a request was not done".into() };
            let job = &core.job;
            job.refuse_calls(|| error.to_string());
            publish_failure(job.view(), job.me(), job.generation, &error);
        }
        self.end();
    }

    fn end(&self) {
        self.queue.close();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join(); // it catches what it runs
        }
    }
}
