//! MPICH as an oracle at two ranks: the same inputs through MPI_Allreduce and through libcomm, to the bit. With two ranks
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

/// The hash of the result of one case, from libcomm.
fn ours<T: Word>(op: Op, count: usize, number: u64) -> u64 {
    let results = ranks_with(
        2,
        CHUNK,
        |_| {},
        |comm| {
            let mut x: Vec<T> = (0..count).map(|i| T::from_word(input(comm.rank(), i, number))).collect();
            comm.all_reduce_in_place(&mut x, op).unwrap();
            let bytes = x.into_iter().flat_map(Word::bytes);
            bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        },
    );
    assert_eq!(results[0], results[1]);
    results[0]
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
fn allreduce_has_the_bits_of_mpich_at_two_ranks() {
    let Some(theirs) = theirs() else { return };
    let mut cases = 0;
    for (line, number) in theirs.lines().zip(1..) {
        let fields: Vec<&str> = line.split(' ').collect();
        let data_type = DataType::ALL.into_iter().find(|t| t.to_string() == fields[0]).unwrap();
        let op = Op::ALL.into_iter().find(|op| op.to_string() == fields[1]).unwrap();
        let count = fields[2].parse().unwrap();
        let hash = match data_type {
            DataType::F64 => ours::<f64>(op, count, number),
            DataType::F32 => ours::<f32>(op, count, number),
            DataType::I8 => ours::<i8>(op, count, number),
            DataType::U8 => ours::<u8>(op, count, number),
            DataType::I16 => ours::<i16>(op, count, number),
            DataType::U16 => ours::<u16>(op, count, number),
            DataType::I32 => ours::<i32>(op, count, number),
            DataType::U32 => ours::<u32>(op, count, number),
            DataType::I64 => ours::<i64>(op, count, number),
            _ => ours::<u64>(op, count, number),
        };
        cases += 1;
        // MPICH 4.0.2 takes these for signed in min and max: of 122 and 149 it says that 149 is less.
        let signed_there = matches!(data_type, DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64);
        if signed_there && matches!(op, Op::Min | Op::Max) {
            continue;
        }
        assert_eq!(format!("{hash:016x}"), fields[3], "{line}");
    }
    assert_eq!(cases, 6 * (2 * 4 + 8 * 9));
}
