//! [`CpuSet`]: CPUs by number, as the kernel lists them (`0-3,8`).
//!
//! Numbers may be sparse and large, so this is a sorted set and no bit mask of a fixed width.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::job::value::BadValue;

/// One more than the highest CPU number that Linux can be built for, with room to spare; a list that
/// goes further is a typing error, not a machine.
const MOST_CPUS: usize = 65_536;

/// A set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// Whether `cpu` is in it.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// How many CPUs it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs in both.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs in `self` that are not in `other`.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// Adds all CPUs of `other`.
    pub fn extend(&mut self, other: &CpuSet) {
        self.0.extend(&other.0);
    }

    /// The CPUs, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// The CPUs, lowest first.
    pub fn into_vec(self) -> Vec<usize> {
        self.0.into_iter().collect()
    }

    /// Reads a file of the kernel: a list and a newline, or nothing at all for no CPU.
    pub fn from_kernel(text: &str) -> Option<CpuSet> {
        match text.trim() {
            "" => Some(CpuSet::default()),
            list => list.parse().ok(),
        }
    }
}

impl CpuSet {
    /// Reads a mask as the kernel writes it: hexadecimal words of 32 CPUs, the highest first, as `ff,00000003`.
    pub fn from_mask(text: &str) -> Option<CpuSet> {
        let words: Vec<&str> = text.trim().split(',').collect();
        let mut cpus = BTreeSet::new();
        for (at, word) in words.iter().rev().enumerate() {
            let digits = (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            let bits = u32::from_str_radix(word, 16).ok().filter(|_| digits && at < MOST_CPUS / 32)?;
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| at * 32 + bit));
        }
        Some(CpuSet(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadValue;

    fn try_from(list: String) -> Result<CpuSet, BadValue> {
        if list.trim().is_empty() { Ok(CpuSet::default()) } else { list.parse() }
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<CpuSet, BadValue> {
        let not = || BadValue::NotA { got: text.to_owned(), wanted: "a list of CPUs, such as 0-3,8" };
        let number = |text: &str| match text.trim().parse() {
            Ok(cpu) if cpu < MOST_CPUS => Ok(cpu),
            _ => Err(not()),
        };
        let mut cpus = BTreeSet::new();
        for item in text.split(',') {
            if item.trim().is_empty() {
                return Err(BadValue::EmptyItem(text.to_owned()));
            }
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last): (usize, usize) = (number(first)?, number(last)?);
            if last < first {
                return Err(BadValue::Backwards(item.to_owned()));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        let table = [
            ("0", "0"),
            ("0-3,8", "0-3,8"),
            ("8,0-3", "0-3,8"),
            ("0-1,1-2", "0-2"),
            (" 1 , 3 - 4 ", "1,3-4"),
            ("72-73", "72-73"),
        ];
        for (text, shown) in table {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), shown);
        }
        for bad in ["", ",", "1,", "a", "1-", "-1", "3-1", "0-4000000000", "1-2-3"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad:?}");
        }
        assert_eq!(CpuSet::from_kernel("\n"), Some(CpuSet::default()));
        let mask = |text: &str| CpuSet::from_mask(text).map(|set| set.to_string());
        assert_eq!(mask("ff,00000003\n").as_deref(), Some("0-1,32-39"));
        assert_eq!(mask("fff,ffffffff").as_deref(), Some("0-43"));
        for bad in ["", "x", "1,", "123456789", "+f"] {
            assert_eq!(mask(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(cpus in prop::collection::btree_set(0usize..2000, 1..200)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
        }

        #[test]
        fn any_text_is_a_set_or_an_error(text in "[0-9,; a-]*") {
            let _ = text.parse::<CpuSet>();
        }

        #[test]
        fn any_text_is_a_mask_or_none(text in "[0-9a-fx,\n ]*") {
            let _ = CpuSet::from_mask(&text);
        }
    }
}
