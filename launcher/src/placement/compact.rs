//! Cores in order: rank after rank takes the next ones.

use super::cpuset::CpuSet;

/// `each` cores for each of `ranks` ranks out of `cores`.
///
/// Physical cores, as long as they last; then hardware threads, the first one of every core before the second of
/// any; and when those run out, from the start again.
pub fn take(cores: &[CpuSet], ranks: usize, each: usize) -> Vec<CpuSet> {
    let united = |sets: &[CpuSet]| {
        let mut all = CpuSet::default();
        sets.iter().for_each(|set| all.extend(set));
        all
    };
    if cores.is_empty() {
        return vec![CpuSet::default(); ranks];
    }
    if ranks.saturating_mul(each) <= cores.len() {
        return cores.chunks(each).take(ranks).map(united).collect();
    }
    let most = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    let thread = |nth: usize| cores.iter().filter_map(move |core| core.iter().nth(nth));
    let threads: Vec<usize> = (0..most).flat_map(thread).collect();
    (0..ranks).map(|rank| (0..each).map(|at| threads[(rank * each + at) % threads.len()]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_come_first_then_threads_then_all_again() {
        let cores: Vec<CpuSet> = ["0,4", "1,5", "2,6", "3,7"].map(|core| core.parse().unwrap()).to_vec();
        let table: &[(usize, usize, &[&str])] = &[
            (2, 1, &["0,4", "1,5"]),
            (2, 2, &["0-1,4-5", "2-3,6-7"]),
            (6, 1, &["0", "1", "2", "3", "4", "5"]),
            (4, 2, &["0-1", "2-3", "4-5", "6-7"]),
            (3, 4, &["0-3", "4-7", "0-3"]),
        ];
        for (ranks, each, expected) in table {
            let shown: Vec<String> = take(&cores, *ranks, *each).iter().map(CpuSet::to_string).collect();
            assert_eq!(shown, *expected, "{ranks} × {each}");
        }
        assert_eq!(take(&[], 2, 1).len(), 2);
    }
}
