//! What was measured for one message: the turns of each variant put together, and what follows from them.

use programs::bench::wire::{Calls, Entry, Place};

use super::sizes::Message;
use crate::experiment::stats::describe::median;

/// One variant in one place, over all its turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Which variant.
    pub variant: String,
    /// Whether it is libcomm.
    pub own: bool,
    /// Where the result went.
    pub place: Place,
    /// Microseconds a call of each batch.
    pub batches: Vec<f64>,
    /// Single calls, of the last turn.
    pub calls: Option<Calls>,
    /// Wrong elements, if they were compared.
    pub wrong: Option<u64>,
    /// Why there is no time.
    pub failed: Option<String>,
}

impl Measured {
    /// The median over the batches, in microseconds.
    pub fn us(&self) -> Option<f64> {
        (self.failed.is_none() && !self.batches.is_empty()).then(|| median(&self.batches))
    }

    /// 10⁹ bytes of the message a second.
    pub fn algbw(&self, message: Message) -> Option<f64> {
        self.us().map(|us| message.bytes as f64 / us / 1e3)
    }
}

/// All variants of one message.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The message.
    pub message: Message,
    /// In the order in which they were first measured.
    pub measured: Vec<Measured>,
}

impl Row {
    /// Of nothing so far.
    pub fn new(message: Message) -> Row {
        Row { message, measured: Vec::new() }
    }

    /// Adds a turn.
    pub fn add(&mut self, own: bool, entry: Entry) {
        let known = self.measured.iter_mut().find(|known| known.variant == entry.variant && known.place == entry.place);
        match known {
            Some(known) => {
                known.batches.extend(entry.batches);
                known.calls = entry.calls.or(known.calls);
                known.wrong = known.wrong.zip(entry.wrong).map(|(a, b)| a + b);
            }
            None => {
                let Entry { variant, place, batches, calls, wrong } = entry;
                self.measured.push(Measured { variant, own, place, batches, calls, wrong, failed: None });
            }
        }
    }

    /// Notes that a rival gave no time.
    pub fn add_failure(&mut self, variant: &str, place: Place, why: &str) {
        match self.measured.iter_mut().find(|known| known.variant == variant) {
            Some(known) => known.failed = Some(why.to_owned()),
            None => self.measured.push(Measured {
                variant: variant.to_owned(),
                own: false,
                place,
                batches: Vec::new(),
                calls: None,
                wrong: None,
                failed: Some(why.to_owned()),
            }),
        }
    }

    /// How many times as fast as the fastest rival in the same place.
    pub fn ratio(&self, own: &Measured) -> Option<f64> {
        let rivals = self.measured.iter().filter(|other| !other.own && other.place == own.place);
        let best = rivals.filter_map(Measured::us).min_by(f64::total_cmp)?;
        own.us().map(|us| best / us)
    }

    /// Wrong elements of all.
    pub fn wrong(&self) -> u64 {
        self.measured.iter().filter_map(|one| one.wrong).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A turn.
    pub fn entry(variant: &str, place: Place, batches: &[f64], wrong: Option<u64>) -> Entry {
        Entry { variant: variant.into(), place, batches: batches.to_vec(), calls: None, wrong }
    }

    #[test]
    fn turns_are_put_together_and_compared_with_the_best_rival() {
        let mut row = Row::new(Message { count: 250, bytes: 1000 });
        row.add(true, entry("libcomm", Place::Out, &[2.0, 1.0], Some(0)));
        row.add(false, entry("A", Place::Out, &[3.0], Some(1)));
        row.add(false, entry("B", Place::Out, &[4.0], None));
        row.add(false, entry("A", Place::In, &[0.5], Some(0)));
        row.add(true, entry("libcomm", Place::Out, &[6.0], Some(2)));
        row.add_failure("B", Place::Out, "> 60 s");
        assert_eq!(row.measured.len(), 4);
        let own = &row.measured[0];
        assert_eq!((own.us(), own.algbw(row.message), own.wrong), (Some(2.0), Some(0.5), Some(2)));
        assert_eq!(row.ratio(own), Some(1.5));
        assert_eq!((row.wrong(), row.measured[2].us()), (3, None));
    }
}
