//! The rings that NCCL uses, from what it writes: the XML of `NCCL_GRAPH_DUMP_FILE`, or its log with
//! `NCCL_DEBUG=INFO` (lines such as `NCCL INFO Channel 03/08 :  0  1  3  2`).
//!
//! In the XML GPUs have the driver's numbers. In the log they have ranks, which are the GPUs' numbers where rank n has
//! GPU n, as under prun.

/// Pattern of a ring in NCCL's XML; trees and the like have others.
const RING_PATTERN: &str = "4";

/// The GPUs of each channel's ring, in order.
pub fn channels(text: &str) -> Vec<Vec<usize>> {
    let found = if text.contains("<graph") { of_xml(text) } else { of_log(text) };
    found.into_iter().filter(|ring| ring.len() > 1 && is_round(ring)).collect()
}

/// Whether no GPU comes twice.
fn is_round(ring: &[usize]) -> bool {
    ring.iter().enumerate().all(|(at, gpu)| !ring[at + 1..].contains(gpu))
}

/// Each `<channel>` of a `<graph … pattern="4">` lists its GPUs as `<gpu dev="N"/>`.
fn of_xml(text: &str) -> Vec<Vec<usize>> {
    let attribute = |tag: &str, name: &str| -> Option<String> {
        Some(tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.to_owned())
    };
    let mut rings = Vec::new();
    for graph in text.split("<graph ").skip(1) {
        let head = format!(" {}", graph.split('>').next().unwrap_or_default());
        if attribute(&head, "pattern").is_some_and(|pattern| pattern != RING_PATTERN) {
            continue;
        }
        for channel in graph.split("<channel").skip(1) {
            let channel = channel.split("</channel").next().unwrap_or_default();
            let gpus = channel.split("<gpu").skip(1);
            rings.push(gpus.filter_map(|gpu| number(&attribute(gpu, "dev")?)).collect());
        }
    }
    rings
}

/// NCCL writes a GPU's number as `0` or `0x1`.
fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `… Channel 03/08 : 0 1 3 2`, once for each channel although every rank of a node may write it.
fn of_log(text: &str) -> Vec<Vec<usize>> {
    let mut rings = std::collections::BTreeMap::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once(" Channel ") else { continue };
        let Some((number, order)) = rest.split_once(':') else { continue };
        let Some(channel) = number.split('/').next().and_then(|channel| channel.trim().parse::<u32>().ok()) else {
            continue;
        };
        // `Channel 00/0 : 0[0] -> 1[1] via P2P/IPC` is a connection and not a ring.
        let ring: Option<Vec<usize>> = order.split_whitespace().map(|rank| rank.parse().ok()).collect();
        if let Some(ring) = ring.filter(|ring| !ring.is_empty() && number.contains('/')) {
            rings.entry(channel).or_insert(ring);
        }
    }
    rings.into_values().collect()
}

/// The same rings, each once, with the channels that use it.
pub fn rings(channels: &[Vec<usize>]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut rings: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for (channel, ring) in channels.iter().enumerate() {
        let ring = from_lowest(ring);
        match rings.iter_mut().find(|(known, _)| *known == ring) {
            Some((_, users)) => users.push(channel),
            None => rings.push((ring, vec![channel])),
        }
    }
    rings
}

/// The same circle, written from its lowest member on.
fn from_lowest(ring: &[usize]) -> Vec<usize> {
    let mut ring = ring.to_vec();
    let lowest = (0..ring.len()).min_by_key(|at| ring[*at]).unwrap_or(0);
    ring.rotate_left(lowest);
    ring
}

/// How many channels go over the link between two GPUs, in either direction.
pub fn uses(channels: &[Vec<usize>], a: usize, b: usize) -> usize {
    let over = |ring: &&Vec<usize>| {
        crate::topology::ring::links(ring).any(|(one, other)| (one, other) == (a, b) || (one, other) == (b, a))
    };
    channels.iter().filter(over).count()
}

/// A line for each ring.
pub fn lines(channels: &[Vec<usize>]) -> Vec<String> {
    let line = |(ring, users): (Vec<usize>, Vec<usize>)| {
        let order = ring.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ");
        let set: crate::placement::cpuset::CpuSet = users.into_iter().collect();
        let s = if set.len() == 1 { "" } else { "s" };
        format!("NCCL's ring: {order} → {} (channel{s} {set})", ring[0])
    };
    rings(channels).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_read_out_of_the_xml_and_trees_are_not() {
        let text = r#"<graphs version="1"><graph id="0" pattern="4" nchannels="2"><channel><net dev="0"/><gpu dev="0"/><gpu dev="0x2"/><gpu dev="0x1"/></channel><channel><gpu dev="2"/><gpu dev="1"/><gpu dev="0"/></channel></graph><graph id="1" pattern="1"><channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/></channel></graph></graphs>"#;
        let channels = channels(text);
        assert_eq!(channels, [vec![0, 2, 1], vec![2, 1, 0]]);
        assert_eq!(lines(&channels), ["NCCL's ring: 0 → 2 → 1 → 0 (channels 0-1)"]);
        assert_eq!((uses(&channels, 0, 1), uses(&channels, 0, 3)), (2, 0));
    }

    #[test]
    fn rings_are_read_out_of_the_log_once_for_each_channel() {
        let text = "\
vm:11:22 [0] NCCL INFO Channel 00/02 :    0   1   3   2
vm:12:23 [1] NCCL INFO Channel 00/02 :    0   1   3   2
vm:11:22 [0] NCCL INFO Channel 01/02 :    0   2   3   1
vm:11:22 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
vm:11:22 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
vm:11:22 [0] NCCL INFO Connected all rings
";
        let channels = channels(text);
        assert_eq!(channels, [vec![0, 1, 3, 2], vec![0, 2, 3, 1]]);
        assert_eq!(lines(&channels).len(), 2);
        assert_eq!(uses(&channels, 1, 3), 2);
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_rings_or_none(text in "(<graph |pattern=\"4\"|<channel|</channel>|<gpu |dev=|\"|[0-9]|>| Channel 0[0-9]/08 : |\n| ){0,40}") {
            let found = channels(&text);
            let _ = lines(&found);
        }
    }
}
