//! Calls of one communicator in several streams begin one after the other, also in a graph of several streams. Pure.
//!
//! What runs at once and what is captured have nothing to do with each other until that is replayed, which is the caller's to
//! order.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::thread::ThreadId;

use crate::cuda::{CudaError, StreamRef};

/// The last calls.
#[derive(Default)]
pub(super) struct Turns {
    /// The stream of the last one that ran at once, and whose it was where each thread has another of that name.
    ran: Option<(StreamRef, Option<ThreadId>)>,
    /// That of the last one that became part of a graph, and the number of that.
    captured: Option<(StreamRef, u64)>,
}

/// A call's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(super) stream: StreamRef,
    owner: Option<ThreadId>,
    /// The graph that it becomes part of.
    pub(crate) capture: Option<u64>,
    /// The stream behind whose work it begins.
    pub(super) behind: Option<StreamRef>,
}

impl Turns {
    /// The turn of a call in `stream`, by this thread. `capture_of` says which graph is being captured in a stream.
    ///
    /// # Errors
    /// Why it cannot be put behind the last one, or what `capture_of` says.
    pub(super) fn next(
        &self,
        stream: StreamRef,
        mut capture_of: impl FnMut(StreamRef) -> Result<Option<u64>, CudaError>,
    ) -> Result<Turn, String> {
        let owner = is_each_threads(stream).then(|| std::thread::current().id());
        let capture = capture_of(stream).map_err(|error| error.to_string())?;
        let behind = match (capture, self.ran, self.captured) {
            (None, Some(last), _) if last != (stream, owner) => Some(self.behind(last, &mut capture_of)?),
            (Some(id), _, Some((last, its))) if last != stream && its == id => Some(last),
            _ => None,
        };
        Ok(Turn { stream, owner, capture, behind })
    }

    fn behind(
        &self,
        (last, owner): (StreamRef, Option<ThreadId>),
        capture_of: &mut impl FnMut(StreamRef) -> Result<Option<u64>, CudaError>,
    ) -> Result<StreamRef, String> {
        if owner.is_some_and(|owner| owner != std::thread::current().id()) {
            return Err(
                "the last call was in another thread's default stream, which nothing can be put behind here".into()
            );
        }
        match capture_of(last) {
            Ok(None) => Ok(last),
            Err(error) if error.means_destroyed() => Err(format!(
                "the stream of the last call was destroyed, and this call would have to wait for it ({error}): keep a stream \
                 until there was a call in another one"
            )),
            Err(error) => Err(error.to_string()),
            Ok(Some(_)) => {
                Err("the stream of the last call is being captured, and this call would have to wait for it: make it \
                            after the capture"
                    .into())
            }
        }
    }

    /// It is put into its stream now.
    pub(super) fn take(&mut self, turn: &Turn) {
        match turn.capture {
            None => self.ran = Some((turn.stream, turn.owner)),
            Some(id) => self.captured = Some((turn.stream, id)),
        }
    }
}

/// Whether that name stands for another stream in each thread: `CU_STREAM_PER_THREAD`.
fn is_each_threads(stream: StreamRef) -> bool {
    stream.raw() == without_provenance_mut::<c_void>(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: usize) -> StreamRef {
        // SAFETY: nobody gives it to a driver.
        #[expect(unsafe_code, reason = "names of streams")]
        unsafe {
            StreamRef::new(without_provenance_mut(name))
        }
    }

    /// A call in that stream, while the streams in `captures` are captured in those graphs.
    fn call(turns: &mut Turns, name: usize, captures: &[(usize, u64)]) -> Result<Option<StreamRef>, String> {
        let capture_of =
            |asked: StreamRef| Ok(captures.iter().find(|(name, _)| stream(*name) == asked).map(|(_, graph)| *graph));
        let turn = turns.next(stream(name), capture_of)?;
        turns.take(&turn);
        Ok(turn.behind)
    }

    #[test]
    fn a_call_after_the_last_ones_stream_was_destroyed_is_told_so() {
        let mut turns = Turns::default();
        call(&mut turns, 10, &[]).unwrap();
        let says = |status| {
            move |asked: StreamRef| match asked == stream(10) {
                true => Err(CudaError::Status { call: "cuStreamGetCaptureInfo", status, name: "so".into() }),
                false => Ok(None),
            }
        };
        assert_eq!(turns.next(stream(11), says(999)), Err("cuStreamGetCaptureInfo: so (999)".into()));
        assert!(turns.next(stream(11), says(400)).unwrap_err().contains("the stream of the last call was destroyed"));
        assert!(turns.next(stream(11), |_| Ok(None)).is_ok());
    }

    #[test]
    fn calls_in_another_stream_come_behind_the_last_one() {
        let mut turns = Turns::default();
        let behind = [10, 10, 11, 11, 10].map(|name| call(&mut turns, name, &[]).unwrap());
        assert_eq!(behind, [None, None, Some(stream(10)), None, Some(stream(11))]);
    }

    #[test]
    fn calls_of_one_graph_take_turns_among_themselves() {
        let mut turns = Turns::default();
        let both = [(11, 7), (12, 7)];
        assert_eq!(call(&mut turns, 10, &[]), Ok(None));
        let behind = [11, 12, 12, 11].map(|name| call(&mut turns, name, &both).unwrap());
        assert_eq!(behind, [None, Some(stream(11)), None, Some(stream(12))]);
        // Another graph, and what runs at once, have nothing to do with it.
        assert_eq!(call(&mut turns, 12, &[(12, 8)]), Ok(None));
        assert_eq!(call(&mut turns, 10, &both), Ok(None));
        assert_eq!(call(&mut turns, 13, &both), Ok(Some(stream(10))));
    }

    #[test]
    fn what_cannot_be_put_behind_the_last_call_is_refused_and_changes_nothing() {
        let mut turns = Turns::default();
        assert_eq!(call(&mut turns, 10, &[]), Ok(None));
        assert!(call(&mut turns, 11, &[(10, 3)]).unwrap_err().contains("is being captured"));
        assert_eq!(call(&mut turns, 10, &[(10, 3)]), Ok(None));
        assert_eq!(call(&mut turns, 11, &[]), Ok(Some(stream(10))));
        assert_eq!(call(&mut turns, 2, &[]), Ok(Some(stream(11))));
        assert_eq!(call(&mut turns, 2, &[]), Ok(None));
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| call(&mut turns, 2, &[])).join().unwrap());
        assert!(elsewhere.unwrap_err().contains("another thread's default stream"));
        assert_eq!(call(&mut turns, 12, &[]), Ok(Some(stream(2))));
    }
}
