//! A job that measures one size after the other as it is asked to: prun's own rank program, or another that speaks the
//! same lines (`programs::bench::wire`). Between two questions its ranks sleep.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use programs::bench::wire::{Answer, Ask, Entry, Hello};

use crate::own_job;
use crate::refused::Refused;

/// A running job.
#[derive(Debug)]
pub struct Session {
    /// Who is measured, for messages.
    title: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Session {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// [`Refused`] if it ends before; what its ranks said stands on stderr.
    pub fn start(title: &str, options: &[String], program: &[OsString]) -> Result<(Session, Hello), Refused> {
        let mut command = own_job::command(options, program);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|cause| Refused::new(format!("cannot start {title}")).because(cause))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some(output) = output else { return Err(Refused::new(format!("cannot hear {title}"))) };
        let mut session = Session { title: title.to_owned(), child, input, output: BufReader::new(output) };
        let hello = session.hear()?;
        Ok((session, hello))
    }

    /// Measures one size.
    ///
    /// # Errors
    /// [`Refused`] if the job ends instead.
    pub fn ask(&mut self, count: u64) -> Result<Vec<Entry>, Refused> {
        let line = serde_json::to_string(&Ask { count }).unwrap_or_default();
        // A job that is gone is noticed by its answer.
        let _ = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        self.hear::<Answer>().map(|answer| answer.entries)
    }

    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Refused> {
        let mut line = String::new();
        // Libraries print lines of their own, too.
        while self.output.read_line(&mut line).is_ok_and(|length| length > 0) {
            if let Ok(heard) = serde_json::from_str(&line) {
                return Ok(heard);
            }
            eprint!("{line}");
            line.clear();
        }
        self.input = None;
        let how = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Err(Refused::new(format!("{} ended in the middle ({how})", self.title))
            .because("what its ranks said stands above"))
    }

    /// Lets it end.
    ///
    /// # Errors
    /// [`Refused`] if it does not end well.
    pub fn end(mut self) -> Result<(), Refused> {
        self.input = None;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Refused::new(format!("{} did not end well ({status})", self.title))),
            Err(cause) => Err(Refused::new(format!("cannot wait for {}", self.title)).because(cause)),
        }
    }
}

impl Drop for Session {
    /// A job that is not needed any more ends with its input; nobody waits for more than that.
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}
