//! Which trial comes next: pure, so that a resumed sweep goes on just as the interrupted one would have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::spec::{Order, Trials};
use super::stats::describe::Description;
use super::stats::rng::Rng;

/// One trial among all of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrialKey {
    /// Index of its variant.
    pub variant: usize,
    /// Whether it is there to warm up.
    pub warmup: bool,
    /// Which one of its variant, from 0.
    pub repetition: u32,
}

/// What the schedule needs to know of a finished trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// The figure that is compared; `None` if the trial failed.
    pub figure: Option<f64>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Start this one.
    Start(TrialKey),
    /// Wait until one of those that run has ended: whether more are needed depends on it.
    Wait,
    /// There is none.
    Over,
}

/// The order of a sweep's trials.
#[derive(Debug)]
pub struct Schedule {
    trials: Trials,
    keys: Vec<TrialKey>,
    position: usize,
    done: BTreeMap<TrialKey, Done>,
    running: Vec<TrialKey>,
    /// Trials that were passed over since those that run decide about them.
    held: Vec<TrialKey>,
}

impl Schedule {
    /// All trials of so many variants, none of them done.
    pub fn new(trials: &Trials, variants: usize) -> Schedule {
        Schedule {
            trials: trials.clone(),
            keys: order(trials, variants),
            position: 0,
            done: BTreeMap::new(),
            running: Vec::new(),
            held: Vec::new(),
        }
    }

    /// A trial has ended.
    pub fn finish(&mut self, key: TrialKey, done: Done) {
        self.running.retain(|running| *running != key);
        self.done.insert(key, done);
    }

    /// A trial ended without a result and is to be forgotten.
    pub fn forget(&mut self, key: TrialKey) {
        self.running.retain(|running| *running != key);
    }

    /// How many trials are done.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// How many there will be at most, by what is known now.
    pub fn total(&self) -> usize {
        let rest = self.keys[self.position..].iter().chain(&self.held);
        self.done.len()
            + self.running.len()
            + rest.filter(|key| !self.done.contains_key(key) && !self.is_precise(key)).count()
    }

    /// The next trial; it counts as running afterwards.
    pub fn advance(&mut self) -> Next {
        for at in 0..self.held.len() {
            if !self.depends_on_running(&self.held[at]) {
                let key = self.held.remove(at);
                return if self.is_precise(&key) { self.advance() } else { self.start(key) };
            }
        }
        while let Some(&key) = self.keys.get(self.position) {
            self.position += 1;
            if self.done.contains_key(&key) || self.is_precise(&key) {
                continue;
            }
            if self.depends_on_running(&key) {
                self.held.push(key);
                continue;
            }
            return self.start(key);
        }
        if self.running.is_empty() && self.held.is_empty() { Next::Over } else { Next::Wait }
    }

    fn start(&mut self, key: TrialKey) -> Next {
        self.running.push(key);
        Next::Start(key)
    }

    /// Past the fewest trials, whether there shall be another one depends on all before it.
    fn depends_on_running(&self, key: &TrialKey) -> bool {
        let before = |other: &TrialKey| other.variant == key.variant && other.repetition < key.repetition;
        let optional = self.trials.precision.is_some() && !key.warmup && key.repetition >= self.trials.repeat;
        optional && (self.running.iter().any(before) || self.held.iter().any(before))
    }

    /// Whether the trials before this one have told enough.
    fn is_precise(&self, key: &TrialKey) -> bool {
        let Some(wanted) = self.trials.precision else { return false };
        if key.warmup || key.repetition < self.trials.repeat {
            return false;
        }
        let first = TrialKey { repetition: 0, ..*key };
        let figures: Vec<f64> = self.done.range(first..*key).filter_map(|(_, done)| done.figure).collect();
        let tried = self.done.range(first..*key).count();
        let is_precise =
            Description::of(&figures).and_then(|it| it.precision()).is_some_and(|precision| precision <= wanted);
        // A variant that always fails will not become precise.
        is_precise || (tried >= self.trials.repeat as usize && figures.is_empty())
    }
}

fn order(trials: &Trials, variants: usize) -> Vec<TrialKey> {
    let rounds = (0..trials.warmup).map(|at| (true, at)).chain((0..trials.most()).map(|at| (false, at)));
    let round = |(warmup, repetition)| (0..variants).map(move |variant| TrialKey { variant, warmup, repetition });
    if trials.order == Order::Random {
        let mut rng = Rng::new(trials.seed);
        return rounds
            .flat_map(|at| {
                let mut keys: Vec<TrialKey> = round(at).collect();
                rng.shuffle(&mut keys);
                keys
            })
            .collect();
    }
    let mut keys: Vec<TrialKey> = rounds.flat_map(round).collect();
    if trials.order == Order::Grouped {
        keys.sort_by_key(|key| (key.variant, !key.warmup, key.repetition));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(schedule: &mut Schedule, figure: impl Fn(TrialKey) -> Option<f64>) -> String {
        let mut text = String::new();
        loop {
            match schedule.advance() {
                Next::Start(key) => {
                    let letter = char::from(b'a' + u8::try_from(key.variant).unwrap());
                    text.push(if key.warmup { letter.to_ascii_uppercase() } else { letter });
                    schedule.finish(key, Done { figure: figure(key) });
                }
                Next::Over => return text,
                Next::Wait => panic!("nothing runs"),
            }
        }
    }

    fn trials(order: Order) -> Trials {
        Trials { repeat: 3, order, ..Trials::default() }
    }

    #[test]
    fn rounds_are_interleaved_unless_grouped() {
        assert_eq!(shown(&mut Schedule::new(&trials(Order::Interleaved), 2), |_| None), "ABababab");
        assert_eq!(shown(&mut Schedule::new(&trials(Order::Grouped), 2), |_| None), "AaaaBbbb");
    }

    #[test]
    fn a_random_order_has_each_variant_once_a_round_and_is_repeatable() {
        let random = |seed| shown(&mut Schedule::new(&Trials { seed, ..trials(Order::Random) }, 8), |_| None);
        assert_eq!(random(3), random(3));
        assert_ne!(random(3), random(4));
        for round in random(3).as_bytes().chunks(8) {
            let mut sorted = round.to_ascii_lowercase();
            sorted.sort_unstable();
            assert_eq!(sorted, b"abcdefgh");
        }
    }

    #[test]
    fn finished_trials_are_not_repeated_after_a_resume() {
        for order in [Order::Interleaved, Order::Random, Order::Grouped] {
            let mut whole = Schedule::new(&trials(order), 3);
            let mut keys = Vec::new();
            while let Next::Start(key) = whole.advance() {
                keys.push(key);
                whole.finish(key, Done { figure: None });
            }
            for cut in 0..keys.len() {
                let mut resumed = Schedule::new(&trials(order), 3);
                keys[..cut].iter().for_each(|key| resumed.finish(*key, Done { figure: None }));
                let mut rest = Vec::new();
                while let Next::Start(key) = resumed.advance() {
                    rest.push(key);
                    resumed.finish(key, Done { figure: None });
                }
                assert_eq!(rest, keys[cut..]);
            }
        }
    }

    #[test]
    fn precision_ends_a_variant_and_only_that() {
        let precise = Trials { repeat: 5, warmup: 0, precision: Some(0.01), max_repeat: 9, ..Trials::default() };
        // a is always the same; b varies; c always fails.
        let figure = |key: TrialKey| match key.variant {
            0 => Some(1.0),
            1 => Some(1.0 + f64::from(key.repetition)),
            _ => None,
        };
        let text = shown(&mut Schedule::new(&precise, 3), figure);
        assert_eq!(text, format!("{}{}", "abc".repeat(5), "b".repeat(4)));
    }

    #[test]
    fn with_several_at_once_a_trial_that_may_not_be_needed_waits() {
        let precise = Trials { repeat: 5, warmup: 0, precision: Some(0.01), max_repeat: 9, ..Trials::default() };
        let mut schedule = Schedule::new(&precise, 1);
        let keys: Vec<TrialKey> = std::iter::from_fn(|| match schedule.advance() {
            Next::Start(key) => Some(key),
            _ => None,
        })
        .collect();
        assert_eq!((keys.len(), schedule.advance()), (5, Next::Wait));
        keys.iter().for_each(|key| schedule.finish(*key, Done { figure: Some(2.0) }));
        assert_eq!(schedule.advance(), Next::Over);
    }
}
