//! prun's side of the process that measures GPUs: starts it, reads its lines, and ends it when it is silent for too
//! long. A pair at which it hung or failed is noted, and the rest is left to a fresh process.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::line::Line;
use crate::supervise::text::seconds;
use crate::topology::{Machine, PciAddress, Way, gpu_name};

/// How long the process may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Until all GPUs are open: a driver that starts eight of them first needs some seconds.
    pub open: Duration,
    /// For a pair.
    pub pair: Duration,
}

/// What was found out, pair by pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// One end, and the other.
    pub ends: (PciAddress, PciAddress),
    /// What the driver allows and what was measured; or why nothing could be.
    pub result: Result<(bool, Vec<Way>), String>,
}

/// Makes the command of a process that leaves these pairs out.
pub type Make<'a> = dyn Fn(&[(usize, usize)]) -> Command + 'a;

/// Lets processes of `make`, which is told the pairs to leave out, look at all pairs.
///
/// # Errors
/// Why the GPUs cannot be opened at all.
pub fn pairs(make: &Make<'_>, limits: Limits) -> Result<Vec<Found>, String> {
    let (mut found, mut done) = (Vec::new(), Vec::new());
    loop {
        let mut process = Process::start(make(&done))?;
        let (mut gpus, mut begun): (Vec<PciAddress>, Option<(usize, usize)>) = (Vec::new(), None);
        let stopped = loop {
            let limit = if begun.is_some() { limits.pair } else { limits.open };
            match process.next(limit) {
                Ok(Line::Gpus { addresses }) => gpus = addresses,
                Ok(Line::Begin { a, b }) => begun = Some((a, b)),
                Ok(Line::Pair { a, b, reported, ways }) => {
                    begun = None;
                    done.push((a, b));
                    found.extend(ends(&gpus, (a, b)).map(|ends| Found { ends, result: Ok((reported, ways)) }));
                }
                Ok(Line::End) => return Ok(found),
                Ok(Line::Failed { why }) => break why,
                Ok(Line::Loaded) => {}
                Err(why) => break why,
            }
        };
        let Some(pair) = begun else { return Err(stopped) };
        done.push(pair);
        found.extend(ends(&gpus, pair).map(|ends| Found { ends, result: Err(stopped) }));
    }
}

fn ends(gpus: &[PciAddress], (a, b): (usize, usize)) -> Option<(PciAddress, PciAddress)> {
    Some((*gpus.get(a)?, *gpus.get(b)?))
}

/// Writes into the machine what was found out about its links.
pub fn apply(machine: &mut Machine, found: Vec<Found>) {
    for Found { ends: (one, other), result } in found {
        let number = |address| machine.gpus.iter().find(|gpu| gpu.address == Some(address)).map(|gpu| gpu.index);
        let (Some(a), Some(b)) = (number(one), number(other)) else { continue };
        let turned = a > b;
        let (low, high) = (gpu_name(a.min(b)), gpu_name(a.max(b)));
        let Some(link) = machine.links.iter_mut().find(|link| link.a == low && link.b == high) else { continue };
        match result {
            Ok((reported, ways)) => {
                link.measured(reported, ways.into_iter().map(|way| if turned { way.turned() } else { way }).collect());
            }
            Err(why) => link.failed(why),
        }
    }
}

/// A process that says lines.
pub struct Process {
    child: Child,
    out: ChildStdout,
    pending: Vec<u8>,
}

impl Process {
    /// Starts it, with a pipe to its standard input that is never written to.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(mut command: Command) -> Result<Process, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.map_err(|error| format!("cannot start a process that measures: {error}"))?;
        let out = child.stdout.take().ok_or("no standard output")?;
        Ok(Process { child, out, pending: Vec::new() })
    }

    /// Its next line.
    ///
    /// # Errors
    /// It ended, or was silent for `limit`.
    pub fn next(&mut self, limit: Duration) -> Result<Line, String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(line) => return Ok(line),
                    Err(_) => continue, // a library may print something
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::from_borrowed_fd(self.out.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(format!("no answer within {}", seconds(limit))),
                Ok(_) => {}
                Err(_) => continue,
            }
            let mut buffer = [0u8; 4096];
            match self.out.read(&mut buffer) {
                Ok(0) => return Err("the process that measured ended early".into()),
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What hangs in the driver cannot be ended and is left behind.
        let _ = self.child.kill();
        let deadline = Instant::now() + Duration::from_secs(1);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    const QUICK: Limits = Limits { open: Duration::from_secs(20), pair: Duration::from_millis(300) };

    fn shell(script: &str, left_out: &[(usize, usize)]) -> Command {
        let list: Vec<String> = left_out.iter().map(|(a, b)| format!("{a}-{b}")).collect();
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", &list.join(",")]);
        command
    }

    const OPEN: &str = r#"echo '{"event":"gpus","addresses":["0000:1b:00.0","0000:3b:00.0","0000:9b:00.0"]}'; "#;

    fn sound(a: usize, b: usize, both: f64, wrong: u64) -> String {
        format!(
            r#"echo '{{"event":"begin","a":{a},"b":{b}}}'; echo '{{"event":"pair","a":{a},"b":{b},"reported":true,"ways":[{{"by":"stores","gb-s":{both},"back-gb-s":{both},"both-gb-s":{both},"us":2.0,"wrong":{wrong}}}]}}'; "#
        )
    }

    #[test]
    fn a_pair_that_hangs_is_noted_and_the_others_are_still_measured() {
        let (first, rest) = (sound(0, 1, 100.0, 0), sound(1, 2, 90.0, 5));
        let script = format!(
            r#"{OPEN} if [ -z "$1" ]; then {first} echo '{{"event":"begin","a":0,"b":2}}'; exec sleep 60; fi
               [ "$1" = 0-1,0-2 ] && {{ {rest} echo '{{"event":"end"}}'; }}"#
        );
        let found = pairs(&|left_out| shell(&script, left_out), QUICK).unwrap();
        let mut machine = two_sockets();
        apply(&mut machine, found);
        let told = |a, b| machine.gpu_link(a, b).map(|link| (link.peer_proven, link.gb_s, link.trouble.clone()));
        assert_eq!(told(0, 1), Some((Some(true), Some(100.0), None)));
        assert_eq!(told(0, 2), Some((Some(false), None, Some("no answer within 0.30 s".into()))));
        assert_eq!(told(1, 2), Some((Some(false), None, None)));
        assert_eq!(told(2, 3).unwrap().0, None);
    }

    #[test]
    fn an_error_of_the_driver_or_a_crash_at_a_pair_is_that_pair_s() {
        let script = format!(
            r#"{OPEN} [ -z "$1" ] && {{ echo '{{"event":"begin","a":0,"b":1}}'; kill -9 $$; }}
               [ "$1" = 0-1 ] && {{ echo '{{"event":"begin","a":0,"b":2}}'; echo '{{"event":"failed","why":"cuMemcpyAsync: 700"}}'; exit 125; }}
               {} echo '{{"event":"end"}}'"#,
            sound(1, 2, 90.0, 0)
        );
        let found = pairs(&|left_out| shell(&script, left_out), QUICK).unwrap();
        let why: Vec<Option<String>> = found.into_iter().map(|found| found.result.err()).collect();
        assert_eq!(
            why,
            [Some("the process that measured ended early".into()), Some("cuMemcpyAsync: 700".into()), None]
        );
    }

    #[test]
    fn gpus_that_cannot_be_opened_are_no_pair_s_fault() {
        let script = r#"echo '{"event":"failed","why":"cuInit: CUDA_ERROR_NO_DEVICE (100)"}'"#;
        assert!(pairs(&|_| shell(script, &[]), QUICK).unwrap_err().contains("NO_DEVICE"));
    }
}
