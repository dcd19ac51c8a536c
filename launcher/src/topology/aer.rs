//! PCIe Advanced Error Reporting: the kernel's counters for each device, by kind of error.
//!
//! Counters of an old machine say little; what matters is how fast they grow: [`growth`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counters by the kernel's name for the error. Names that are new are kept.
pub type Counts = BTreeMap<String, u64>;

/// What a device has reported since it was powered on. An absent file is `None`, not "no errors".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Aer {
    /// Repaired by the hardware; they cost time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correctable: Option<Counts>,
    /// A transaction was lost; the link is fine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonfatal: Option<Counts>,
    /// The link itself is not reliable any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fatal: Option<Counts>,
}

impl Aer {
    /// Whether no counter can be read.
    pub fn is_unknown(&self) -> bool {
        self.correctable.is_none() && self.nonfatal.is_none() && self.fatal.is_none()
    }

    /// All errors of a severity; `None` where they are not counted.
    pub fn total(counts: &Option<Counts>) -> Option<u64> {
        counts.as_ref().map(|counts| counts.values().fold(0u64, |sum, count| sum.saturating_add(*count)))
    }

    /// The severities with their counters.
    pub fn by_severity(&self) -> [(Severity, &Option<Counts>); 3] {
        [
            (Severity::Correctable, &self.correctable),
            (Severity::NonFatal, &self.nonfatal),
            (Severity::Fatal, &self.fatal),
        ]
    }
}

/// How bad an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Repaired by the hardware.
    Correctable,
    /// Lost a transaction.
    NonFatal,
    /// Lost the link.
    Fatal,
}

impl Severity {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Correctable => "correctable",
            Severity::NonFatal => "non-fatal",
            Severity::Fatal => "fatal",
        }
    }
}

/// Reads one of the kernel's files: `NAME COUNT` lines, of which the `TOTAL_…` line repeats the sum. Lines that are
/// something else are passed over.
pub fn read(text: &str) -> Counts {
    text.lines()
        .filter_map(|line| {
            let (name, count) = line.trim().rsplit_once(' ')?;
            let name = name.trim();
            (!name.starts_with("TOTAL_ERR") && !name.is_empty()).then_some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}

/// By how much each counter grew; one that fell was reset, and then only what it shows now is new.
pub fn growth(before: &Counts, after: &Counts) -> Counts {
    after
        .iter()
        .map(|(name, &now)| {
            let was = before.get(name).copied().unwrap_or(0);
            (name.clone(), if now >= was { now - was } else { now })
        })
        .filter(|(_, grown)| *grown > 0)
        .collect()
}

/// What an error of this name means, and what to do about it.
pub fn meaning(name: &str) -> (&'static str, &'static str) {
    match name {
        "RxErr" => (
            "the receiver saw a bad symbol",
            "reseat the card and its riser or cable; a dirty or worn contact is the usual cause",
        ),
        "BadTLP" => (
            "a packet arrived with a wrong checksum and was sent again",
            "reseat or exchange the riser; try one generation slower in the firmware",
        ),
        "BadDLLP" => ("a link-layer packet arrived damaged", "as for BadTLP: signal quality of this slot"),
        "Rollover" => (
            "a packet was sent four times and the link then trained again",
            "signal quality of this slot: riser, cable, retimer",
        ),
        "Timeout" => (
            "an acknowledgement did not come in time and the packet was sent again",
            "signal quality, or power management of the link (pcie_aspm=off)",
        ),
        "NonFatalErr" => {
            ("an uncorrectable error that the device could handle itself", "look at the non-fatal counters beside it")
        }
        "CorrIntErr" => {
            ("the device repaired an error inside itself", "update its firmware; exchange it if the count grows")
        }
        "HeaderOF" => ("more errors came than the log could hold", "look at the other counters"),
        "DLP" => ("the link-layer protocol was broken", "reset the device; exchange riser or card if it comes again"),
        "SDES" => ("the device vanished from the link", "power and seating of the card"),
        "TLP" => (
            "a poisoned packet arrived: its data was known to be bad",
            "memory errors of the sender: look at its ECC counters",
        ),
        "FCP" => ("flow control was broken", "update firmware of device and switch"),
        "CmpltTO" => ("a read was never answered", "the device or a switch hung: reset it, update its firmware"),
        "CmpltAbrt" => ("a device refused to answer a read", "driver or firmware of the device"),
        "UnxCmplt" => ("an answer came that nobody waited for", "IOMMU or switch firmware"),
        "RxOF" => ("the receiver had no room: flow control failed", "update firmware of device and switch"),
        "MalfTLP" => {
            ("a malformed packet arrived", "firmware of the sender; a wrong payload size in the firmware settings")
        }
        "ECRC" => {
            ("the end-to-end checksum was wrong", "a switch or riser in between damages data: find and exchange it")
        }
        "UnsupReq" => ("a request that the device does not know", "driver; often harmless while the machine starts"),
        "ACSViol" => (
            "access control of a switch refused a transfer between devices",
            "turn ACS off for direct transfers between GPUs, or leave them off",
        ),
        "UncorrIntErr" => ("the device failed inside", "reset it; exchange it if it comes again"),
        "BlockedTLP" | "TLPBlockedErr" => {
            ("a packet was blocked on purpose", "access control settings of switch or IOMMU")
        }
        "AtomicOpBlocked" => {
            ("an atomic operation was blocked on the way", "a switch without atomics between the devices")
        }
        "PoisonTLPBlocked" => ("bad data was stopped at a port", "memory errors of the sender"),
        _ => ("an error that prun has no words for", "the PCI Express specification, or the device's maker"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "RxErr 3\nBadTLP 17\nBadDLLP 0\nTimeout 2\nNewKind 5000000000\nTOTAL_ERR_COR 22\n";

    // F11
    #[test]
    fn counters_are_counted_once_and_new_ones_are_kept() {
        let counts = read("RxErr 3\nBadTLP 17\nBadDLLP 0\nTimeout 2\nCorrIntErr 0\nHeaderOF 0\nTOTAL_ERR_COR 22\n");
        assert_eq!(Aer::total(&Some(counts.clone())), Some(22));
        assert!(counts.contains_key("HeaderOF") && counts.contains_key("CorrIntErr"));
        assert_eq!(read(TEXT)["NewKind"], 5_000_000_000);
        assert_eq!(Aer::total(&None), None);
        assert_eq!(read("garbage\n\nX\nY z\n").len(), 0);
    }

    // F11
    #[test]
    fn growth_is_never_negative() {
        let before = read("RxErr 3\nBadTLP 17\n");
        assert_eq!(growth(&before, &read("RxErr 3\nBadTLP 20\nNew 1\n")), read("BadTLP 3\nNew 1\n"));
        assert_eq!(growth(&before, &read("RxErr 1\nBadTLP 17\n")), read("RxErr 1\n"));
    }

    #[test]
    fn every_known_error_has_its_words() {
        for name in read(TEXT).keys().filter(|name| *name != "NewKind") {
            assert!(!meaning(name).0.contains("no words"), "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_counts(text in "([A-Za-z_]{0,8}| |[0-9]{0,25}|\n){0,30}") {
            let counts = read(&text);
            let _ = (Aer::total(&Some(counts.clone())), growth(&counts, &read(&text)));
        }
    }
}
