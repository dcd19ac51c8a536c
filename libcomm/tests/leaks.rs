//! Joining and leaving leaves nothing behind in the process. Alone in its file, since it counts for the process.

mod common;

use comm::node::{JobSegment, JoinServer};
use comm::{Comm, Op};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of segments and of anonymous memory; the allocator may keep some of the latter.
fn mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (maps.lines().filter(|line| line.contains("memfd:libcomm")).count(), maps.lines().count())
}

#[test]
fn a_hundred_communicators_leave_no_descriptor_and_no_mapping() {
    let round = || {
        let comm = Comm::init().unwrap();
        comm.all_reduce_in_place(&mut [1.0f32; 100], Op::Sum).unwrap();
        comm.finalize().unwrap();
        let segment = JobSegment::create(common::JOB, 3, 3).unwrap();
        let server = JoinServer::bind(common::JOB, 0).unwrap();
        common::in_segment(&segment, 3, |_| {}, |comm| comm.unwrap().barrier().unwrap());
        drop((segment, server));
    };
    round();
    let (open, (_, all)) = (descriptors(), mappings());
    (0..100).for_each(|_| round());
    assert_eq!(descriptors(), open);
    let (segments, all_after) = mappings();
    assert_eq!(segments, 0);
    assert!(all_after <= all + 20, "{all} mappings before, {all_after} after a hundred rounds");
}
