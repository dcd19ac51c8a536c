//! [`Template`]: text in which `{rank}`, `{local_rank}` and `{size}` stand for numbers.
//!
//! For `-x` values and `--wdir`. Other braces stay what they are, since values may well be JSON; to get
//! the four letters of a placeholder themselves, double its braces: `{{rank}}` gives `{rank}`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

use super::value::{BadValue, Scalar};

/// Text with placeholders for what differs from rank to rank. Bytes are kept as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    Rank,
    LocalRank,
    Size,
}

/// The numbers that a [`Template`] is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The rank in the job.
    pub rank: u32,
    /// The rank on its node.
    pub local_rank: u32,
    /// The ranks of the job.
    pub size: u32,
}

const PLACEHOLDERS: [(&[u8], Piece); 3] =
    [(b"{rank}", Piece::Rank), (b"{local_rank}", Piece::LocalRank), (b"{size}", Piece::Size)];

impl Template {
    /// Text that is never filled in, whatever it holds.
    pub fn literal(text: impl Into<OsString>) -> Template {
        Template(vec![Piece::Bytes(text.into().into_vec())])
    }

    /// Reads `text`; every text is a template.
    pub fn parse(text: &OsStr) -> Template {
        let mut pieces = Vec::new();
        let mut plain: Vec<u8> = Vec::new();
        let mut rest = text.as_bytes();
        'next: while let Some(&first) = rest.first() {
            for (name, piece) in &PLACEHOLDERS {
                if rest.starts_with(name) {
                    if !plain.is_empty() {
                        pieces.push(Piece::Bytes(std::mem::take(&mut plain)));
                    }
                    pieces.push(piece.clone());
                    rest = &rest[name.len()..];
                    continue 'next;
                }
                let doubled = rest
                    .strip_prefix(b"{")
                    .and_then(|rest| rest.strip_prefix(*name))
                    .and_then(|rest| rest.strip_prefix(b"}"));
                if let Some(after) = doubled {
                    plain.extend_from_slice(name);
                    rest = after;
                    continue 'next;
                }
            }
            plain.push(first);
            rest = &rest[1..];
        }
        if !plain.is_empty() {
            pieces.push(Piece::Bytes(plain));
        }
        Template(pieces)
    }

    /// Whether every rank of the job gets the same text.
    pub fn same_for_all(&self) -> bool {
        self.0.iter().all(|piece| matches!(piece, Piece::Bytes(_) | Piece::Size))
    }

    /// The text for one rank.
    pub fn fill(&self, numbers: Numbers) -> OsString {
        let mut filled = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Bytes(bytes) => filled.extend_from_slice(bytes),
                Piece::Rank => filled.extend_from_slice(numbers.rank.to_string().as_bytes()),
                Piece::LocalRank => filled.extend_from_slice(numbers.local_rank.to_string().as_bytes()),
                Piece::Size => filled.extend_from_slice(numbers.size.to_string().as_bytes()),
            }
        }
        OsString::from_vec(filled)
    }
}

impl From<OsString> for Template {
    fn from(text: OsString) -> Template {
        Template::parse(&text)
    }
}

impl FromStr for Template {
    type Err = BadValue;

    /// Never fails: every text is a template.
    fn from_str(text: &str) -> Result<Template, BadValue> {
        Ok(Template::parse(OsStr::new(text)))
    }
}

impl Scalar for Template {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THREE: Numbers = Numbers { rank: 3, local_rank: 1, size: 8 };

    #[test]
    fn placeholders_are_filled_and_the_rest_is_kept() {
        let table = [
            ("out/{rank}", "out/3"),
            ("{local_rank} of {size}", "1 of 8"),
            (r#"{"rank":{rank},"x":{}}"#, r#"{"rank":3,"x":{}}"#),
            ("{{rank}}", "{rank}"),
            ("{{{rank}}}", "{{rank}}"),
            ("{rnak} {", "{rnak} {"),
            ("", ""),
        ];
        for (template, filled) in table {
            assert_eq!(Template::parse(OsStr::new(template)).fill(THREE), filled, "{template}");
        }
        assert_eq!(Template::literal("{rank}").fill(THREE), "{rank}");
    }

    proptest! {
        #[test]
        fn bytes_without_placeholders_stay_as_they_are(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assume!(!bytes.windows(5).any(|part| part == b"rank}" || part == b"size}"));
            let filled = Template::parse(OsStr::from_bytes(&bytes)).fill(THREE);
            prop_assert_eq!(filled.as_bytes(), &bytes[..]);
        }
    }
}
