//! A score from 0 to 100 for each GPU, each link between GPUs and the machine, with its reasons.
//!
//! Each term has a weight and a value from 0 to 1; the score is the weighted mean of those that are known. Counters
//! enter as rates, never as totals: an old machine is not a sick one. A link has the worse of its two ends; one over
//! which data did not arrive has 0; the machine has the score of its worst link.
//!
//! | term | weight | value |
//! | --- | --- | --- |
//! | lanes | 30 | lanes in use / lanes that both ends have; NVLinks that are up / all of them |
//! | speed | 20 | speed / speed that both ends have; only while the GPU works |
//! | bandwidth | 25 | measured to the slowest peer / what the kind of link should give, 1 at most |
//! | correctable errors | 10 | 1 / (1 + errors a second); packets sent again where the kernel counts no errors |
//! | worse errors | 15 | 1 if there was none while it was looked at, else 0 |
//!
//! One grave fault must not drown in what is fine: a link that has lost three quarters of its lanes, speed or
//! bandwidth, that reports errors which are not repaired, or ten errors a second that are, has
//! [`AT_MOST`] at most, which is under the threshold.

use serde_json::{Value, json};

use super::link::{self, Busy};
use super::{Examination, errors};
use crate::real::pow;
use crate::topology::{ErrorRates, Gpu, Link, LinkKind, Machine, PciLink, gpu_name};

/// Below this, a link is avoided where there is another way, and libcomm sends smaller chunks over it.
pub const THRESHOLD: u32 = 60;
/// What a link with a grave fault has at most.
pub const AT_MOST: u32 = 50;
/// So little of lanes, speed or bandwidth is a grave fault.
const GRAVE_PART: f64 = 0.25;
/// So many repaired errors a second are one, too: the link does little else.
const STORM_PER_SECOND: f64 = 10.0;

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
    /// Whether it is so bad that the rest does not count.
    pub is_grave: bool,
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
        let mean = if weights > 0.0 { (sum / weights * 100.0).round() as u32 } else { 100 };
        if self.grave().is_some() { mean.min(AT_MOST) } else { mean }
    }

    /// The first of its terms that is a grave fault.
    fn grave(&self) -> Option<&Term> {
        self.terms.iter().find(|term| term.is_grave)
    }

    /// Whether it is a link's, not a GPU's or the machine's.
    pub fn is_link(&self) -> bool {
        self.place.contains('-')
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
        let limit = self.grave().map_or(String::new(), |term| format!(", at most {AT_MOST} because of {}", term.name));
        format!("health of {}: {} of 100{limit}: {}{rest}", self.place, self.score(), known.join(", "))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let terms: Vec<Value> = self
            .terms
            .iter()
            .map(|term| json!({"name": term.name, "weight": term.weight, "value": term.value, "evidence": term.evidence}))
            .collect();
        let limited_by = self.grave().map(|term| term.name);
        json!({"place": self.place, "score": self.score(), "limited_by": limited_by, "terms": terms})
    }
}

/// A line for each; those of which exactly the same can be said, such as eight healthy GPUs, have one line together.
pub fn lines(all: &[&Health]) -> Vec<String> {
    let mut groups: Vec<Health> = Vec::new();
    for health in all {
        match groups.iter_mut().find(|its| its.terms == health.terms) {
            Some(known) => known.place = format!("{}, {}", known.place, health.place),
            None => groups.push((*health).clone()),
        }
    }
    groups.iter().map(Health::text).collect()
}

/// Of every GPU and of every link between GPUs of which anything is known, then of the machine.
pub fn all(examined: &Examination) -> Vec<Health> {
    let machine = with_rates(examined);
    let gpus = machine.gpus.iter().filter_map(|gpu| of_gpu(&machine, gpu));
    let links = machine.links.iter().filter_map(|link| of_link(&machine, link));
    let mut all: Vec<Health> = gpus.chain(links).collect();
    all.extend(of_machine(&machine));
    all
}

/// The machine with the errors that were counted while it was looked at.
fn with_rates(examined: &Examination) -> Machine {
    let mut machine = examined.machine.clone();
    for gpu in &mut machine.gpus {
        gpu.errors = errors::rates(examined, gpu).or(gpu.errors);
    }
    machine
}

/// A GPU's PCIe link, and what was measured to its slowest peer.
pub fn of_gpu(machine: &Machine, gpu: &Gpu) -> Option<Health> {
    let own = gpu_name(gpu.index);
    let mut terms = pcie_terms(&[End::of(machine, gpu)]);
    let slowest = machine
        .links
        .iter()
        .filter(|link| link.a == own || link.b == own)
        .filter_map(|link| bandwidth(machine, link))
        .min_by(|one, other| one.0.total_cmp(&other.0));
    terms.insert(2, bandwidth_term(slowest));
    known(own, terms)
}

/// A link between two GPUs: both ends of its PCIe part, or its NVLinks; 0 if data that was written did not arrive.
pub fn of_link(machine: &Machine, link: &Link) -> Option<Health> {
    let place = format!("{}-{}", link.a, link.b);
    let ends = ends(machine, link)?;
    if link.peer_proven == Some(false) {
        let why = link.trouble.clone().unwrap_or_else(|| "data that was written did not arrive".into());
        return known(place, vec![term("proof", 100.0, Some(0.0), why)]);
    }
    let mut terms = match link.kind {
        LinkKind::Nvlink(_) => {
            let share = |gpu: &Gpu| {
                let state = gpu.state.as_ref()?;
                let (up, down) = state.nvlinks_up.zip(state.nvlinks_down)?;
                (up + down > 0).then(|| (f64::from(up) / f64::from(up + down), format!("{up} of {} up", up + down)))
            };
            let worst = ends.iter().filter_map(|gpu| share(gpu)).min_by(|one, other| one.0.total_cmp(&other.0));
            vec![term(
                "lanes",
                30.0,
                worst.as_ref().map(|(part, _)| *part),
                worst.map(|(_, text)| text).unwrap_or_default(),
            )]
        }
        _ => pcie_terms(&ends.map(|gpu| End::of(machine, gpu))),
    };
    let at = terms.len().min(2);
    terms.insert(at, bandwidth_term(bandwidth(machine, link)));
    known(place, terms)
}

/// A machine is as healthy as its worst link.
pub fn of_machine(machine: &Machine) -> Option<Health> {
    let gpus = machine.gpus.iter().filter_map(|gpu| of_gpu(machine, gpu));
    let links = machine.links.iter().filter_map(|link| of_link(machine, link));
    let worst = gpus.chain(links).min_by_key(Health::score)?;
    let part = f64::from(worst.score()) / 100.0;
    known("the machine".into(), vec![term("worst link", 100.0, Some(part), worst.place)])
}

/// What a ring gets of a link: its GB/s, and next to nothing of one that is to be avoided.
pub fn ring_gb_s(machine: &Machine, a: usize, b: usize) -> f64 {
    let gb_s = machine.gpu_gb_s(a, b);
    if is_avoided(machine, a, b) { gb_s / 1000.0 } else { gb_s }
}

/// Whether the link between two GPUs is under the threshold.
pub fn is_avoided(machine: &Machine, a: usize, b: usize) -> bool {
    score_of(machine, a, b).is_some_and(|score| score < THRESHOLD)
}

/// The score of the link between two GPUs, where anything is known of it.
pub fn score_of(machine: &Machine, a: usize, b: usize) -> Option<u32> {
    machine.gpu_link(a, b).and_then(|link| of_link(machine, link)).map(|health| health.score())
}

/// A GPU's end of its PCIe link.
struct End {
    name: String,
    now: PciLink,
    best: PciLink,
    busy: Busy,
    /// `now` has the speed of an earlier look.
    was_loaded: bool,
    errors: Option<ErrorRates>,
}

impl End {
    fn of(machine: &Machine, gpu: &Gpu) -> End {
        let device = machine.device_of(gpu);
        let above = device.and_then(|device| machine.device(*device.above.last()?));
        let mut now = device.map(|device| device.link).unwrap_or_default();
        // What it did at its last work says more than how it rests.
        let remembered = gpu.loaded_speed.filter(|_| gpu.is_busy() != Some(true));
        now.speed = remembered.or(now.speed);
        End {
            name: gpu_name(gpu.index),
            now,
            was_loaded: remembered.is_some(),
            best: device.map(|device| link::best(device, above)).unwrap_or_default(),
            busy: link::busy(gpu),
            errors: gpu.errors,
        }
    }

    fn lanes(&self) -> Option<(f64, String)> {
        let part = self.now.width.zip(self.best.max_width).map(|(now, best)| f64::from(now) / f64::from(best));
        part.map(|part| (part.min(1.0), format!("{} of {}", self.now.shown(), self.best.max_shown())))
    }

    fn speed(&self) -> Option<(f64, String)> {
        let (now, best) = self.now.speed.zip(self.best.max_speed)?;
        let generation = |speed: crate::topology::Speed| f64::from(speed.generation().unwrap_or(1));
        let part = pow(2.0, generation(now) - generation(best)).min(1.0);
        let said = match self.busy {
            Busy::Yes => "under load",
            _ if self.was_loaded => "under load, when it was last looked at",
            Busy::No => "at rest",
            Busy::Unknown => "load not known",
        };
        (self.busy == Busy::Yes || self.was_loaded || now >= best).then(|| (part, said.into()))
    }

    fn correctable(&self) -> Option<(f64, String)> {
        let ErrorRates { correctable_per_s: rate, worse } = self.errors?;
        let what = if worse.is_some() { "" } else { " replays" };
        Some((1.0 / (1.0 + rate), format!("{rate:.1}{what} a second")))
    }

    fn worse(&self) -> Option<(f64, String)> {
        let worse = self.errors?.worse?;
        Some((if worse == 0 { 1.0 } else { 0.0 }, format!("{worse} seen")))
    }
}

/// The terms of a PCIe link; of two ends the worse one counts and is named.
fn pcie_terms(ends: &[End]) -> Vec<Term> {
    let worst = |name, weight, of: fn(&End) -> Option<(f64, String)>| {
        let found = ends.iter().filter_map(|end| Some((of(end)?, &end.name)));
        let worst = found.min_by(|((one, _), _), ((other, _), _)| one.total_cmp(other));
        let evidence = worst.as_ref().map(|((_, text), name)| match ends.len() {
            1 => text.clone(),
            _ => format!("{name}: {text}"),
        });
        term(name, weight, worst.map(|((part, _), _)| part), evidence.unwrap_or_default())
    };
    vec![
        worst("lanes", 30.0, End::lanes),
        worst("speed", 20.0, End::speed),
        worst("correctable errors", 10.0, End::correctable),
        worst("worse errors", 15.0, End::worse),
    ]
}

/// Measured against what the kind of link should give: the part, the figure, the kind.
pub(super) fn bandwidth(machine: &Machine, link: &Link) -> Option<(f64, f64, LinkKind)> {
    let ends = ends(machine, link)?;
    let measured = [link.gb_s, link.back_gb_s].into_iter().flatten().min_by(f64::total_cmp)?;
    let most = ends.iter().filter_map(|gpu| End::of(machine, gpu).best.max_gb_s()).min_by(f64::total_cmp);
    Some((measured / link.kind.estimated_gb_s(most), measured, link.kind))
}

fn bandwidth_term(found: Option<(f64, f64, LinkKind)>) -> Term {
    let evidence = found.map_or(String::new(), |(_, gb_s, kind)| format!("{gb_s:.0} GB/s over {kind}"));
    term("bandwidth", 25.0, found.map(|(part, _, _)| part.min(1.0)), evidence)
}

/// The two GPUs of a link; `None` if one end is none.
fn ends<'a>(machine: &'a Machine, link: &Link) -> Option<[&'a Gpu; 2]> {
    let gpu = |name: &str| machine.gpus.iter().find(|gpu| gpu_name(gpu.index) == *name);
    Some([gpu(&link.a)?, gpu(&link.b)?])
}

fn term(name: &'static str, weight: f64, value: Option<f64>, evidence: String) -> Term {
    let least = match name {
        "lanes" | "speed" | "bandwidth" => GRAVE_PART,
        "correctable errors" => 1.0 / (1.0 + STORM_PER_SECOND),
        // Any worse error; what is not a link's own has its score already.
        "worse errors" => 0.0,
        _ => -1.0,
    };
    Term { name, weight, value, evidence, is_grave: value.is_some_and(|value| value <= least + 1e-9) }
}

fn known(place: String, terms: Vec<Term>) -> Option<Health> {
    terms.iter().any(|term| term.value.is_some()).then_some(Health { place, terms })
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
    fn gpus_of_which_the_same_is_said_share_a_line() {
        let mut machine = two_sockets();
        machine.links.clear();
        machine.devices[1].link.width = Some(8);
        let all: Vec<Health> = machine.gpus.iter().filter_map(|gpu| of_gpu(&machine, gpu)).collect();
        let lines = lines(&all.iter().collect::<Vec<_>>());
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("health of GPU1, GPU2, GPU3: 100 of 100: lanes"), "{lines:?}");
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

    #[test]
    fn one_grave_fault_is_enough_to_be_avoided() {
        let busy = || Some(crate::topology::GpuState { busy_percent: Some(100), ..Default::default() });
        let hurt = |change: &dyn Fn(&mut Machine)| {
            let mut machine = two_sockets();
            change(&mut machine);
            let health = of_gpu(&machine, &machine.gpus[2]).unwrap();
            (health.score(), health.json()["limited_by"].clone(), health.text())
        };
        // F07: 5 of 32 GT/s while the GPU works, all lanes there; the mean alone would be 65.
        let (score, by, text) = hurt(&|machine| {
            machine.gpus[2].state = busy();
            machine.devices[5].link.speed = crate::topology::Speed::of_generation(2);
        });
        assert_eq!((score, by), (50, "speed".into()), "{text}");
        assert!(text.starts_with("health of GPU2: 50 of 100, at most 50 because of speed: lanes 100 %"), "{text}");
        // The same at rest costs nothing.
        let slow = |machine: &mut Machine| machine.devices[5].link.speed = crate::topology::Speed::of_generation(1);
        assert_eq!(hurt(&slow).0, 100);
        // 2.5 of 16 GT/s.
        let stuck = |machine: &mut Machine| {
            machine.gpus[2].state = busy();
            machine.devices[5].link.max_speed = crate::topology::Speed::of_generation(4);
            slow(machine);
        };
        assert_eq!(hurt(&stuck).0, 50);
        let errors = |correctable_per_s: f64, worse: u64| {
            hurt(&move |machine: &mut Machine| {
                machine.gpus[2].errors = Some(ErrorRates { correctable_per_s, worse: Some(worse) });
            })
        };
        assert_eq!(errors(0.0, 1).1, "worse errors");
        assert_eq!((errors(0.0, 1).0, errors(12.0, 0).0, errors(0.0, 0).0), (50, 50, 100));
        assert_eq!(errors(12.0, 0).1, "correctable errors");
        assert!(errors(2.0, 0).0 > 60 && errors(2.0, 0).1.is_null());
    }

    #[test]
    fn a_link_has_the_worse_of_its_ends_and_the_machine_its_worst_link() {
        let mut machine = two_sockets();
        let link = |machine: &Machine, a, b| of_link(machine, machine.gpu_link(a, b).unwrap()).unwrap();
        assert_eq!(link(&machine, 1, 2).score(), 100);
        machine.devices[5].link.width = Some(4);
        machine.gpus[1].errors = Some(ErrorRates { correctable_per_s: 9.0, worse: Some(0) });
        // 30 × 1/4 + 20 + 10 × 1/10 + 15 of 75 would be 58.
        let hurt = link(&machine, 1, 2);
        assert_eq!(hurt.score(), AT_MOST, "{}", hurt.text());
        assert!(hurt.text().contains("GPU2: Gen5 x4 of Gen5 x16") && hurt.text().contains("GPU1: 9.0 a second"));
        assert_eq!(of_machine(&machine).unwrap().score(), AT_MOST);
        assert!(is_avoided(&machine, 1, 2) && !is_avoided(&machine, 0, 1));
        // NVLinks do not care for PCIe lanes.
        assert_eq!(link(&machine, 0, 1).score(), 100);
        machine.links[0].failed("no answer within 5 s".into());
        assert_eq!((link(&machine, 0, 1).score(), of_machine(&machine).unwrap().score()), (0, 0));
        assert!(ring_gb_s(&machine, 0, 1) < 1.0);
    }
}
