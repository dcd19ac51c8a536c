//! What PBS (PBS Pro, OpenPBS, Torque) granted, from `PBS_*` and the node file.

use std::path::Path;

use super::{BatchError, Environment, Grant, GrantedNode, Scheduler};

/// The grant, `None` outside of a PBS job.
///
/// # Errors
/// [`BatchError`] if the node file cannot be read or a variable makes no sense.
pub fn read(environment: Environment<'_>) -> Result<Option<Grant>, BatchError> {
    let Some(job_id) = environment.text("PBS_JOBID") else { return Ok(None) };
    let mut grant = Grant::new(Scheduler::Pbs, job_id.to_owned());
    if let Some(path) = environment.text("PBS_NODEFILE") {
        let text = (environment.read_file)(Path::new(path)).map_err(|error| BatchError::NodeFile {
            name: "PBS_NODEFILE",
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        grant.nodes = count_lines(&text);
    }
    grant.here =
        environment.place(grant.nodes.iter().map(|node| node.name.as_str())).or((grant.nodes.len() == 1).then_some(0));
    // NCPUS and PBS_NUM_PPN are of this node's chunk alone; a chunk may have lines of its own in the file.
    let chunk = environment.number("NCPUS")?.or(environment.number("PBS_NUM_PPN")?);
    let lines = grant.tasks_here();
    grant.cpus_here = match (chunk, lines) {
        (Some(chunk), Some(lines)) => Some(chunk.max(lines)),
        (chunk, lines) => chunk.or(lines),
    };
    let listed: u32 = grant.nodes.iter().filter_map(|node| node.tasks).sum();
    if let Some(cpus) = chunk.filter(|&cpus| cpus > 1 && grant.nodes.len() as u32 == listed && listed > 0) {
        grant.notes.push(format!(
            "the node file lists each host once, and a chunk has {cpus} CPUs (NCPUS): that is one slot of {cpus} CPUs a host, not one CPU"
        ));
    }
    grant.tasks = environment.number("PBS_NP")?.or((listed > 0).then_some(listed));
    Ok(Some(grant))
}

/// A slot for each line, hosts in the order in which they first appear.
fn count_lines(text: &str) -> Vec<GrantedNode> {
    let mut nodes: Vec<GrantedNode> = Vec::new();
    for name in text.lines().map(str::trim).filter(|name| !name.is_empty()) {
        match nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.tasks = node.tasks.map(|tasks| tasks.saturating_add(1)),
            None => nodes.push(GrantedNode { name: name.to_owned(), tasks: Some(1), cpus: None }),
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::super::tests::granted;
    use super::*;

    fn pbs(lines: &str, hostname: &str, file: &str) -> Grant {
        granted(&format!("PBS_JOBID=5.srv\nPBS_NODEFILE=/var/spool/nodes\n{lines}"), hostname, file).unwrap().unwrap()
    }

    fn shown(grant: &Grant) -> Vec<(&str, u32)> {
        grant.nodes.iter().map(|node| (node.name.as_str(), node.tasks.unwrap())).collect()
    }

    // C13
    #[test]
    fn a_host_has_as_many_slots_as_lines_wherever_they_stand() {
        let grant = pbs("", "b", "a\na\na\na\nb\nb\nb\nb\n");
        assert_eq!((shown(&grant), grant.here), (vec![("a", 4), ("b", 4)], Some(1)));
        let grant = pbs("NCPUS=28\nPBS_NP=6", "a.site", "a\na\nb\nb\na\na\n");
        assert_eq!((shown(&grant), grant.tasks, grant.cpus_here), (vec![("a", 4), ("b", 2)], Some(6), Some(28)));
        assert!(grant.notes.is_empty());
    }

    // C13
    #[test]
    fn one_line_for_each_host_is_not_one_cpu_without_a_word() {
        let grant = pbs("NCPUS=28", "b", "a\nb\n");
        assert_eq!((shown(&grant), grant.cpus_here), (vec![("a", 1), ("b", 1)], Some(28)));
        assert!(grant.notes[0].contains("28 CPUs"), "{:?}", grant.notes);
        assert!(pbs("", "b", "a\nb\n").notes.is_empty());
    }

    #[test]
    fn a_node_file_that_is_gone_is_named() {
        let variables =
            [("PBS_JOBID", "1"), ("PBS_NODEFILE", "/gone")].map(|(name, value)| (name.into(), value.into()));
        let missing = |_: &Path| Err(std::io::Error::from(std::io::ErrorKind::NotFound));
        let error = read(Environment::new(&variables, &missing, "a")).unwrap_err();
        assert!(error.to_string().contains("/gone"), "{error}");
    }
}
