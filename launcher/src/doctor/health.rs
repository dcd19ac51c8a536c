//! A score for each GPU's way to the others, from 0 to 100, with its reasons.
//!
//! Each term has a weight and a value from 0 to 1; the score is the weighted mean of those that are known. Counters
//! enter as rates, never as totals: an old machine is not a sick one.
//!
//! | term | weight | value |
//! | --- | --- | --- |
//! | lanes | 30 | lanes in use / lanes that both ends have |
//! | speed | 20 | speed / speed that both ends have; only while the GPU works |
//! | bandwidth | 25 | measured to the slowest peer / what the kind of link should give, 1 at most |
//! | correctable errors | 10 | 1 / (1 + errors a second) |
//! | worse errors | 15 | 1 if there was none while it was looked at, else 0 |

use serde_json::{Value, json};

use super::link::{self, Busy};
use super::{Examination, errors};
use crate::real::pow;
use crate::topology::{Gpu, Machine, gpu_name};

/// Below this, a link is avoided where there is another way.
pub const THRESHOLD: u32 = 60;

/// One reason of a score.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// What it is about.
    pub name: &'static str,
    /// How much it counts.
    pub weight: f64,
    /// From 0 to 1; `None` if unknown.
    pub value: Option<f64>,
    /// Where the value comes from.
    pub evidence: String,
}

/// A score and its reasons.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// Whose.
    pub place: String,
    /// Its terms, unknown ones too.
    pub terms: Vec<Term>,
}

impl Health {
    /// From 0 to 100.
    pub fn score(&self) -> u32 {
        let known = || self.terms.iter().filter_map(|term| Some((term.weight, term.value?)));
        let weights: f64 = known().map(|(weight, _)| weight).sum();
        let sum: f64 = known().map(|(weight, value)| weight * value).sum();
        if weights > 0.0 { (sum / weights * 100.0).round() as u32 } else { 100 }
    }

    /// One line with all reasons.
    pub fn text(&self) -> String {
        let known: Vec<String> = self
            .terms
            .iter()
            .filter_map(|term| {
                Some(format!("{} {:.0} % of {:.0} ({})", term.name, term.value? * 100.0, term.weight, term.evidence))
            })
            .collect();
        let unknown: Vec<&str> = self.terms.iter().filter(|term| term.value.is_none()).map(|term| term.name).collect();
        let rest = if unknown.is_empty() { String::new() } else { format!("; not known: {}", unknown.join(", ")) };
        format!("health of {}: {} of 100: {}{rest}", self.place, self.score(), known.join(", "))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let terms: Vec<Value> = self
            .terms
            .iter()
            .map(|term| json!({"name": term.name, "weight": term.weight, "value": term.value, "evidence": term.evidence}))
            .collect();
        json!({"place": self.place, "score": self.score(), "terms": terms})
    }
}

/// Of every GPU of which anything is known.
pub fn all(examined: &Examination) -> Vec<Health> {
    examined.machine.gpus.iter().filter_map(|gpu| with_rates(examined, gpu)).collect()
}

/// Without rates: what one look tells.
pub fn of_gpu(machine: &Machine, gpu: &Gpu) -> Option<Health> {
    health(machine, gpu, None)
}

fn with_rates(examined: &Examination, gpu: &Gpu) -> Option<Health> {
    health(&examined.machine, gpu, errors::rates(examined, gpu))
}

fn health(machine: &Machine, gpu: &Gpu, rates: Option<(f64, u64)>) -> Option<Health> {
    let device = machine.device_of(gpu);
    let above = device.and_then(|device| machine.device(*device.above.last()?));
    let now = device.map(|device| device.link).unwrap_or_default();
    let best = device.map(|device| link::best(device, above)).unwrap_or_default();
    let lanes = now.width.zip(best.max_width).map(|(now, best)| (f64::from(now) / f64::from(best)).min(1.0));
    let works = link::busy(gpu) == Busy::Yes;
    let full = now.speed.is_some() && now.speed >= best.max_speed && best.max_speed.is_some();
    let speed = now.speed.zip(best.max_speed).filter(|_| works || full).map(|(now, best)| {
        let generation = |speed: crate::topology::Speed| f64::from(speed.generation().unwrap_or(1));
        pow(2.0, generation(now) - generation(best)).min(1.0)
    });
    let own = gpu_name(gpu.index);
    let slowest = machine
        .links
        .iter()
        .filter(|link| link.b.starts_with("GPU") && (link.a == own || link.b == own))
        .filter_map(|link| {
            let measured = [link.gb_s, link.back_gb_s].into_iter().flatten().min_by(f64::total_cmp)?;
            let expected = link.kind.estimated_gb_s(best.max_gb_s());
            Some((measured / expected, measured, link.kind))
        })
        .min_by(|one, other| one.0.total_cmp(&other.0));
    let term = |name, weight, value: Option<f64>, evidence: String| Term { name, weight, value, evidence };
    let terms = vec![
        term("lanes", 30.0, lanes, format!("{} of {}", now.shown(), best.max_shown())),
        term("speed", 20.0, speed, if works { "under load".into() } else { "at rest".into() }),
        term(
            "bandwidth",
            25.0,
            slowest.map(|(part, _, _)| part.min(1.0)),
            slowest.map_or(String::new(), |(_, gb_s, kind)| format!("{gb_s:.0} GB/s over {kind}")),
        ),
        term(
            "correctable errors",
            10.0,
            rates.map(|(per_second, _)| 1.0 / (1.0 + per_second)),
            rates.map_or(String::new(), |(per_second, _)| format!("{per_second:.1} a second")),
        ),
        term(
            "worse errors",
            15.0,
            rates.map(|(_, worse)| if worse == 0 { 1.0 } else { 0.0 }),
            rates.map_or(String::new(), |(_, worse)| format!("{worse} seen")),
        ),
    ];
    let known = terms.iter().any(|term| term.value.is_some());
    known.then_some(Health { place: own, terms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn a_sound_link_has_a_hundred_and_each_loss_its_reason() {
        let mut machine = two_sockets();
        let score = |machine: &Machine, gpu: usize| of_gpu(machine, &machine.gpus[gpu]).unwrap();
        assert_eq!((score(&machine, 0).score(), score(&machine, 2).score()), (100, 100));
        machine.devices[1].link.width = Some(8);
        let hurt = score(&machine, 0);
        assert_eq!(hurt.score(), 80);
        assert!(hurt.text().contains("lanes 50 % of 30 (Gen5 x8 of Gen5 x16)"), "{}", hurt.text());
        machine.links[0].gb_s = Some(10.0);
        machine.links[0].back_gb_s = Some(10.0);
        assert!(score(&machine, 0).score() < THRESHOLD);
    }

    #[test]
    fn idle_and_unknown_cost_nothing() {
        let mut machine = two_sockets();
        machine.devices[1].link.speed = crate::topology::Speed::of_generation(1);
        assert_eq!(of_gpu(&machine, &machine.gpus[0]).unwrap().score(), 100);
        machine.devices.clear();
        machine.links.clear();
        assert_eq!(of_gpu(&machine, &machine.gpus[0]), None);
    }
}
