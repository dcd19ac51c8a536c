//! Swapping handles in two phases: all publish, all open, all learn whether every one could.
//!
//! The mailbox holds bytes and does not know what they mean, so host memory and GPU handles swap alike. Phase one
//! ends with a barrier after which all blobs are readable; phase two with one after which all verdicts are. Every
//! rank reads the same verdicts, hence all take the same way: everything opened, or the same fallback.
//!
//! A blob may be written again once the second barrier is over: its readers have read it before they posted that
//! one. A verdict is read after the second barrier and written again before the next exchange's second, and in
//! between lies that exchange's first.

use super::View;
use super::atomic::{Relaxed, Release};
use super::layout::{MAILBOX_WORDS, VERDICT_WORDS};
use super::text;

/// The most bytes that a rank can publish.
pub(crate) const MAILBOX_BYTES: usize = 8 * MAILBOX_WORDS;

/// Who could not open whose, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rank that could not.
    pub rank: u32,
    /// The rank whose blob it was.
    pub peer: u32,
    /// What it said.
    pub why: String,
}

/// How an exchange ended, the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchanged<T> {
    /// What each rank made of each peer's blob; `None` at its own place.
    All(Vec<Option<T>>),
    /// At least one could not. What the others had opened is dropped again.
    Fallback(Refusal),
}

/// Runs both phases as rank `me`. `meet` is a barrier over all ranks; `open` turns a peer's blob of `blob.len()`
/// bytes into something that is dropped again if any rank fails.
pub(crate) fn exchange<T, E>(
    view: View<'_>,
    me: u32,
    blob: &[u8],
    mut meet: impl FnMut() -> Result<(), E>,
    mut open: impl FnMut(u32, &[u8]) -> Result<T, String>,
) -> Result<Exchanged<T>, E> {
    let size = view.ranks.len() as u32;
    text::store(&view.ranks[me as usize].mailbox.0, blob);
    meet()?;

    let mut opened = Vec::with_capacity(size as usize);
    let mut refused = None;
    for peer in 0..size {
        if peer == me || refused.is_some() {
            opened.push(None);
            continue;
        }
        let theirs = text::load(&view.ranks[peer as usize].mailbox.0, blob.len());
        match open(peer, &theirs) {
            Ok(thing) => opened.push(Some(thing)),
            Err(why) => refused = Some((peer, why)),
        }
    }
    let verdict = &view.ranks[me as usize].verdict;
    if let Some((_, why)) = &refused {
        verdict.text_bytes.store(text::store_text(&verdict.text, why) as u32, Relaxed);
    }
    verdict.failed_peer.store(refused.map_or(0, |(peer, _)| peer + 1), Release);
    meet()?;

    match (0..size).find_map(|rank| refusal_of(view, rank)) {
        None => Ok(Exchanged::All(opened)),
        Some(refusal) => Ok(Exchanged::Fallback(refusal)),
    }
}

fn refusal_of(view: View<'_>, rank: u32) -> Option<Refusal> {
    let verdict = &view.ranks[rank as usize].verdict;
    let peer = verdict.failed_peer.load(Relaxed).checked_sub(1)?;
    let bytes = (verdict.text_bytes.load(Relaxed) as usize).min(8 * VERDICT_WORDS);
    Some(Refusal { rank, peer, why: text::load_text(&verdict.text, bytes) })
}
