//! Which message sizes are measured.

use std::str::FromStr;

use comm::DataType;
use programs::bench::collective::Collective;

use crate::experiment::number;

/// A number of bytes, written as `64K`, `1MiB` or `2kB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let number = number::parse(text).filter(|number| (0.0..9e15).contains(number) && number.fract() == 0.0);
        number
            .map(|number| Bytes(number as u64))
            .ok_or_else(|| format!("`{text}` is no number of bytes; 64K and 1M are"))
    }
}

/// A message: its elements as the call counts them, and its bytes in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Elements.
    pub count: u64,
    /// Bytes of the larger buffer.
    pub bytes: u64,
}

/// From `begin` to `end`, each `factor` times the one before, or those that are listed. Sizes are cut to whole elements
/// for all ranks; what holds none is left out. A barrier has one message, of nothing.
pub fn messages(
    collective: Collective,
    data_type: DataType,
    ranks: u32,
    range: (Bytes, Bytes, u64),
    listed: &[Bytes],
) -> Vec<Message> {
    if collective == Collective::Barrier {
        return vec![Message { count: 0, bytes: 0 }];
    }
    let (Bytes(begin), Bytes(end), factor) = range;
    let sizes: Vec<u64> = match listed {
        [] => std::iter::successors(Some(begin.max(1)), |size| size.checked_mul(factor.max(2)))
            .take_while(|size| *size <= end)
            .collect(),
        listed => listed.iter().map(|Bytes(size)| *size).collect(),
    };
    let cut = |size| {
        let (count, bytes) = collective.count(size, data_type.bytes(), ranks as usize);
        Message { count, bytes }
    };
    let mut messages: Vec<Message> = sizes.into_iter().map(cut).filter(|message| message.count > 0).collect();
    messages.dedup();
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(begin: &str, end: &str, factor: u64) -> (Bytes, Bytes, u64) {
        (begin.parse().unwrap(), end.parse().unwrap(), factor)
    }

    #[test]
    fn sizes_go_from_begin_to_end() {
        let bytes = |begin, end, factor| {
            let all = messages(Collective::AllReduce, DataType::F32, 2, range(begin, end, factor), &[]);
            all.iter().map(|message| message.bytes).collect::<Vec<_>>()
        };
        assert_eq!(bytes("4", "1K", 4), [4, 16, 64, 256, 1024]);
        assert_eq!(bytes("1M", "3M", 2), [1 << 20, 2 << 20]);
        assert_eq!(bytes("1", "20", 3), [8]);
        assert_eq!(bytes("8", "4", 2), [] as [u64; 0]);
        assert_eq!(bytes("0", "2", 2), [] as [u64; 0]);
    }

    #[test]
    fn listed_sizes_are_taken_as_they_are_and_cut_to_whole_elements() {
        let listed = [Bytes(100), Bytes(7), Bytes(2)];
        let all = messages(Collective::AllGather, DataType::F32, 3, range("1", "1", 2), &listed);
        assert_eq!(all, [Message { count: 8, bytes: 96 }]);
        let barrier = messages(Collective::Barrier, DataType::F32, 3, range("1", "8", 2), &[]);
        assert_eq!(barrier, [Message { count: 0, bytes: 0 }]);
    }

    #[test]
    fn bytes_are_whole_and_not_negative() {
        assert_eq!("1.5K".parse(), Ok(Bytes(1536)));
        for text in ["-1", "0.3", "x", "", "1e3"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
