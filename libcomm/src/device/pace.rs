//! How far a rank may be ahead of its GPU where ranks of one process share that: launches are then made one at a time
//! (`cuda/launch.rs`), and one that waited for room in its stream would keep the others from what it waits for.

use crate::cuda::{Context, CudaError, Event, StreamRef};

/// Calls, or parts of long ones, between two events. Each is a few launches, of the copy engine up to 40; a stream has room
/// for 1024.
const CALLS: u32 = 8;

/// Of one rank.
pub(super) struct Pace {
    calls: u32,
    done: [Event; 2],
}

impl Pace {
    pub(super) fn new(context: Context) -> Result<Pace, CudaError> {
        Ok(Pace { calls: 0, done: [Event::new(context)?, Event::new(context)?] })
    }

    /// Before each call that is to run: waits until all but the last 16 of this rank are done.
    pub(super) fn keep(&mut self, stream: StreamRef) -> Result<(), CudaError> {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS) {
            let event = &self.done[(self.calls / CALLS % 2) as usize];
            event.synchronize()?;
            event.record(stream)?;
        }
        Ok(())
    }
}
