//! Every collective against the plain reference.

mod common;

use comm::{Comm, Op};
use common::ranks;

#[test]
fn a_sum_over_four_ranks_is_right_everywhere() {
    let results = ranks(4, |comm: Comm| {
        let send = vec![comm.rank() as f32 + 1.0; 5000];
        let mut recv = vec![0.0; 5000];
        comm.all_reduce(&send, &mut recv, Op::Sum).unwrap();
        comm.barrier().unwrap();
        comm.finalize().unwrap();
        recv
    });
    assert!(results.iter().all(|recv| recv.iter().all(|x| *x == 10.0)));
}
