//! Numbers as parameters write them: `8`, `0.5`, `64K`, `1MiB`, and ranges of them.

/// The number that `text` means, with a suffix for powers of 1024 (`K`, `MiB`) or, with a plain `B`, of 1000 (`kB`).
pub fn parse(text: &str) -> Option<f64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(at);
    let number: f64 = digits.parse().ok()?;
    let factor = match suffix {
        "" | "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => {
            let power = match suffix.strip_suffix("iB").unwrap_or(suffix) {
                "k" | "K" => 1,
                "M" => 2,
                "G" => 3,
                "T" => 4,
                _ => return None,
            };
            1024f64.powi(power)
        }
    };
    Some(number * factor)
}

/// The values of `1..8*2` (1, 2, 4, 8) or `10..30+5`; `1K..1G*4` counts in the suffix that divides each value best.
pub fn range(text: &str) -> Option<Vec<String>> {
    let (first, rest) = text.split_once("..")?;
    let at = rest.find(['*', '+'])?;
    let (last, step) = (parse(&rest[..at])?, parse(&rest[at + 1..])?);
    let multiply = rest.as_bytes()[at] == b'*';
    let with_suffix = first.ends_with(|c: char| c.is_alphabetic()) || rest[..at].ends_with(|c: char| c.is_alphabetic());
    let mut value = parse(first)?;
    if (multiply && (step <= 1.0 || value <= 0.0)) || (!multiply && step <= 0.0) {
        return None;
    }
    let mut values = Vec::new();
    while value <= last * (1.0 + 1e-12) {
        values.push(if with_suffix { bytes(value) } else { plain(value) });
        value = if multiply { value * step } else { value + step };
        if values.len() > 10_000 {
            return None;
        }
    }
    (!values.is_empty()).then_some(values)
}

fn plain(value: f64) -> String {
    format!("{}", (value * 1e12).round() / 1e12)
}

/// With the greatest suffix that leaves a whole number.
pub fn bytes(value: f64) -> String {
    let suffixes = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    let fits = suffixes.iter().find(|(_, unit)| value >= *unit as f64 && value % *unit as f64 == 0.0);
    fits.map_or_else(|| plain(value), |(suffix, unit)| format!("{}{suffix}", plain(value / *unit as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers() {
        let table = [
            ("8", 8.0),
            ("0.5", 0.5),
            ("-3", -3.0),
            ("64K", 65_536.0),
            ("1MiB", 1_048_576.0),
            ("2kB", 2_000.0),
            ("1.5G", 1.5 * 1_073_741_824.0),
        ];
        for (text, number) in table {
            assert_eq!(parse(text), Some(number), "{text}");
        }
        for text in ["", "ring", "4 K", "K", "1e3", "4Q"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_multiply_or_add() {
        let table = [
            ("1..8*2", "1 2 4 8"),
            ("10..30+5", "10 15 20 25 30"),
            ("512..4K*2", "512 1K 2K 4K"),
            ("1K..64M*256", "1K 256K 64M"),
            ("0..1+0.25", "0 0.25 0.5 0.75 1"),
        ];
        for (text, values) in table {
            assert_eq!(range(text).unwrap().join(" "), values, "{text}");
        }
        for text in ["1..8", "1..8*1", "0..8*2", "1..8+0", "a..b*2", "8..1*2", "../x*y"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
