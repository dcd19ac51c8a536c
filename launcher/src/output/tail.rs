//! The last bytes of each stream, kept for the report of a failure.

use std::sync::{Mutex, PoisonError};

use super::Stream;

const LINES: usize = 10;
const BYTES: usize = 2048;
/// Trimmed only when it has grown to this, so that short reads cost one short copy.
const ROOM: usize = 2 * BYTES;

/// One slot per rank and stream; a thread adds to it with each read, anyone may look.
#[derive(Debug)]
pub(super) struct Tails(Vec<Mutex<Vec<u8>>>);

impl Tails {
    pub fn new(world_size: u32) -> Tails {
        Tails((0..world_size as usize * 2).map(|_| Mutex::default()).collect())
    }

    /// Remembers the end of what was just read.
    pub fn add(&self, rank: u32, stream: Stream, data: &[u8]) {
        let mut tail = self.slot(rank, stream);
        if data.len() >= BYTES {
            tail.clear();
            tail.extend_from_slice(&data[data.len() - BYTES..]);
            return;
        }
        if tail.len() + data.len() > ROOM {
            let surplus = tail.len() - (BYTES - data.len()).min(tail.len());
            tail.drain(..surplus);
        }
        tail.extend_from_slice(data);
    }

    /// The last lines a rank wrote, at most 10 and 2 KiB: of stderr, or of stdout where stderr is empty.
    pub fn last_lines(&self, rank: u32) -> Vec<u8> {
        [Stream::Stderr, Stream::Stdout]
            .into_iter()
            .map(|stream| last_lines(&self.slot(rank, stream)).to_vec())
            .find(|lines| !lines.is_empty())
            .unwrap_or_default()
    }

    fn slot(&self, rank: u32, stream: Stream) -> std::sync::MutexGuard<'_, Vec<u8>> {
        let index = rank as usize * 2 + usize::from(stream == Stream::Stderr);
        self.0[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn last_lines(tail: &[u8]) -> &[u8] {
    let tail = &tail[tail.len().saturating_sub(BYTES)..];
    let body = tail.strip_suffix(b"\n").unwrap_or(tail);
    let start = memchr::memrchr_iter(b'\n', body).nth(LINES - 1).map_or(0, |newline| newline + 1);
    &tail[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_and_two_kilobytes_at_most() {
        let tails = Tails::new(1);
        for line in 0..100 {
            tails.add(0, Stream::Stdout, format!("line {line}\n").as_bytes());
        }
        let expected: String = (90..100).map(|line| format!("line {line}\n")).collect();
        assert_eq!(String::from_utf8(tails.last_lines(0)).unwrap(), expected);
        tails.add(0, Stream::Stdout, &[b'x'; 5000]);
        assert_eq!(tails.last_lines(0), [b'x'; 2048]);
    }

    #[test]
    fn stderr_is_preferred_and_ranks_are_apart() {
        let tails = Tails::new(2);
        tails.add(0, Stream::Stdout, b"fine\n");
        tails.add(1, Stream::Stdout, b"other\n");
        assert_eq!(tails.last_lines(0), b"fine\n");
        tails.add(0, Stream::Stderr, b"panic: no");
        assert_eq!(tails.last_lines(0), b"panic: no");
        assert_eq!(tails.last_lines(1), b"other\n");
    }

    #[test]
    fn many_short_reads_keep_exactly_the_end() {
        let tails = Tails::new(1);
        let text: Vec<u8> = (0..100_000u32).map(|i| b'a' + (i % 26) as u8).collect();
        for piece in text.chunks(1000) {
            tails.add(0, Stream::Stderr, piece);
        }
        assert_eq!(tails.last_lines(0), &text[text.len() - 2048..]);
    }
}
