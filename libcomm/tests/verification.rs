//! Flipped bits are found, wherever they are flipped, and the message says where.

mod common;

use comm::fault::{Fault, Kind, Stage};
use comm::{Algorithm, Comm, CommError, Op, Settings, Verify};
use common::{CHUNK, ranks_with};

type Call = fn(&Comm) -> Result<(), CommError>;

fn all_reduce(comm: &Comm) -> Result<(), CommError> {
    comm.all_reduce_in_place(&mut [1.5f32; 2500], Op::Sum)
}

/// Travels in the posts, its checksum with it.
fn small(comm: &Comm) -> Result<(), CommError> {
    comm.all_reduce_in_place(&mut [1.5f32; 23], Op::Sum)
}

fn all_gather(comm: &Comm) -> Result<(), CommError> {
    comm.all_gather(&[7u16 as i32; 700], &mut vec![0; 700 * comm.size() as usize])
}

fn reduce_scatter(comm: &Comm) -> Result<(), CommError> {
    comm.reduce_scatter(&vec![1i64; 300 * comm.size() as usize], &mut [0; 300], Op::Max)
}

fn broadcast(comm: &Comm) -> Result<(), CommError> {
    comm.broadcast(&mut [comm.rank() as u8; 3000], 1)
}

fn reduce(comm: &Comm) -> Result<(), CommError> {
    comm.reduce(&[2.5f32; 1500], &mut [0.0; 1500], Op::Sum, 1)
}

fn scan(comm: &Comm) -> Result<(), CommError> {
    comm.scan(&[3u16; 1500], &mut [0; 1500], Op::Sum)
}

#[derive(Clone, Copy)]
struct Trial {
    verify: Verify,
    ranks: u32,
    algorithm: Option<Algorithm>,
    call: Call,
    fault: Fault,
}

/// Makes two good calls, then the one with the fault, and checks what is said.
fn found(trial: &Trial) -> Result<(), String> {
    let Trial { verify, ranks, algorithm, call, fault } = *trial;
    let change = |settings: &mut Settings| {
        settings.verify = verify;
        settings.algorithm = algorithm;
        settings.fault = Some(fault);
    };
    let results = ranks_with(ranks, CHUNK, change, |comm| {
        call(&comm).and_then(|()| call(&comm)).expect("no fault yet");
        call(&comm).err().map(|error| error.to_string())
    });
    let texts: Vec<&String> = results.iter().flatten().collect();
    // A rank that had all it needed may return before another one finds damage in its own part; with results
    // compared at the end that leaves nobody out.
    if texts.len() != ranks as usize {
        return Err(format!("{fault:?} on {ranks} ranks: only {texts:?}"));
    }
    let names_it = |text: &String| {
        let pair = text.contains(&format!("rank {}", fault.rank)) && text.contains("and rank");
        // A wrong share is handed to all: each rank finds it in its own result.
        let pair = pair || (fault.stage == Stage::Reduction && text.contains("recomputed"));
        text.contains("call 3 ") && text.contains("chunk ") && pair
    };
    match texts.iter().copied().all(names_it) {
        true => Ok(()),
        false => Err(format!("{fault:?} on {ranks} ranks: {texts:?}")),
    }
}

/// Trials that differ in everything, the same in every run.
fn trials(count: u64) -> impl Iterator<Item = Trial> {
    (0..count).map(|number| {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        };
        let ranks = 2 + below(3) as u32;
        let algorithms = [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Ring];
        let algorithm = Some(algorithms[below(3) as usize]);
        let kind = below(9);
        let (call, stage): (Call, Stage) = match kind {
            0 => (all_gather, Stage::Chunk),
            1 => (reduce_scatter, Stage::Chunk),
            2 => (broadcast, Stage::Chunk), // from rank 1
            3 => (all_gather, Stage::Result),
            4 => (reduce_scatter, Stage::Result),
            5 if algorithm != Some(Algorithm::OneShot) => (all_reduce, Stage::Reduced),
            6 => (all_reduce, Stage::Result),
            _ => (all_reduce, Stage::Chunk),
        };
        let rank = if kind == 2 { 1 } else { below(u64::from(ranks)) as u32 };
        let chunk = below(2);
        let fault = Fault { kind: Kind::Flip, rank, call: 3, chunk, bit: below(1 << 20), stage };
        Trial { verify: Verify::Every, ranks, algorithm, call, fault }
    })
}

/// What a rank reduces wrongly, before anyone has a checksum of it.
fn wrong_reductions(count: u64) -> impl Iterator<Item = Trial> {
    (0..count).map(|number| {
        let ranks = 2 + number as u32 % 3;
        let calls: [Call; 4] = [all_reduce, reduce_scatter, reduce, scan];
        let which = number as usize % 4;
        let rank = if which == 2 { 1 } else { (number / 4) as u32 % ranks };
        let (chunk, bit) = (number % 2, number * 7919 % (1 << 20));
        let fault = Fault { kind: Kind::Flip, rank, call: 3, chunk, bit, stage: Stage::Reduction };
        Trial { verify: Verify::Full, ranks, algorithm: Some(Algorithm::TwoShot), call: calls[which], fault }
    })
}

fn assert_all_found(trials: impl Iterator<Item = Trial>) {
    let mut count = 0;
    let missed: Vec<String> = trials.inspect(|_| count += 1).filter_map(|trial| found(&trial).err()).collect();
    println!("{} of {count} flipped bits were found", count - missed.len());
    assert!(missed.is_empty(), "{} missed, first {}", missed.len(), missed[0]);
}

#[test]
fn a_thousand_flipped_bits_are_found() {
    assert_all_found(trials(1000));
}

#[test]
fn each_bit_of_a_small_message_is_found() {
    let fault = |rank, bit, stage| Fault { kind: Kind::Flip, rank, call: 3, chunk: 0, bit, stage };
    let trials = (0..8 * 23 * 4).flat_map(|bit| {
        let rank = bit as u32 % 3;
        let trial = move |ranks: u32, stage| {
            let fault = fault(rank % ranks, bit, stage);
            Trial { verify: Verify::Every, ranks, algorithm: None, call: small, fault }
        };
        [trial(2, Stage::Chunk), trial(3, Stage::Chunk), trial(3, Stage::Result)]
    });
    assert_all_found(trials.step_by(5));
}

#[test]
fn full_finds_all_that_every_finds_and_what_is_reduced_wrongly() {
    let as_full = |trial: Trial| Trial { verify: Verify::Full, ..trial };
    assert_all_found(trials(200).map(as_full));
    assert_all_found(wrong_reductions(200));
}

#[test]
fn checksums_alone_do_not_find_what_is_reduced_wrongly_which_proves_that_full_is_needed() {
    let missed =
        wrong_reductions(40).filter(|trial| found(&Trial { verify: Verify::Every, ..*trial }).is_err()).count();
    println!("checksums miss {missed} of 40 wrong reductions");
    assert_eq!(missed, 40);
}

#[test]
fn without_verification_the_same_fault_goes_unseen_which_proves_the_hook() {
    let fault = Fault { kind: Kind::Flip, rank: 0, call: 1, chunk: 0, bit: 3, stage: Stage::Chunk };
    let results = ranks_with(
        2,
        CHUNK,
        |settings| settings.fault = Some(fault),
        |comm| {
            let mut x = [0u8; 10];
            comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
            x
        },
    );
    assert!(results.iter().all(|x| x[0] == 8));
}
