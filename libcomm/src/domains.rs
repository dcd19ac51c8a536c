//! Which ranks are near each other: share a last-level cache, a NUMA node, or a package.
//!
//! Each rank finds its own domains, from the CPUs that it may use, and publishes them before the ranks meet; so all read
//! the same words and come to the same groups, whatever each can see of the machine.

use std::path::Path;

use crate::shm::View;
use crate::shm::atomic::Relaxed;

/// Ranks in groups of one size, two or more, of two ranks or more each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domains {
    /// The ranks of each group, in their order.
    groups: Vec<Vec<u32>>,
    /// The ranks that have one place in all groups.
    columns: Vec<Vec<u32>>,
    /// Group and place of each rank.
    of: Vec<(u32, u32)>,
}

/// From near to far: last-level cache, NUMA node, package.
pub(crate) const LEVELS: usize = 3;

/// From this many ranks on a flat algorithm looks at too many posts, and groups are used where the machine has any.
pub(crate) const FROM_RANKS: u32 = 17;

impl Domains {
    /// Groups of that many ranks, one after the other.
    pub(crate) fn of_size(ranks: u32, size: u32) -> Option<Domains> {
        Domains::by(&(0..ranks).map(|rank| rank / size.max(1)).collect::<Vec<_>>())
    }

    /// The nearest level on which the ranks fall into groups of one size. `domains` has each rank's, 0 for unknown.
    pub(crate) fn nearest(domains: &[[u32; LEVELS]]) -> Option<Domains> {
        (0..LEVELS).find_map(|level| {
            let level: Vec<u32> = domains.iter().map(|domain| domain[level]).collect();
            if level.contains(&0) { None } else { Domains::by(&level) }
        })
    }

    /// Ranks with the same number together.
    fn by(numbers: &[u32]) -> Option<Domains> {
        let mut groups: Vec<(u32, Vec<u32>)> = Vec::new();
        for (rank, number) in (0..).zip(numbers) {
            match groups.iter_mut().find(|(known, _)| known == number) {
                Some((_, group)) => group.push(rank),
                None => groups.push((*number, vec![rank])),
            }
        }
        let groups: Vec<Vec<u32>> = groups.into_iter().map(|(_, group)| group).collect();
        let size = groups.first()?.len();
        if groups.len() < 2 || size < 2 || groups.iter().any(|group| group.len() != size) {
            return None;
        }
        let columns = (0..size).map(|place| groups.iter().map(|group| group[place]).collect()).collect();
        let mut of = vec![(0, 0); numbers.len()];
        for (number, group) in (0..).zip(&groups) {
            for (place, rank) in (0..).zip(group) {
                of[*rank as usize] = (number, place);
            }
        }
        Some(Domains { groups, columns, of })
    }

    /// The ranks of `rank`'s group.
    pub(crate) fn group_of(&self, rank: u32) -> &[u32] {
        &self.groups[self.of[rank as usize].0 as usize]
    }

    /// The ranks that have the place of `rank` in their groups.
    pub(crate) fn column_of(&self, rank: u32) -> &[u32] {
        &self.columns[self.of[rank as usize].1 as usize]
    }

    /// Where in its group `rank` is.
    pub(crate) fn place_of(&self, rank: u32) -> u32 {
        self.of[rank as usize].1
    }
}

/// Publishes the domains of this process, as far as all its CPUs are in one.
pub(crate) fn publish(view: View<'_>, me: u32) {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    let found = find(Path::new("/sys/devices/system/cpu"), &cpus);
    let words = &view.ranks[me as usize].status.domains;
    words.iter().zip(found).for_each(|(word, domain)| word.store(domain, Relaxed));
}

/// What a rank has published.
pub(crate) fn of(view: View<'_>, rank: u32) -> [u32; LEVELS] {
    let words = &view.ranks[rank as usize].status.domains;
    std::array::from_fn(|level| words[level].load(Relaxed))
}

fn find(root: &Path, cpus: &[usize]) -> [u32; LEVELS] {
    let common = |of: fn(&Path) -> Option<u32>| {
        let mut domains = cpus.iter().map(|cpu| of(&root.join(format!("cpu{cpu}"))));
        let first = domains.next().flatten()?;
        domains.all(|domain| domain == Some(first)).then_some(first + 1)
    };
    [common(cache), common(numa_node), common(package)].map(|domain| domain.unwrap_or(0))
}

/// The first CPU that shares the last level of cache.
fn cache(cpu: &Path) -> Option<u32> {
    let shared = std::fs::read_to_string(cpu.join("cache/index3/shared_cpu_list")).ok()?;
    shared.trim().split(['-', ',']).next()?.parse().ok()
}

fn numa_node(cpu: &Path) -> Option<u32> {
    let names = std::fs::read_dir(cpu).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
}

fn package(cpu: &Path) -> Option<u32> {
    std::fs::read_to_string(cpu.join("topology/physical_package_id")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_level_with_groups_of_one_size_counts() {
        // Eight ranks: caches of two, two nodes, one package.
        let ranks: Vec<[u32; 3]> = (0..8).map(|rank| [rank / 2 + 1, rank / 4 + 1, 1]).collect();
        let domains = Domains::nearest(&ranks).unwrap();
        assert_eq!(domains.group_of(5), [4, 5]);
        assert_eq!(domains.column_of(5), [1, 3, 5, 7]);
        assert_eq!(domains.place_of(5), 1);
        // A rank that may use CPUs of two caches leaves the nodes.
        let mut wide = ranks.clone();
        wide[3][0] = 0;
        assert_eq!(Domains::nearest(&wide).unwrap().group_of(5), [4, 5, 6, 7]);
        // Groups of several sizes are none.
        let uneven: Vec<[u32; 3]> = (0..7).map(|rank| [rank / 4 + 1, rank / 4 + 1, 1]).collect();
        assert_eq!(Domains::nearest(&uneven), None);
    }

    #[test]
    fn ranks_that_alternate_between_two_domains_are_grouped_all_the_same() {
        let ranks: Vec<[u32; 3]> = (0..6).map(|rank| [0, rank % 2 + 1, 0]).collect();
        let domains = Domains::nearest(&ranks).unwrap();
        assert_eq!((domains.group_of(3), domains.column_of(3), domains.place_of(3)), (&[1, 3, 5][..], &[2, 3][..], 1));
    }

    #[test]
    fn one_group_or_groups_of_one_are_none() {
        assert_eq!(Domains::of_size(8, 8), None);
        assert_eq!(Domains::of_size(8, 1), None);
        assert_eq!(Domains::of_size(9, 2), None);
        assert_eq!(Domains::of_size(9, 3).unwrap().column_of(4), [1, 4, 7]);
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = std::env::temp_dir().join(format!("libcomm-domains-{}", std::process::id()));
        for cpu in 0..4 {
            let here = root.join(format!("cpu{cpu}"));
            std::fs::create_dir_all(here.join("cache/index3")).unwrap();
            std::fs::create_dir_all(here.join("topology")).unwrap();
            std::fs::create_dir_all(here.join(format!("node{}", cpu / 2))).unwrap();
            std::fs::write(here.join("cache/index3/shared_cpu_list"), format!("{cpu}\n")).unwrap();
            std::fs::write(here.join("topology/physical_package_id"), "0\n").unwrap();
        }
        assert_eq!(find(&root, &[2]), [3, 2, 1]);
        assert_eq!(find(&root, &[2, 3]), [0, 2, 1]);
        assert_eq!(find(&root, &[0, 3]), [0, 0, 1]);
        assert_eq!(find(&root, &[9]), [0, 0, 0]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
