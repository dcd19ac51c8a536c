//! Slurm's notation for many hosts (`a[1-2],b[01-10]`) and for repeated counts (`16(x2),8`).

/// More entries than any cluster has; a text that asks for more is damaged.
const MOST: usize = 100_000;

/// The hosts of a list, in order; `None` if it is not one.
///
/// Zeros in front are kept (`n[07-09]`), and one name may have several brackets (`r[1-2]n[1-4]`).
pub fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(list)? {
        let mut names = vec![String::new()];
        let mut rest = item;
        while let Some(open) = rest.find('[') {
            let close = rest.find(']').filter(|&close| close > open)?;
            let numbers = numbers(&rest[open + 1..close])?;
            if names.len().checked_mul(numbers.len())? > MOST {
                return None;
            }
            let prefix = &rest[..open];
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{prefix}{number}")))
                .collect();
            rest = &rest[close + 1..];
        }
        if rest.contains(']') || item.is_empty() {
            return None;
        }
        hosts.extend(names.into_iter().map(|name| name + rest));
        if hosts.len() > MOST {
            return None;
        }
    }
    Some(hosts)
}

fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0u32);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if depth > 1 {
            return None;
        }
    }
    items.push(&list[start..]);
    (depth == 0).then_some(items)
}

/// `07-09,12` as texts of the width they were written in.
fn numbers(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for item in list.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return None;
        }
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if to < from || to - from >= MOST || all.len() > MOST {
            return None;
        }
        let width = if first.starts_with('0') { first.len() } else { 0 };
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(all)
}

/// `2(x3),1` as one count for each node; `None` if it is not such a list.
pub fn counts(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for item in list.split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (item, 1),
        };
        if times == 0 || all.len() + times > MOST {
            return None;
        }
        all.extend(std::iter::repeat_n(count.trim().parse::<u32>().ok()?, times));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_keep_their_order_and_their_zeros() {
        let table: &[(&str, &[&str])] = &[
            ("n1", &["n1"]),
            ("big01,small01", &["big01", "small01"]),
            ("node[07-09,12]", &["node07", "node08", "node09", "node12"]),
            ("a[9-11]", &["a9", "a10", "a11"]),
            ("r[1-2]n[1-2]-ib", &["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ];
        for (list, hosts) in table {
            assert_eq!(expand(list).unwrap(), *hosts, "{list}");
        }
        assert_eq!(expand("a[1-2],b[01-10]").unwrap().len(), 12);
        for bad in
            ["", "a,", "a[", "a]", "a[1", "a[]", "a[x]", "a[2-1]", "a[[1]]", "a[1-999999999]", "a[1-9999]b[1-9999]"]
        {
            assert_eq!(expand(bad), None, "{bad:?}");
        }
    }

    // C09
    #[test]
    fn counts_are_repeated_as_they_say() {
        let table: &[(&str, &[u32])] =
            &[("1(x2)", &[1, 1]), ("2(x3),1", &[2, 2, 2, 1]), ("40,8", &[40, 8]), ("8(x2)", &[8, 8]), ("7", &[7])];
        for (list, expected) in table {
            assert_eq!(counts(list).unwrap(), *expected, "{list}");
        }
        let many = counts("16(x2),8(x10)").unwrap();
        assert_eq!((many.len(), many.iter().sum::<u32>()), (12, 112));
        for bad in ["", ",", "x", "1(x)", "1(x2", "1(x0)", "-1", "1(x999999999)"] {
            assert_eq!(counts(bad), None, "{bad:?}");
        }
    }
}
