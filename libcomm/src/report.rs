//! `comm_report`: a program tells figures of its own to whoever started it, such as `prun sweep`.

use std::fs::OpenOptions;
use std::io::Write;

use crate::env;

/// Tells a figure, such as a loss or a time per step. Without a listener ([`env::REPORT_FILE`]) nothing happens.
///
/// Needs no communicator: it works before a rank joins and after it has left. Each call adds one line to the file, in
/// one write, so that lines of several ranks and threads do not mix. A figure that is no number (NaN, infinite) is
/// dropped, and so is one that cannot be written: a measurement must not end the job that it is about.
pub fn report(name: &str, value: f64) {
    let Some(path) = std::env::var_os(env::REPORT_FILE) else { return };
    if path.is_empty() || !value.is_finite() {
        return;
    }
    let rank = env::text(env::RANK).and_then(|rank| rank.trim().parse::<u32>().ok());
    let line = line(name, value, rank);
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// `{"report":"loss","value":0.5,"rank":3}` and the end of the line.
fn line(name: &str, value: f64, rank: Option<u32>) -> String {
    let mut line = String::from("{\"report\":\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if c < ' ' => line.push_str(&format!("\\u{:04x}", c as u32)),
            c => line.push(c),
        }
    }
    line.push_str(&format!("\",\"value\":{value:?}"));
    if let Some(rank) = rank {
        line.push_str(&format!(",\"rank\":{rank}"));
    }
    line.push_str("}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_the_name() {
        assert_eq!(line("loss", 0.5, Some(3)), "{\"report\":\"loss\",\"value\":0.5,\"rank\":3}\n");
        assert_eq!(line("a\"b\\c\nd", 1e300, None), "{\"report\":\"a\\\"b\\\\c\\u000ad\",\"value\":1e300}\n");
    }
}
