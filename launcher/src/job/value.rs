//! The values that options and job files hold, each read from text by one `FromStr`.
//!
//! A flag and a key of the file go through the same code, so they accept the same and complain alike.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Bind, GpuChoice, JsonTarget, MapBy, OnFault, PtyRanks, RankBy, StdinTo, Verify, duration};
use crate::placement::cpuset::CpuSet;

/// The most ranks that one job can have: far above what a machine carries, and low enough that a typing
/// error is caught before anything is started.
pub const MAX_RANKS: u32 = 65_536;

/// A text that is not what its option wants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// Not of the kind that is wanted.
    #[error("`{got}` is not {wanted}")]
    NotA {
        /// The text.
        got: String,
        /// What was wanted, with its article and an example.
        wanted: &'static str,
    },
    /// No rank would run.
    #[error("a job needs at least 1 rank")]
    NoRanks,
    /// More than [`MAX_RANKS`].
    #[error("{0} ranks are more than prun starts; {MAX_RANKS} is the most")]
    TooManyRanks(String),
    /// A range that runs backwards.
    #[error("`{0}` runs backwards; write the smaller number first")]
    Backwards(String),
    /// An empty item of a list.
    #[error("`{0}` has an empty item")]
    EmptyItem(String),
    /// A limit of nothing.
    #[error("a limit of 0 would end the job at once; `none` means no limit")]
    ZeroLimit,
    /// `--signal` without its time.
    #[error("`{0}` does not say when; write SIGNAL@TIME, such as USR1@60 for 60 s before the end")]
    NoTime(String),
    /// `-x` without a usable name.
    #[error("`{0}` has no name before `=`")]
    NoName(String),
    /// `{` or `}` alone.
    #[error("`{0}` has a brace without its partner; `{{{{` and `}}}}` stand for the braces themselves")]
    LoneBrace(String),
    /// A placeholder that is not known here.
    #[error("`{{{name}}}` is not a placeholder; there are {known}")]
    UnknownPlaceholder {
        /// What stands between the braces.
        name: String,
        /// Those that exist.
        known: &'static str,
    },
}

fn not_a(got: &str, wanted: &'static str) -> BadValue {
    BadValue::NotA { got: got.to_owned(), wanted }
}

/// What `true` and `false` in a file, and a flag with nothing behind it, stand for as text.
pub trait Scalar: FromStr<Err = BadValue> {
    /// The text that `true` stands for.
    const TRUE: &'static str = "yes";
    /// The text that `false` stands for.
    const FALSE: &'static str = "no";
}

/// How many ranks run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankCount(pub u32);

impl FromStr for RankCount {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<RankCount, BadValue> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(not_a(text, "a number of ranks, such as 4"));
        }
        match text.parse::<u32>() {
            Ok(0) => Err(BadValue::NoRanks),
            Ok(count) if count <= MAX_RANKS => Ok(RankCount(count)),
            _ => Err(BadValue::TooManyRanks(text.to_owned())),
        }
    }
}

impl Scalar for RankCount {}

/// How many cores a rank gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreCount(pub u32);

impl FromStr for CoreCount {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<CoreCount, BadValue> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let count = text.parse().ok().filter(|count| digits && (1..=MAX_CORES).contains(count));
        count.map(CoreCount).ok_or_else(|| not_a(text, "a number of cores, 1 or more"))
    }
}

impl Scalar for CoreCount {}

/// No machine has more; a larger number is a typing error.
const MAX_CORES: u32 = 65_536;

/// A number of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times(pub u32);

impl FromStr for Times {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Times, BadValue> {
        text.parse().map(Times).map_err(|_| not_a(text, "a number of times, such as 3"))
    }
}

impl Scalar for Times {}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct YesNo(pub bool);

impl FromStr for YesNo {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<YesNo, BadValue> {
        match text {
            "yes" | "true" | "on" => Ok(YesNo(true)),
            "no" | "false" | "off" => Ok(YesNo(false)),
            _ => Err(not_a(text, "yes or no")),
        }
    }
}

impl Scalar for YesNo {}

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Span, BadValue> {
        duration::parse(text).map(Span)
    }
}

impl Scalar for Span {}

/// A length of time after which something happens, or `none`: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

impl FromStr for Limit {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Limit, BadValue> {
        if matches!(text, "none" | "never") {
            return Ok(Limit(None));
        }
        match duration::parse(text)? {
            Duration::ZERO => Err(BadValue::ZeroLimit),
            limit => Ok(Limit(Some(limit))),
        }
    }
}

impl Scalar for Limit {
    const FALSE: &'static str = "none";
}

/// `SIGNAL@TIME`: a signal, so long before the job's time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalAt {
    /// Which signal.
    pub signal: Signal,
    /// How long before the limit.
    pub before: Duration,
}

impl FromStr for SignalAt {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<SignalAt, BadValue> {
        let (name, time) = text.split_once('@').ok_or_else(|| BadValue::NoTime(text.to_owned()))?;
        Ok(SignalAt { signal: signal(name)?, before: duration::parse(time)? })
    }
}

impl Scalar for SignalAt {}

/// A signal by name, with or without `SIG`, in any case, or by number.
pub fn signal(text: &str) -> Result<Signal, BadValue> {
    let wanted = "a signal, such as USR1, SIGTERM or 10";
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).map_err(|_| not_a(text, wanted));
    }
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    name.parse().map_err(|_| not_a(text, wanted))
}

/// A set of ranks: `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankList(pub Vec<u32>);

impl FromStr for RankList {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<RankList, BadValue> {
        let wanted = "a list of ranks, such as 0,2-3";
        let mut ranks = Vec::new();
        for item in text.split(',').map(str::trim) {
            if item.is_empty() {
                return Err(BadValue::EmptyItem(text.to_owned()));
            }
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let first: u32 = first.trim().parse().map_err(|_| not_a(text, wanted))?;
            let last: u32 = last.trim().parse().map_err(|_| not_a(text, wanted))?;
            if last < first {
                return Err(BadValue::Backwards(item.to_owned()));
            }
            if last >= MAX_RANKS {
                return Err(BadValue::TooManyRanks(last.to_string()));
            }
            ranks.extend(first..=last);
        }
        ranks.sort_unstable();
        ranks.dedup();
        Ok(RankList(ranks))
    }
}

impl Scalar for RankList {}

impl FromStr for StdinTo {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<StdinTo, BadValue> {
        match text {
            "all" => Ok(StdinTo::All),
            "none" => Ok(StdinTo::None),
            _ => match text.strip_prefix("rank").unwrap_or(text).parse() {
                Ok(rank) => Ok(StdinTo::Rank(rank)),
                Err(_) => Err(not_a(text, "rank0, all, none or the number of a rank")),
            },
        }
    }
}

impl Scalar for StdinTo {
    const FALSE: &'static str = "none";
}

impl FromStr for PtyRanks {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<PtyRanks, BadValue> {
        match text {
            "all" => Ok(PtyRanks::All),
            "none" => Ok(PtyRanks::None),
            _ => match text.strip_prefix("rank").unwrap_or(text).parse() {
                Ok(rank) => Ok(PtyRanks::One(rank)),
                Err(_) => Err(not_a(text, "all, none or the number of a rank")),
            },
        }
    }
}

impl Scalar for PtyRanks {
    const TRUE: &'static str = "all";
    const FALSE: &'static str = "none";
}

impl FromStr for Verify {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Verify, BadValue> {
        match text {
            "off" => Ok(Verify::Off),
            "every" => Ok(Verify::Every),
            "full" => Ok(Verify::Full),
            _ => Err(not_a(text, "off, every or full")),
        }
    }
}

impl Scalar for Verify {
    const TRUE: &'static str = "every";
    const FALSE: &'static str = "off";
}

impl FromStr for Bind {
    type Err = BadValue;

    /// Without `;` each item is one rank's set (`0,1,2` or `0-3,4-7`); with `;` each part is a list
    /// (`0-3,8-11;4-7`).
    fn from_str(text: &str) -> Result<Bind, BadValue> {
        match text {
            "none" => return Ok(Bind::None),
            "core" => return Ok(Bind::Core),
            "numa" => return Ok(Bind::Numa),
            "socket" => return Ok(Bind::Socket),
            _ => {}
        }
        if !text.starts_with(|first: char| first.is_ascii_digit() || first == ',' || first == ';') {
            return Err(not_a(text, "none, core, numa, socket or a list of CPUs, such as 0,1 or 0-3;4-7"));
        }
        let separator = if text.contains(';') { ';' } else { ',' };
        text.split(separator)
            .map(|set| set.parse::<CpuSet>().map(CpuSet::into_vec))
            .collect::<Result<_, _>>()
            .map(Bind::List)
    }
}

impl Scalar for Bind {
    const FALSE: &'static str = "none";
}

impl FromStr for MapBy {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<MapBy, BadValue> {
        match text {
            "gpu" => Ok(MapBy::Gpu),
            "numa" => Ok(MapBy::Numa),
            "socket" => Ok(MapBy::Socket),
            "core" => Ok(MapBy::Core),
            "list" => Ok(MapBy::List),
            "none" => Ok(MapBy::None),
            _ => Err(not_a(text, "gpu, numa, socket, core, list or none")),
        }
    }
}

impl Scalar for MapBy {
    const FALSE: &'static str = "none";
}

impl FromStr for RankBy {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<RankBy, BadValue> {
        match text {
            "turn" => Ok(RankBy::Turn),
            "fill" => Ok(RankBy::Fill),
            "ring" => Ok(RankBy::Ring),
            _ => Err(not_a(text, "turn, fill or ring")),
        }
    }
}

impl Scalar for RankBy {}

/// A range that goes further is a typing error, not a machine.
const MOST_GPUS: u32 = 1024;

impl FromStr for GpuChoice {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<GpuChoice, BadValue> {
        match text {
            "all" => return Ok(GpuChoice::All),
            "none" => return Ok(GpuChoice::None),
            _ => {}
        }
        let mut items: Vec<String> = Vec::new();
        for item in text.split(',').map(str::trim) {
            match item.split_once('-').map(|(first, last)| (first.parse::<u32>(), last.parse::<u32>())) {
                // `0-3`, as --bind has it.
                Some((Ok(first), Ok(last))) if first > last => return Err(BadValue::Backwards(item.to_owned())),
                Some((Ok(first), Ok(last))) if last < MOST_GPUS => {
                    items.extend((first..=last).map(|number| number.to_string()));
                }
                _ => items.push(item.to_owned()),
            }
        }
        if items.iter().any(String::is_empty) {
            return Err(BadValue::EmptyItem(text.to_owned()));
        }
        let known = |item: &String| {
            item.bytes().all(|byte| byte.is_ascii_digit())
                || item.starts_with("GPU-")
                || item.starts_with("MIG-")
                || item.parse::<crate::topology::PciAddress>().is_ok()
        };
        match items.iter().find(|item| !known(item)) {
            Some(bad) => {
                Err(not_a(bad, "all, none, or a list of GPUs by number, PCI address or UUID, such as 0,2 or 0-3"))
            }
            None => Ok(GpuChoice::List(items)),
        }
    }
}

impl Scalar for GpuChoice {
    const TRUE: &'static str = "all";
    const FALSE: &'static str = "none";
}

impl FromStr for OnFault {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<OnFault, BadValue> {
        match text {
            "warn" => Ok(OnFault::Warn),
            "abort" => Ok(OnFault::Abort),
            "restart" => Ok(OnFault::Restart),
            _ => Err(not_a(text, "warn, abort or restart")),
        }
    }
}

impl Scalar for OnFault {}

impl FromStr for JsonTarget {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<JsonTarget, BadValue> {
        Ok(JsonTarget::from(OsString::from(text)))
    }
}

impl Scalar for JsonTarget {}

impl From<OsString> for JsonTarget {
    /// Digits are a descriptor, anything else is a file (`./3` for a file of that name).
    fn from(text: OsString) -> JsonTarget {
        match text.to_str().and_then(|text| text.parse::<u16>().ok()) {
            Some(fd) => JsonTarget::Fd(i32::from(fd)),
            None => JsonTarget::File(PathBuf::from(text)),
        }
    }
}

/// `NAME=VALUE`, or `NAME` alone: with the value that prun's own environment has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The variable.
    pub name: OsString,
    /// Its new value.
    pub value: Option<OsString>,
}

impl Assignment {
    /// Splits at the first `=`.
    pub fn parse(text: &OsStr) -> Result<Assignment, BadValue> {
        let bytes = text.as_bytes();
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
            None => (bytes, None),
        };
        if name.is_empty() {
            return Err(BadValue::NoName(text.to_string_lossy().into_owned()));
        }
        Ok(Assignment { name: OsString::from_vec(name.to_vec()), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_ranks_are_whole_and_sensible() {
        assert_eq!("4".parse(), Ok(RankCount(4)));
        for bad in ["", "x", "-1", "+4", "1.5", " 4", "4x"] {
            assert!(matches!(bad.parse::<RankCount>(), Err(BadValue::NotA { .. })), "{bad:?}");
        }
        assert_eq!("0".parse::<RankCount>(), Err(BadValue::NoRanks));
        for many in ["65537", "100000", "99999999999999999999"] {
            assert_eq!(many.parse::<RankCount>(), Err(BadValue::TooManyRanks(many.into())));
        }
    }

    #[test]
    fn signals_go_by_name_and_number() {
        for text in ["USR1", "SIGUSR1", "usr1", "sigusr1", "10"] {
            assert_eq!(signal(text), Ok(Signal::SIGUSR1), "{text}");
        }
        for text in ["", "SIG", "USR", "0", "-1", "99"] {
            assert!(signal(text).is_err(), "{text}");
        }
        assert_eq!("TERM@2m".parse(), Ok(SignalAt { signal: Signal::SIGTERM, before: Duration::from_secs(120) }));
        assert_eq!("TERM".parse::<SignalAt>(), Err(BadValue::NoTime("TERM".into())));
    }

    #[test]
    fn lists_of_ranks_are_sorted_sets() {
        assert_eq!("3, 0-1,1".parse(), Ok(RankList(vec![0, 1, 3])));
        assert_eq!("3-1".parse::<RankList>(), Err(BadValue::Backwards("3-1".into())));
        for bad in ["", ",", "1,,2", "a", "1-", "-1", "0-4000000000"] {
            assert!(bad.parse::<RankList>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bind_lists_give_each_rank_its_set() {
        let table: &[(&str, &[&[usize]])] = &[
            ("0,1,2", &[&[0], &[1], &[2]]),
            ("0-1,4-5", &[&[0, 1], &[4, 5]]),
            ("0-1,4;2", &[&[0, 1, 4], &[2]]),
            ("7", &[&[7]]),
        ];
        for (text, sets) in table {
            let sets = sets.iter().map(|set| set.to_vec()).collect();
            assert_eq!(text.parse(), Ok(Bind::List(sets)), "{text}");
        }
        for bad in ["", "cores", "0,", "0;;1", "0-", "-1", "3-1", "0-99999999", ";"] {
            assert!(bad.parse::<Bind>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_rank_has_one_core_at_least() {
        assert_eq!("12".parse(), Ok(CoreCount(12)));
        for bad in ["0", "", "-1", "+1", "x", "99999999"] {
            let said = bad.parse::<CoreCount>().unwrap_err().to_string();
            assert!(said.contains("a number of cores"), "{bad:?}: {said}");
        }
    }

    #[test]
    fn gpus_go_by_number_address_or_uuid() {
        let list = |items: &[&str]| Ok(GpuChoice::List(items.iter().map(|item| (*item).to_owned()).collect()));
        assert_eq!("2, 5".parse(), list(&["2", "5"]));
        assert_eq!("0-2,7".parse(), list(&["0", "1", "2", "7"]));
        assert_eq!("3-1".parse::<GpuChoice>(), Err(BadValue::Backwards("3-1".into())));
        assert_eq!("0000:3b:00.0,GPU-12ab".parse(), list(&["0000:3b:00.0", "GPU-12ab"]));
        assert_eq!(("all".parse(), "none".parse()), (Ok(GpuChoice::All), Ok(GpuChoice::None)));
        for bad in ["", "0,", "x", "-1", "gpu0", "0-", "0-9999999"] {
            assert!(bad.parse::<GpuChoice>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_limit_may_be_none_but_not_zero() {
        assert_eq!("none".parse(), Ok(Limit(None)));
        assert_eq!("1.5".parse(), Ok(Limit(Some(Duration::from_millis(1500)))));
        assert_eq!("0".parse::<Limit>(), Err(BadValue::ZeroLimit));
    }

    #[test]
    fn an_assignment_splits_at_the_first_equals_sign() {
        let parse = |text: &str| Assignment::parse(OsStr::new(text));
        assert_eq!(parse("A=b=c"), Ok(Assignment { name: "A".into(), value: Some("b=c".into()) }));
        assert_eq!(parse("A="), Ok(Assignment { name: "A".into(), value: Some("".into()) }));
        assert_eq!(parse("A"), Ok(Assignment { name: "A".into(), value: None }));
        assert!(parse("=b").is_err() && parse("").is_err());
        let bytes = Assignment::parse(OsStr::from_bytes(b"A=\xff")).unwrap();
        assert_eq!(bytes.value.unwrap().as_bytes(), b"\xff");
    }

    #[test]
    fn a_json_target_of_digits_is_a_descriptor() {
        assert_eq!("3".parse(), Ok(JsonTarget::Fd(3)));
        assert_eq!("./3".parse(), Ok(JsonTarget::File("./3".into())));
    }
}
