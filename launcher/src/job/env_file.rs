//! Reads `--env-file`: a line for each variable, `NAME=VALUE`.
//!
//! Empty lines and lines that start with `#` are skipped. `export ` before the name is dropped, as are
//! quotes around the whole value; nothing is expanded, and bytes are kept as they are.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use crate::refused::Refused;

/// The variables of the file at `path`, in order.
pub fn read(path: &Path) -> Result<Vec<(OsString, OsString)>, Refused> {
    let bytes = std::fs::read(path)
        .map_err(|error| Refused::new(format!("cannot read the --env-file {}", path.display())).because(error))?;
    parse(&bytes).map_err(|(line, what)| {
        Refused::new(format!("{}, line {line}: {what}", path.display()))
            .try_instead("NAME=VALUE on each line, `#` before a comment")
    })
}

/// The variables in `bytes`, or the number of the wrong line and what is wrong with it.
fn parse(bytes: &[u8]) -> Result<Vec<(OsString, OsString)>, (usize, &'static str)> {
    let mut variables = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let line = line.strip_prefix(b"export ").map_or(line, <[u8]>::trim_ascii_start);
        let equals = line.iter().position(|&byte| byte == b'=').ok_or((number, "there is no `=`"))?;
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        if name.is_empty() {
            return Err((number, "there is no name before `=`"));
        }
        if name.iter().any(u8::is_ascii_whitespace) {
            return Err((number, "there is a space in the name"));
        }
        if line.contains(&0) {
            return Err((number, "there is a NUL byte"));
        }
        variables.push((OsString::from_vec(name.to_vec()), OsString::from_vec(unquoted(value).to_vec())));
    }
    Ok(variables)
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] if !inner.contains(&b'"') => inner,
        [b'\'', inner @ .., b'\''] if !inner.contains(&b'\'') => inner,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_variables() {
        let text = b"# comment\n\nA=1\r\n export B= x y \nC='q \"'\nD=\"e\nE=\nF=a=b#c\n";
        let pairs: Vec<(String, String)> = parse(text).unwrap().into_iter().map(shown).collect();
        let expected = [("A", "1"), ("B", " x y"), ("C", "q \""), ("D", "\"e"), ("E", ""), ("F", "a=b#c")];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(parse(b"A=\xff").unwrap()[0].1.as_encoded_bytes(), b"\xff");
    }

    #[test]
    fn wrong_lines_are_counted() {
        assert_eq!(parse(b"A=1\nB\n"), Err((2, "there is no `=`")));
        assert_eq!(parse(b"=1"), Err((1, "there is no name before `=`")));
        assert_eq!(parse(b"A B=1"), Err((1, "there is a space in the name")));
    }

    fn shown((name, value): (OsString, OsString)) -> (String, String) {
        (name.into_string().unwrap(), value.into_string().unwrap())
    }
}
