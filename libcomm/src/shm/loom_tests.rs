//! The shipped barrier, slot, bell, abort and mailbox code under loom, which tries the orders in which threads
//! can run and writes can be seen. Waits neither spin nor yield here but sleep at once, with no limit of time, so
//! a lost wake-up is a deadlock.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p libcomm --release --lib loom`

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::abort::{AbortReason, RankExit};
use super::atomic::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use super::layout::*;
use super::mailbox::{Exchanged, Refusal, exchange};
use super::step::Stamp;
use super::wait::{Stop, Waiter};
use super::{View, text};

/// The shared words of `ranks` ranks that have all joined generation 1, as owned memory.
struct Words {
    shared: Shared,
    exits: Vec<AtomicU32>,
    ranks: Vec<RankBlock>,
}

fn word() -> AtomicU32 {
    AtomicU32::new(0)
}

fn long() -> AtomicU64 {
    AtomicU64::new(0)
}

fn longs<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| long())
}

impl Words {
    fn new(ranks: usize) -> Arc<Words> {
        let block = || RankBlock {
            status: Status {
                session: AtomicU32::new(1),
                failed: word(),
                pid: word(),
                text_bytes: word(),
                pid_started: long(),
                pid_namespace: long(),
                dropped: word(),
                domains: [word(), word(), word()],
                cpu_limit: word(),
                second_hand: word(),
            },
            control: Control {
                posts: std::array::from_fn(|_| Post { stamp: long(), kind: long(), count: long(), inline: longs() }),
            },
            bell: Bell { count: word(), waiting_for: word() },
            cpus: Line(longs()),
            text: Line(longs()),
            mailbox: Line(longs()),
            verdict: Verdict { failed_peer: word(), text_bytes: word(), text: longs() },
            records: Line(std::array::from_fn(|_| Record {
                sequence: long(),
                kind: long(),
                count: long(),
                started: long(),
                ended: long(),
                generation: long(),
                number: long(),
                communicator: long(),
            })),
            activity: Line(long()),
            on_device: OnDevice { calls: long(), number: long(), kind: long(), count: long(), captured: word() },
        };
        let shared = Shared {
            abort: Line(word()),
            news: Line(word()),
            joins: Line(AtomicU32::new(ranks as u32)),
            sleepers: Line(word()),
        };
        Arc::new(Words {
            shared,
            exits: (0..ranks).map(|_| word()).collect(),
            ranks: (0..ranks).map(|_| block()).collect(),
        })
    }

    fn view(&self) -> View<'_> {
        View { shared: &self.shared, exits: &self.exits, ranks: &self.ranks }
    }
}

fn waiter(me: u32) -> Waiter {
    Waiter::new(me, 1, None)
}

fn step(count: u64) -> Stamp {
    Stamp::new(1, count)
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn meet(view: View<'_>, waiter: &Waiter, count: u64) -> Result<(), Stop> {
    view.post(waiter.me(), step(count));
    view.await_all(waiter, step(count))
}

/// The slots of two ranks as plain memory: loom fails if one is written while it may be read.
type Slots = [[UnsafeCell<u64>; 2]; 2];

fn slot(slots: &Slots, rank: u32, step: u64) -> &UnsafeCell<u64> {
    &slots[part_of(2, rank, step) as usize][step as usize % 2]
}

fn put(slots: &Slots, rank: u32, step: u64, value: u64) {
    // SAFETY: the slot is reclaimed, which is what loom checks.
    #[expect(unsafe_code, reason = "a slot as loom sees it")]
    slot(slots, rank, step).with_mut(|slot| unsafe { *slot = value });
}

fn take(slots: &Slots, rank: u32, step: u64) -> u64 {
    // SAFETY: the slot's rank has posted, which is what loom checks.
    #[expect(unsafe_code, reason = "a slot as loom sees it")]
    slot(slots, rank, step).with(|slot| unsafe { *slot })
}

fn slots() -> Arc<Slots> {
    Arc::new(std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0))))
}

#[test]
fn loom_barrier_and_slots_hand_every_step_over() {
    model(3, || {
        let (words, slots) = (Words::new(2), slots());
        let rank = |me: u32, words: &Words, slots: &Slots| {
            let waiter = waiter(me);
            for count in 0..3 {
                put(slots, me, count, 10 * count + u64::from(me));
                meet(words.view(), &waiter, count + 1).unwrap();
                assert_eq!(take(slots, 1 - me, count), 10 * count + u64::from(1 - me));
            }
        };
        let other = {
            let (words, slots) = (words.clone(), slots.clone());
            thread::spawn(move || rank(1, &words, &slots))
        };
        rank(0, &words, &slots);
        other.join().unwrap();
    });
}

#[test]
fn loom_a_writer_that_reclaims_may_run_ahead_of_its_reader() {
    model(2, || {
        let (words, slots) = (Words::new(2), slots());
        let reader = {
            let (words, slots) = (words.clone(), slots.clone());
            thread::spawn(move || {
                let waiter = waiter(1);
                for count in 0..3 {
                    words.view().post(1, step(count + 1)); // done with the step before
                    words.view().await_post(&waiter, 0, step(count + 1)).unwrap();
                    assert_eq!(take(&slots, 0, count), count + 7);
                }
            })
        };
        let waiter = waiter(0);
        for count in 0..3 {
            if count > 0 {
                words.view().await_post(&waiter, 1, step(count)).unwrap();
            }
            put(&slots, 0, count, count + 7);
            words.view().post(0, step(count + 1));
        }
        reader.join().unwrap();
    });
}

/// What rank `rank` puts into its slot in step `step`.
fn value(rank: u32, step: u64) -> u64 {
    10 * step + u64::from(rank)
}

/// As in `pair.rs`: two steps on their way, and what was read is overwritten without waiting for its writer.
#[test]
fn loom_two_ranks_write_where_they_have_read() {
    both(|me, words, slots| {
        const CHUNKS: u64 = 3;
        let (view, waiter) = (words.view(), waiter(me));
        put(slots, me, 0, value(me, 0));
        meet(view, &waiter, 1).unwrap();
        put(slots, me, 1, value(me, 1));
        view.post(me, step(2));
        for chunk in 0..CHUNKS {
            view.await_post(&waiter, 1 - me, step(chunk + 1)).unwrap();
            assert_eq!(take(slots, 1 - me, chunk), value(1 - me, chunk));
            if chunk + 2 < CHUNKS {
                put(slots, me, chunk + 2, value(me, chunk + 2));
                view.post(me, step(chunk + 3));
            }
        }
        // The next call, whatever it is: its first step needs no other wait.
        put(slots, me, CHUNKS, 0);
    });
}

/// The first two steps of such a call after one in which a rank reads its own slot, too.
#[test]
fn loom_two_ranks_change_parts_after_a_call_that_reads_its_own_slot() {
    both(|me, words, slots| {
        let (view, waiter) = (words.view(), waiter(me));
        put(slots, me, 0, value(me, 0));
        meet(view, &waiter, 1).unwrap();
        assert_eq!(take(slots, 0, 0) + take(slots, 1, 0), value(0, 0) + value(1, 0));
        put(slots, me, 1, value(me, 1));
        meet(view, &waiter, 2).unwrap();
        put(slots, me, 2, value(me, 2));
    });
}

/// As in `chain.rs`: one running result in two halves of a chunk each, three rounds, to which rank 1 adds what it has. Rank 0
/// fills the first half before its first post, and posts once more at the end.
#[test]
fn loom_a_chain_has_one_writer_at_a_time_and_all_read_what_is_complete() {
    // With two preemptions it takes minutes.
    both_with(1, |me, words, slots| {
        const ROUNDS: u64 = 3;
        let (view, waiter) = (words.view(), waiter(me));
        let posted = Cell::new(0);
        let post = || {
            posted.set(posted.get() + 1);
            view.post(me, step(posted.get()));
        };
        // Posts of a rank once it has reduced, and copied out, a round.
        let reduced = |rank: u64, round: u64| step(rank + 2 * round + 1);
        let copied = |rank: u64, round: u64| step(rank + 2 * round + 2);
        let half = |round: u64| round % 2;
        if me == 1 {
            post();
            view.await_post(&waiter, 0, step(1)).unwrap();
        }
        for round in 0..ROUNDS {
            if me == 0 {
                if round >= 2 {
                    view.await_post(&waiter, 1, copied(1, round - 2)).unwrap();
                }
                put(slots, 0, half(round), value(0, round));
            } else {
                view.await_post(&waiter, 0, reduced(0, round)).unwrap();
                let sum = take(slots, 0, half(round)) + value(1, round);
                put(slots, 0, half(round), sum);
            }
            post();
            if me == 0 && round == 0 {
                view.await_post(&waiter, 1, step(1)).unwrap();
            }
            view.await_post(&waiter, 1, reduced(1, round)).unwrap();
            assert_eq!(take(slots, 0, half(round)), value(0, round) + value(1, round));
            post();
        }
        if me == 0 {
            post();
        }
        // The next call, whatever it is: rank 0 writes a slot once all have posted as many steps.
        if me == 0 {
            view.await_post(&waiter, 1, step(posted.get())).unwrap();
            put(slots, 0, 0, 0);
            put(slots, 0, 1, 0);
        }
    });
}

/// Runs two ranks at once.
fn both(rank: impl Fn(u32, &Words, &Slots) + Copy + Send + Sync + 'static) {
    both_with(2, rank);
}

fn both_with(preemptions: usize, rank: impl Fn(u32, &Words, &Slots) + Copy + Send + Sync + 'static) {
    model(preemptions, move || {
        let (words, slots) = (Words::new(2), slots());
        let other = {
            let (words, slots) = (words.clone(), slots.clone());
            thread::spawn(move || rank(1, &words, &slots))
        };
        rank(0, &words, &slots);
        other.join().unwrap();
    });
}

#[test]
fn loom_three_ranks_meet() {
    model(2, || {
        let words = Words::new(3);
        let others: Vec<_> = (1..3)
            .map(|me| {
                let words = words.clone();
                thread::spawn(move || meet(words.view(), &waiter(me), 1).unwrap())
            })
            .collect();
        meet(words.view(), &waiter(0), 1).unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn loom_an_exit_wakes_a_sleeper_and_names_the_rank() {
    model(3, || {
        let words = Words::new(2);
        let rankd = {
            let words = words.clone();
            thread::spawn(move || words.view().record_exit(1, RankExit::Signal(9)))
        };
        let stop = meet(words.view(), &waiter(0), 1).unwrap_err();
        // Between the record and the news only the abort word may be seen.
        let exited = Stop::Exited { rank: 1, exit: RankExit::Signal(9), joined: true };
        assert!(stop == exited, "{stop:?}");
        rankd.join().unwrap();
    });
}

#[test]
fn loom_what_a_rank_posted_before_it_ended_counts() {
    model(3, || {
        let words = Words::new(2);
        let peer = {
            let words = words.clone();
            thread::spawn(move || {
                words.view().post(1, step(1));
                words.view().record_exit(1, RankExit::Code(0)); // rankd, after the rank's end
            })
        };
        assert_eq!(meet(words.view(), &waiter(0), 1), Ok(()));
        peer.join().unwrap();
    });
}

#[test]
fn loom_what_a_rank_posted_before_it_left_counts() {
    model(3, || {
        let words = Words::new(2);
        let peer = {
            let words = words.clone();
            thread::spawn(move || {
                words.view().post(1, step(1));
                crate::bootstrap::leave(words.view(), 1, 1);
            })
        };
        assert_eq!(meet(words.view(), &waiter(0), 1), Ok(()));
        assert_eq!(words.view().await_post(&waiter(0), 1, step(2)), Err(Stop::Left { rank: 1 }));
        peer.join().unwrap();
    });
}

#[test]
fn loom_an_abort_ends_all_waits_and_the_first_reason_counts() {
    model(2, || {
        let words = Words::new(3);
        let others: Vec<_> = [AbortReason::Interrupted, AbortReason::TimeLimit]
            .map(|reason| {
                let words = words.clone();
                thread::spawn(move || words.view().set_abort(reason))
            })
            .into();
        let stop = meet(words.view(), &waiter(0), 1).unwrap_err();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(stop, Stop::Aborted(words.view().abort_reason().unwrap()));
    });
}

#[test]
fn loom_a_failure_ends_the_peers_wait_and_its_text_is_whole() {
    model(3, || {
        let words = Words::new(2);
        let peer = {
            let words = words.clone();
            thread::spawn(move || {
                let block = &words.ranks[1];
                block.status.text_bytes.store(text::store_text(&block.text.0, "because") as u32, Relaxed);
                block.status.failed.store(1, Release);
                words.view().tell_all();
            })
        };
        assert_eq!(meet(words.view(), &waiter(0), 1), Err(Stop::Failed { rank: 1 }));
        let bytes = words.ranks[1].status.text_bytes.load(Relaxed) as usize;
        assert_eq!(text::load_text(&words.ranks[1].text.0, bytes), "because");
        peer.join().unwrap();
    });
}

/// Runs two exchanges after each other as rank `me`; rank 1 refuses the second.
fn exchange_twice(words: &Words, me: u32) {
    let waiter = waiter(me);
    for round in 0..2u64 {
        let mut met = 2 * round;
        let mut meet_next = || {
            met += 1;
            meet(words.view(), &waiter, met)
        };
        let open = |_: u32, blob: &[u8]| if me == 1 && round == 1 { Err("no".to_owned()) } else { Ok(blob[0]) };
        let blob = [10 * round as u8 + me as u8];
        let result = exchange(words.view(), me, &blob, &mut meet_next, open).unwrap();
        let wanted = match round {
            0 => {
                let mut all = vec![None, None];
                all[1 - me as usize] = Some(1 - me as u8);
                Exchanged::All(all)
            }
            _ => Exchanged::Fallback(Refusal { rank: 1, peer: 0, why: "no".into() }),
        };
        assert_eq!(result, wanted);
    }
}

#[test]
fn loom_an_exchange_gives_every_blob_and_then_the_same_answer_to_all() {
    model(2, || {
        let words = Words::new(2);
        let other = {
            let words = words.clone();
            thread::spawn(move || exchange_twice(&words, 1))
        };
        exchange_twice(&words, 0);
        other.join().unwrap();
    });
}

#[test]
fn loom_payload_in_a_post_is_that_of_its_step() {
    model(3, || {
        let words = Words::new(2);
        let rank = |me: u32, words: &Words| {
            let (view, waiter) = (words.view(), waiter(me));
            for count in 1..=3 {
                // As in `Steps::post_with`: all are known to have posted the step before.
                view.post_of(me, step(count)).inline[0].store(10 * count + u64::from(me), Relaxed);
                meet(view, &waiter, count).unwrap();
                let theirs = view.post_of(1 - me, step(count)).inline[0].load(Relaxed);
                assert_eq!(theirs, 10 * count + u64::from(1 - me));
            }
        };
        let other = {
            let words = words.clone();
            thread::spawn(move || rank(1, &words))
        };
        rank(0, &words);
        other.join().unwrap();
    });
}

#[test]
fn loom_payload_is_not_overwritten_where_steps_between_wait_for_one_rank_only() {
    model(2, || {
        let words = Words::new(2);
        // A call whose second step only the root is awaited in, as a broadcast has it, and then the next call.
        let rank = |me: u32, words: &Words| {
            let (view, waiter) = (words.view(), waiter(me));
            let payload = |count: u64, of: u32| 10 * count + u64::from(of);
            for first in [1, 3] {
                if first > 1 {
                    view.await_all(&waiter, step(first - 1)).unwrap(); // reclaims the place
                }
                view.post_of(me, step(first)).inline[0].store(payload(first, me), Relaxed);
                meet(view, &waiter, first).unwrap();
                let theirs = view.post_of(1 - me, step(first)).inline[0].load(Relaxed);
                assert_eq!(theirs, payload(first, 1 - me));
                view.post(me, step(first + 1));
                if me == 1 {
                    view.await_post(&waiter, 0, step(first + 1)).unwrap();
                }
            }
        };
        let other = {
            let words = words.clone();
            thread::spawn(move || rank(1, &words))
        };
        rank(0, &words);
        other.join().unwrap();
    });
}

/// Zero copy: both say where their buffers are, reduce their share from both into both, and meet again.
#[test]
fn loom_zero_copy_touches_each_share_from_one_side_at_a_time() {
    model(2, || {
        let words = Words::new(2);
        // By rank, then by share.
        let cells = || -> Arc<Slots> { Arc::new(std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0)))) };
        let (send, recv) = (cells(), cells());
        let rank = |me: u32, words: &Words, send: &Slots, recv: &Slots| {
            let waiter = waiter(me);
            for round in 0..2u64 {
                // The program writes what it sends, and may read its result, between calls.
                (0..2).for_each(|share| put(send, me, share, 10 * round + u64::from(me)));
                meet(words.view(), &waiter, 2 * round + 1).unwrap();
                let share = u64::from(me);
                let sum = take(send, 0, share) + take(send, 1, share);
                (0..2).for_each(|of| put(recv, of, share, sum));
                meet(words.view(), &waiter, 2 * round + 2).unwrap();
                (0..2).for_each(|share| assert_eq!(take(recv, me, share), 20 * round + 1));
            }
        };
        let other = {
            let (words, send, recv) = (words.clone(), send.clone(), recv.clone());
            thread::spawn(move || rank(1, &words, &send, &recv))
        };
        rank(0, &words, &send, &recv);
        other.join().unwrap();
    });
}

/// A channel: the cell's data, the stamp in it, and the word that says how much is taken.
#[test]
fn loom_a_channel_hands_each_piece_over_once() {
    use crate::protocol::channel::must_be_taken;
    model(3, || {
        let words = Words::new(2);
        let channel = Arc::new((slots(), std::array::from_fn::<_, { CELLS as usize }, _>(|_| long()), long()));
        let receiver = {
            let (words, channel) = (words.clone(), channel.clone());
            thread::spawn(move || {
                let (waiter, (cells, stamps, taken)) = (waiter(1), &*channel);
                for number in 0..4 {
                    let stamp = &stamps[(number % CELLS) as usize];
                    waiter.wait(words.view(), 0, || step(number + 1).is_in(stamp)).unwrap();
                    assert_eq!(take(cells, 0, number), number + 7);
                    words.view().announce(taken, 1, step(number + 1));
                }
            })
        };
        let (waiter, (cells, stamps, taken)) = (waiter(0), &*channel);
        for number in 0..4 {
            if let Some(cells) = must_be_taken(number) {
                waiter.wait(words.view(), 1, || step(cells).is_in(taken)).unwrap();
            }
            put(cells, 0, number, number + 7);
            words.view().announce(&stamps[(number % CELLS) as usize], 0, step(number + 1));
        }
        receiver.join().unwrap();
    });
}

/// Leaving a communicator that was split off: its page is given back once all others have added themselves up in it, and
/// nobody looks at it any more by then.
#[test]
fn loom_a_page_of_a_communicator_that_was_left_has_no_reader_when_it_is_given_back() {
    model(3, || {
        let words = Words::new(2);
        let part = Arc::new((
            std::array::from_fn::<_, 2, _>(|_| long()),
            std::array::from_fn::<_, 2, _>(|_| UnsafeCell::new(0u64)),
            std::array::from_fn::<_, 2, _>(|_| word()),
        ));
        let rank = |me: u32, words: &Words, part: &([AtomicU64; 2], [UnsafeCell<u64>; 2], [AtomicU32; 2])| {
            let (view, waiter, (posts, pages, passed)) = (words.view(), waiter(me), part);
            let peer = 1 - me;
            // The barrier of `finalize`, in the part.
            view.announce(&posts[me as usize], me, step(1));
            pages[peer as usize].with(|_| waiter.wait(view, peer, || step(1).is_in(&posts[peer as usize]))).unwrap();
            passed[peer as usize].fetch_add(1, Release);
            // At any time later, however often it is looked at.
            if passed[me as usize].load(Acquire) == 1 {
                pages[me as usize].with_mut(|_| ());
            }
        };
        let other = {
            let (words, part) = (words.clone(), part.clone());
            thread::spawn(move || rank(1, &words, &part))
        };
        rank(0, &words, &part);
        other.join().unwrap();
    });
}

/// Two threads of rank 0 wait at once, for different ranks, and have one bell.
#[test]
fn loom_two_threads_of_a_rank_are_both_woken() {
    model(2, || {
        let words = Words::new(3);
        let first = waiter(0);
        let second = first.another();
        let thread = {
            let words = words.clone();
            thread::spawn(move || words.view().await_post(&second, 2, step(1)).unwrap())
        };
        let peers = {
            let words = words.clone();
            thread::spawn(move || {
                words.view().post(1, step(1));
                words.view().post(2, step(1));
            })
        };
        words.view().await_post(&first, 1, step(1)).unwrap();
        thread.join().unwrap();
        peers.join().unwrap();
    });
}
