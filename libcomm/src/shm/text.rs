//! Short texts and blobs in shared words.
//!
//! Each word is atomic, so reading one while its owner writes gives a mix of old and new and nothing worse.
//! Whoever needs it whole reads it after a word that the owner stored with Release afterwards.

use super::atomic::{AtomicU64, Relaxed};

/// Writes as much of `bytes` as fits and returns how much that was.
pub(crate) fn store(words: &[AtomicU64], bytes: &[u8]) -> usize {
    let kept = bytes.len().min(8 * words.len());
    for (word, part) in words.iter().zip(bytes[..kept].chunks(8)) {
        let mut padded = [0; 8];
        padded[..part.len()].copy_from_slice(part);
        word.store(u64::from_le_bytes(padded), Relaxed);
    }
    kept
}

/// Reads `bytes` bytes, or as many as there are.
pub(crate) fn load(words: &[AtomicU64], bytes: usize) -> Vec<u8> {
    let mut out: Vec<u8> =
        words[..bytes.div_ceil(8).min(words.len())].iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    out.truncate(bytes);
    out
}

/// Writes a text, cut at a character where it is too long.
pub(crate) fn store_text(words: &[AtomicU64], text: &str) -> usize {
    let mut end = text.len().min(8 * words.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    store(words, &text.as_bytes()[..end])
}

/// Reads a text.
pub(crate) fn load_text(words: &[AtomicU64], bytes: usize) -> String {
    String::from_utf8_lossy(&load(words, bytes)).into_owned()
}
