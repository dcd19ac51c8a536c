//! Streams, events and graphs.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::context::Context;
use super::sys::{Driver, Opaque, Result};

/// A stream that somebody owns; the caller's, or one of [`Stream`]. Whoever made it sees to it that the stream outlives its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRef(Opaque);

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for StreamRef {}
// SAFETY: as above.
unsafe impl Sync for StreamRef {}

impl StreamRef {
    /// The default stream, which is always there.
    pub const DEFAULT: StreamRef = StreamRef(null_mut());

    /// From the caller's `cudaStream_t` or `CUstream`; null is the default stream.
    ///
    /// # Safety
    /// It is one, and lives as long as this value or a copy of it is used.
    pub unsafe fn new(raw: *mut c_void) -> StreamRef {
        StreamRef(raw)
    }

    /// As the driver wants it.
    pub fn raw(self) -> Opaque {
        self.0
    }

    /// Whether what is put into it becomes part of a graph.
    pub fn is_capturing(self, driver: &Driver) -> Result<bool> {
        let mut status: c_int = 0;
        // SAFETY: a live stream, as its owner promises.
        unsafe { driver.stream_capturing(self.0, &mut status) }?;
        Ok(status != 0)
    }

    /// Which graph is being captured in it, by a number that no other capture has; `None` if none is.
    pub fn capture(self, driver: &Driver) -> Result<Option<u64>> {
        const ACTIVE: c_int = 1;
        let (mut status, mut id) = (0, 0);
        // SAFETY: as above.
        unsafe { driver.stream_capture(self.0, &mut status, &mut id) }?;
        Ok((status == ACTIVE).then_some(id))
    }

    /// Waits until all that was put into it is done.
    pub fn synchronize(self, driver: &Driver) -> Result<()> {
        // SAFETY: as above.
        unsafe { driver.stream_synchronize(self.0) }
    }

    /// What is put into it from now on begins only once `event` has happened.
    pub fn wait(self, event: &Event) -> Result<()> {
        // SAFETY: as above.
        unsafe { event.context.driver().stream_wait(self.0, event.raw, 0) }
    }

    /// Begins to record a graph; only this thread's calls are kept from what would break it.
    pub fn begin_capture(self, driver: &Driver) -> Result<()> {
        const THREAD_LOCAL: c_int = 1;
        // SAFETY: as above.
        unsafe { driver.capture_begin(self.0, THREAD_LOCAL) }
    }

    /// Ends that and makes it ready to launch.
    pub fn end_capture(self, context: Context) -> Result<Graph> {
        let _bound = context.bind()?;
        let driver = context.driver();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: as above; the graph is ours from here on.
        unsafe {
            driver.capture_end(self.0, &mut graph)?;
            let made = driver.graph_instantiate(&mut executable, graph, 0);
            let _ = driver.graph_destroy(graph);
            made?;
        }
        Ok(Graph { context, executable })
    }
}

/// A stream of our own, which does not wait for the default stream.
pub struct Stream {
    context: Context,
    raw: Opaque,
}

// SAFETY: as for StreamRef.
unsafe impl Send for Stream {}

impl Stream {
    const NON_BLOCKING: u32 = 1;

    /// Makes one.
    pub fn new(context: Context) -> Result<Stream> {
        let _bound = context.bind()?;
        let mut raw = null_mut();
        // SAFETY: writes one pointer.
        unsafe { context.driver().stream_create(&mut raw, Stream::NON_BLOCKING) }?;
        Ok(Stream { context, raw })
    }

    /// To put work into it. Not to be used once this value is gone, which nothing checks.
    pub fn get(&self) -> StreamRef {
        StreamRef(self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: `new` made it and nothing else destroys it; work in it still runs to its end.
        let _ = unsafe { self.context.driver().stream_destroy(self.raw) };
    }
}

/// A point in a stream.
pub struct Event {
    context: Context,
    raw: Opaque,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    const DISABLE_TIMING: u32 = 2;

    /// For ordering only, which is what is cheap.
    pub fn new(context: Context) -> Result<Event> {
        Event::with_flags(context, Event::DISABLE_TIMING)
    }

    /// One that knows when it happened.
    pub fn timed(context: Context) -> Result<Event> {
        Event::with_flags(context, 0)
    }

    fn with_flags(context: Context, flags: u32) -> Result<Event> {
        let _bound = context.bind()?;
        let mut raw = null_mut();
        // SAFETY: writes one pointer.
        unsafe { context.driver().event_create(&mut raw, flags) }?;
        Ok(Event { context, raw })
    }

    /// Happens once all is done that is in the stream now.
    pub fn record(&self, stream: StreamRef) -> Result<()> {
        // SAFETY: a live event and, as its owner promises, a live stream.
        unsafe { self.context.driver().event_record(self.raw, stream.raw()) }
    }

    /// Waits until it has happened.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: a live event.
        unsafe { self.context.driver().event_synchronize(self.raw) }
    }

    /// Milliseconds from `start` to this; both timed.
    pub fn milliseconds_since(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: live events.
        unsafe { self.context.driver().event_elapsed(&mut milliseconds, start.raw, self.raw) }?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: `with_flags` made it and nothing else destroys it.
        let _ = unsafe { self.context.driver().event_destroy(self.raw) };
    }
}

/// A graph that is ready to launch.
pub struct Graph {
    context: Context,
    executable: Opaque,
}

impl Graph {
    /// Launches it.
    pub fn launch(&self, stream: StreamRef) -> Result<()> {
        // SAFETY: a live graph and, as its owner promises, a live stream.
        unsafe { self.context.driver().graph_launch(self.executable, stream.raw()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: `end_capture` made it and nothing else destroys it.
        let _ = unsafe { self.context.driver().graph_executable_destroy(self.executable) };
    }
}
