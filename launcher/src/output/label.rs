//! The text before a line: a parsed template becomes bytes here, once per source or once per read.

use std::io::Write as _;
use std::time::Instant;

use jiff::ZonedDateTime;

use super::Stream;
use crate::job::{LabelPart, LabelTemplate};

/// A template with everything filled in that does not change during the job.
#[derive(Debug, Clone)]
pub(super) struct Labeller {
    pieces: Vec<Piece>,
    started: Instant,
}

#[derive(Debug, Clone)]
enum Piece {
    Fixed(Vec<u8>),
    Time,
    Elapsed,
}

impl Labeller {
    /// The labels of one rank's stream.
    pub fn new(template: &LabelTemplate, place: &Place<'_>, rank: u32, stream: Stream) -> Labeller {
        let mut pieces = Vec::new();
        for part in &template.0 {
            let text = match part {
                LabelPart::Text(text) => text.clone(),
                LabelPart::Rank => format!("{rank:>width$}", width = digits(place.world_size.saturating_sub(1))),
                LabelPart::Host => place.host.to_owned(),
                LabelPart::Stream => stream.to_string(),
                LabelPart::Time => {
                    pieces.push(Piece::Time);
                    continue;
                }
                LabelPart::Elapsed => {
                    pieces.push(Piece::Elapsed);
                    continue;
                }
            };
            match pieces.last_mut() {
                Some(Piece::Fixed(bytes)) => bytes.extend_from_slice(text.as_bytes()),
                _ => pieces.push(Piece::Fixed(text.into_bytes())),
            }
        }
        Labeller { pieces, started: place.started }
    }

    /// Whether the text changes with time, so that it must be made again for each read.
    pub fn tells_time(&self) -> bool {
        self.pieces.iter().any(|piece| !matches!(piece, Piece::Fixed(_)))
    }

    /// Replaces `text` by the label as of now.
    pub fn render(&self, text: &mut Vec<u8>) {
        text.clear();
        for piece in &self.pieces {
            // Writing to a Vec cannot fail.
            let _ = match piece {
                Piece::Fixed(bytes) => text.write_all(bytes),
                Piece::Time => {
                    let now = ZonedDateTime::now();
                    write!(text, "{:02}:{:02}:{:02}.{:03}", now.hour(), now.minute(), now.second(), now.millisecond())
                }
                Piece::Elapsed => {
                    let elapsed = self.started.elapsed();
                    write!(text, "{}.{:03}", elapsed.as_secs(), elapsed.subsec_millis())
                }
            };
        }
    }
}

/// What labels and file names say about the job as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub world_size: u32,
    pub host: &'a str,
    pub job_id: &'a str,
    pub started: Instant,
}

fn digits(number: u32) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(parts: Vec<LabelPart>, world_size: u32, rank: u32) -> String {
        let place = Place { world_size, host: "node7", job_id: "j", started: Instant::now() };
        let mut text = b"old".to_vec();
        Labeller::new(&LabelTemplate(parts), &place, rank, Stream::Stderr).render(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_rank_is_as_wide_as_the_widest() {
        let parts = || vec![LabelPart::Text("[".into()), LabelPart::Rank, LabelPart::Text("] ".into())];
        assert_eq!(label(parts(), 1, 0), "[0] ");
        assert_eq!(label(parts(), 10, 9), "[9] ");
        assert_eq!(label(parts(), 11, 9), "[ 9] ");
        assert_eq!(label(parts(), 11, 10), "[10] ");
        assert_eq!(label(parts(), 256, 3), "[  3] ");
    }

    #[test]
    fn host_stream_and_times_have_the_documented_form() {
        assert_eq!(label(vec![LabelPart::Host, LabelPart::Text("/".into()), LabelPart::Stream], 2, 0), "node7/stderr");
        assert_eq!(label(vec![LabelPart::Elapsed], 2, 0), "0.000");
        let time = label(vec![LabelPart::Time], 2, 0);
        assert_eq!(time.len(), "12:34:56.789".len(), "{time}");
        assert_eq!((&time[2..3], &time[5..6], &time[8..9]), (":", ":", "."));
    }
}
