//! Messages between two ranks: every size, every pair, beside collectives, and what goes wrong.

mod common;

use comm::{Comm, CommError, Element, Settings, Verify};
use common::{CHUNK, ranks, ranks_with};
use std::time::Duration;

/// What a cell holds: 32 KiB less its head.
const PIECE: usize = 32 * 1024 - 64;

/// Around the edges of a cell and of all cells, in bytes.
const SIZES: [usize; 12] =
    [0, 1, 63, 64, PIECE - 1, PIECE, PIECE + 1, 7 * PIECE, 8 * PIECE, 8 * PIECE + 1, 9 * PIECE + 5, 40 * PIECE + 3];

fn pattern(from: u32, to: u32, size: usize, round: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 + 7 * from as usize + 13 * to as usize + 101 * round) as u8).collect()
}

#[test]
fn every_size_arrives_between_every_pair_three_times_in_a_row() {
    for n in [2, 3] {
        ranks(n, |comm| {
            let me = comm.rank();
            for size in SIZES {
                for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(a, b)| a != b) {
                    for round in 0..3 {
                        if me == from {
                            comm.send(&pattern(from, to, size, round), to, round as u32).unwrap();
                        }
                        if me == to {
                            let mut found = vec![0xa5u8; size + 1];
                            comm.recv(&mut found[..size], from, round as u32).unwrap();
                            assert!(found[..size] == pattern(from, to, size, round), "{size} bytes {from} to {to}");
                            assert_eq!(found[size], 0xa5);
                        }
                    }
                }
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn data_goes_round_rings_of_any_number_of_ranks() {
    for n in 1..=5 {
        ranks(n, |comm| {
            let (me, next, last) = (comm.rank(), (comm.rank() + 1) % n, (comm.rank() + n - 1) % n);
            for size in SIZES {
                let mut found = vec![0u8; size];
                comm.send_recv(&pattern(me, next, size, 0), next, &mut found, last, 7).unwrap();
                assert!(found == pattern(last, me, size, 0), "{size} bytes in a ring of {n}");
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_send_and_a_receive_of_other_sizes_and_peers_go_together() {
    ranks(3, |comm| {
        // 0 sends much to 1, 1 a little to 2, 2 nothing to 0.
        let counts = [300_000usize, 5, 0];
        let (me, next, last) = (comm.rank() as usize, (comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        for round in 0..20u32 {
            let mut found = vec![0u32; counts[last as usize]];
            comm.send_recv(&vec![round + comm.rank(); counts[me]], next, &mut found, last, round).unwrap();
            assert!(found.iter().all(|x| *x == round + last));
        }
    });
}

#[test]
fn a_message_that_has_room_does_not_wait_for_its_receiver() {
    ranks(2, |comm| {
        let peer = 1 - comm.rank();
        // Both send first; with more than that both would wait.
        comm.send(&vec![comm.rank() as u8; 8 * PIECE], peer, 0).unwrap();
        let mut found = vec![9u8; 8 * PIECE];
        comm.recv(&mut found, peer, 0).unwrap();
        assert!(found.iter().all(|x| *x == peer as u8));
        // And to oneself.
        comm.send(&[1u64, 2], comm.rank(), 3).unwrap();
        let mut two = [0u64; 2];
        comm.recv(&mut two, comm.rank(), 3).unwrap();
        assert_eq!(two, [1, 2]);
        let error = comm.send(&vec![0u8; 8 * PIECE], comm.rank(), 0).unwrap_err().to_string();
        assert!(error.contains("use sendrecv"), "{error}");
        let mut back = vec![0u8; 20 * PIECE];
        comm.send_recv(&vec![3u8; 20 * PIECE], comm.rank(), &mut back, comm.rank(), 0).unwrap();
        assert!(back.iter().all(|x| *x == 3));
        comm.finalize().unwrap();
    });
}

#[test]
fn data_from_comm_alloc_is_taken_from_where_it_lies() {
    ranks(2, |comm| {
        for round in 0..5u32 {
            let mut shared = comm.alloc::<u32>(200_000).unwrap();
            if comm.rank() == 0 {
                shared.fill(round + 1);
                comm.send(&shared, 1, 0).unwrap();
            } else {
                comm.recv(&mut shared, 0, 0).unwrap();
                assert!(shared.iter().all(|x| *x == round + 1));
            }
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn messages_and_collectives_mix_in_any_order() {
    ranks(4, |comm| {
        let me = comm.rank();
        for round in 0..200u32 {
            let peer = me ^ 1;
            let mut found = [0u32; 100];
            match (me + round) % 2 {
                0 => {
                    comm.send(&[me + round; 100], peer, round).unwrap();
                    comm.recv(&mut found, peer, round).unwrap();
                }
                _ => {
                    comm.recv(&mut found, peer, round).unwrap();
                    comm.send(&[me + round; 100], peer, round).unwrap();
                }
            }
            assert_eq!(found, [peer + round; 100]);
            let mut sum = [me as i32; 50];
            comm.all_reduce_in_place(&mut sum, comm::Op::Sum).unwrap();
            assert_eq!(sum, [6; 50]);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn the_first_message_may_come_while_another_thread_is_in_a_collective() {
    ranks(2, |comm| {
        let (comm, me) = (&comm, comm.rank());
        std::thread::scope(|scope| {
            // Rank 0 is in the barrier until rank 1 has its message.
            let barrier = scope.spawn(move || {
                if me == 1 {
                    comm.recv(&mut [0u8; 3], 0, 0).unwrap();
                }
                comm.barrier().unwrap();
            });
            if me == 0 {
                std::thread::sleep(Duration::from_millis(20));
                comm.send(&[7u8; 3], 1, 0).unwrap();
            }
            barrier.join().unwrap();
        });
    });
}

#[test]
fn a_thread_that_waits_for_a_message_stops_no_other_call() {
    ranks(2, |comm| {
        let (comm, me) = (&comm, comm.rank());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let mut found = [0u8; 3];
                comm.recv(&mut found, 1 - me, 0).unwrap();
                found
            });
            for _ in 0..100 {
                comm.barrier().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20)); // the other thread sleeps by now
            let mut sum = [1u8; 200];
            comm.all_reduce_in_place(&mut sum, comm::Op::Sum).unwrap();
            comm.send(&[me as u8; 3], 1 - me, 0).unwrap();
            assert_eq!(waiting.join().unwrap(), [1 - me as u8; 3]);
        });
    });
}

/// Rank 0 sends, rank 1 receives, and then both meet: the error names what both did.
fn differ<T: Element + Default, U: Element + Default>(sent: usize, wanted: usize, tags: [u32; 2], words: [&str; 2]) {
    let errors = ranks(2, |comm| {
        let result = match comm.rank() {
            0 => comm.send(&vec![T::default(); sent], 1, tags[0]),
            _ => comm.recv(&mut vec![U::default(); wanted], 0, tags[1]),
        };
        result.and_then(|()| comm.barrier()).unwrap_err().to_string()
    });
    for error in errors {
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
}

#[test]
fn a_message_that_is_not_the_one_wanted_is_an_error_on_both_sides_that_names_both() {
    let sent = "rank 0 made message 1 send f32 x 10 to rank 1 with tag 4";
    differ::<f32, f32>(10, 11, [4, 4], [sent, "rank 1 made message 1 recv f32 x 11 from rank 0 with tag 4"]);
    differ::<f32, i32>(10, 10, [4, 4], [sent, "rank 1 made message 1 recv i32 x 10 from rank 0 with tag 4"]);
    differ::<f32, f32>(10, 10, [4, 5], [sent, "rank 1 made message 1 recv f32 x 10 from rank 0 with tag 5"]);
    // Also where the sender waits.
    let long = "rank 0 made message 1 send f64 x 900000 to rank 1 with tag 0";
    differ::<f64, f64>(900_000, 1, [0, 0], [long, "recv f64 x 1 from rank 0"]);
}

#[test]
fn arguments_that_cannot_be_right_are_refused_and_the_next_call_works() {
    ranks(2, |comm| {
        for (error, words) in [
            (comm.send(&[0u8], 2, 0), "2 is none of the 2 ranks"),
            (comm.recv(&mut [0u8], 7, 0), "7 is none of the 2 ranks"),
            (comm.send(&[0u8], 0, u32::MAX), "tag 4294967295"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn a_peer_that_is_gone_ends_the_wait() {
    let errors = ranks(3, |comm| match comm.rank() {
        0 => {
            comm.send(&[1u8; 10], 1, 0).unwrap();
            None // drops its communicator
        }
        1 => {
            let mut found = [0u8; 10];
            comm.recv(&mut found, 0, 0).unwrap(); // what was sent before counts
            assert_eq!(found, [1; 10]);
            Some(comm.recv(&mut found, 0, 0).unwrap_err().to_string())
        }
        _ => Some(comm.send(&vec![0u8; 20 * PIECE], 0, 0).unwrap_err().to_string()),
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("rank 0 has left the communicator") || error.contains("failed"), "{error}");
    }
}

#[test]
fn a_deadline_ends_a_wait_and_names_the_message() {
    let limit = |settings: &mut Settings| settings.timeout = Some(Duration::from_millis(50));
    let late = std::sync::Barrier::new(2);
    ranks_with(2, CHUNK, limit, |comm| {
        if comm.rank() == 0 {
            let error = comm.recv(&mut [0i16; 4], 1, 9).unwrap_err();
            assert!(matches!(error, CommError::Timeout { rank: 1, .. }), "{error}");
            assert!(error.to_string().contains("message 1 recv i16 x 4 from rank 1 with tag 9"), "{error}");
        }
        late.wait();
    });
}

#[test]
fn a_message_that_nobody_received_is_told_at_the_end() {
    let results = ranks(2, |comm: Comm| {
        if comm.rank() == 0 {
            comm.send(&[1u8], 1, 0).unwrap();
        }
        comm.finalize().err().map(|error| error.to_string())
    });
    assert_eq!(results[1], None);
    let error = results[0].as_ref().unwrap();
    assert!(error.contains("a message to rank 1 was never received, of 1 that were sent"), "{error}");
}

#[test]
fn checksums_of_messages_are_right() {
    ranks_with(
        2,
        CHUNK,
        |settings| settings.verify = Verify::Every,
        |comm| {
            let me = comm.rank();
            for size in SIZES {
                let mut found = vec![0u8; size];
                comm.send_recv(&pattern(me, 1 - me, size, 1), 1 - me, &mut found, 1 - me, 0).unwrap();
                assert!(found == pattern(1 - me, me, size, 1));
            }
        },
    );
}
