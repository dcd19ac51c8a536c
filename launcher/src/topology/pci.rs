//! PCI: addresses, and what a link does now and at best.
//!
//! Whatever the kernel, lspci or NVML call unknown is `None` here: no lane count of 255, no generation 0.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a device sits: domain, bus, device, function.
///
/// The kernel writes four digits of domain (more where they do not suffice), NVML eight, and lspci none for domain
/// 0; all mean the same device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// 0 on most machines; wider than 16 bits behind some controllers.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address, such as 0000:3b:00.0")]
pub struct NotAnAddress(String);

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<PciAddress, NotAnAddress> {
        let parsed = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let hex = |text: &str, most: u32| {
                let digits = !text.is_empty() && text.len() <= 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                u32::from_str_radix(text, 16).ok().filter(|value| digits && *value <= most)
            };
            Some(PciAddress {
                domain: hex(domain, u32::MAX)?,
                bus: hex(bus, 0xff)? as u8,
                device: hex(device, 0x1f)? as u8,
                function: hex(function, 7)? as u8,
            })
        };
        parsed().ok_or_else(|| NotAnAddress(text.chars().take(40).collect()))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<PciAddress, NotAnAddress> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> String {
        address.to_string()
    }
}

/// What one lane carries, in tenths of GT/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Speed(u32);

impl Speed {
    /// The speed of a PCIe generation, 1 to 7.
    pub fn of_generation(generation: u32) -> Option<Speed> {
        [25, 50, 80, 160, 320, 640, 1280].get(generation.checked_sub(1)? as usize).copied().map(Speed)
    }

    /// The generation that has this speed.
    pub fn generation(self) -> Option<u32> {
        (1..=7).find(|&generation| Speed::of_generation(generation) == Some(self))
    }

    /// Reads `8 GT/s`, `8.0 GT/s PCIe`, `8GT/s`; `None` for `Unknown` and the like.
    pub fn read(text: &str) -> Option<Speed> {
        let number = text.trim().split("GT/s").next().filter(|number| number.len() < text.trim().len())?;
        let value: f64 = number.trim().parse().ok()?;
        (value > 0.0 && value < 100_000.0).then(|| Speed((value * 10.0).round() as u32))
    }

    /// What a lane carries after line coding, in GB/s each way.
    fn lane_gb_s(self) -> f64 {
        let raw = f64::from(self.0) / 10.0 / 8.0;
        match self.0 {
            0..=50 => raw * 0.8,
            51..=320 => raw * 128.0 / 130.0,
            _ => raw * 0.945,
        }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{} GT/s", self.0 / 10),
            tenth => write!(f, "{}.{tenth} GT/s", self.0 / 10),
        }
    }
}

impl TryFrom<String> for Speed {
    type Error = String;

    fn try_from(text: String) -> Result<Speed, String> {
        Speed::read(&text).ok_or_else(|| format!("`{text}` is not a link speed, such as 16 GT/s"))
    }
}

impl From<Speed> for String {
    fn from(speed: Speed) -> String {
        speed.to_string()
    }
}

/// A number of lanes that PCIe knows; anything else (0, 63, 255) is unknown.
pub fn lanes(count: u32) -> Option<u8> {
    matches!(count, 1 | 2 | 4 | 8 | 12 | 16 | 32).then_some(count as u8)
}

/// One end of a PCIe link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PciLink {
    /// Speed now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// Lanes now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u8>,
    /// The best that this end can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_speed: Option<Speed>,
    /// The most lanes of this end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_width: Option<u8>,
}

impl PciLink {
    /// Nothing is known about it.
    pub fn is_unknown(&self) -> bool {
        *self == PciLink::default()
    }

    /// GB/s each way as it runs now, before protocol overhead.
    pub fn gb_s(&self) -> Option<f64> {
        Some(self.speed?.lane_gb_s() * f64::from(self.width?))
    }

    /// GB/s each way at best.
    pub fn max_gb_s(&self) -> Option<f64> {
        Some(self.max_speed?.lane_gb_s() * f64::from(self.max_width?))
    }

    /// GB/s each way at best speed with the lanes in use: lost lanes stay lost, and speed comes back under load.
    pub fn usable_gb_s(&self) -> Option<f64> {
        Some(self.max_speed?.lane_gb_s() * f64::from(self.width.or(self.max_width)?))
    }

    /// `Gen5 x16`, with `?` for what is not known.
    pub fn shown(&self) -> String {
        shown(self.speed, self.width)
    }

    /// As [`PciLink::shown`], at best.
    pub fn max_shown(&self) -> String {
        shown(self.max_speed, self.max_width)
    }
}

fn shown(speed: Option<Speed>, width: Option<u8>) -> String {
    if speed.is_none() && width.is_none() {
        return "unknown".into();
    }
    let width = width.map_or("x?".into(), |width| format!("x{width}"));
    match speed {
        Some(speed) => match speed.generation() {
            Some(generation) => format!("Gen{generation} {width}"),
            None => format!("{speed} {width}"),
        },
        None => format!("Gen? {width}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // F12
    #[test]
    fn an_address_is_the_same_device_in_every_spelling() {
        let table = [
            ("1:00.0", "0000:01:00.0"),
            ("01:00.0", "0000:01:00.0"),
            ("0000:01:00.0", "0000:01:00.0"),
            ("00000000:01:00.0", "0000:01:00.0"),
            ("10000:01:00.0", "10000:01:00.0"),
            ("00010000:01:00.0", "10000:01:00.0"),
            ("d6f5:00:02.0", "d6f5:00:02.0"),
            ("0000:AF:1F.7", "0000:af:1f.7"),
        ];
        for (text, shown) in table {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown, "{text}");
        }
        for bad in ["", "0", "00:00", "00:20.0", "00:00.8", "100:00.0", "+1:00.0", "123456789:00:00.0", "x:00.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad:?}");
        }
        let mut sorted = ["10000:00:04.0", "0000:02:00.0", "10000:00:00.0", "0000:00:1f.0"]
            .map(|text| text.parse::<PciAddress>().unwrap());
        sorted.sort_unstable();
        assert_eq!(sorted.map(|address| address.domain), [0, 0, 0x10000, 0x10000]);
    }

    // F10
    #[test]
    fn speeds_are_read_in_every_spelling_and_unknown_stays_unknown() {
        let table = [
            ("8 GT/s", Some(3)),
            ("8.0 GT/s PCIe", Some(3)),
            ("2.5 GT/s PCIe", Some(1)),
            ("16GT/s", Some(4)),
            ("32.0 GT/s PCIe\n", Some(5)),
            ("64.0 GT/s PCIe", Some(6)),
            ("Unknown", None),
            ("Unknown speed", None),
            ("unknown", None),
            ("", None),
            ("8", None),
            ("-8 GT/s", None),
        ];
        for (text, generation) in table {
            assert_eq!(Speed::read(text).and_then(Speed::generation), generation, "{text:?}");
        }
        assert_eq!([0, 1, 8, 16, 63, 255].map(lanes), [None, Some(1), Some(8), Some(16), None, None]);
        assert_eq!(PciLink::default().shown(), "unknown");
    }

    #[test]
    fn a_link_knows_its_bandwidth() {
        let link = PciLink { speed: Speed::of_generation(5), width: Some(16), ..PciLink::default() };
        assert!((link.gb_s().unwrap() - 63.0).abs() < 0.1, "{:?}", link.gb_s());
        assert_eq!((link.shown().as_str(), link.max_gb_s()), ("Gen5 x16", None));
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "[0-9a-fA-F:. x]{0,20}") {
            if let Ok(address) = text.parse::<PciAddress>() {
                prop_assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
            }
            let _ = Speed::read(&text);
        }
    }
}
