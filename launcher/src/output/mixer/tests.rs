use std::collections::VecDeque;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::job::{LabelPart, LabelTemplate};
use crate::output::Stream;
use crate::output::label::Place;

impl Target for Vec<u8> {
    fn write_both(&mut self, first: &[u8], second: &[u8]) -> Result<(), Errno> {
        self.extend_from_slice(first);
        self.extend_from_slice(second);
        Ok(())
    }
}

/// A target that takes nothing.
#[derive(Debug)]
struct Full;

impl Target for Full {
    fn write_both(&mut self, _: &[u8], _: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSPC)
    }
}

fn labeller(rank: u32) -> Labeller {
    let template = LabelTemplate(vec![LabelPart::Text("[".into()), LabelPart::Rank, LabelPart::Text("] ".into())]);
    let place = Place { world_size: 10, host: "h", job_id: "j", started: Instant::now() };
    Labeller::new(&template, &place, rank, Stream::Stdout)
}

fn mixer(sources: u32, labelled: bool, hold_one: usize, hold_all: usize) -> Mixer<Vec<u8>> {
    let mut mixer = Mixer::with_limits(hold_one, hold_all);
    let sink = mixer.add_sink(Vec::new(), true);
    for rank in 0..sources {
        mixer.add_source(vec![sink], labelled.then(|| labeller(rank)));
    }
    mixer
}

fn written(mixer: &mut Mixer<Vec<u8>>) -> Vec<u8> {
    mixer.flush();
    mixer.sinks()[0].target().clone()
}

#[test]
fn a_line_in_pieces_gets_one_label_at_its_start() {
    let mut mixer = mixer(2, true, 100, 100);
    mixer.feed(0, b"ABCD");
    mixer.feed(1, b"other\n");
    mixer.feed(0, b"EFGH\n");
    assert_eq!(written(&mut mixer), b"[1] other\n[0] ABCDEFGH\n");
}

#[test]
fn a_source_alone_passes_through_at_once() {
    let mut mixer = mixer(1, true, 100, 100);
    mixer.feed(0, b"ABCD");
    assert_eq!(written(&mut mixer), b"[0] ABCD");
    mixer.feed(0, b"EFGH\n\nx");
    assert_eq!(written(&mut mixer), b"[0] ABCDEFGH\n[0] \n[0] x");
}

#[test]
fn last_lines_without_newline_are_separated_and_nothing_is_added_at_the_end() {
    let mut mixer = mixer(3, false, 100, 100);
    for source in 0..3 {
        mixer.feed(source, b"end");
    }
    for source in 0..3 {
        mixer.end(source);
    }
    assert_eq!(written(&mut mixer), b"end\nend\nend");
}

#[test]
fn a_note_never_stands_inside_a_line() {
    let mut mixer = mixer(2, false, 100, 100);
    mixer.feed(0, b"half");
    mixer.note(0, b"prun: note\n");
    mixer.feed(0, b" a line\n");
    mixer.feed(1, b"tail");
    mixer.end(1);
    mixer.note(0, b"prun: bye\n");
    assert_eq!(written(&mut mixer), b"prun: note\nhalf a line\ntail\nprun: bye\n");
}

#[test]
fn a_line_too_long_to_hold_blocks_others_until_its_end() {
    let mut mixer = mixer(2, true, 8, 100);
    mixer.feed(0, b"0123456789");
    assert!(mixer.is_blocked(1) && !mixer.is_blocked(0));
    mixer.feed(0, b"more");
    mixer.feed(0, b"\nnext");
    assert!(!mixer.is_blocked(1));
    mixer.feed(1, b"b\n");
    assert_eq!(written(&mut mixer), b"[0] 0123456789more\n[1] b\n");
    mixer.end(0);
    assert_eq!(written(&mut mixer), b"[0] 0123456789more\n[1] b\n[0] next");
}

#[test]
fn a_broken_line_goes_on_with_a_fresh_label() {
    let mut mixer = mixer(2, true, 8, 100);
    mixer.feed(0, b"0123456789");
    mixer.break_line(0);
    mixer.feed(1, b"b\n");
    mixer.feed(0, b"rest\n");
    assert_eq!(written(&mut mixer), b"[0] 0123456789\n[1] b\n[0] rest\n");
}

#[test]
fn a_shown_prompt_is_finished_in_place() {
    let mut mixer = mixer(2, true, 100, 100);
    mixer.feed(0, b"name? ");
    mixer.show_held(0);
    assert!(mixer.is_blocked(1));
    mixer.feed(0, b"ok\n");
    assert_eq!(written(&mut mixer), b"[0] name? ok\n");
}

#[test]
fn what_is_held_stays_below_its_bound() {
    let mut mixer = mixer(64, false, 1 << 10, 16 << 10);
    for round in 0..100 {
        for source in 0..64 {
            if !mixer.is_blocked(source) {
                mixer.feed(source, &[b'x'; 100]);
            }
            let held: usize = mixer.sources.iter().map(|source| source.held.len()).sum();
            assert_eq!(held, mixer.held_bytes);
            assert!(held <= 16 << 10, "round {round}: {held}");
        }
    }
}

#[test]
fn a_large_hold_buffer_is_given_back() {
    let mut mixer = mixer(2, false, HOLD_ONE, HOLD_ALL);
    mixer.feed(0, &vec![b'x'; 200 << 10]);
    mixer.feed(0, b"\n");
    assert!(mixer.sources[0].held.capacity() <= KEEP);
}

#[test]
fn a_full_sink_blocks_nobody_and_is_told_once_known() {
    let mut mixer = Mixer::with_limits(8, 8);
    let bad = mixer.add_sink(Full, false);
    for _ in 0..2 {
        mixer.add_source(vec![bad], None);
    }
    mixer.feed(0, &[b'x'; 100_000]);
    mixer.flush();
    assert_eq!(mixer.failure(), Some((bad, Errno::NOSPC)));
    mixer.feed(0, b"yyyyyyyyyyyyyyyyyyy");
    assert!(!mixer.is_blocked(1));
}

#[test]
fn carriage_returns_and_nul_pass_unchanged() {
    let text = b"\r 10 %\r 20 %\0\r\n\xff\xfe\n";
    for sources in [1, 2] {
        let mut mixer = mixer(sources, false, 100, 100);
        for byte in text {
            mixer.feed(0, &[*byte]);
        }
        assert_eq!(written(&mut mixer), text);
    }
}

/// Newlines, and bytes that tell their source: byte / 32 is its number, and none is below 16.
fn content(source: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![4 => (0u8..16).prop_map(move |low| source as u8 * 32 + 16 + low), 1 => Just(b'\n')], 0..200)
}

proptest! {
    /// However the sources' output is cut into reads and whoever comes first: every line is whole and of one source,
    /// and each source's bytes arrive unchanged and in order.
    #[test]
    fn lines_are_whole_and_bytes_unchanged(
        contents in (1usize..5).prop_flat_map(|n| (0..n).map(content).collect::<Vec<_>>()),
        turns in vec((0usize..5, 1usize..40), 0..400),
        hold_one in 1usize..60,
        hold_all in 1usize..100,
        labelled: bool,
    ) {
        let sources = contents.len();
        let mut mixer = mixer(sources as u32, labelled, hold_one, hold_all);
        let mut left: Vec<VecDeque<u8>> = contents.iter().map(|content| content.iter().copied().collect()).collect();
        let mut ended = vec![false; sources];
        // The turns drawn, then as many as it takes to finish everyone.
        let rest = (0..).map(|turn| (turn % sources, 7));
        for (source, length) in turns.iter().map(|&(source, length)| (source % sources, length)).chain(rest) {
            if ended.iter().all(|&ended| ended) {
                break;
            }
            if ended[source] || mixer.is_blocked(source) {
                continue;
            }
            let length = length.min(left[source].len());
            let data: Vec<u8> = left[source].drain(..length).collect();
            if data.is_empty() {
                mixer.end(source);
                ended[source] = true;
            } else {
                mixer.feed(source, &data);
            }
        }
        let output = written(&mut mixer);
        let mut received = vec![Vec::new(); sources];
        for line in output.split_inclusive(|&byte| byte == b'\n') {
            let (owner, body) = if labelled {
                prop_assert!(line.len() >= 4 && line[0] == b'[' && &line[2..4] == b"] ", "{:?}", line);
                (usize::from(line[1] - b'0'), &line[4..])
            } else if line == b"\n" {
                continue; // Whose empty line it was cannot be told.
            } else {
                (usize::from(line[0] / 32), line)
            };
            for byte in body.iter().filter(|&&byte| byte != b'\n') {
                prop_assert_eq!(usize::from(byte / 32), owner, "mixed: {:?}", line);
            }
            received[owner].extend_from_slice(body);
        }
        for (content, mut received) in contents.iter().zip(received) {
            let mut sent = content.clone();
            if !labelled {
                let drop_empty = |bytes: Vec<u8>| -> Vec<u8> {
                    bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| *line != b"\n").flatten().copied().collect()
                };
                (sent, received) = (drop_empty(sent), drop_empty(received));
            }
            // A newline may have been added behind the last line, because another source followed.
            if received.len() == sent.len() + 1 && received.ends_with(b"\n") && !sent.ends_with(b"\n") {
                received.pop();
            }
            prop_assert_eq!(received, sent);
        }
    }
}
