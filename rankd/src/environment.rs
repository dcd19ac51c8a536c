//! The environment of each rank: what all share, without what this rank has of its own.

use std::collections::HashSet;
use std::ffi::{CString, NulError};
use std::os::fd::RawFd;

/// The shared part, kept ready for `execve`.
///
/// Hundreds of ranks differ only in the values of the same few names, so the shared part is filtered once and
/// used again as long as those names stay the same.
#[derive(Debug)]
pub(crate) struct RankEnvironment {
    all: Vec<CString>,
    beside: Vec<CString>,
    own_names: Option<HashSet<Vec<u8>>>,
}

impl RankEnvironment {
    /// `base` is what all ranks get, besides the way to the job's segment.
    pub(crate) fn new(
        base: &[Vec<u8>],
        segment: Option<RawFd>,
        socket: Option<&str>,
    ) -> Result<RankEnvironment, NulError> {
        let added = [
            segment.map(|fd| format!("{}={fd}", comm::env::SEGMENT_FD)),
            socket.map(|name| format!("{}={name}", comm::env::SOCKET)),
        ];
        let all = base
            .iter()
            .cloned()
            .chain(added.into_iter().flatten().map(String::into_bytes))
            .map(CString::new)
            .collect::<Result<_, _>>()?;
        Ok(RankEnvironment { all, beside: Vec::new(), own_names: None })
    }

    /// The shared variables that `own` does not set itself.
    pub(crate) fn shared_beside(&mut self, own: &[CString]) -> &[CString] {
        let same = self
            .own_names
            .as_ref()
            .is_some_and(|names| names.len() == own.len() && own.iter().all(|entry| names.contains(name_of(entry))));
        if !same {
            let names: HashSet<Vec<u8>> = own.iter().map(|entry| name_of(entry).to_vec()).collect();
            self.beside = self.all.iter().filter(|entry| !names.contains(name_of(entry))).cloned().collect();
            self.own_names = Some(names);
        }
        &self.beside
    }
}

fn name_of(entry: &CString) -> &[u8] {
    entry.as_bytes().split(|&byte| byte == b'=').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_s_own_value_replaces_the_shared_one() {
        let mut environment =
            RankEnvironment::new(&[b"A=1".to_vec(), b"B=2".to_vec(), b"AB=3".to_vec()], Some(9), None).expect("no NUL");
        let own = [CString::new("A=own").expect("no NUL")];
        let shared: Vec<_> =
            environment.shared_beside(&own).iter().map(|entry| entry.to_str().expect("text")).collect();
        assert_eq!(shared, ["B=2", "AB=3", "PRUN_SEGMENT_FD=9"]);
        assert_eq!(environment.shared_beside(&[]).len(), 4);
    }
}
