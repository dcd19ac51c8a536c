//! A flipped bit is found in every call that moves data, whichever way it goes. `verification.rs` has the stages of a
//! reduction; here each call is struck on its way.

mod common;

use comm::fault::{Fault, Kind, Stage};
use comm::{Algorithm, Comm, CommError, Op, Settings, Verify};
use common::{CHUNK, ranks_with};

type Call = fn(&Comm) -> Result<(), CommError>;

const COUNT: usize = 700;

fn gather(comm: &Comm) -> Result<(), CommError> {
    comm.gather(&[3i32; COUNT], &mut vec![0; COUNT * comm.size() as usize], 0)
}

fn scatter(comm: &Comm) -> Result<(), CommError> {
    comm.scatter(&vec![3i32; COUNT * comm.size() as usize], &mut [0; COUNT], 0)
}

fn all_to_all(comm: &Comm) -> Result<(), CommError> {
    let length = COUNT * comm.size() as usize;
    comm.all_to_all(&vec![comm.rank() as i32; length], &mut vec![0; length])
}

fn all_gather_v(comm: &Comm) -> Result<(), CommError> {
    let counts: Vec<usize> = (0..comm.size() as usize).map(|rank| COUNT + 100 * rank).collect();
    let own = vec![comm.rank() as u16; counts[comm.rank() as usize]];
    comm.all_gather_v(&own, &mut vec![0; counts.iter().sum()], &counts)
}

fn all_reduce(comm: &Comm) -> Result<(), CommError> {
    comm.all_reduce_in_place(&mut [1.5f32; 2500], Op::Sum)
}

/// In memory that all ranks reach, which takes no slot unless it is verified.
fn shared(comm: &Comm) -> Result<(), CommError> {
    let mut data = comm.alloc::<f32>(2500)?;
    data.fill(1.5);
    comm.all_reduce_in_place(&mut data, Op::Sum)
}

/// To the next rank, from the one before.
fn messages(comm: &Comm) -> Result<(), CommError> {
    let (rank, size) = (comm.rank(), comm.size());
    let mut came = vec![0u8; 100_000];
    comm.send_recv(&vec![rank as u8; 100_000], (rank + 1) % size, &mut came, (rank + size - 1) % size, 0)
}

struct Trial {
    name: &'static str,
    ranks: u32,
    algorithm: Option<Algorithm>,
    call: Call,
    fault: Fault,
}

/// What the ranks say of the third call, after two good ones. Those that had all they needed say nothing.
fn said(trial: &Trial, verify: Verify) -> Vec<String> {
    let change = |settings: &mut Settings| {
        settings.verify = verify;
        settings.algorithm = trial.algorithm;
        settings.fault = Some(trial.fault);
    };
    let results = ranks_with(trial.ranks, CHUNK, change, |comm| {
        (trial.call)(&comm).and_then(|()| (trial.call)(&comm)).expect("no fault yet");
        (trial.call)(&comm).err().map(|error| error.to_string())
    });
    results.into_iter().flatten().collect()
}

fn trials() -> Vec<Trial> {
    let calls: [(&str, Call, Option<Algorithm>, u32); 8] = [
        ("gather", gather, None, 3),
        ("scatter", scatter, None, 3),
        ("alltoall", all_to_all, None, 3),
        ("allgatherv", all_gather_v, None, 3),
        ("allreduce of two", all_reduce, None, 2),
        ("allreduce in groups of two", all_reduce, Some(Algorithm::Hierarchical { group: 2 }), 4),
        ("allreduce of shared memory", shared, None, 3),
        ("messages", messages, None, 3),
    ];
    let mut trials = Vec::new();
    for (name, call, algorithm, ranks) in calls {
        for number in 0..40u64 {
            let rank = match name {
                "gather" => 1 + number as u32 % (ranks - 1), // what the root sends to itself goes through no slot
                "scatter" => 0,
                _ => number as u32 % ranks,
            };
            let stage = if name == "messages" { Stage::Message } else { Stage::Chunk };
            let (chunk, bit) = (number % 2, number * 104_729 % (1 << 20));
            let fault = Fault { kind: Kind::Flip, rank, call: 3, chunk, bit, stage };
            trials.push(Trial { name, ranks, algorithm, call, fault });
        }
    }
    trials
}

#[test]
fn a_flipped_bit_is_found_in_every_call_and_every_way() {
    for verify in [Verify::Every, Verify::Full] {
        for trial in trials() {
            let said = said(&trial, verify);
            let fault = trial.fault;
            let names_it = |text: &String| text.contains(&format!("rank {}", fault.rank)) && text.contains(" 3 ");
            assert!(!said.is_empty(), "{}, {fault:?}: nobody noticed", trial.name);
            assert!(said.iter().all(names_it), "{}, {fault:?}: {said:?}", trial.name);
        }
    }
}

#[test]
fn without_verification_nobody_notices() {
    for trial in trials().iter().step_by(13) {
        assert_eq!(said(trial, Verify::Off), Vec::<String>::new(), "{}", trial.name);
    }
}
