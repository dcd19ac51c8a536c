//! Communicators made of others: members, order, independence, and that their memory comes back.

mod common;

use comm::{Comm, CommError, Op};
use common::{CHUNK, JOB, in_segment, ranks};

fn sum(comm: &Comm, value: i64, count: usize) -> i64 {
    let mut data = vec![value; count];
    comm.all_reduce_in_place(&mut data, Op::Sum).unwrap();
    assert!(data.iter().all(|x| *x == data[0]));
    data[0]
}

#[test]
fn ranks_of_one_color_are_together_in_the_order_of_their_keys() {
    ranks(6, |comm| {
        let me = comm.rank();
        // Even and odd ones, backwards; rank 5 is in none.
        let color = (me != 5).then_some(me % 2);
        let part = comm.split(color, -(me as i32)).unwrap();
        match part {
            None => assert_eq!(me, 5),
            Some(part) => {
                let members: &[u32] = if me % 2 == 0 { &[4, 2, 0] } else { &[3, 1] };
                assert_eq!(part.size() as usize, members.len());
                assert_eq!(members[part.rank() as usize], me);
                let wanted: i64 = members.iter().map(|rank| i64::from(*rank)).sum();
                for count in [1, 100, 3000] {
                    assert_eq!(sum(&part, i64::from(me), count), wanted);
                }
                let mut all = vec![0u32; part.size() as usize];
                part.all_gather(&[me], &mut all).unwrap();
                assert_eq!(all, members);
                let mut root = [me];
                part.broadcast(&mut root, 1).unwrap();
                assert_eq!(root[0], members[1]);
                part.finalize().unwrap();
            }
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn parent_and_parts_are_used_in_any_order_that_all_their_ranks_keep() {
    ranks(4, |comm| {
        let me = i64::from(comm.rank());
        let rows = comm.split(Some(comm.rank() / 2), 0).unwrap().unwrap();
        let columns = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
        let copy = comm.dup().unwrap();
        for round in 0..150usize {
            let count = [1, 20, 700][round % 3];
            let row = || assert_eq!(sum(&rows, me, count), if me < 2 { 1 } else { 5 });
            let column = || assert_eq!(sum(&columns, me, count), if me % 2 == 0 { 2 } else { 4 });
            // Rows on the left go first where columns on the right do: no two communicators share an order.
            if me < 2 {
                row();
                column();
            } else {
                column();
                row();
            }
            assert_eq!(sum(&copy, me, count), 6);
            if round % 10 == 0 {
                assert_eq!(sum(&comm, me, count), 6);
            }
            // Messages of different communicators do not meet either.
            let mut two = [[0i64]; 2];
            let peer = columns.rank() ^ 1;
            columns.send(&[me], peer, 0).unwrap();
            copy.send(&[10 + me], (comm.rank() + 2) % 4, 0).unwrap();
            copy.recv(&mut two[0], (comm.rank() + 2) % 4, 0).unwrap();
            columns.recv(&mut two[1], peer, 0).unwrap();
            let other = (me + 2) % 4;
            assert_eq!(two, [[10 + other], [other]]);
        }
        for part in [rows, columns, copy] {
            part.finalize().unwrap();
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn parts_of_parts_work_and_zero_copy_too() {
    ranks(8, |comm| {
        let half = comm.split(Some(comm.rank() / 4), 0).unwrap().unwrap();
        let quarter = half.split(Some(half.rank() / 2), 0).unwrap().unwrap();
        assert_eq!(quarter.size(), 2);
        let mut shared = quarter.alloc::<u64>(5000).unwrap();
        shared.fill(u64::from(comm.rank()) + 1);
        quarter.all_reduce_in_place(&mut shared, Op::Sum).unwrap();
        let low = u64::from(comm.rank() / 2 * 2);
        assert!(shared.iter().all(|x| *x == 2 * low + 3));
        drop(shared);
        // In the middle of the use of the others.
        quarter.finalize().unwrap();
        assert_eq!(sum(&half, 1, 3000), 4);
        half.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn a_thousand_copies_one_after_the_other_take_no_more_memory_than_one() {
    let segment = comm::node::JobSegment::create_with_chunks(JOB, 2, 2, CHUNK).unwrap();
    let blocks = || rustix::fs::fstat(segment.as_fd()).unwrap().st_blocks * 512;
    let taken = in_segment(
        &segment,
        2,
        |_| {},
        |comm| {
            let comm = comm.unwrap();
            let mut taken = Vec::new();
            for round in 0..1000 {
                let copy = comm.dup().unwrap();
                assert_eq!(sum(&copy, 1, 4000), 2);
                copy.send(&vec![0u8; 100_000], 1 - comm.rank(), 0).unwrap();
                copy.recv(&mut vec![0u8; 100_000], 1 - comm.rank(), 0).unwrap();
                copy.finalize().unwrap();
                if round == 10 || round == 999 {
                    comm.barrier().unwrap();
                    taken.push(blocks());
                    comm.barrier().unwrap();
                }
            }
            comm.finalize().unwrap();
            taken
        },
    );
    println!("the segment takes {:?} bytes after 11 and after 1000", taken[0]);
    assert!(taken[0][1] <= taken[0][0] + 64 * 1024, "{taken:?}");
}

#[test]
fn ranks_that_call_different_things_on_a_part_get_an_error_that_names_it() {
    let errors = ranks(4, |comm| {
        let part = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
        let result = match comm.rank() {
            3 => part.all_reduce_in_place(&mut [0f32; 7], Op::Sum),
            _ => part.all_reduce_in_place(&mut [0f32; 8], Op::Sum),
        };
        result.and_then(|()| comm.barrier()).unwrap_err().to_string()
    });
    for error in errors {
        let words =
            ["rank 1 made call 1 allreduce sum f32 x 8 on communicator 1", "rank 3 made call 1 allreduce sum f32 x 7"];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
}

#[test]
fn a_member_that_drops_its_part_ends_the_others_wait() {
    let errors = ranks(3, |comm| {
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        part.barrier().unwrap();
        match comm.rank() {
            1 => {
                drop(part);
                comm.barrier().unwrap_err().to_string()
            }
            _ => part.barrier().unwrap_err().to_string(),
        }
    });
    assert!(errors.iter().all(|error| error.contains("rank 1 has left the communicator")), "{errors:?}");
}

#[test]
fn the_jobs_own_communicator_comes_last() {
    ranks(2, |comm| {
        let copy = comm.dup().unwrap();
        comm.finalize().unwrap();
        let error = copy.barrier().unwrap_err();
        assert!(matches!(error, CommError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("was left"), "{error}");
    });
}

#[test]
fn a_lone_program_splits_too() {
    ranks(1, |comm| {
        let alone = comm.split(Some(3), 0).unwrap().unwrap();
        assert_eq!(sum(&alone, 5, 10), 5);
        assert!(comm.split(None, 0).unwrap().is_none());
        alone.finalize().unwrap();
        comm.finalize().unwrap();
    });
}
