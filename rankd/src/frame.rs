//! One message as bytes: length, version, postcard.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | length of the rest, little-endian |
//! | 4..6 | version of [`crate::proto`], little-endian |
//! | 6.. | the message, postcard |
//!
//! The reader takes the stream in whatever pieces it comes and refuses what it cannot be sure of: another
//! version, a length above [`MAX_BYTES`], bytes that are no message.

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// Version of the messages; both sides must have the same.
pub const VERSION: u16 = 1;

/// Longest frame that is believed; far above any real message (reports of a thousand ranks take 8 MiB).
pub const MAX_BYTES: usize = 64 << 20;

const LENGTH_BYTES: usize = 4;
const VERSION_BYTES: usize = 2;

/// Why a stream of frames cannot be read on.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The other side is another build.
    #[error("the other side speaks message version {theirs}, this one {VERSION}: both must come from the same prun")]
    Version {
        /// Version in the frame.
        theirs: u16,
    },
    /// No message is so long, or so short.
    #[error("a message claims {bytes} bytes: the stream is damaged")]
    Length {
        /// The claimed length.
        bytes: usize,
    },
    /// Bytes that are no message.
    #[error("a message of {bytes} bytes cannot be read: {cause}")]
    Content {
        /// Its length.
        bytes: usize,
        /// What postcard said.
        cause: String,
    },
}

/// Appends `message` as one frame to `out`.
///
/// # Errors
/// [`FrameError::Content`] if it cannot be written as postcard, [`FrameError::Length`] above [`MAX_BYTES`];
/// `out` is then as before.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    let body =
        postcard::to_stdvec(message).map_err(|cause| FrameError::Content { bytes: 0, cause: cause.to_string() })?;
    let bytes = VERSION_BYTES + body.len();
    if bytes > MAX_BYTES {
        return Err(FrameError::Length { bytes });
    }
    out.reserve(LENGTH_BYTES + bytes);
    out.extend_from_slice(&u32::try_from(bytes).expect("below MAX_BYTES").to_le_bytes());
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&body);
    debug_assert_eq!(out.len(), start + LENGTH_BYTES + bytes);
    Ok(())
}

/// Cuts a byte stream into messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    pending: Vec<u8>,
    used: usize,
}

impl FrameReader {
    /// Takes what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.pending.drain(..self.used);
            self.used = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole message; `None` until more bytes arrive.
    ///
    /// # Errors
    /// After an error the stream has no meaning any more and must be closed.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.pending[self.used..];
        let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if !(VERSION_BYTES..=MAX_BYTES).contains(&bytes) {
            return Err(FrameError::Length { bytes });
        }
        let Some(frame) = rest.get(LENGTH_BYTES..LENGTH_BYTES + bytes) else { return Ok(None) };
        let (version, body) = frame.split_at(VERSION_BYTES);
        let theirs = u16::from_le_bytes([version[0], version[1]]);
        if theirs != VERSION {
            return Err(FrameError::Version { theirs });
        }
        let message =
            postcard::from_bytes(body).map_err(|cause| FrameError::Content { bytes, cause: cause.to_string() })?;
        self.used += LENGTH_BYTES + bytes;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::proto::{ExitStatus, FromNode, Leftover, ToNode, Usage};

    fn message() -> impl Strategy<Value = FromNode> {
        let status = prop_oneof![
            any::<i32>().prop_map(ExitStatus::Code),
            (any::<i32>(), any::<bool>()).prop_map(|(signal, core)| ExitStatus::Signal { signal, core }),
        ];
        let usage = any::<(u64, u64, u64)>().prop_map(|(max_rss_kib, user_us, system_us)| Usage {
            max_rss_kib,
            user_us,
            system_us,
        });
        let leftover =
            (any::<i32>(), ".{0,20}", any::<Option<u32>>()).prop_map(|(pid, name, rank)| Leftover { pid, name, rank });
        prop_oneof![
            any::<(i32, bool)>().prop_map(|(pid, cgroup)| FromNode::Ready { pid, cgroup }),
            any::<(u32, i32)>().prop_map(|(rank, pid)| FromNode::Started { rank, pid }),
            (any::<u32>(), ".*", any::<i32>()).prop_map(|(rank, reason, code)| FromNode::StartFailed {
                rank,
                reason,
                code
            }),
            (any::<u32>(), status, usage).prop_map(|(rank, status, usage)| FromNode::Exited { rank, status, usage }),
            vec(leftover, 0..4).prop_map(FromNode::Leftovers),
            Just(FromNode::Empty),
        ]
    }

    proptest! {
        /// Wherever the stream is cut into reads, the same messages come out in the same order.
        #[test]
        fn messages_survive_any_cutting_of_the_stream(messages in vec(message(), 0..12), cuts in vec(1usize..40, 1..200)) {
            let mut bytes = Vec::new();
            for message in &messages {
                encode(message, &mut bytes).unwrap();
            }
            let mut reader = FrameReader::default();
            let mut seen = Vec::new();
            let mut rest = bytes.as_slice();
            for &cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at(cut.min(rest.len()));
                reader.push(now);
                rest = later;
                while let Some(message) = reader.next_message::<FromNode>().unwrap() {
                    seen.push(message);
                }
            }
            prop_assert_eq!(seen, messages);
        }

        /// Damaged bytes give an error or wait for more; they never panic and never loop.
        #[test]
        fn damage_is_an_error_and_no_panic(bytes in vec(any::<u8>(), 0..400)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            let mut rounds = 0;
            while let Ok(Some(_)) = reader.next_message::<ToNode>() {
                rounds += 1;
                prop_assert!(rounds <= bytes.len());
            }
        }

        /// One changed byte in a frame is an error, another message, or a wait for more; never a panic.
        #[test]
        fn a_flipped_byte_is_no_panic(message in message(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut bytes = Vec::new();
            encode(&message, &mut bytes).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            let _ = reader.next_message::<FromNode>();
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Vec::new();
        encode(&ToNode::Kill, &mut bytes).unwrap();
        bytes[4] = 99;
        let mut reader = FrameReader::default();
        reader.push(&bytes);
        assert_eq!(reader.next_message::<ToNode>(), Err(FrameError::Version { theirs: 99 }));
    }

    #[test]
    fn a_length_beyond_belief_is_refused_before_it_is_waited_for() {
        let mut reader = FrameReader::default();
        reader.push(&u32::MAX.to_le_bytes());
        assert_eq!(reader.next_message::<ToNode>(), Err(FrameError::Length { bytes: u32::MAX as usize }));
    }
}
