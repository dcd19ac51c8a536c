//! What LSF granted, from `LSB_*`.

use super::{BatchError, Environment, Grant, GrantedNode, Scheduler};

/// The grant, `None` outside of an LSF job.
///
/// # Errors
/// [`BatchError`] if a variable makes no sense.
pub fn read(environment: Environment<'_>) -> Result<Option<Grant>, BatchError> {
    let Some(job_id) = environment.text("LSB_JOBID") else { return Ok(None) };
    let mut grant = Grant::new(Scheduler::Lsf, job_id.to_owned());
    grant.nodes = match (environment.text("LSB_MCPU_HOSTS"), environment.text("LSB_HOSTS")) {
        (Some(pairs), _) => pairs_of(pairs)?,
        (None, Some(hosts)) => repeated(hosts),
        (None, None) => Vec::new(),
    };
    if let (Some(_), Some(hosts)) = (environment.text("LSB_MCPU_HOSTS"), environment.text("LSB_HOSTS")) {
        let other = repeated(hosts);
        if other != grant.nodes {
            let slots = |nodes: &[GrantedNode]| {
                nodes
                    .iter()
                    .map(|node| format!("{} {}", node.name, node.tasks.unwrap_or(0)))
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            grant.notes.push(format!(
                "LSB_MCPU_HOSTS says `{}` and LSB_HOSTS says `{}`; the first is believed",
                slots(&grant.nodes),
                slots(&other)
            ));
        }
    }
    grant.here =
        environment.place(grant.nodes.iter().map(|node| node.name.as_str())).or((grant.nodes.len() == 1).then_some(0));
    grant.cpus_here = grant.tasks_here();
    let listed: u32 = grant.nodes.iter().filter_map(|node| node.tasks).sum();
    grant.tasks = environment.number("LSB_DJOB_NUMPROC")?.or((listed > 0).then_some(listed));
    Ok(Some(grant))
}

/// `hostA 4 hostB 4`.
fn pairs_of(text: &str) -> Result<Vec<GrantedNode>, BatchError> {
    let malformed =
        || BatchError::malformed("LSB_MCPU_HOSTS", text, "hosts and their slots in turn, such as `a 4 b 4`");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut nodes: Vec<GrantedNode> = Vec::new();
    for pair in words.chunks(2) {
        let [name, slots] = pair else { return Err(malformed()) };
        let slots: u32 = slots.parse().map_err(|_| malformed())?;
        add(&mut nodes, name, slots);
    }
    Ok(nodes)
}

/// `hostA hostA hostB`.
fn repeated(text: &str) -> Vec<GrantedNode> {
    let mut nodes = Vec::new();
    for name in text.split_whitespace() {
        add(&mut nodes, name, 1);
    }
    nodes
}

fn add(nodes: &mut Vec<GrantedNode>, name: &str, slots: u32) {
    let known = nodes.iter_mut().find(|node| node.name == name);
    let before = known.as_ref().and_then(|node| node.tasks).unwrap_or(0);
    let slots = Some(before.saturating_add(slots));
    match known {
        Some(node) => (node.tasks, node.cpus) = (slots, slots),
        None => nodes.push(GrantedNode { name: name.to_owned(), tasks: slots, cpus: slots }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::granted;

    // C13
    #[test]
    fn hosts_and_slots_take_turns() {
        let lines = "LSB_JOBID=77\nLSB_MCPU_HOSTS=a 4 b 4\nLSB_HOSTS=a a a a b b b b";
        let grant = granted(lines, "b", "").unwrap().unwrap();
        let shown: Vec<_> = grant.nodes.iter().map(|node| (node.name.as_str(), node.tasks.unwrap())).collect();
        assert_eq!((shown, grant.here, grant.tasks), (vec![("a", 4), ("b", 4)], Some(1), Some(8)));
        assert!(grant.notes.is_empty());
        let alone = granted("LSB_JOBID=77\nLSB_HOSTS=a b a", "a", "").unwrap().unwrap();
        assert_eq!((alone.tasks_here(), alone.nodes.len()), (Some(2), 2));
        let split = granted("LSB_JOBID=77\nLSB_MCPU_HOSTS=a 2 b 1 a 3\nLSB_HOSTS=a b", "a", "").unwrap().unwrap();
        assert_eq!((split.tasks_here(), split.notes.len()), (Some(5), 1));
    }

    // C13
    #[test]
    fn a_host_without_its_slots_is_an_error() {
        for bad in ["a 4 b", "a b", "4 a"] {
            let error = granted(&format!("LSB_JOBID=78\nLSB_MCPU_HOSTS={bad}"), "a", "").unwrap_err();
            assert!(error.to_string().starts_with("LSB_MCPU_HOSTS is"), "{error}");
        }
    }
}
