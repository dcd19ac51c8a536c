//! Random calls on random numbers of ranks (collectives, messages, parts, requests), with ranks that come late; each result is
//! compared with the reference.
//!
//! `cargo test -p libcomm --release --test soak -- --ignored --nocapture` runs for ten minutes, or for
//! `LIBCOMM_SOAK_S` seconds; `LIBCOMM_SOAK_SEED` repeats a run.

mod common;

use comm::{Algorithm, Comm, Op, reference};
use common::ranks_with;
use std::time::{Duration, Instant};

/// The same numbers on all ranks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn sends(seed: u64, ranks: u32, count: usize) -> Vec<Vec<i32>> {
    let column = |rank: u32| {
        let mut random = Random(seed ^ u64::from(rank) << 32);
        (0..count).map(|_| random.next() as i32).collect()
    };
    (0..ranks).map(column).collect()
}

/// One call that all ranks choose alike.
fn one_call(comm: &Comm, random: &mut Random) {
    let (ranks, me) = (comm.size(), comm.rank() as usize);
    let n = ranks as usize;
    let count = match random.below(4) {
        0 => random.below(30),
        1 => random.below(2000),
        _ => random.below(20_000),
    } as usize;
    let root = random.below(u64::from(ranks)) as usize;
    let op = [Op::Sum, Op::Max, Op::BitXor, Op::Avg][random.below(4) as usize];
    let (which, seed) = (random.below(12), random.next());
    // One rank is late now and then.
    let late = random.below(40);
    if late as usize == me {
        std::thread::sleep(Duration::from_micros(random.below(3000)));
    } else {
        random.next();
    }
    let all = sends(seed, ranks, count);
    let wide = || sends(seed, ranks, count * n);
    let mut recv = vec![0; count];
    let (found, wanted) = match which {
        0 => {
            comm.all_reduce(&all[me], &mut recv, op).unwrap();
            (recv, reference::all_reduce(&all, op))
        }
        1 => {
            let mut shared = comm.alloc::<i32>(count).unwrap();
            shared.copy_from_slice(&all[me]);
            comm.all_reduce_in_place(&mut shared, op).unwrap();
            (shared.to_vec(), reference::all_reduce(&all, op))
        }
        2 => {
            recv.copy_from_slice(&all[me]);
            comm.broadcast(&mut recv, root as u32).unwrap();
            (recv, all[root].clone())
        }
        3 => {
            let mut recv = vec![0; count * n];
            comm.all_gather(&all[me], &mut recv).unwrap();
            (recv, reference::all_gather(&all))
        }
        4 => {
            let all = wide();
            comm.reduce_scatter(&all[me], &mut recv, op).unwrap();
            (recv, reference::reduce_scatter(&all, op, me))
        }
        5 => {
            let all = wide();
            let mut recv = vec![0; count * n];
            comm.all_to_all(&all[me], &mut recv).unwrap();
            (recv, reference::all_to_all(&all, me))
        }
        6 => {
            comm.scan(&all[me], &mut recv, op).unwrap();
            (recv, reference::scan(&all, op, me))
        }
        7 => {
            comm.reduce(&all[me], &mut recv, op, root as u32).unwrap();
            let wanted = if me == root { reference::all_reduce(&all, op) } else { vec![0; count] };
            (recv, wanted)
        }
        8 => {
            let (to, from) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            comm.send_recv(&all[me], to, &mut recv, from, which as u32).unwrap();
            (recv, all[from as usize].clone())
        }
        9 => {
            let part = comm.split(Some(comm.rank() % 2), root as i32).unwrap().unwrap();
            part.all_reduce(&all[me], &mut recv, op).unwrap();
            part.finalize().unwrap();
            let members: Vec<_> = all.iter().skip(me % 2).step_by(2).cloned().collect();
            (recv, reference::all_reduce(&members, op))
        }
        10 => {
            let first = comm.start_all_reduce(all[me].clone(), op).unwrap();
            let second = comm.start_all_reduce(all[me].clone(), Op::Max).unwrap();
            assert_eq!(second.wait().unwrap(), reference::all_reduce(&all, Op::Max));
            (first.wait().unwrap(), reference::all_reduce(&all, op))
        }
        _ => {
            comm.barrier().unwrap();
            (vec![], vec![])
        }
    };
    assert!(found == wanted, "call {which} {op}, {count} elements, root {root}, rank {me} of {n}, seed {seed}");
}

fn soak(limit: Duration, seed: u64) {
    let began = Instant::now();
    let mut jobs = Random(seed);
    let mut calls = 0;
    while began.elapsed() < limit {
        let (ranks, seed) = (1 + jobs.below(8) as u32, jobs.next());
        let chunk = [1024, 4096, 256 * 1024][jobs.below(3) as usize];
        let forced = [Algorithm::Ring, Algorithm::TwoShot, Algorithm::Chain, Algorithm::Hierarchical { group: 2 }];
        let algorithm = forced.get(jobs.below(5) as usize).copied();
        println!("{ranks} ranks, chunks of {chunk}, {algorithm:?}, seed {seed}");
        ranks_with(
            ranks,
            chunk,
            |settings| settings.algorithm = algorithm,
            |comm| {
                let mut random = Random(seed);
                (0..100).for_each(|_| one_call(&comm, &mut random));
                comm.finalize().unwrap();
            },
        );
        calls += 100;
    }
    println!("{calls} calls in {:.0} s", began.elapsed().as_secs_f64());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_few_seconds_of_random_calls() {
    soak(Duration::from_secs(3), 1);
}

#[test]
#[ignore = "ten minutes"]
fn ten_minutes_of_random_calls() {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("LIBCOMM_SOAK_SEED").unwrap_or(now);
    println!("LIBCOMM_SOAK_SEED={seed}");
    soak(Duration::from_secs(number("LIBCOMM_SOAK_S").unwrap_or(600)), seed);
}
