//! What goes wrong for users of other libraries, and must not here.

mod common;

use comm::node::JobSegment;
use comm::{Comm, CommError, DataType, Op};
use common::{CHUNK, JOB, in_segment, ranks, ranks_with};
use half::{bf16, f16};
use std::ffi::c_void;

/// The default chunks, as programs get them.
const WHOLE: usize = 256 * 1024;

// E01
#[test]
fn no_count_needs_to_divide_by_the_number_of_ranks() {
    for n in 2..=8 {
        ranks(n, |comm| {
            for count in [1, 2, 3, 5, 7, 17, 1023, 4097] {
                assert_sum_of_ramps(&comm, count);
            }
        });
    }
}

/// Rank r sends x[i] = (i mod 97) + r, so the sum is n (i mod 97) + n (n - 1) / 2; one more element behind the
/// buffer must stay.
fn assert_sum_of_ramps(comm: &Comm, count: usize) {
    let n = comm.size();
    let send: Vec<f32> = (0..count).map(|i| (i % 97) as f32 + comm.rank() as f32).collect();
    let mut recv = vec![-1.0f32; count + 1];
    comm.all_reduce(&send, &mut recv[..count], Op::Sum).unwrap();
    let wanted = |i: usize| (n as usize * (i % 97)) as f32 + (n * (n - 1) / 2) as f32;
    let wrong = (0..count).find(|i| recv[*i] != wanted(*i));
    assert_eq!(wrong, None, "{count} elements on {n} ranks");
    assert_eq!(recv[count], -1.0);
}

// E01
#[test]
fn ten_million_elements_are_right_as_f32_bf16_and_i8() {
    const COUNT: usize = 10_556_587;
    for n in [2, 3, 8] {
        ranks_with(
            n,
            WHOLE,
            |_| {},
            |comm| {
                assert_sum_of_ramps(&comm, COUNT);
                let me = comm.rank() as i32;
                // Sums of at most 8 * (13 + 7) are exact in bf16 while they stay below 256.
                let mut halves: Vec<bf16> = (0..COUNT).map(|i| bf16::from_f32((i % 13) as f32 + me as f32)).collect();
                comm.all_reduce_in_place(&mut halves, Op::Sum).unwrap();
                let wanted = |i: usize| (n as usize * (i % 13)) as i32 + (n * (n - 1) / 2) as i32;
                assert_eq!((0..COUNT).find(|i| halves[*i] != bf16::from_f32(wanted(*i) as f32)), None);
                let mut bytes: Vec<i8> = (0..COUNT).map(|i| ((i % 13) as i32 + me) as i8).collect();
                comm.all_reduce_in_place(&mut bytes, Op::Sum).unwrap();
                assert_eq!((0..COUNT).find(|i| bytes[*i] != wanted(*i) as i8), None);
            },
        );
    }
}

// E02
#[test]
fn any_address_that_is_aligned_to_its_element_works() {
    ranks(3, |comm| {
        for shift in 1..8 {
            for count in 1..=67 {
                misaligned::<f16>(&comm, shift, count, |x| f16::from_f32(x as f32));
                misaligned::<bf16>(&comm, shift, count, |x| bf16::from_f32(x as f32));
                misaligned::<f32>(&comm, shift % 4, count, |x| x as f32);
                misaligned::<i8>(&comm, shift, count, |x| x as i8);
            }
        }
    });
    ranks_with(
        2,
        WHOLE,
        |_| {},
        |comm| {
            misaligned::<f16>(&comm, 3, 1_000_003, |x| f16::from_f32(x as f32));
            misaligned::<i8>(&comm, 5, 1_000_003, |x| x as i8);
        },
    );
}

// E01, the ranks between
#[test]
fn ten_million_floats_are_right_for_every_number_of_ranks() {
    for n in 4..=7 {
        ranks_with(n, WHOLE, |_| {}, |comm| assert_sum_of_ramps(&comm, 10_556_587));
    }
}

/// Send and recv are off a line by different amounts, on each rank another.
fn misaligned<T: comm::Element + PartialEq + std::fmt::Debug>(
    comm: &Comm,
    shift: usize,
    count: usize,
    from: impl Fn(i32) -> T,
) {
    let (me, n) = (comm.rank() as usize, comm.size() as i32);
    let (before_send, before_recv) = (shift + me, shift + 2 * me + 1);
    let send: Vec<T> = (0..before_send + count).map(|i| from((i.saturating_sub(before_send) % 5) as i32)).collect();
    let mut recv = vec![from(99); before_recv + count + 3];
    comm.all_reduce(&send[before_send..], &mut recv[before_recv..before_recv + count], Op::Sum).unwrap();
    for (i, x) in recv.iter().enumerate() {
        let wanted = match i.checked_sub(before_recv) {
            Some(i) if i < count => from(n * (i % 5) as i32),
            _ => from(99),
        };
        assert_eq!(*x, wanted, "element {i}, {before_recv} before it");
    }
}

#[expect(unsafe_code, reason = "slices cannot be that wrong")]
fn raw_sum(comm: &Comm, send: *const c_void, recv: *mut c_void, count: usize) -> Result<(), CommError> {
    // SAFETY: each test gives addresses of enough floats, or ones that must be refused before they are used.
    unsafe { comm.all_reduce_raw(send, recv, count, DataType::F32, Op::Sum) }
}

// E02, E05
#[test]
fn addresses_that_cannot_be_right_are_refused_and_the_next_call_works() {
    ranks(2, |comm| {
        let mut buffer = [1.0f32; 32];
        let base = buffer.as_mut_ptr().cast::<c_void>();
        let null = std::ptr::null_mut();
        let refused = [
            (raw_sum(&comm, base.wrapping_byte_add(2), base.wrapping_byte_add(64), 8), "not aligned"),
            (raw_sum(&comm, base, base.wrapping_byte_add(66), 8), "not aligned"),
            (raw_sum(&comm, base, base.wrapping_byte_add(16), 8), "overlap"),
            (raw_sum(&comm, base.wrapping_byte_add(28), base, 8), "overlap"),
            (raw_sum(&comm, base, null, 8), "null"),
            (raw_sum(&comm, null, base, 8), "null"),
            (raw_sum(&comm, base, base, usize::MAX / 2), "more than memory"),
            (comm.all_reduce_in_place(&mut [1.0f32], Op::BitAnd), "for integers"),
            (comm.broadcast(&mut [0u8], 2), "root 2"),
            (comm.all_reduce(&[1.0f32], &mut [], Op::Sum), "lengths"),
            (comm.all_gather_in_place(&mut [0u8; 3]), "equal parts"),
        ];
        for (result, words) in refused {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
        assert!(buffer.iter().all(|x| *x == 1.0), "a refused call wrote");
        comm.all_reduce_in_place(&mut buffer, Op::Sum).unwrap();
        assert_eq!(buffer[0], 2.0);
    });
}

/// What each of two groups of ranks calls: `odd` is the one rank that differs.
fn mismatch(n: u32, odd: u32, usual: fn(&Comm) -> Result<(), CommError>, other: fn(&Comm) -> Result<(), CommError>) {
    let errors = ranks(n, |comm| {
        comm.barrier().unwrap();
        let call = if comm.rank() == odd { other } else { usual };
        let error = call(&comm).unwrap_err();
        let next = comm.barrier().unwrap_err();
        assert!(matches!(next, CommError::Unusable { .. }), "{next}");
        assert!(next.to_string().contains(&error.to_string()), "{next}");
        error.to_string()
    });
    for error in errors {
        // All name the same pair, as seen, or as told by one that saw it.
        let pair = ["rank 0 made call 2 ".to_owned(), format!("rank {} made call 2 ", odd.max(1))];
        assert!(error.contains(&pair[0]) && error.contains(&pair[1]), "{error}");
    }
}

fn sum_f32<const COUNT: usize>(comm: &Comm) -> Result<(), CommError> {
    comm.all_reduce(&[1.0f32; COUNT], &mut [0.0; COUNT], Op::Sum)
}

// E03
#[test]
fn ranks_that_call_different_things_all_get_an_error_that_names_two_of_them() {
    for n in 2..=4 {
        for odd in [0, n - 1] {
            mismatch(n, odd, sum_f32::<1000>, sum_f32::<1001>);
            mismatch(n, odd, sum_f32::<1000>, sum_f32::<1>);
            mismatch(n, odd, sum_f32::<1000>, sum_f32::<0>);
            // f32 and i64 of equal bytes
            mismatch(n, odd, sum_f32::<1000>, |comm| comm.all_reduce_in_place(&mut [1i64; 500], Op::Sum));
            mismatch(n, odd, sum_f32::<1000>, |comm| comm.all_reduce_in_place(&mut [1f32; 1000], Op::Max));
            mismatch(n, odd, sum_f32::<1000>, |comm| comm.barrier());
            mismatch(n, odd, |comm| comm.broadcast(&mut [0u8; 8], 0), |comm| comm.broadcast(&mut [0u8; 8], 1));
        }
    }
}

// E03, what stays legal
#[test]
fn in_place_on_one_rank_and_not_on_another_is_no_mismatch() {
    ranks(3, |comm| {
        let mut buffer = vec![comm.rank() as f32; 700];
        match comm.rank() {
            1 => comm.all_reduce_in_place(&mut buffer, Op::Sum).unwrap(),
            _ => comm.all_reduce(&buffer.clone(), &mut buffer, Op::Sum).unwrap(),
        }
        assert!(buffer.iter().all(|x| *x == 3.0));
    });
}

// E03
#[test]
fn a_rank_that_is_one_call_ahead_ends_in_an_error_on_all_ranks() {
    let errors = ranks(3, |comm| {
        let calls = if comm.rank() == 2 { 4 } else { 3 };
        let result = (0..calls).try_for_each(|_| comm.all_reduce_in_place(&mut [1.0f32; 10], Op::Sum));
        result.and_then(|()| comm.finalize()).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("call 4 allreduce sum f32 x 10") && error.contains("call 4 finalize"), "{error}");
    }
}

// E04
#[test]
fn nothing_to_send_is_a_call_like_any_other() {
    for n in [1, 2, 8] {
        ranks(n, |comm| {
            let null = std::ptr::null_mut();
            raw_sum(&comm, null, null, 0).unwrap();
            comm.all_reduce_in_place::<u8>(&mut [], Op::Max).unwrap();
            comm.all_gather::<f64>(&[], &mut []).unwrap();
            comm.reduce_scatter::<i8>(&[], &mut [], Op::Sum).unwrap();
            comm.broadcast::<i8>(&mut [], 0).unwrap();
            for _ in 0..if n == 8 { 500 } else { 5000 } {
                let mut one = [comm.rank() as i64 + 1];
                comm.all_reduce_in_place::<i64>(&mut [], Op::Sum).unwrap();
                comm.all_reduce_in_place(&mut one, Op::Sum).unwrap();
                assert_eq!(one[0], i64::from(n * (n + 1) / 2));
            }
        });
    }
}

// E04
#[test]
fn a_single_rank_gets_what_it_sent() {
    ranks(1, |comm| {
        let mut recv = [0.0f32; 5];
        comm.all_reduce(&[1.0, 2.0, 3.0, 4.0, 5.0], &mut recv, Op::Avg).unwrap();
        assert_eq!(recv, [1.0, 2.0, 3.0, 4.0, 5.0]);
        comm.all_reduce_in_place(&mut recv, Op::Prod).unwrap();
        comm.all_gather(&[9.0f32; 5], &mut recv).unwrap();
        assert_eq!(recv, [9.0; 5]);
    });
}

// E05
#[test]
fn in_place_and_out_of_place_give_the_same_bits_and_send_stays() {
    ranks(4, |comm| {
        let send: Vec<f32> = (0..3000).map(|i| 1.0 / (i + 3 * comm.rank() + 1) as f32).collect();
        let (mut recv, kept) = (vec![0.0; send.len()], send.clone());
        comm.all_reduce(&send, &mut recv, Op::Sum).unwrap();
        assert_eq!(send, kept);
        let mut buffer = send;
        comm.all_reduce_in_place(&mut buffer, Op::Sum).unwrap();
        assert!(buffer.iter().zip(&recv).all(|(a, b)| a.to_bits() == b.to_bits()));
    });
}

// E11
#[test]
fn an_average_is_over_the_ranks_and_integers_are_cut_towards_zero() {
    ranks(4, |comm| {
        for count in [10, 4] {
            let mut buffer = vec![comm.rank() as f32 * 4.0; count];
            comm.all_reduce_in_place(&mut buffer, Op::Avg).unwrap();
            assert_eq!(buffer, vec![6.0; count]);
        }
    });
    ranks(2, |comm| {
        let one = comm.rank() == 0;
        let mut buffer = if one { [-4i32, 4] } else { [-3, 3] };
        comm.all_reduce_in_place(&mut buffer, Op::Avg).unwrap();
        assert_eq!(buffer, [-3, 3]);
        let mut full = [100i8, -128, 127]; // their sums do not fit their type
        comm.all_reduce_in_place(&mut full, Op::Avg).unwrap();
        assert_eq!(full, [100, -128, 127]);
        let mut large = [i64::MAX, i64::MIN];
        comm.all_reduce_in_place(&mut large, Op::Avg).unwrap();
        assert_eq!(large, [i64::MAX, i64::MIN]);
    });
}

#[test]
fn integers_wrap_and_nan_and_the_sign_of_zero_stay() {
    ranks(2, |comm| {
        let mut sum = [i8::MAX];
        comm.all_reduce_in_place(&mut sum, Op::Sum).unwrap();
        assert_eq!(sum, [-2]);
        for op in [Op::Min, Op::Max] {
            let mut x = if comm.rank() == 0 { [f32::NAN, 1.0] } else { [1.0, f32::NAN] };
            comm.all_reduce_in_place(&mut x, op).unwrap();
            assert!(x[0].is_nan() && x[1].is_nan());
        }
        let mut zero = [-0.0f32];
        comm.all_reduce_in_place(&mut zero, Op::Sum).unwrap();
        assert!(zero[0].is_sign_negative());
    });
}

#[test]
fn half_precision_is_summed_in_single_and_rounded_once() {
    ranks(8, |comm| {
        // 2048 + 1 is 2048 in f16 if each sum is rounded; the true sum is 2048 + 7.
        let mut x = [f16::from_f32(if comm.rank() == 0 { 2048.0 } else { 1.0 })];
        comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
        assert_eq!(x[0], f16::from_f32(2055.0));
    });
}

/// Each rank sends its element, 50 times, alone and as one of many, and all get the same.
fn always_gives<T: comm::Element + PartialEq + std::fmt::Debug>(send: &[T], right: T) {
    ranks(send.len() as u32, |comm| {
        for _ in 0..50 {
            for count in [1, 9, 3000] {
                let mut x = vec![send[comm.rank() as usize]; count];
                comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
                assert!(x.iter().all(|x| *x == right), "{send:?} gives {:?}", x[0]);
            }
        }
    });
}

// E07
#[test]
fn sums_past_the_range_have_one_rule_for_each_type() {
    always_gives(&[f16::from_f32(40_000.0); 2], f16::INFINITY);
    always_gives(&[bf16::from_f32(70_000.0), bf16::from_f32(1.0)], bf16::from_f32(70_144.0));
    always_gives(&[120i8, 100], -36);
    always_gives(&[200u8, 100], 44);
    always_gives(&[i32::MAX, 1], i32::MIN);
    for big in 0..4 {
        let send: Vec<bf16> = (0..4).map(|rank| bf16::from_f32(if rank == big { 256.0 } else { 1.0 })).collect();
        // Added up in f32 and rounded once: 259 lies between 258 and 260, and the even one is taken.
        always_gives(&send, bf16::from_f32(260.0));
    }
}

// E09, on the host
#[test]
fn two_threads_of_a_rank_may_use_one_communicator_at_once() {
    ranks(2, |comm| {
        // Which thread's call meets which is open; all of them send the same, in calls that cannot be told apart.
        let calls = || {
            for _ in 0..2000 {
                let mut x = [1i64; 40];
                comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
                assert_eq!(x, [2; 40]);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(calls);
            calls();
        });
    });
}

// E09: in opposite order, and calls that can be told apart
#[test]
fn two_threads_whose_calls_do_not_fit_end_in_an_error_and_not_in_a_hang() {
    let change = |settings: &mut comm::Settings| settings.timeout = Some(std::time::Duration::from_secs(20));
    let failed = ranks_with(2, CHUNK, change, |comm| {
        // The first call of rank 0 is the sum of one, of rank 1 that of two elements.
        let first = 1 + comm.rank() as usize;
        let calls =
            |count: usize| (0..2000).try_for_each(|_| comm.all_reduce_in_place(&mut vec![1i32; count], Op::Sum));
        let one = comm.all_reduce_in_place(&mut vec![1i32; first], Op::Sum);
        let others = std::thread::scope(|scope| {
            let other = scope.spawn(|| calls(3 - first));
            [calls(first), other.join().unwrap()]
        });
        (one.map_err(|error| error.to_string()), others)
    });
    for (one, others) in failed {
        let text = one.unwrap_err();
        assert!(text.contains("x 1") && text.contains("x 2"), "{text}");
        assert!(others.iter().all(|call| matches!(call, Err(CommError::Unusable { .. }))), "{others:?}");
    }
}

#[test]
fn all_ranks_have_the_same_bits_with_each_algorithm() {
    use comm::Algorithm::{Chain, OneShot, Ring, TwoShot};
    for algorithm in [OneShot, TwoShot, Ring, Chain] {
        let results = ranks_with(
            5,
            CHUNK,
            |settings| settings.algorithm = Some(algorithm),
            |comm| {
                let mut x: Vec<f32> = (0..5000).map(|i| ((i * 7 + 13 * comm.rank()) as f32).sin()).collect();
                comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
                x.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            },
        );
        assert!(results.iter().all(|x| *x == results[0]), "{algorithm:?}");
    }
}

#[test]
fn with_invariant_the_bits_are_the_same_for_every_algorithm_size_and_place() {
    let element = |rank: u32, i: usize| ((i as u32 * 7 + 13 * rank) as f32).sin() * 10f32.powi(rank as i32 - 2);
    let bits = |algorithm: Option<comm::Algorithm>, count: usize, allocated: bool| {
        let change = |settings: &mut comm::Settings| {
            settings.algorithm = algorithm;
            settings.invariant = true;
        };
        let results = ranks_with(4, CHUNK, change, |comm| {
            let mut x: Vec<f32> = (0..count).map(|i| element(comm.rank(), i)).collect();
            match allocated {
                true => {
                    let mut there = comm.alloc::<f32>(count).unwrap();
                    there.copy_from_slice(&x);
                    comm.all_reduce_in_place(&mut there, Op::Sum).unwrap();
                    x.copy_from_slice(&there);
                }
                false => comm.all_reduce_in_place(&mut x, Op::Sum).unwrap(),
            }
            x.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        });
        assert!(results.iter().all(|x| *x == results[0]));
        results[0].clone()
    };
    let wanted = bits(None, 5000, false);
    use comm::Algorithm::{Chain, OneShot, Ring, TwoShot};
    for algorithm in [OneShot, TwoShot, Ring, Chain] {
        assert_eq!(bits(Some(algorithm), 5000, false), wanted, "{algorithm:?}");
    }
    assert_eq!(bits(None, 5000, true), wanted);
    for count in [1, 7, 26, 27, 300, 2048, 2049] {
        assert_eq!(bits(None, count, false), wanted[..count], "{count} elements");
    }
}

#[test]
fn a_peer_that_has_left_is_an_error_and_not_a_hang() {
    let errors = ranks(4, |comm| {
        for _ in 0..10 {
            comm.barrier().unwrap();
        }
        match comm.rank() {
            3 => {
                drop(comm); // leaves without waiting for anyone
                None
            }
            _ => Some(comm.all_reduce_in_place(&mut [1.0f32; 100], Op::Sum).unwrap_err()),
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 3 has left the communicator"), "{error}");
    }
}

#[test]
fn a_deadline_ends_a_wait_and_names_who_did_not_come() {
    let late = std::sync::Barrier::new(2);
    let limit = |settings: &mut comm::Settings| settings.timeout = Some(std::time::Duration::from_millis(50));
    ranks_with(2, CHUNK, limit, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            let error = comm.barrier().unwrap_err();
            assert!(matches!(error, CommError::Timeout { rank: 1, .. }), "{error}");
            late.wait();
        } else {
            late.wait();
            let error = comm.barrier().unwrap_err().to_string();
            assert!(error.contains("rank 0 failed") && error.contains("waited"), "{error}");
        }
    });
}

#[test]
fn abort_ends_the_waits_of_all_ranks() {
    let errors = ranks(3, |comm| match comm.rank() {
        1 => comm.abort().to_string(),
        _ => comm.barrier().unwrap_err().to_string(),
    });
    for error in errors {
        assert!(error.contains("rank 1 called abort"), "{error}");
    }
}

#[test]
fn a_second_program_of_each_rank_joins_once_the_first_has_left() {
    let segment = JobSegment::create_with_chunks(JOB, 3, 3, CHUNK).unwrap();
    for round in 1..=4u32 {
        in_segment(
            &segment,
            3,
            |_| {},
            |comm| {
                let comm = comm.unwrap();
                let mut x = [round; 300];
                comm.all_reduce_in_place(&mut x, Op::Sum).unwrap();
                assert_eq!(x, [3 * round; 300]);
                if round % 2 == 0 {
                    comm.finalize().unwrap();
                }
            },
        );
        assert_eq!(segment.rank_report(2).generation, round);
        assert!(!segment.rank_report(2).joined);
    }
}

#[test]
fn programs_that_run_ahead_into_the_next_generation_disturb_nobody() {
    let segment = JobSegment::create_with_chunks(JOB, 4, 4, CHUNK).unwrap();
    // Each thread runs its programs one after the other, as fast as it can.
    let start = |number: u32| {
        for round in 0..200u32 {
            let comm = Comm::attach(segment.as_fd(), comm::Settings::of(JOB, number, 4)).unwrap();
            let mut x = [round + number; 300];
            comm.all_reduce_in_place(&mut x, Op::Max).unwrap();
            assert_eq!(x, [round + 3; 300]);
        }
    };
    std::thread::scope(|scope| {
        let start = &start;
        (0..4).for_each(|number| drop(scope.spawn(move || start(number))));
    });
}

#[test]
fn two_programs_of_one_rank_at_once_are_refused() {
    let segment = JobSegment::create(JOB, 1, 1).unwrap();
    let settings = comm::Settings::of(JOB, 0, 1);
    let first = Comm::attach(segment.as_fd(), settings.clone()).unwrap();
    let error = Comm::attach(segment.as_fd(), settings.clone()).unwrap_err();
    assert!(matches!(error, CommError::AlreadyJoined { rank: 0, .. }), "{error}");
    first.barrier().unwrap();
    drop(first);
    Comm::attach(segment.as_fd(), settings).unwrap().barrier().unwrap();
}

/// The formula of docs/host-collectives.md, with all pages counted that a slot begins or ends in.
#[test]
fn the_segment_takes_no_more_memory_than_is_said() {
    const PAGE: usize = 4096;
    use comm::Algorithm::{Chain, OneShot, TwoShot};
    for n in [2usize, 3, 8] {
        // Two ranks change parts from step to step, and so would a chain that is forced on them, from call to call.
        let algorithms = [None, Some(OneShot), Some(TwoShot), Some(Chain)];
        for algorithm in algorithms.into_iter().filter(|algorithm| n > 2 || *algorithm != Some(Chain)) {
            for bytes in [8, 20_000, 200_000, 3_000_000] {
                let segment = JobSegment::create(JOB, n as u32, n as u32).unwrap();
                let change = |settings: &mut comm::Settings| settings.algorithm = algorithm;
                in_segment(&segment, n as u32, change, |comm| {
                    let comm = comm.unwrap();
                    for _ in 0..3 {
                        comm.all_reduce_in_place(&mut vec![1.0f32; bytes / 4], Op::Sum).unwrap();
                    }
                    comm.finalize().unwrap();
                });
                let used = rustix::fs::fstat(segment.as_fd()).unwrap().st_blocks as usize * 512;
                let front = PAGE + (4 * n).next_multiple_of(PAGE) + 2 * PAGE * n;
                let part = bytes.min(WHOLE);
                let slots = 2 * n * (part + part / n + 4 * PAGE);
                assert!(used <= front + slots, "{used} of {front} + {slots}, {n} ranks, {bytes} bytes, {algorithm:?}");
                // Whatever goes through slots has been there.
                assert!(bytes < 20_000 || used > bytes.min(WHOLE), "{used}, {n} ranks, {bytes} bytes, {algorithm:?}");
            }
        }
    }
}
