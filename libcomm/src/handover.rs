//! The segment's descriptor over an abstract socket, for a program whose wrapper closed the inherited one.
//!
//! One connection is one request, and it needs no message: the client says which job it belongs to by the
//! abstract name that it binds its own end to, the kernel says whose process it is, and the answer is one byte
//! with the descriptor beside it. So the server never waits for anyone.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::node::JobSegment;

/// How the names of all daemons' sockets begin.
const SOCKETS: &str = "libcomm-";
const GRANTED: u8 = b'+';
const REFUSED: u8 = b'-';

/// The daemon's end.
#[derive(Debug)]
pub struct JoinServer {
    listener: OwnedFd,
    name: String,
    job_id: String,
    uid: u32,
}

impl JoinServer {
    /// Listens for the processes of user `uid` that belong to job `job_id`, under a name that nobody can have
    /// taken before.
    pub fn bind(job_id: &str, uid: u32) -> io::Result<JoinServer> {
        let name = format!("{SOCKETS}{uid}-{job_id}-{:016x}", random()?);
        let listener = net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        net::listen(&listener, 1024)?;
        Ok(JoinServer { listener, name, job_id: job_id.to_owned(), uid })
    }

    /// The abstract name, without its leading NUL: the value of [`crate::env::SOCKET`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The listening socket: readable when someone asks.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers everyone who has asked. Never blocks; who went away meanwhile is skipped.
    pub fn serve_ready(&mut self, segment: &JobSegment) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match net::acceptfrom_with(&self.listener, flags) {
                Ok((client, from)) => {
                    let from = from.and_then(|address| SocketAddrUnix::try_from(address).ok());
                    let granted = self.belongs_to_us(&client, from.as_ref());
                    let _ = answer(client.as_fd(), granted.then(|| segment.as_fd())); // it may be gone
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(_) => return, // nobody left, or no descriptor left to accept with
            }
        }
    }

    fn belongs_to_us(&self, client: &OwnedFd, from: Option<&SocketAddrUnix>) -> bool {
        // Root could read the memory of any process anyway; `prun status` of an administrator asks like this.
        let same_user = sockopt::socket_peercred(client).is_ok_and(|peer| [self.uid, 0].contains(&peer.uid.as_raw()));
        let prefix = client_prefix(&self.job_id);
        let named = from.and_then(|address| address.abstract_name());
        same_user && named.is_some_and(|name| name.starts_with(prefix.as_bytes()))
    }
}

/// The socket of a job's daemon, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSocket {
    /// The abstract name.
    pub name: String,
    /// Whose job it is.
    pub uid: u32,
    /// The job's id.
    pub job_id: String,
}

impl JobSocket {
    /// All that `unix` lists, which is the text of `/proc/net/unix`; each once, in no order.
    pub fn listed(unix: &str) -> Vec<JobSocket> {
        let mut found: Vec<JobSocket> = Vec::new();
        for name in unix.lines().filter_map(|line| line.split_once(" @")).map(|(_, name)| name.trim_end_matches('@')) {
            let socket = JobSocket::named(name);
            found.extend(socket.filter(|socket| found.iter().all(|known| known.name != socket.name)));
        }
        found
    }

    fn named(name: &str) -> Option<JobSocket> {
        let (uid, rest) = name.strip_prefix(SOCKETS)?.split_once('-')?;
        let (job_id, _random) = rest.rsplit_once('-')?;
        Some(JobSocket { name: name.to_owned(), uid: uid.parse().ok()?, job_id: job_id.to_owned() })
    }
}

fn client_prefix(job_id: &str) -> String {
    format!("libcomm-join-{job_id}/")
}

fn random() -> io::Result<u64> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn answer(client: BorrowedFd<'_>, segment: Option<BorrowedFd<'_>>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = segment.into_iter().collect();
    let byte = if fds.is_empty() { REFUSED } else { GRANTED };
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    net::sendmsg(client, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Asks the daemon at `name` for the segment of `job_id`. Waits ten seconds at most.
pub(crate) fn fetch(name: &str, job_id: &str) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let own_name = format!("{}{:016x}", client_prefix(job_id), random()?);
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(own_name.as_bytes())?)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(10)))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(Duration::from_secs(10)))?;
    net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = loop {
        match net::recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match fd {
        Some(fd) => Ok(fd),
        None if received.bytes == 1 && byte[0] == REFUSED => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "this process does not belong to the job"))
        }
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_jobs_are_found_among_others() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0005 01 21 @libcomm-1000-a-b-00ff00ff00ff00ff\n\
                    0000000000000000: 00000003 00000000 00000000 0005 03 22 @libcomm-1000-a-b-00ff00ff00ff00ff\n\
                    0000000000000000: 00000002 00000000 00000000 0005 01 23 @libcomm-join-a-b/0123456789abcdef\n\
                    0000000000000000: 00000002 00000000 00000000 0002 01 24 @prun-gpu/0000:41:00.0/a-b\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 25 /run/some.sock\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 26\n";
        let name = "libcomm-1000-a-b-00ff00ff00ff00ff".to_owned();
        assert_eq!(JobSocket::listed(text), [JobSocket { name, uid: 1000, job_id: "a-b".into() }]);
    }
}
