//! Ranks as threads of the test, each with a mapping and a communicator of its own, over one segment.
#![allow(dead_code, reason = "each test file uses its part")]

use comm::node::JobSegment;
use comm::{Comm, CommError, Settings};

/// The chunk size of most tests: small, so that little data meets many chunk edges.
pub const CHUNK: usize = 1024;

pub const JOB: &str = "test";

/// Runs `rank` as each of `n` ranks and returns what they returned, in their order.
pub fn ranks<R: Send>(n: u32, rank: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    ranks_with(n, CHUNK, |_| {}, rank)
}

/// The same with another chunk size and other settings.
pub fn ranks_with<R: Send>(
    n: u32,
    chunk_bytes: usize,
    change: impl Fn(&mut Settings) + Sync,
    rank: impl Fn(Comm) -> R + Sync,
) -> Vec<R> {
    let segment = JobSegment::create_with_chunks(JOB, n, n, chunk_bytes).unwrap();
    in_segment(&segment, n, change, |comm| rank(comm.unwrap()))
}

/// The same in a segment that the test keeps hold of.
pub fn in_segment<R: Send>(
    segment: &JobSegment,
    n: u32,
    change: impl Fn(&mut Settings) + Sync,
    rank: impl Fn(Result<Comm, CommError>) -> R + Sync,
) -> Vec<R> {
    let start = |number: u32| {
        let mut settings = Settings::of(JOB, number, n);
        change(&mut settings);
        rank(Comm::attach(segment.as_fd(), settings))
    };
    std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..n).map(|number| scope.spawn(move || start(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
