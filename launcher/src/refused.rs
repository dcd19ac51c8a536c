//! [`Refused`]: what prun says when it will not even start.

use std::fmt;

/// A request that prun cannot carry out: what is wrong, and what to do instead.
///
/// Printed as `error: …`, with `cause: …` and `try: …` below where there is something to say; prun then
/// ends with [`exit::REFUSED`](crate::exit::REFUSED).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// One sentence: what prun cannot do. Further lines, if any, are an excerpt of a file.
    pub message: String,
    /// What lies behind it, where that is not the sentence itself.
    pub cause: Option<String>,
    /// Something to do about it.
    pub try_: Option<String>,
}

impl Refused {
    /// A refusal of which only the sentence is known.
    pub fn new(message: impl Into<String>) -> Refused {
        Refused { message: message.into(), cause: None, try_: None }
    }

    /// Adds what lies behind it.
    pub fn because(mut self, cause: impl fmt::Display) -> Refused {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds what to do about it.
    pub fn try_instead(mut self, try_: impl Into<String>) -> Refused {
        self.try_ = Some(try_.into());
        self
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if let Some(cause) = &self.cause {
            write!(f, "\n  cause: {cause}")?;
        }
        if let Some(try_) = &self.try_ {
            write!(f, "\n  try: {try_}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_lines_come_in_order() {
        let refused = Refused::new("a").because("b").try_instead("c");
        assert_eq!(refused.to_string(), "error: a\n  cause: b\n  try: c");
        assert_eq!(Refused::new("a").to_string(), "error: a");
    }
}
