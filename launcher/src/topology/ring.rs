//! The order in which GPUs pass data round: the cycle whose slowest link is fastest.

/// Up to so many members every order is looked at; more are ordered step by step.
const EXACT: usize = 10;

/// The best cycle over `members`, beginning with the first. `gb_s(a, b)` is what the link between two of them carries.
///
/// The bottleneck decides; among equal ones the sum of all links, then the order that stays closest to the members'
/// own.
pub fn best(members: &[usize], gb_s: &dyn Fn(usize, usize) -> f64) -> Vec<usize> {
    match members.len() {
        0..=3 => members.to_vec(),
        4..=EXACT => exact(members, gb_s),
        _ => improved(nearest(members, gb_s), gb_s),
    }
}

/// The slowest link of a cycle.
pub fn bottleneck(cycle: &[usize], gb_s: &dyn Fn(usize, usize) -> f64) -> Option<f64> {
    if cycle.len() < 2 {
        return None;
    }
    links(cycle).map(|(a, b)| gb_s(a, b)).min_by(f64::total_cmp)
}

/// Each member with the one that follows it.
pub fn links(cycle: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    cycle.iter().copied().zip(cycle.iter().copied().cycle().skip(1))
}

/// Held–Karp over the pair (bottleneck, sum): 2ⁿ·n² steps, a millisecond for ten.
fn exact(members: &[usize], gb_s: &dyn Fn(usize, usize) -> f64) -> Vec<usize> {
    let n = members.len();
    let weight: Vec<Vec<f64>> =
        members.iter().map(|&a| members.iter().map(|&b| if a == b { 0.0 } else { gb_s(a, b) }).collect()).collect();
    // best[set][last]: the best path from member 0 through `set`, ending at `last`.
    let worst = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut best = vec![vec![(worst, usize::MAX); n]; 1 << n];
    best[1][0] = ((f64::INFINITY, 0.0), usize::MAX);
    for set in 1..1usize << n {
        for last in 0..n {
            let (so_far, _) = best[set][last];
            if so_far == worst {
                continue;
            }
            for next in (1..n).filter(|next| set >> next & 1 == 0) {
                let reached = step(so_far, weight[last][next]);
                let known = &mut best[set | 1 << next][next];
                if better(reached, known.0) {
                    *known = (reached, last);
                }
            }
        }
    }
    let all = (1 << n) - 1;
    let closed = |last: usize| step(best[all][last].0, weight[last][0]);
    let mut last = 1;
    for candidate in 2..n {
        if better(closed(candidate), closed(last)) {
            last = candidate;
        }
    }
    let (mut set, mut order) = (all, Vec::with_capacity(n));
    while last != usize::MAX {
        order.push(members[last]);
        let before = best[set][last].1;
        set &= !(1 << last);
        last = before;
    }
    order.reverse();
    forwards(order)
}

fn step(so_far: (f64, f64), link: f64) -> (f64, f64) {
    (so_far.0.min(link), so_far.1 + link)
}

/// Strictly better, by more than rounding.
fn better(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0 > b.0 + 1e-9 || ((a.0 - b.0).abs() <= 1e-9 && a.1 > b.1 + 1e-9)
}

/// A cycle read backwards is as good; of the two the one whose second member is the lower.
fn forwards(mut cycle: Vec<usize>) -> Vec<usize> {
    if cycle.len() > 2 && cycle[1] > cycle[cycle.len() - 1] {
        cycle[1..].reverse();
    }
    cycle
}

fn nearest(members: &[usize], gb_s: &dyn Fn(usize, usize) -> f64) -> Vec<usize> {
    let mut left: Vec<usize> = members[1..].to_vec();
    let mut order = vec![members[0]];
    while !left.is_empty() {
        let last = order[order.len() - 1];
        let mut at = 0;
        for candidate in 1..left.len() {
            if gb_s(last, left[candidate]) > gb_s(last, left[at]) {
                at = candidate;
            }
        }
        order.push(left.remove(at));
    }
    order
}

/// Turns parts of the cycle round as long as that makes it better.
fn improved(mut cycle: Vec<usize>, gb_s: &dyn Fn(usize, usize) -> f64) -> Vec<usize> {
    let value = |cycle: &[usize]| links(cycle).fold((f64::INFINITY, 0.0), |so_far, (a, b)| step(so_far, gb_s(a, b)));
    let mut now = value(&cycle);
    for _ in 0..cycle.len() {
        let mut changed = false;
        for from in 1..cycle.len() - 1 {
            for to in from + 1..cycle.len() {
                cycle[from..=to].reverse();
                let then = value(&cycle);
                if better(then, now) {
                    (now, changed) = (then, true);
                } else {
                    cycle[from..=to].reverse();
                }
            }
        }
        if !changed {
            break;
        }
    }
    forwards(cycle)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The links of a DGX-1's cube of eight GPUs.
    fn cube(a: usize, b: usize) -> f64 {
        let (a, b) = (a.min(b), a.max(b));
        match (a, b) {
            (0, 3) | (0, 4) | (1, 2) | (1, 5) | (2, 3) | (4, 7) | (5, 6) | (6, 7) => 42.0,
            (0, 1) | (0, 2) | (1, 3) | (2, 6) | (3, 7) | (4, 5) | (4, 6) | (5, 7) => 21.0,
            _ => 5.0,
        }
    }

    #[test]
    fn the_slowest_link_is_as_fast_as_can_be() {
        let members: Vec<usize> = (0..8).collect();
        let cycle = best(&members, &cube);
        assert_eq!(bottleneck(&cycle, &cube), Some(42.0), "{cycle:?}");
        assert_eq!(cycle, [0, 3, 2, 1, 5, 6, 7, 4]);
    }

    #[test]
    fn equal_links_keep_the_order() {
        let members: Vec<usize> = (0..8).collect();
        assert_eq!(best(&members, &|_, _| 1.0), members);
        assert_eq!(best(&[4, 2], &|_, _| 1.0), [4, 2]);
        assert_eq!(best(&[], &|_, _| 1.0), Vec::<usize>::new());
        let many: Vec<usize> = (0..16).collect();
        assert_eq!(best(&many, &|_, _| 1.0).len(), 16);
    }

    proptest! {
        #[test]
        fn no_order_is_better(weights in prop::collection::vec(1u32..6, 15)) {
            let gb_s = |a: usize, b: usize| {
                let (a, b) = (a.min(b), a.max(b));
                f64::from(weights[a * (11 - a) / 2 + b - a - 1])
            };
            let members: Vec<usize> = (0..6).collect();
            let found = bottleneck(&best(&members, &gb_s), &gb_s).unwrap();
            let stepwise = bottleneck(&improved(nearest(&members, &gb_s), &gb_s), &gb_s).unwrap();
            let mut orders = vec![vec![0]];
            for _ in 1..6 {
                orders = orders.iter().flat_map(|order: &Vec<usize>| {
                    (1..6).filter(|next| !order.contains(next)).map(|next| [order.as_slice(), &[next]].concat()).collect::<Vec<_>>()
                }).collect();
            }
            let most = orders.iter().filter_map(|order| bottleneck(order, &gb_s)).max_by(f64::total_cmp).unwrap();
            prop_assert_eq!(found, most);
            prop_assert!(stepwise <= most);
        }
    }
}
