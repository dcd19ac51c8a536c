//! Calls that return before they are done: order, overlap, and requests that nobody waits for.

mod common;

use comm::{Op, Settings};
use common::{CHUNK, ranks, ranks_with};
use std::time::Duration;

#[test]
fn requests_and_blocking_calls_happen_in_the_order_in_which_they_are_made() {
    for n in [1, 2, 4] {
        ranks(n, |comm| {
            let me = i64::from(comm.rank());
            let all = i64::from(n * (n - 1) / 2);
            for round in 0..30 {
                let count = [1, 30, 2000][round % 3];
                let first = comm.start_all_reduce(vec![me; count], Op::Sum).unwrap();
                let second = comm.start_all_reduce(vec![me; 3], Op::Max).unwrap();
                // A blocking call on some ranks, a request on others: it is the same call.
                let third = match (comm.rank() + round as u32) % 2 {
                    0 => {
                        let mut data = [me + 1; 100];
                        comm.all_reduce_in_place(&mut data, Op::Sum).unwrap();
                        assert!(second.test() && first.test(), "they come before");
                        data.to_vec()
                    }
                    _ => comm.start_all_reduce(vec![me + 1; 100], Op::Sum).unwrap().wait().unwrap(),
                };
                assert_eq!(third, vec![all + i64::from(n); 100]);
                let barrier = comm.start_barrier().unwrap();
                assert_eq!(second.wait().unwrap(), vec![i64::from(n) - 1; 3]);
                assert_eq!(first.wait().unwrap(), vec![all; count]);
                barrier.wait().unwrap();
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_request_is_carried_on_while_its_program_makes_no_call() {
    ranks(3, |comm| {
        let request = comm.start_all_reduce(vec![1u32; 5000], Op::Sum).unwrap();
        let began = std::time::Instant::now();
        while !request.test() {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody carries it on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(request.wait().unwrap(), vec![3; 5000]);
    });
}

#[test]
fn a_barrier_that_not_all_have_started_is_not_done() {
    let other = std::sync::Barrier::new(2);
    ranks(2, |comm| {
        if comm.rank() == 0 {
            let request = comm.start_barrier().unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert!(!request.test());
            other.wait();
            request.wait().unwrap();
        } else {
            other.wait();
            comm.barrier().unwrap();
        }
    });
}

#[test]
fn messages_do_not_wait_for_requests() {
    ranks(2, |comm| {
        let mut found = [0u8; 4];
        if comm.rank() == 0 {
            let request = comm.start_barrier().unwrap();
            comm.send(&[1u8; 4], 1, 0).unwrap();
            comm.recv(&mut found, 1, 0).unwrap();
            request.wait().unwrap();
        } else {
            comm.recv(&mut found, 0, 0).unwrap();
            comm.send(&found, 0, 0).unwrap();
            comm.barrier().unwrap();
        }
        assert_eq!(found, [1; 4]);
        comm.finalize().unwrap();
    });
}

#[test]
fn requests_on_parts_are_independent_of_each_other() {
    ranks(4, |comm| {
        let part = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
        for _ in 0..20 {
            let of_all = comm.start_all_reduce(vec![1i32; 3000], Op::Sum).unwrap();
            let of_part = part.start_all_reduce(vec![1i32; 3000], Op::Sum).unwrap();
            assert_eq!(of_part.wait().unwrap(), vec![2; 3000]);
            assert_eq!(of_all.wait().unwrap(), vec![4; 3000]);
        }
        part.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn a_request_that_nobody_waited_for_is_told_at_the_end() {
    let errors = ranks(2, |comm| {
        drop(comm.start_all_reduce(vec![1u8; 100], Op::Sum).unwrap());
        if comm.rank() == 0 {
            drop(comm.start_barrier().unwrap());
        } else {
            comm.start_barrier().unwrap().wait().unwrap();
        }
        comm.finalize().unwrap_err().to_string()
    });
    assert_eq!(errors[0], "finalize: 2 requests were never waited for");
    assert_eq!(errors[1], "finalize: 1 request was never waited for");
}

#[test]
fn a_communicator_that_is_dropped_with_a_request_open_ends_it_for_all() {
    let errors = ranks(3, |comm| {
        if comm.rank() == 0 {
            drop(comm.start_barrier().unwrap()); // the others never come
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
        Some(comm.all_reduce_in_place(&mut [1f32; 9], Op::Sum).unwrap_err().to_string())
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("dropped while a request was not done"), "{error}");
    }
}

#[test]
fn what_goes_wrong_in_a_request_is_told_by_its_wait() {
    let limit = |settings: &mut Settings| settings.timeout = Some(Duration::from_millis(50));
    let late = std::sync::Barrier::new(2);
    ranks_with(2, CHUNK, limit, |comm| {
        if comm.rank() == 0 {
            let request = comm.start_all_reduce(vec![0f32; 10], Op::Sum).unwrap();
            let error = request.wait().unwrap_err().to_string();
            assert!(error.contains("waited") && error.contains("call 1 allreduce sum f32 x 10"), "{error}");
            assert!(comm.start_barrier().unwrap().wait().is_err());
        }
        late.wait();
    });
}
