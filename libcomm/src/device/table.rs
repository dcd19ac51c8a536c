//! `configs/protocol-choice.toml`: which path a message takes at which size. Read and checked when libcomm is built, so that
//! a table that is wrong builds nothing; `build.rs` makes constants of it, by which `plan.rs` goes.

use toml::{Table, Value};

/// What the table must say, and the paths that are there to take.
const SECTIONS: [(&str, &[&str]); 5] = [
    ("pair", &["ll", "push", "copy", "ring"]),
    ("more", &["ll", "ring"]),
    ("in_host", &["ll", "ring"]),
    ("broadcast_pair", &["ll", "push", "ring"]),
    ("broadcast_more", &["ll", "ring"]),
];

/// What begins like this is for readers, who see there what was measured.
const MEASURED: &str = "measured";

/// The constants, in Rust: for each section the paths in the order of size, each with the longest message that takes it.
/// Or what is wrong with the table.
pub(crate) fn constants(text: &str) -> Result<String, String> {
    let mut table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut rust = String::new();
    for (name, paths) in SECTIONS {
        let section = table.remove(name).ok_or_else(|| format!("there is no section [[{name}]]"))?;
        let rows = rows(&section, paths).map_err(|why| format!("[[{name}]]: {why}"))?;
        let rows: Vec<String> = rows.iter().map(|(up_to, path)| format!("({up_to}, Path::{path})")).collect();
        rust += &format!("const {}: &[(u64, Path)] = &[{}];\n", name.to_uppercase(), rows.join(", "));
    }
    match table.keys().find(|name| !name.starts_with(MEASURED)) {
        Some(unknown) => Err(format!("nobody reads `{unknown}`")),
        None => Ok(rust),
    }
}

/// The rows of a section: up to which size, and the path as Rust names it.
fn rows(section: &Value, paths: &[&str]) -> Result<Vec<(u64, &'static str)>, String> {
    let rows = section.as_array().filter(|rows| !rows.is_empty()).ok_or("it has no rows")?;
    let mut done = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let failed = |why: String| format!("row {}: {why}", number + 1);
        let row = row.as_table().ok_or_else(|| failed("it is no table".into()))?;
        let path = path(row, paths).map_err(failed)?;
        let up_to = match (up_to(row).map_err(failed)?, number + 1 == rows.len()) {
            (Some(_), true) => return Err(failed("the last row takes all that is longer, so it has no end".into())),
            (None, false) => return Err(failed("only the last row has no end".into())),
            (up_to, _) => up_to.unwrap_or(u64::MAX),
        };
        if done.last().is_some_and(|(before, _)| *before >= up_to) {
            return Err(failed("it ends no later than the one before".into()));
        }
        done.push((up_to, path));
    }
    Ok(done)
}

fn path(row: &Table, paths: &[&str]) -> Result<&'static str, String> {
    let path = row.get("path").and_then(Value::as_str).ok_or("it names no path")?;
    match path {
        _ if !paths.contains(&path) => Err(format!("`{path}` is none of its paths, {}", paths.join(", "))),
        "ll" => Ok("Ll"),
        "push" => Ok("Push"),
        "copy" => Ok("Copy"),
        _ => Ok("Ring"),
    }
}

/// The longest message of a row; `None` where it has no end.
fn up_to(row: &Table) -> Result<Option<u64>, String> {
    const ENDS: [&str; 2] = ["below_bytes", "up_to_bytes"];
    if let Some(unknown) = row.keys().find(|key| *key != "path" && !ENDS.contains(&key.as_str())) {
        return Err(format!("nobody reads `{unknown}`"));
    }
    let bytes = |value: &Value| {
        let bytes = value.as_integer().and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes != 0);
        bytes.ok_or_else(|| format!("{value} is no number of bytes"))
    };
    match ENDS.map(|end| row.get(end)) {
        [None, None] => Ok(None),
        [Some(below), None] => Ok(Some(bytes(below)? - 1)),
        [None, Some(up_to)] => Ok(Some(bytes(up_to)?)),
        [Some(_), Some(_)] => Err("it has both below_bytes and up_to_bytes".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is right, with one section in other words.
    fn with(section: &str, rows: &str) -> String {
        let rows_of = |name: &str| match name == section {
            true => rows.to_owned(),
            false => format!("[[{name}]]\npath = \"ring\"\n"),
        };
        SECTIONS.map(|(name, _)| rows_of(name)).concat()
    }

    fn refusal(section: &str, rows: &str) -> String {
        constants(&with(section, rows)).unwrap_err()
    }

    #[test]
    fn rows_become_constants_in_which_every_size_has_its_path() {
        let rows = "[[pair]]\npath = \"ll\"\nbelow_bytes = 16\n[[pair]]\npath = \"push\"\nup_to_bytes = 64\n\
                    [[pair]]\npath = \"copy\"\n[measured_anywhere]\nrows = [[1, 2.0]]\n";
        let rust = constants(&with("pair", rows)).unwrap();
        let first =
            "const PAIR: &[(u64, Path)] = &[(15, Path::Ll), (64, Path::Push), (18446744073709551615, Path::Copy)];";
        assert_eq!(rust.lines().next(), Some(first));
        assert_eq!(rust.lines().count(), SECTIONS.len());
    }

    #[test]
    fn a_table_that_is_wrong_is_refused_with_the_place_and_the_reason() {
        let ll = |end: &str| format!("[[more]]\npath = \"ll\"\n{end}\n");
        let ring = "[[more]]\npath = \"ring\"\n";
        assert_eq!(refusal("more", ""), "there is no section [[more]]");
        assert_eq!(constants(&format!("more = []\n{}", with("more", ""))).unwrap_err(), "[[more]]: it has no rows");
        assert!(refusal("pair", "[[pair]\n").contains("TOML parse error at line 1"));
        let cases = [
            (ll("below_bytes = 16"), "[[more]]: row 1: the last row takes all that is longer, so it has no end"),
            (ll("") + ring, "[[more]]: row 1: only the last row has no end"),
            (
                ll("below_bytes = 16") + &ll("up_to_bytes = 15") + ring,
                "[[more]]: row 2: it ends no later than the one before",
            ),
            (ll("below_bytes = -1") + ring, "[[more]]: row 1: -1 is no number of bytes"),
            (
                ll("below_bytes = 16\nup_to_bytes = 16") + ring,
                "[[more]]: row 1: it has both below_bytes and up_to_bytes",
            ),
            (ll("below = 16") + ring, "[[more]]: row 1: nobody reads `below`"),
            ("[[more]]\npath = \"push\"\n".into(), "[[more]]: row 1: `push` is none of its paths, ll, ring"),
            ("[[more]]\nup_to_bytes = 1\n".into(), "[[more]]: row 1: it names no path"),
            (format!("{ring}[[most]]\npath = \"ll\"\n"), "nobody reads `most`"),
        ];
        for (rows, why) in cases {
            assert_eq!(refusal("more", &rows), why, "{rows}");
        }
    }
}
