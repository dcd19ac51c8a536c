//! From parameters to [`Variant`]s: all combinations, those that move together, explicit ones, without exclusions.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// One value for each parameter, in the order of the experiment.
///
/// In JSON an object; its keys keep their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Variant(pub Vec<(String, String)>);

impl Variant {
    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The same without one parameter.
    pub fn without(&self, name: &str) -> Variant {
        Variant(self.0.iter().filter(|(known, _)| known != name).cloned().collect())
    }

    /// `text` with each `{name}` replaced; other braces stay, and bytes that are no text too.
    pub fn fill(&self, text: &OsStr) -> OsString {
        let mut filled = Vec::new();
        let mut rest = text.as_bytes();
        'next: while let Some(&first) = rest.first() {
            if first == b'{' {
                for (name, value) in &self.0 {
                    let after = rest[1..].strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"}"));
                    if let Some(after) = after {
                        filled.extend_from_slice(value.as_bytes());
                        rest = after;
                        continue 'next;
                    }
                }
            }
            filled.push(first);
            rest = &rest[1..];
        }
        OsString::from_vec(filled)
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Variant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Variant, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Variant;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Variant, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Variant(pairs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{name}={value}")?;
        }
        Ok(())
    }
}

/// Values that parameters take together.
type Step = Vec<(String, String)>;

/// A parameter and the values to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, which stands in braces where its value shall go.
    pub name: String,
    /// In order.
    pub values: Vec<String>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matrix {
    /// In order; the last varies fastest.
    pub parameters: Vec<Parameter>,
    /// Names that move together.
    pub zips: Vec<Vec<String>>,
    /// Combinations besides those of the parameters.
    pub include: Vec<Vec<(String, String)>>,
    /// A combination that has all values of one of these is left out.
    pub exclude: Vec<Vec<(String, String)>>,
}

/// What is wrong with a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// A name that is no parameter.
    #[error("`{name}` is not a parameter; there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Parameters that move together and have not the same number of values.
    #[error("{names} move together, but have {counts} values")]
    Uneven {
        /// Which.
        names: String,
        /// How many each.
        counts: String,
    },
    /// No values.
    #[error("the parameter `{0}` has no values")]
    Empty(String),
    /// Twice the same.
    #[error("the parameter `{0}` has the value `{1}` twice")]
    Repeated(String, String),
    /// Twice the same name.
    #[error("the parameter `{0}` is given twice")]
    Twice(String),
    /// Everything is excluded.
    #[error("no combination is left to try")]
    Nothing,
    /// Far more than anybody means.
    #[error("{0} combinations are more than a sweep takes; 100000 is the most")]
    TooMany(u128),
    /// An explicit combination that lacks a parameter.
    #[error("an explicit combination has no value for `{0}`")]
    Incomplete(String),
}

impl Matrix {
    /// All variants, each once.
    pub fn variants(&self) -> Result<Vec<Variant>, MatrixError> {
        self.check()?;
        let axes = self.axes()?;
        let count = axes.iter().map(|axis| axis.len() as u128).product::<u128>();
        if count > 100_000 {
            return Err(MatrixError::TooMany(count));
        }
        let mut found = vec![Variant::default()];
        if self.parameters.is_empty() && !self.include.is_empty() {
            found.clear();
        }
        for axis in &axes {
            found = found
                .iter()
                .flat_map(|variant| axis.iter().map(|step| Variant([variant.0.clone(), step.clone()].concat())))
                .collect();
        }
        for variant in &mut found {
            variant.0.sort_by_key(|(name, _)| self.parameters.iter().position(|parameter| parameter.name == *name));
        }
        let names = self.names();
        for explicit in &self.include {
            let value = |name: &String| {
                let value = explicit.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
                value.map(|value| (name.clone(), value)).ok_or_else(|| MatrixError::Incomplete(name.clone()))
            };
            let variant = Variant(names.iter().map(value).collect::<Result<_, _>>()?);
            if !found.contains(&variant) {
                found.push(variant);
            }
        }
        let has_all = |variant: &Variant, values: &[(String, String)]| {
            values.iter().all(|(name, value)| variant.get(name) == Some(value))
        };
        found.retain(|variant| !self.exclude.iter().any(|excluded| has_all(variant, excluded)));
        if found.is_empty() { Err(MatrixError::Nothing) } else { Ok(found) }
    }

    /// All names, those that only explicit combinations have too.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.parameters.iter().map(|parameter| parameter.name.clone()).collect();
        for (name, _) in self.include.iter().flatten() {
            if self.parameters.is_empty() && !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    fn check(&self) -> Result<(), MatrixError> {
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.values.is_empty() {
                return Err(MatrixError::Empty(parameter.name.clone()));
            }
            if self.parameters[..index].iter().any(|other| other.name == parameter.name) {
                return Err(MatrixError::Twice(parameter.name.clone()));
            }
            for (at, value) in parameter.values.iter().enumerate() {
                let repeated = parameter.values[..at].contains(value);
                if repeated && !self.zips.iter().flatten().any(|name| *name == parameter.name) {
                    return Err(MatrixError::Repeated(parameter.name.clone(), value.clone()));
                }
            }
        }
        let names = self.names();
        let used =
            self.zips.iter().flatten().chain(self.exclude.iter().chain(&self.include).flatten().map(|(name, _)| name));
        for name in used {
            if !names.contains(name) {
                let known = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(MatrixError::Unknown { name: name.clone(), known });
            }
        }
        Ok(())
    }

    /// Each axis is a list of steps; a step sets one parameter, or all that move together.
    fn axes(&self) -> Result<Vec<Vec<Step>>, MatrixError> {
        let mut axes = Vec::new();
        for parameter in &self.parameters {
            let Some(zip) = self.zips.iter().find(|zip| zip.contains(&parameter.name)) else {
                axes.push(parameter.values.iter().map(|value| vec![(parameter.name.clone(), value.clone())]).collect());
                continue;
            };
            let together: Vec<&Parameter> =
                self.parameters.iter().filter(|parameter| zip.contains(&parameter.name)).collect();
            if together[0].name != parameter.name {
                continue; // its axis stands where the first of them does
            }
            if together.iter().any(|other| other.values.len() != parameter.values.len()) {
                let counts: Vec<String> = together.iter().map(|parameter| parameter.values.len().to_string()).collect();
                return Err(MatrixError::Uneven { names: zip.join(" and "), counts: counts.join(" and ") });
            }
            let step = |at: usize| together.iter().map(|one| (one.name.clone(), one.values[at].clone())).collect();
            axes.push((0..parameter.values.len()).map(step).collect());
        }
        Ok(axes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameter(name: &str, values: &str) -> Parameter {
        Parameter { name: name.into(), values: values.split_whitespace().map(String::from).collect() }
    }

    fn pairs(text: &str) -> Vec<(String, String)> {
        text.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn shown(matrix: &Matrix) -> Vec<String> {
        matrix.variants().unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_combinations_the_last_parameter_varying_fastest() {
        let matrix = Matrix { parameters: vec![parameter("n", "2 4"), parameter("chunk", "a b")], ..Matrix::default() };
        assert_eq!(shown(&matrix), ["n=2 chunk=a", "n=2 chunk=b", "n=4 chunk=a", "n=4 chunk=b"]);
        assert_eq!(shown(&Matrix::default()), [""]);
    }

    #[test]
    fn parameters_can_move_together_be_listed_and_be_left_out() {
        let matrix = Matrix {
            parameters: vec![parameter("size", "1 2"), parameter("algo", "x y"), parameter("count", "7 7")],
            zips: vec![vec!["size".into(), "count".into()]],
            include: vec![pairs("count=9 algo=x size=9"), pairs("size=1 algo=x count=7")],
            exclude: vec![pairs("size=2 algo=y")],
        };
        assert_eq!(
            shown(&matrix),
            ["size=1 algo=x count=7", "size=1 algo=y count=7", "size=2 algo=x count=7", "size=9 algo=x count=9"]
        );
        let only_listed = Matrix { include: vec![pairs("a=1 b=2"), pairs("b=1 a=3")], ..Matrix::default() };
        assert_eq!(shown(&only_listed), ["a=1 b=2", "a=3 b=1"]);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let parameters = vec![parameter("a", "1 2"), parameter("b", "1 2 3")];
        let base = Matrix { parameters, ..Matrix::default() };
        let table: Vec<(Matrix, &str)> = vec![
            (
                Matrix { zips: vec![vec!["a".into(), "b".into()]], ..base.clone() },
                "a and b move together, but have 2 and 3 values",
            ),
            (Matrix { exclude: vec![pairs("c=1")], ..base.clone() }, "`c` is not a parameter; there are a, b"),
            (Matrix { exclude: vec![pairs("a=1"), pairs("a=2")], ..base.clone() }, "no combination is left to try"),
            (Matrix { include: vec![pairs("a=1")], ..base.clone() }, "an explicit combination has no value for `b`"),
            (Matrix { parameters: vec![parameter("a", "")], ..Matrix::default() }, "the parameter `a` has no values"),
            (
                Matrix { parameters: vec![parameter("a", "1 1")], ..Matrix::default() },
                "the parameter `a` has the value `1` twice",
            ),
            (
                Matrix { parameters: vec![parameter("a", "1"), parameter("a", "2")], ..Matrix::default() },
                "the parameter `a` is given twice",
            ),
        ];
        for (matrix, message) in table {
            assert_eq!(matrix.variants().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn placeholders_are_filled_and_other_braces_stay() {
        let variant = Variant(pairs("n=4 chunk=8K"));
        let table = [
            ("--chunk={chunk}", "--chunk=8K"),
            ("{n}{n}", "44"),
            ("{rank} {size} {", "{rank} {size} {"),
            ("{{n}}", "{4}"),
            ("", ""),
        ];
        for (text, filled) in table {
            assert_eq!(variant.fill(OsStr::new(text)), filled, "{text}");
        }
        let bytes = variant.fill(OsStr::from_bytes(b"\xff{n}\xfe"));
        assert_eq!(bytes.as_bytes(), b"\xff4\xfe");
    }

    proptest! {
        #[test]
        fn every_combination_comes_once(a in 1usize..5, b in 1usize..5, c in 1usize..5) {
            let values = |count: usize| (0..count).map(|value| value.to_string()).collect::<Vec<_>>().join(" ");
            let parameters = vec![parameter("a", &values(a)), parameter("b", &values(b)), parameter("c", &values(c))];
            let mut variants = Matrix { parameters, ..Matrix::default() }.variants().unwrap();
            prop_assert_eq!(variants.len(), a * b * c);
            variants.sort();
            variants.dedup();
            prop_assert_eq!(variants.len(), a * b * c);
        }
    }
}
