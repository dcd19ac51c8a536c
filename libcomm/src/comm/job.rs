//! What all communicators of a rank share: the rank itself, its mapping of the segment, and whether it still works.

use std::ffi::CString;
use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::split::Graves;
use crate::clock::{now_ns, tick_ns};
use crate::device::troubled::Lookout;
use crate::error::CommError;
use crate::fork_guard::ForkGuard;
use crate::protocol::simple::{explain, publish_failure};
use crate::settings::Settings;
use crate::shm::View;
use crate::shm::heap::Heap;
use crate::shm::recorder::{CallState, SHORT_CALL};
use crate::shm::segment::Mapping;
use crate::shm::wait::Waiter;
use crate::signature::Signature;
use crate::usable_cpus;

/// A rank in one generation of its job.
pub(super) struct Job {
    pub(super) settings: Settings,
    pub(super) mapping: Mapping,
    pub(super) generation: u32,
    /// Whether the ranks share few CPUs: the same on all of them.
    pub(super) crowded: bool,
    pub(super) guard: ForkGuard,
    /// The windows, mapped by the first that needs them.
    heap: OnceLock<Heap>,
    opening: Mutex<()>,
    /// Whether calls are refused, and why.
    broken: AtomicBool,
    because: Mutex<String>,
    /// What calls on GPU memory have run into since they returned.
    pub(super) on_device: Lookout,
    /// Why data between GPUs goes through the host, once they are set up.
    pub(super) detour: OnceLock<CString>,
    /// Calls recorded in this generation.
    sequence: AtomicU64,
    /// The highest number of a communicator that this rank was in.
    pub(super) communicators: AtomicU32,
    /// What communicators that were left have left behind.
    pub(super) graves: Graves,
}

impl Job {
    pub(super) fn new(mapping: Mapping, settings: Settings, generation: u32) -> Job {
        let crowded = usable_cpus::are_few(mapping.view());
        Job {
            settings,
            mapping,
            generation,
            crowded,
            guard: ForkGuard::new(),
            heap: OnceLock::new(),
            opening: Mutex::new(()),
            broken: AtomicBool::new(false),
            because: Mutex::default(),
            on_device: Lookout::default(),
            detour: OnceLock::new(),
            sequence: AtomicU64::new(0),
            communicators: AtomicU32::new(0),
            graves: Graves::default(),
        }
    }

    /// This rank in the segment.
    pub(super) fn me(&self) -> u32 {
        self.settings.local_rank
    }

    pub(super) fn view(&self) -> View<'_> {
        self.mapping.view()
    }

    /// The windows, if they are mapped.
    pub(super) fn mapped_heap(&self) -> Option<&Heap> {
        self.heap.get()
    }

    /// The windows of all ranks.
    pub(super) fn heap(&self) -> Result<&Heap, CommError> {
        if let Some(heap) = self.heap.get() {
            return Ok(heap);
        }
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        match self.heap.get() {
            Some(heap) => Ok(heap),
            None => {
                let heap = Heap::open(&self.mapping, self.me())?;
                Ok(self.heap.get_or_init(|| heap))
            }
        }
    }

    /// No call is made any more, for the first reason given.
    pub(super) fn refuse_calls(&self, because: impl FnOnce() -> String) {
        let mut reason = self.because.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.broken.load(Ordering::Relaxed) {
            *reason = because();
            self.broken.store(true, Ordering::Release);
        }
    }

    /// One call, from its record to its end. A failure ends all communicators of the job, here and for the peers.
    pub(super) fn perform<T>(
        &self,
        waiter: &Waiter,
        signature: Signature,
        body: impl FnOnce() -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        if self.broken.load(Ordering::Acquire) {
            let because = self.because.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(CommError::Unusable { because });
        }
        let (view, me) = (self.view(), self.me());
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        // Of a call that takes less than a microsecond, two looks at the exact time would be a quarter.
        let clock = if signature.count <= SHORT_CALL { tick_ns } else { now_ns };
        view.record_start(me, self.generation, sequence, &signature, clock());
        waiter.begin_call();
        let unreturned = Unreturned { job: self, signature };
        // What ended the job for another rank since the last call ends it for us, too, and so does what a call of ours on
        // the GPU has run into since it returned, which the others then learn of.
        // Boxed, since an error is large and most calls have none.
        let result = match (self.on_device.trouble(view, me).map(Box::new), waiter.trouble(view, me)) {
            (Some(error), _) => Err(*error),
            (None, Some(stop)) => Err(explain(view, stop, Some(signature))),
            (None, None) => body(),
        };
        forget(unreturned);
        let state = if result.is_ok() { CallState::Done } else { CallState::Failed };
        view.record_end(me, sequence, &signature, state, clock());
        if let Err(error) = &result {
            self.refuse_calls(|| error.to_string());
            publish_failure(view, me, self.generation, error);
        }
        result
    }
}

/// A call that panics ends the job's communicators: nobody knows how far it came.
struct Unreturned<'a> {
    job: &'a Job,
    signature: Signature,
}

impl Drop for Unreturned<'_> {
    fn drop(&mut self) {
        self.job.refuse_calls(|| format!("{} did not return", self.signature));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use kernels::args::{Record, TROUBLE_LEFT, TROUBLE_MISMATCH};

    use crate::comm::check::Call;
    use crate::device::troubled::tests::found;
    use crate::node::JobSegment;
    use crate::settings::Settings;
    use crate::shm::atomic::Acquire;
    use crate::{Comm, CommError, DataType, Op, Operation};

    type HostCall = dyn Fn(&Comm) -> Result<(), CommError> + Sync;

    /// What each of two ranks gets from `call`, after a call of rank 1's on the device has failed.
    fn after_trouble(record: Record, call: &HostCall) -> [CommError; 2] {
        two_ranks(|comm| {
            let rank = comm.rank();
            let copy = comm.dup().unwrap();
            comm.barrier().unwrap();
            if rank == 1 {
                // SAFETY: it is never freed.
                #[expect(unsafe_code, reason = "a record that no device writes")]
                unsafe {
                    comm.core.job.on_device.watch(found(record))
                };
            }
            let failed = call(&copy).and_then(|()| call(&comm)).unwrap_err();
            comm.barrier().unwrap_err();
            assert!(matches!(comm.barrier(), Err(CommError::Unusable { .. })));
            failed
        })
    }

    fn two_ranks<R: Send>(run: impl Fn(Comm) -> R + Sync) -> [R; 2] {
        let segment = JobSegment::create("two", 2, 2).unwrap();
        let run = |rank: u32| run(Comm::attach(segment.as_fd(), Settings::of("two", rank, 2)).unwrap());
        std::thread::scope(|scope| [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|rank| rank.join().unwrap()))
    }

    /// A kernel looks at the peer that it waits for alone, which may have given up because of another one.
    #[test]
    fn a_failure_is_passed_on_to_kernels_and_keeps_the_name_of_where_it_began() {
        two_ranks(|comm| {
            let job = &comm.core.job;
            if comm.rank() == 1 {
                let record = Record { kind: TROUBLE_MISMATCH, ours: 2, theirs: 3, ..Record::default() };
                // SAFETY: it is never freed.
                #[expect(unsafe_code, reason = "a record that no device writes")]
                unsafe {
                    job.on_device.watch(found(record))
                };
            }
            let error = comm.barrier().unwrap_err();
            assert_eq!(matches!(error, CommError::PeerFailed { rank: 1, .. }), comm.rank() == 0, "{error}");
            let status = &job.view().ranks[comm.rank() as usize].status;
            assert_eq!(status.failed.load(Acquire), job.generation);
            assert_eq!(job.view().failed_rank(job.generation), Some(1));
        });
    }

    #[test]
    fn what_a_replayed_graph_ran_into_is_reported_by_every_call_on_the_host_and_ends_it_for_the_peers() {
        let f32_x = |count: u64| 2 | count << 16;
        let record =
            Record { kind: TROUBLE_MISMATCH, epoch: 7, ours: f32_x(100), theirs: f32_x(300), ..Record::default() };
        let calls: [&HostCall; 4] = [
            &|comm| comm.barrier(),
            &|comm| comm.all_reduce_in_place(&mut [1f32; 9], Op::Sum),
            &|comm| comm.start_barrier()?.wait(),
            &|comm| comm.send_recv(&[1u8], 1 - comm.rank(), &mut [0], 1 - comm.rank(), 0),
        ];
        for call in calls {
            let [first, second] = after_trouble(record, call);
            let CommError::Mismatch { rank_a: 0, a, rank_b: 1, b } = second else { panic!("{second}") };
            assert_eq!([a.number, a.count, b.count], [7, 300, 100]);
            assert!(
                matches!(&first, CommError::PeerFailed { rank: 1, why, .. } if *why == second.to_string()),
                "{first}"
            );
        }
    }

    #[test]
    fn async_error_reports_it_as_well() {
        let record = Record { kind: TROUBLE_LEFT, ..Record::default() };
        let [first, second] = after_trouble(record, &|comm| comm.async_error().and_then(|()| comm.barrier()));
        assert!(matches!(second, CommError::RankLeft { rank: 0, .. }), "{second}");
        assert!(matches!(first, CommError::PeerFailed { rank: 1, .. }), "{first}");
    }

    #[test]
    fn who_has_left_looks_at_no_record_any_more() {
        let comm = Comm::attach(JobSegment::create("left", 1, 1).unwrap().as_fd(), Settings::of("left", 0, 1)).unwrap();
        let record = Record { kind: TROUBLE_LEFT, ..Record::default() };
        // SAFETY: it is never freed.
        #[expect(unsafe_code, reason = "a record that no device writes")]
        unsafe {
            comm.core.job.on_device.watch(found(record))
        };
        comm.core.job.on_device.forget();
        comm.barrier().unwrap();
        comm.finalize().unwrap();
    }

    /// As if a call on the GPU were put into a stream.
    fn call_on_device(comm: &Comm, number: u64) {
        let call =
            Call { data_type: Some(DataType::F32), op: Some(Op::Sum), count: 100, ..Call::plain(Operation::AllReduce) };
        comm.core.job.view().count_on_device(comm.rank(), comm.core.job.generation, &call.numbered(number, 0));
    }

    #[test]
    fn a_rank_that_waits_in_its_stream_while_the_other_waits_on_the_host_is_a_mismatch_that_names_both() {
        let [first, second] = two_ranks(|comm| {
            comm.barrier().unwrap();
            call_on_device(&comm, 2);
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                call_on_device(&comm, 4);
                let waiter = comm.core.waiter();
                // The kernel sees the same word.
                while waiter.trouble(comm.core.job.view(), 1).is_none() {
                    std::thread::yield_now();
                }
            }
            comm.barrier().unwrap_err()
        });
        assert_eq!(
            first.to_string(),
            "rank 0 waits in call 3 barrier on the host, but rank 1 has made call 4 allreduce sum f32 x 100 on its GPU before \
             that: all ranks must make their calls in the same order"
        );
        assert!(matches!(&second, CommError::PeerFailed { rank: 0, why, .. } if *why == first.to_string()), "{second}");
    }

    #[test]
    fn no_rank_that_is_merely_late_or_ahead_in_what_has_no_common_order_is_taken_for_one_that_waits_in_its_stream() {
        let late = || std::thread::sleep(crate::shm::wait::ANOTHER_ORDER + Duration::from_millis(500));
        let behind = |comm: &Comm, behind: u32| {
            if comm.rank() == behind {
                late();
            }
        };
        let alike = |comm: &Comm| {
            call_on_device(comm, 1);
            behind(comm, 1);
            comm.barrier().unwrap();
        };
        let fewer = |comm: &Comm| {
            if comm.rank() == 0 {
                call_on_device(comm, 1);
            }
            behind(comm, 1);
            comm.barrier().unwrap();
        };
        let captured = |comm: &Comm| {
            call_on_device(comm, 1);
            if comm.rank() == 1 {
                call_on_device(comm, 2);
                comm.core.job.view().note_captured(1, comm.core.job.generation);
            }
            behind(comm, 1);
            comm.barrier().unwrap();
        };
        let by_message = |comm: &Comm| match comm.rank() {
            0 => comm.recv(&mut [0u8], 1, 0).unwrap(),
            _ => {
                call_on_device(comm, 1);
                late();
                comm.send(&[1u8], 0, 0).unwrap();
            }
        };
        let split_off = |comm: &Comm| {
            let copy = comm.dup().unwrap();
            if comm.rank() == 1 {
                call_on_device(comm, 2);
                late();
            }
            copy.barrier().unwrap();
        };
        let cases: [&(dyn Fn(&Comm) + Sync); 5] = [&alike, &fewer, &captured, &by_message, &split_off];
        std::thread::scope(|scope| {
            for case in cases {
                scope.spawn(move || two_ranks(|comm| case(&comm)));
            }
        });
    }
}
