//! Random processes of a running job get SIGKILL at random moments: nothing is left, nothing hangs, and where prun
//! lives it names the cause.
//!
//! `PRUN_TEST_SEED` repeats a run; each round prints its seed, which alone repeats the round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tests::{Prun, Running, Scratch, built, eventually, kill_now, quoted};

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Who gets SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Prun,
    Rankd,
    Keeper,
    Rank(u32),
}

use Victim::{Keeper, Rank, Rankd};

const RANKS: u32 = 6;

/// Never all three of prun, rankd and keeper: that is the one case with no promise for what ranks started.
fn choose(random: &mut Random) -> Vec<Victim> {
    let rank = Rank(random.below(RANKS.into()) as u32);
    let other = Rank(random.below(RANKS.into()) as u32);
    match random.below(11) {
        0 => vec![Victim::Prun],
        1 => vec![Rankd],
        2 => vec![Victim::Prun, Rankd],
        3 => vec![Keeper],
        4 => vec![rank],
        5 => vec![rank, other],
        6 => vec![Keeper, Victim::Prun],
        7 => vec![Keeper, Rankd],
        8 => vec![rank, Rankd],
        9 => vec![rank, Victim::Prun],
        _ => vec![rank, Keeper],
    }
}

/// What the ranks are: of each kind at least one, and three that sum vectors all the time.
fn script(scratch: &Scratch) -> String {
    let wrapper = scratch.script("wrap.sh", "sleep 300 &\nsh -c 'sleep 300 & sleep 300' &\nwait");
    let stubborn = scratch.script(
        "stubborn.sh",
        "trap '' TERM INT HUP\n(setsid sh -c 'trap \"\" TERM; sleep 300; sleep 300' &)\nwhile :; do sleep 0.01; done",
    );
    let writer =
        scratch.script("writer.sh", "while :; do echo a line that is written again and again; echo another >&2; done");
    format!(
        "case $PRUN_RANK in 0) exec {};; 1) exec {};; 2) exec {};; *) exec {} forever 3000;; esac",
        quoted(wrapper),
        quoted(stubborn),
        quoted(writer),
        quoted(built("member"))
    )
}

/// Ranks 3 to 5 never leave init by themselves, since 0 to 2 do not join: they wait there. In half of the rounds all
/// ranks join instead and are in the middle of AllReduce.
fn program(random: &mut Random, scratch: &Scratch) -> String {
    if random.below(2) == 0 {
        script(scratch)
    } else {
        format!("sh -c 'setsid sleep 300 & wait' & exec {} forever 3000", quoted(built("member")))
    }
}

fn pid_of(job: &Running, victim: Victim) -> i32 {
    match victim {
        Victim::Prun => job.pid(),
        Rankd => job.rankd(),
        Keeper => job.keeper(),
        Rank(rank) => job.rank(rank),
    }
}

/// Whether prun's last words name what was done.
fn names_the_cause(said: &str, victims: &[Victim]) -> bool {
    victims.iter().any(|victim| match victim {
        Victim::Prun => false,
        Rankd => {
            said.contains("rankd was killed (SIGKILL)")
                || said.contains("rankd and its keeper were killed")
                || said.contains("rankd ended unexpectedly")
        }
        Keeper => said.contains("the keeper was killed") || said.contains("rankd and its keeper were killed"),
        Rank(rank) => said.contains(&format!("rank {rank} failed first (SIGKILL")),
    })
}

/// One job and its end; what was done, as text.
fn round(seed: u64) -> String {
    let mut random = Random(seed);
    let scratch = Scratch::new();
    let program = program(&mut random, &scratch);
    let mut prun = Prun::new().ranks(RANKS).options(["--grace", "200ms"]).sh(program);
    if random.below(3) == 0 {
        prun = prun.without_cgroup();
    }
    if random.below(3) == 0 {
        prun = prun.options(["-o"]).option(scratch.join("out"));
    }
    let victims = choose(&mut random);
    let pause = Duration::from_micros(random.below(120_000));
    let early = random.below(4) == 0;
    println!("seed {seed}: {victims:?} after {pause:?}{}", if early { " from the first moment" } else { "" });
    let started = Instant::now();
    let job = prun.start();
    if !early {
        eventually("all ranks", || (0..RANKS).all(|rank| job.rank(rank) > 0).then_some(()));
        std::thread::sleep(pause);
    }
    // All are looked up before the first is killed, and killed as fast as can be.
    let pids: Vec<i32> = victims.iter().map(|&victim| pid_of(&job, victim)).collect();
    pids.into_iter().for_each(kill_now);
    let ended = job.wait();
    if !victims.contains(&Victim::Prun) {
        assert!(
            names_the_cause(&ended.err(), &victims),
            "seed {seed}: {victims:?}, exit {}:\n{}",
            ended.code(),
            last_lines(&ended.err())
        );
        assert!(matches!(ended.code(), 125 | 137), "seed {seed}: {victims:?}: exit {}", ended.code());
    }
    format!("{victims:?} in {:.1} s", started.elapsed().as_secs_f64())
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn rounds(count: u64) {
    let given =
        std::env::var("PRUN_TEST_SEED").ok().map(|text| text.parse::<u64>().expect("PRUN_TEST_SEED is a number"));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = given.unwrap_or_else(|| Random(clock).next() & 0xffff_ffff);
    println!("PRUN_TEST_SEED={seed}");
    let started = Instant::now();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..count {
        let what = round(seed + number);
        *seen.entry(what.split(" in ").next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    println!(
        "{count} rounds in {:.0} s, nothing left, nothing hung; victims: {seen:?}",
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn ten_rounds_of_random_kills_leave_nothing_and_hang_nothing() {
    rounds(10);
}

#[test]
#[ignore = "minutes long: make soak"]
fn two_hundred_rounds_of_random_kills_leave_nothing_and_hang_nothing() {
    rounds(200);
}
