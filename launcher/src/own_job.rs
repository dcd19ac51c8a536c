//! Jobs whose ranks are programs that prun carries: how `prun bench` and `prun selftest` start them.
//!
//! Each is a prun of its own, as a trial of a sweep is, with its promises: it ends when this one does, in whatever way,
//! and leaves nothing behind. So a program of somebody else's that is to be measured is started under one, too.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::experiment::child;

/// This very program, whatever has become of its file.
const SELF: &str = "/proc/self/exe";

/// `prun -q OPTIONS -- PROGRAM`, which ends when this process does.
pub fn command(options: &[String], program: &[OsString]) -> Command {
    let mut command = Command::new(SELF);
    command.arg0("prun").arg(child::WORD).arg(std::process::id().to_string());
    command.arg("-q").args(options).arg("--").args(program);
    command
}

/// What makes a rank the program that `word` names, with its one argument.
pub fn rank(word: &str, argument: &str) -> [OsString; 3] {
    [SELF.into(), word.into(), argument.into()]
}
