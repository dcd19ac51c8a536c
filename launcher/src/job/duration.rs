//! Lengths of time as people write them: `10`, `1.5`, `500ms`, `2m`, `1h 30m`.

use std::time::Duration;

use super::value::BadValue;

const WANTED: &str = "a length of time, such as 10 (seconds), 500ms, 1.5h or 2m 30s";

/// A bare number is seconds; anything else needs a unit on each number, largest part first by custom.
pub fn parse(text: &str) -> Result<Duration, BadValue> {
    let not = || BadValue::NotA { got: text.to_owned(), wanted: WANTED };
    let text_trimmed = text.trim();
    if let Some(seconds) = decimal(text_trimmed) {
        return Duration::try_from_secs_f64(seconds).map_err(|_| not());
    }
    // One number with a fraction and a unit; humantime takes whole numbers only.
    if let Some(at) = text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.')
        && text_trimmed[..at].contains('.')
    {
        let (number, unit) = text_trimmed.split_at(at);
        let number = decimal(number).ok_or_else(not)?;
        let unit = humantime::parse_duration(&format!("1{}", unit.trim())).map_err(|_| not())?;
        return Duration::try_from_secs_f64(number * unit.as_secs_f64()).map_err(|_| not());
    }
    humantime::parse_duration(text_trimmed).map_err(|_| not())
}

/// Digits with at most one point: `f64` itself would take `1e3`, `inf` and `nan` too.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn people_write_time_in_many_ways() {
        let table = [
            ("10", 10_000),
            ("0", 0),
            ("1.5", 1_500),
            (".5", 500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1.5h", 5_400_000),
            ("0.5ms", 0),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            (" 3s ", 3_000),
        ];
        for (text, millis) in table {
            assert_eq!(parse(text).map(|time| time.as_millis()), Ok(millis), "{text}");
        }
        for bad in
            ["", "-1", "1e3", "inf", "nan", "ms", "10 parsecs", "1.5.2", "1.5h 3", "99999999999999999999999", "."]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_time_or_an_error(text in ".*") {
            let _ = parse(&text);
        }

        #[test]
        fn what_humantime_writes_is_read_back(millis in 0u64..10_000_000_000) {
            let time = Duration::from_millis(millis);
            prop_assert_eq!(parse(&humantime::format_duration(time).to_string()), Ok(time));
        }

        #[test]
        fn bare_numbers_are_seconds(seconds in 0u32..) {
            prop_assert_eq!(parse(&seconds.to_string()), Ok(Duration::from_secs(seconds.into())));
        }
    }
}
