//! How two devices reach each other: [`LinkKind`], from best to worst.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The way between two devices, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LinkKind {
    /// So many NVLinks, directly or through switches.
    Nvlink(u32),
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, no host bridge.
    Pxb,
    /// A host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// The link between CPU sockets.
    Sys,
    /// It cannot be told.
    Unknown,
}

/// A text that names no kind of link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of link (NV1 and so on, PIX, PXB, PHB, NODE, SYS)")]
pub struct NotALink(String);

impl LinkKind {
    /// 0 for the best.
    fn class(self) -> u32 {
        match self {
            LinkKind::Nvlink(_) => 0,
            LinkKind::Pix => 1,
            LinkKind::Pxb => 2,
            LinkKind::Phb => 3,
            LinkKind::Node => 4,
            LinkKind::Sys => 5,
            LinkKind::Unknown => 6,
        }
    }

    /// GB/s each way that such a link may give where nothing was measured; `pci_gb_s` is what the slower
    /// device's own PCIe link carries. Only the order of the results matters, for choosing a ring.
    pub fn estimated_gb_s(self, pci_gb_s: Option<f64>) -> f64 {
        let pci = pci_gb_s.unwrap_or(25.0);
        match self {
            LinkKind::Nvlink(links) => 21.0 * f64::from(links),
            LinkKind::Pix => pci * 0.85,
            LinkKind::Pxb => pci * 0.80,
            LinkKind::Phb => pci * 0.70,
            LinkKind::Node => pci * 0.60,
            LinkKind::Sys => pci * 0.45,
            LinkKind::Unknown => pci * 0.40,
        }
    }

    /// One phrase for people.
    pub fn meaning(self) -> &'static str {
        match self {
            LinkKind::Nvlink(_) => "NVLink",
            LinkKind::Pix => "at most one PCIe switch",
            LinkKind::Pxb => "several PCIe switches",
            LinkKind::Phb => "PCIe and the host bridge",
            LinkKind::Node => "PCIe and several host bridges of a NUMA node",
            LinkKind::Sys => "PCIe and the link between sockets",
            LinkKind::Unknown => "unknown",
        }
    }
}

impl PartialOrd for LinkKind {
    fn partial_cmp(&self, other: &LinkKind) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LinkKind {
    /// A better link is less; more NVLinks are better.
    fn cmp(&self, other: &LinkKind) -> std::cmp::Ordering {
        match (self, other) {
            (LinkKind::Nvlink(own), LinkKind::Nvlink(its)) => its.cmp(own),
            _ => self.class().cmp(&other.class()),
        }
    }
}

impl FromStr for LinkKind {
    type Err = NotALink;

    fn from_str(text: &str) -> Result<LinkKind, NotALink> {
        Ok(match text {
            "PIX" => LinkKind::Pix,
            "PXB" => LinkKind::Pxb,
            "PHB" => LinkKind::Phb,
            "NODE" => LinkKind::Node,
            // The older name is of drivers before 384.
            "SYS" | "SOC" => LinkKind::Sys,
            "?" => LinkKind::Unknown,
            _ => {
                let count = text.strip_prefix("NV").and_then(|count| count.parse().ok());
                LinkKind::Nvlink(
                    count
                        .filter(|&count: &u32| count > 0 && count < 1000)
                        .ok_or_else(|| NotALink(text.chars().take(20).collect()))?,
                )
            }
        })
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkKind::Nvlink(links) => f.pad(&format!("NV{links}")),
            LinkKind::Pix => f.pad("PIX"),
            LinkKind::Pxb => f.pad("PXB"),
            LinkKind::Phb => f.pad("PHB"),
            LinkKind::Node => f.pad("NODE"),
            LinkKind::Sys => f.pad("SYS"),
            LinkKind::Unknown => f.pad("?"),
        }
    }
}

impl TryFrom<String> for LinkKind {
    type Error = NotALink;

    fn try_from(text: String) -> Result<LinkKind, NotALink> {
        text.parse()
    }
}

impl From<LinkKind> for String {
    fn from(kind: LinkKind) -> String {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_ordered_from_best_to_worst_and_read_back() {
        let order = ["NV18", "NV4", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]
            .map(|text| text.parse::<LinkKind>().unwrap());
        assert!(order.is_sorted());
        for kind in order {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("SOC".parse(), Ok(LinkKind::Sys));
        for bad in ["", "NV", "NV0", "NV-1", "X", "pix", "NV99999"] {
            assert!(bad.parse::<LinkKind>().is_err(), "{bad}");
        }
        let estimates = order.map(|kind| kind.estimated_gb_s(Some(12.0)));
        assert!(estimates.windows(2).all(|pair| pair[0] > pair[1]), "{estimates:?}");
    }
}
