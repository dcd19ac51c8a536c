//! Reads `-l` templates (`[{rank}] `) and checks `-o` patterns.
//!
//! `{name}` is a placeholder, `{{` and `}}` are the braces themselves; anything else is an error, so
//! that a misspelt name does not end up on every line of a long run.

use std::str::FromStr;

use super::value::{BadValue, Scalar};
use super::{LabelPart, LabelTemplate};

/// What `-l` alone means.
pub const DEFAULT: &str = "[{rank}] ";

const LABEL_NAMES: &str = "{rank}, {host}, {stream}, {time} and {elapsed}";
const PATTERN_NAMES: &str = "{rank}, {host}, {stream} and {job}";

impl FromStr for LabelTemplate {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<LabelTemplate, BadValue> {
        let mut parts: Vec<LabelPart> = Vec::new();
        for piece in pieces(text)? {
            parts.push(match piece {
                Piece::Text(text) => LabelPart::Text(text),
                Piece::Name("rank") => LabelPart::Rank,
                Piece::Name("host") => LabelPart::Host,
                Piece::Name("stream") => LabelPart::Stream,
                Piece::Name("time") => LabelPart::Time,
                Piece::Name("elapsed") => LabelPart::Elapsed,
                Piece::Name(name) => {
                    return Err(BadValue::UnknownPlaceholder { name: name.to_owned(), known: LABEL_NAMES });
                }
            });
        }
        Ok(LabelTemplate(parts))
    }
}

impl Scalar for LabelTemplate {
    const TRUE: &'static str = DEFAULT;
    const FALSE: &'static str = "";
}

/// Where `-o` sends the ranks' output: a directory, or a pattern with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPattern(pub String);

impl OutputPattern {
    /// Whether different ranks write to different files; each does in a plain directory.
    pub fn names_the_rank(&self) -> bool {
        !self.0.contains('{') || self.0.contains("{rank}")
    }
}

impl FromStr for OutputPattern {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<OutputPattern, BadValue> {
        if text.is_empty() {
            return Err(BadValue::NotA {
                got: String::new(),
                wanted: "a directory or a pattern, such as logs or logs/{rank}.txt",
            });
        }
        for piece in pieces(text)? {
            if let Piece::Name(name) = piece
                && !matches!(name, "rank" | "host" | "stream" | "job")
            {
                return Err(BadValue::UnknownPlaceholder { name: name.to_owned(), known: PATTERN_NAMES });
            }
        }
        Ok(OutputPattern(text.to_owned()))
    }
}

impl Scalar for OutputPattern {}

enum Piece<'t> {
    Text(String),
    Name(&'t str),
}

/// Cuts `text` at its placeholders; text between two of them comes in one piece.
fn pieces(text: &str) -> Result<Vec<Piece<'_>>, BadValue> {
    let lone = || BadValue::LoneBrace(text.to_owned());
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
        } else if brace == "{" {
            let (name, after) = rest.split_once('}').ok_or_else(lone)?;
            if name.contains('{') {
                return Err(lone());
            }
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Name(name));
            rest = after;
        } else {
            return Err(lone());
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> LabelPart {
        LabelPart::Text(text.into())
    }

    #[test]
    fn templates_are_cut_at_their_placeholders() {
        use LabelPart::*;
        let table = [
            (DEFAULT, vec![text("["), Rank, text("] ")]),
            (
                "{host}:{rank} {stream} {time} {elapsed}| ",
                vec![Host, text(":"), Rank, text(" "), Stream, text(" "), Time, text(" "), Elapsed, text("| ")],
            ),
            ("", vec![]),
            ("plain", vec![text("plain")]),
            ("{{{rank}}}", vec![text("{"), Rank, text("}")]),
            ("é{{", vec![text("é{")]),
        ];
        for (template, parts) in table {
            assert_eq!(template.parse(), Ok(LabelTemplate(parts)), "{template}");
        }
    }

    #[test]
    fn misspelt_placeholders_and_lone_braces_are_refused() {
        for bad in ["{", "}", "{rank", "rank}", "{a{b}", "{rank}}"] {
            assert_eq!(bad.parse::<LabelTemplate>(), Err(BadValue::LoneBrace(bad.into())), "{bad}");
        }
        for bad in ["{}", "{rnak}", "{ rank }", "{job}"] {
            assert!(matches!(bad.parse::<LabelTemplate>(), Err(BadValue::UnknownPlaceholder { .. })), "{bad}");
        }
    }

    #[test]
    fn output_patterns_know_their_placeholders() {
        for good in ["logs", "/", "logs/{rank}.txt", "{job}-{host}/{rank}.{stream}"] {
            assert!(good.parse::<OutputPattern>().is_ok(), "{good}");
        }
        for bad in ["", "logs/{rnak}.txt", "logs/{rank", "{time}"] {
            assert!(bad.parse::<OutputPattern>().is_err(), "{bad}");
        }
        assert!(!OutputPattern("logs/{host}".into()).names_the_rank());
        assert!(OutputPattern("logs".into()).names_the_rank());
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_or_an_error(text in "[{}a-z\\PC]*") {
            let _ = text.parse::<LabelTemplate>();
        }

        #[test]
        fn text_with_doubled_braces_stays_itself(plain in "\\PC*") {
            let template: LabelTemplate = plain.replace('{', "{{").replace('}', "}}").parse().unwrap();
            let shown = template.0.iter().map(|part| match part { LabelPart::Text(text) => text.as_str(), _ => "?" }).collect::<String>();
            prop_assert_eq!(shown, plain);
        }
    }
}
