//! Handles swap in two phases: all get all, or all take the same fallback.

mod common;

use comm::{CommError, Exchanged, Refusal};
use common::ranks;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_rank_opens_what_each_peer_published() {
    ranks(5, |comm| {
        for round in 0..20u8 {
            let me = comm.rank() as u8;
            let opened = comm.exchange(&[me, round, 7], |peer, blob| Ok((peer, blob.to_vec()))).unwrap();
            let Exchanged::All(opened) = opened else { panic!("nobody refused") };
            for (rank, thing) in (0u32..).zip(opened) {
                let wanted = (rank != comm.rank()).then(|| (rank, vec![rank as u8, round, 7]));
                assert_eq!(thing, wanted);
            }
        }
    });
}

#[test]
fn one_that_cannot_open_makes_all_take_the_same_fallback_and_drop_what_they_opened() {
    struct Open<'a>(&'a AtomicUsize);
    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let open = AtomicUsize::new(0);
    for failing in 0..4 {
        for peer_that_fails in (0..4).filter(|peer| *peer != failing) {
            let results = ranks(4, |comm| {
                let me = comm.rank();
                let result = comm.exchange(&[1; 100], |peer, _| match (me, peer) {
                    (rank, peer) if rank == failing && peer == peer_that_fails => Err("no peer access".to_owned()),
                    _ => {
                        open.fetch_add(1, Ordering::Relaxed);
                        Ok(Open(&open))
                    }
                });
                let Exchanged::Fallback(refusal) = result.unwrap() else { panic!("one refused") };
                comm.barrier().unwrap(); // a fallback is no failure
                refusal
            });
            let wanted = Refusal { rank: failing, peer: peer_that_fails, why: "no peer access".into() };
            assert!(results.iter().all(|refusal| *refusal == wanted), "{results:?}");
            assert_eq!(open.load(Ordering::Relaxed), 0);
        }
    }
}

#[test]
fn several_that_cannot_open_still_give_one_fallback() {
    let results = ranks(4, |comm| {
        let me = comm.rank();
        let result = comm.exchange(&[1], |peer, _| if me >= 2 { Err(format!("{me} of {peer}")) } else { Ok(()) });
        match result.unwrap() {
            Exchanged::Fallback(refusal) => refusal,
            Exchanged::All(_) => panic!("two refused"),
        }
    });
    assert!(results.iter().all(|r| *r == Refusal { rank: 2, peer: 0, why: "2 of 0".into() }), "{results:?}");
}

#[test]
fn a_rank_that_leaves_in_the_middle_ends_the_exchange_with_an_error() {
    let errors = ranks(3, |comm| match comm.rank() {
        2 => None,
        _ => Some(comm.exchange(&[1], |_, _| Ok(())).unwrap_err()),
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, CommError::RankLeft { rank: 2, .. } | CommError::PeerFailed { .. }), "{error}");
        assert!(error.to_string().contains("rank 2 has left"), "{error}");
    }
}
