//! What makes a machine slow or unreliable: [`judge`] turns an [`Examination`] into findings, sorted by how much they
//! hurt.
//!
//! One file for each kind of check: [`link`] PCIe links, [`errors`] counters that grow, [`peer`] ways between GPUs,
//! [`gpus`] the GPUs themselves, [`host`] limits and the operating system, [`log`] what the kernel wrote. [`health`] makes a score of them that can be
//! explained. Nothing unknown is a fault.

pub mod errors;
pub mod gpus;
pub mod health;
pub mod host;
pub mod link;
pub mod log;
pub mod peer;
pub mod watch;

use std::fmt;

use serde_json::{Value, json};

use crate::topology::Machine;
use host::Host;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It could not be looked at, or only matters to some.
    Advice,
    /// It costs speed, or may cause trouble.
    Warning,
    /// It is broken.
    Fault,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Advice => "advice",
            Level::Warning => "warning",
            Level::Fault => "fault",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// Which check found it, for scripts: `link-width`, `peer-access` and so on.
    pub check: &'static str,
    /// Where: `GPU1 (0000:41:00.0)`, `/dev/shm`.
    pub place: String,
    /// What is wrong, one sentence.
    pub what: String,
    /// What was seen.
    pub evidence: String,
    /// What to do.
    pub try_: String,
    /// Roughly which part of the speed it costs, 0 to 1; sorts findings of a level.
    pub hurts: f64,
}

impl Finding {
    /// A finding; the sentences are added by the caller.
    pub fn new(level: Level, check: &'static str, place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding {
            level,
            check,
            place: place.into(),
            what: what.into(),
            evidence: String::new(),
            try_: String::new(),
            hurts: 0.0,
        }
    }

    /// Adds what was seen.
    pub fn seen(mut self, evidence: impl Into<String>) -> Finding {
        self.evidence = evidence.into();
        self
    }

    /// Adds what to do.
    pub fn try_this(mut self, try_: impl Into<String>) -> Finding {
        self.try_ = try_.into();
        self
    }

    /// Adds how much of the speed it costs.
    pub fn costs(mut self, part: f64) -> Finding {
        self.hurts = part.clamp(0.0, 1.0);
        self
    }
}

/// Everything that is judged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Examination {
    /// The machine.
    pub machine: Machine,
    /// The same some time before, for rates.
    pub earlier: Option<Machine>,
    /// How long before.
    pub seconds: f64,
    /// How often each GPU's link changed meanwhile, by its number.
    pub link_changes: Vec<u32>,
    /// Limits and operating system.
    pub host: Option<Host>,
    /// So many ranks shall fit.
    pub ranks: Option<u32>,
}

/// All findings, the worst first.
pub fn judge(examined: &Examination) -> Vec<Finding> {
    let mut findings = link::findings(&examined.machine, &examined.link_changes);
    findings.extend(errors::findings(examined));
    findings.extend(peer::findings(&examined.machine));
    findings.extend(gpus::findings(&examined.machine));
    findings.extend(host::room(&examined.machine, examined.ranks));
    if let Some(host) = &examined.host {
        findings.extend(host::findings(host, &examined.machine, examined.ranks));
    }
    findings.sort_by(|one, other| other.level.cmp(&one.level).then(other.hurts.total_cmp(&one.hurts)));
    findings
}

/// 0 nothing, 1 warnings, 2 faults.
pub fn exit_code(findings: &[Finding]) -> u8 {
    match findings.iter().map(|finding| finding.level).max() {
        Some(Level::Fault) => 2,
        Some(Level::Warning) => 1,
        _ => 0,
    }
}

/// The findings for people.
pub fn text(examined: &Examination, findings: &[Finding]) -> String {
    use std::fmt::Write;
    let mut text = crate::view::text::headline(&examined.machine);
    if let Some(nccl) = examined.host.as_ref().and_then(|host| host.nccl.as_ref()) {
        let cuda = examined.host.as_ref().and_then(|host| host.nccl_cuda.as_ref());
        let _ = writeln!(text, "NCCL {nccl}{}", cuda.map_or(String::new(), |cuda| format!(" for CUDA {cuda}")));
    }
    if let Some(mib) = examined.host.as_ref().and_then(|host| host.memory_limit_mib) {
        let _ = writeln!(text, "the cgroup allows {} of memory", crate::view::text::size(mib));
    }
    for finding in findings {
        let _ = writeln!(text, "{}: {}: {}", finding.level, finding.place, finding.what);
        if !finding.evidence.is_empty() {
            let _ = writeln!(text, "  seen: {}", finding.evidence);
        }
        if !finding.try_.is_empty() {
            let _ = writeln!(text, "  try: {}", finding.try_);
        }
    }
    if let Some(line) = link::summary(&link::judged(&examined.machine)) {
        let _ = writeln!(text, "{line}");
    }
    let scores = health::all(examined);
    // A machine of eight GPUs has 28 links.
    let shown: Vec<&health::Health> =
        scores.iter().filter(|health| !health.is_link() || health.score() < 100).collect();
    for line in health::lines(&shown) {
        let _ = writeln!(text, "{line}");
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (faults, warnings) = (count(Level::Fault), count(Level::Warning));
    let plural = crate::view::text::plural;
    let said = match (faults, warnings) {
        (0, 0) => "nothing found that makes this machine slow or unreliable".to_owned(),
        _ => format!("{faults} {}, {warnings} {}", plural(faults, "fault"), plural(warnings, "warning")),
    };
    let _ = writeln!(text, "prun doctor: {said}");
    text
}

/// The findings for programs.
pub fn json(examined: &Examination, findings: &[Finding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| {
            json!({
                "level": finding.level.to_string(),
                "check": finding.check,
                "place": finding.place,
                "what": finding.what,
                "evidence": finding.evidence,
                "try": finding.try_,
                "hurts": finding.hurts,
            })
        })
        .collect();
    json!({
        "machine": examined.machine.name,
        "seconds": examined.seconds,
        "memory_limit_mib": examined.host.as_ref().and_then(|host| host.memory_limit_mib),
        "findings": findings,
        "links": link::json(&link::judged(&examined.machine)),
        "health": health::all(examined).iter().map(health::Health::json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn the_worst_comes_first_and_decides_the_exit_code() {
        let mut machine = two_sockets();
        machine.devices[1].link.width = Some(8);
        machine.links[0].peer_proven = Some(false);
        let examined = Examination { machine, ..Examination::default() };
        let findings = judge(&examined);
        assert!(findings.is_sorted_by(|one, other| one.level >= other.level), "{findings:?}");
        assert_eq!(exit_code(&findings), 2);
        let text = text(&examined, &findings);
        assert!(text.contains("fault: ") && text.contains("  try: ") && text.contains("health of GPU0"), "{text}");
        assert_eq!(json(&examined, &findings)["findings"].as_array().unwrap().len(), findings.len());
        assert_eq!(exit_code(&[]), 0);
    }
}
