//! MPICH as an oracle at two ranks: the same inputs through MPI's collectives and through libcomm, to the bit. With two ranks
//! a sum has one order, so floats are the same too. Skipped where there is no MPICH (Debian: mpich, libmpich-dev).

mod common;

use comm::{DataType, Element, Op};
use common::{CHUNK, ranks_with};
use std::path::Path;
use std::process::Command;

/// As tests/peers/mpi_oracle.c makes them.
fn input(rank: u32, index: usize, number: u64) -> u64 {
    let x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank) << 40 ^ number << 50;
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

trait Word: Element {
    fn from_word(word: u64) -> Self;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! words {
    ($($type:ty, $from:expr;)*) => {$(
        impl Word for $type {
            fn from_word(word: u64) -> $type { $from(word) }
            fn bytes(self) -> Vec<u8> { self.to_le_bytes().to_vec() }
        }
    )*};
}

words! {
    f64, |w| f64::from(w as i32) / 65536.0;
    f32, |w| (f64::from(w as i32) / 65536.0) as f32;
    i8, |w| w as i8;
    u8, |w| w as u8;
    i16, |w| w as i16;
    u16, |w| w as u16;
    i32, |w| w as i32;
    u32, |w| w as u32;
    i64, |w| w as i64;
    u64, |w| w;
}

/// Hashes of what both ranks have received in one case, from libcomm. Rank 1 is the root.
fn ours<T: Word>(call: &str, op: Op, count: usize, number: u64) -> Vec<u64> {
    ranks_with(
        2,
        CHUNK,
        |_| {},
        |comm| {
            let send: Vec<T> = (0..2 * count).map(|i| T::from_word(input(comm.rank(), i, number))).collect();
            let mut recv = vec![T::from_word(0); 2 * count];
            let is_root = comm.rank() == 1;
            let at_root = |length: usize| if is_root { length } else { 0 };
            let own = &send[..count];
            match call {
                "allreduce" => comm.all_reduce(own, &mut recv[..count], op),
                "reduce" => comm.reduce(own, &mut recv[..at_root(count)], op, 1),
                "scan" => comm.scan(own, &mut recv[..count], op),
                "reduce_scatter" => comm.reduce_scatter(&send, &mut recv[..count], op),
                "broadcast" => {
                    recv[..count].copy_from_slice(own);
                    comm.broadcast(&mut recv[..count], 1)
                }
                "allgather" => comm.all_gather(own, &mut recv),
                "gather" => comm.gather(own, &mut recv[..at_root(2 * count)], 1),
                "scatter" => comm.scatter(&send[..at_root(2 * count)], &mut recv[..count], 1),
                "alltoall" => comm.all_to_all(&send, &mut recv),
                other => panic!("the oracle calls {other}"),
            }
            .unwrap();
            let bytes = recv.into_iter().flat_map(Word::bytes);
            bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        },
    )
}

/// What MPICH says, a line a case; `None` with a word where there is none.
fn theirs() -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/mpi_oracle.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi_oracle");
    let compiled = Command::new("mpicc.mpich").arg("-O2").arg("-o").arg(&program).arg(source).output();
    if !compiled.as_ref().is_ok_and(|output| output.status.success()) {
        println!("SKIP: needs mpicc.mpich with its headers");
        return None;
    }
    let output = Command::new("mpiexec.hydra").args(["-n", "2"]).arg(program).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_collective_has_the_bits_of_mpich_at_two_ranks() {
    let Some(theirs) = theirs() else { return };
    let mut cases = 0;
    for (line, number) in theirs.lines().zip(1..) {
        let fields: Vec<&str> = line.split(' ').collect();
        let call = fields[0];
        let data_type = DataType::ALL.into_iter().find(|t| t.to_string() == fields[1]).unwrap();
        let op = Op::ALL.into_iter().find(|op| op.to_string() == fields[2]).unwrap();
        let count = fields[3].parse().unwrap();
        let hashes = match data_type {
            DataType::F64 => ours::<f64>(call, op, count, number),
            DataType::F32 => ours::<f32>(call, op, count, number),
            DataType::I8 => ours::<i8>(call, op, count, number),
            DataType::U8 => ours::<u8>(call, op, count, number),
            DataType::I16 => ours::<i16>(call, op, count, number),
            DataType::U16 => ours::<u16>(call, op, count, number),
            DataType::I32 => ours::<i32>(call, op, count, number),
            DataType::U32 => ours::<u32>(call, op, count, number),
            DataType::I64 => ours::<i64>(call, op, count, number),
            _ => ours::<u64>(call, op, count, number),
        };
        cases += 1;
        // MPICH 4.0.2 takes these for signed in min and max: of 122 and 149 it says that 149 is less.
        let signed_there = matches!(data_type, DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64);
        if signed_there && matches!(op, Op::Min | Op::Max) {
            continue;
        }
        let hashes: Vec<String> = hashes.iter().map(|hash| format!("{hash:016x}")).collect();
        // Of truth, MPI's first rank keeps its own number in a scan, libcomm's has 0 or 1 like all others.
        let alike = if call == "scan" && matches!(op, Op::All | Op::Any) { 1 } else { 0 };
        assert_eq!(hashes[alike..], fields[4 + alike..], "{line}");
    }
    let reducing = 2 * 4 + 8 * 9;
    assert_eq!(cases, reducing * (5 + 3 * 4) + 5 * 10 * 4);
}
