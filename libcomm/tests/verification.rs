//! Flipped bits are found, wherever they are flipped, and the message says where.

mod common;

use comm::fault::{Fault, Kind, Stage};
use comm::{Algorithm, Comm, CommError, Op, Settings, Verify};
use common::{CHUNK, ranks_with};

type Call = fn(&Comm) -> Result<(), CommError>;

fn all_reduce(comm: &Comm) -> Result<(), CommError> {
    comm.all_reduce_in_place(&mut [1.5f32; 2500], Op::Sum)
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

struct Trial {
    ranks: u32,
    algorithm: Option<Algorithm>,
    call: Call,
    fault: Fault,
}

/// Makes two good calls, then the one with the fault, and checks what is said.
fn found(trial: &Trial) -> Result<(), String> {
    let Trial { ranks, algorithm, call, fault } = *trial;
    let change = |settings: &mut Settings| {
        settings.verify = Verify::Every;
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
        Trial { ranks, algorithm, call, fault }
    })
}

fn assert_all_found(count: u64) {
    let missed: Vec<String> = trials(count).filter_map(|trial| found(&trial).err()).collect();
    println!("{} of {count} flipped bits were found", count - missed.len() as u64);
    assert!(missed.is_empty(), "{} missed, first {}", missed.len(), missed[0]);
}

#[test]
fn a_thousand_flipped_bits_are_found() {
    assert_all_found(1000);
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
