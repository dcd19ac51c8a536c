//! What was measured of a way between two GPUs.

use serde::{Deserialize, Serialize};

use super::Link;

/// How data was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moved {
    /// A kernel of the one wrote into the other's memory.
    Stores,
    /// The copy engine of the one did.
    Copy,
    /// Through pinned memory of the host.
    Host,
}

impl Moved {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Moved::Stores => "kernel stores",
            Moved::Copy => "copy engine",
            Moved::Host => "through the host",
        }
    }
}

/// Figures of one way of moving data, from the link's `a` to its `b`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Way {
    /// Which.
    pub by: Moved,
    /// GB/s from `a` to `b`.
    pub gb_s: f64,
    /// GB/s from `b` to `a`.
    pub back_gb_s: f64,
    /// GB/s of the slower direction with both at once.
    pub both_gb_s: f64,
    /// µs of a word; absent if it did not arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Words of 8 bytes that did not arrive as they were sent.
    #[serde(default)]
    pub wrong: u64,
}

impl Way {
    /// The same, seen from the other end.
    pub fn turned(self) -> Way {
        Way { gb_s: self.back_gb_s, back_gb_s: self.gb_s, ..self }
    }
}

impl Link {
    /// Takes over what was measured: the best way that data arrives by, and all of them.
    pub fn measured(&mut self, reported: bool, ways: Vec<Way>) {
        self.peer_reported = Some(reported);
        let direct = || ways.iter().filter(|way| way.by != Moved::Host);
        self.peer_proven = (direct().next().is_some()).then(|| direct().all(|way| way.wrong == 0));
        let sound = |way: &&Way| way.wrong == 0 && (way.by == Moved::Host || self.peer_proven == Some(true));
        let fastest = ways.iter().filter(sound).max_by(|one, other| one.both_gb_s.total_cmp(&other.both_gb_s));
        if let Some(best) = fastest {
            (self.gb_s, self.back_gb_s, self.both_gb_s) = (Some(best.gb_s), Some(best.back_gb_s), Some(best.both_gb_s));
        }
        self.us = ways.iter().filter(sound).filter_map(|way| way.us).min_by(f64::total_cmp);
        self.trouble = None;
        self.ways = ways;
    }

    /// Notes that the pair could not be proven.
    pub fn failed(&mut self, why: String) {
        self.peer_proven = Some(false);
        self.trouble = Some(why);
    }

    /// Takes over all that was measured of the same two devices.
    pub fn take_measured(&mut self, known: &Link) {
        let turned = known.a == self.b && known.b == self.a;
        self.peer_reported = self.peer_reported.or(known.peer_reported);
        if known.gb_s.is_none() && known.peer_proven.is_none() && known.trouble.is_none() {
            return;
        }
        (self.gb_s, self.back_gb_s) = match turned {
            true => (known.back_gb_s, known.gb_s),
            false => (known.gb_s, known.back_gb_s),
        };
        (self.both_gb_s, self.us) = (known.both_gb_s, known.us);
        self.ways = known.ways.iter().map(|way| if turned { way.turned() } else { *way }).collect();
        self.peer_proven = known.peer_proven;
        self.trouble = known.trouble.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::LinkKind;

    fn way(by: Moved, both_gb_s: f64, wrong: u64) -> Way {
        Way { by, gb_s: both_gb_s + 2.0, back_gb_s: both_gb_s + 1.0, both_gb_s, us: Some(both_gb_s / 100.0), wrong }
    }

    #[test]
    fn the_best_sound_way_counts_and_the_host_where_nothing_else_arrives() {
        let mut link = Link::new("GPU0", "GPU1", LinkKind::Pix);
        let host = way(Moved::Host, 20.0, 0);
        link.measured(true, vec![way(Moved::Stores, 363.0, 0), way(Moved::Copy, 390.0, 0), host]);
        assert_eq!((link.peer_proven, link.both_gb_s, link.gb_s), (Some(true), Some(390.0), Some(392.0)));
        link.measured(true, vec![way(Moved::Stores, 363.0, 0), way(Moved::Copy, 390.0, 7), host]);
        assert_eq!((link.peer_proven, link.both_gb_s, link.us), (Some(false), Some(20.0), Some(0.2)));
        link.measured(false, vec![host]);
        assert_eq!((link.peer_reported, link.peer_proven, link.both_gb_s), (Some(false), None, Some(20.0)));
    }

    #[test]
    fn directions_turn_with_the_link() {
        let mut known = Link::new("GPU1", "GPU0", LinkKind::Pix);
        known.measured(true, vec![way(Moved::Copy, 10.0, 0)]);
        let mut link = Link::new("GPU0", "GPU1", LinkKind::Pix);
        link.take_measured(&known);
        assert_eq!((link.gb_s, link.ways[0].back_gb_s, link.peer_proven), (Some(11.0), 12.0, Some(true)));
    }
}
