//! The process that measures GPUs: it alone touches them, and whoever started it watches its lines and ends it.

use std::io::Write;

use comm::probe::{Effort, Probe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::line::Line;
use super::{FIGURES, LOAD, PROOF};
use crate::exit;

/// Does what the words after [`super::WORD`] ask for: `proof` or `figures`, then pairs to leave out (`0-1,0-2`); or
/// `load`, then the GPUs to keep busy (`0,1`) until standard input ends.
pub fn run(words: &[String]) -> u8 {
    let what = words.first().map(String::as_str).unwrap_or_default();
    let list = words.get(1).map(String::as_str).unwrap_or_default();
    let done = match what {
        PROOF => pairs(Effort::PROOF, &read_pairs(list)),
        FIGURES => pairs(Effort::FIGURES, &read_pairs(list)),
        LOAD => load(&list.split(',').filter_map(|gpu| gpu.parse().ok()).collect::<Vec<usize>>()),
        _ => Err("this word is prun's own".into()),
    };
    match done {
        Ok(()) => exit::SUCCESS,
        Err(why) => {
            say(&Line::Failed { why });
            exit::REFUSED
        }
    }
}

/// One line at once, so that whoever reads it knows where we are.
fn say(line: &Line) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", serde_json::to_string(line).unwrap_or_default()).and_then(|()| out.flush());
}

/// `0-1,0-2`.
fn read_pairs(text: &str) -> Vec<(usize, usize)> {
    let pair = |text: &str| {
        let (a, b) = text.split_once('-')?;
        Some((a.parse().ok()?, b.parse().ok()?))
    };
    text.split(',').filter_map(pair).collect()
}

fn pairs(effort: Effort, left_out: &[(usize, usize)]) -> Result<(), String> {
    let text = |error: comm::cuda::CudaError| error.to_string();
    let probe = Probe::open(effort).map_err(text)?;
    let addresses = (0..probe.len())
        .map(|gpu| {
            let address = probe.address(gpu).map_err(text)?;
            address.parse().map_err(|_| format!("the driver calls a GPU's place `{address}`"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    say(&Line::Gpus { addresses });
    for a in 0..probe.len() {
        for b in a + 1..probe.len() {
            if left_out.contains(&(a, b)) {
                continue;
            }
            say(&Line::Begin { a, b });
            let pair = probe.pair(a, b).map_err(text)?;
            say(&Line::Pair { a, b, reported: pair.reported, ways: pair.ways.into_iter().map(Into::into).collect() });
        }
    }
    say(&Line::End);
    Ok(())
}

fn load(gpus: &[usize]) -> Result<(), String> {
    let text = |error: comm::cuda::CudaError| error.to_string();
    let probe = Probe::open(Effort::PROOF).map_err(text)?;
    let gpus: Vec<usize> = gpus.iter().copied().filter(|gpu| *gpu < probe.len()).collect();
    let addresses = gpus.iter().filter_map(|gpu| probe.address(*gpu).ok()?.parse().ok()).collect();
    say(&Line::Gpus { addresses });
    let mut rounds = 0u32;
    let stop = || {
        rounds += 1;
        // The first rounds wake the GPUs up.
        if rounds == 20 {
            say(&Line::Loaded);
        }
        input_ended()
    };
    probe.load(&gpus, stop).map_err(text)
}

fn input_ended() -> bool {
    let stdin = std::io::stdin();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn pairs_are_read_and_nonsense_is_none() {
        assert_eq!(super::read_pairs("0-1,2-3"), [(0, 1), (2, 3)]);
        assert_eq!(super::read_pairs("x,1,-,"), []);
    }
}
