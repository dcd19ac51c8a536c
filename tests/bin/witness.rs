//! A rank that tells what happens to it: prints `ready (pid N)`, then a line per signal.
//!
//! `witness [--ignore SIG]… [--exit-on SIG=CODE]…` waits for signals until it is killed or told to exit.

use std::io::{self, Write};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::SignalFd;

fn main() -> anyhow::Result<()> {
    let mut exits = Vec::new();
    let mut watched = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL] {
        watched.remove(fault);
    }
    // Stop signals keep their effect: a witness that only wrote about them would not stop.
    for stop in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
        watched.remove(stop);
    }
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match option.as_str() {
            "--exit-on" => {
                let (signal, code) = value.split_once('=').unwrap_or((&value, "0"));
                exits.push((signal.parse::<Signal>()?, code.parse::<i32>()?));
            }
            "--default" => watched.remove(value.parse()?),
            _ => anyhow::bail!("unknown option {option}"),
        }
    }
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), None)?;
    let signals = SignalFd::new(&watched)?;
    say(&format!("ready (pid {})", std::process::id()))?;
    loop {
        let Some(info) = signals.read_signal()? else { continue };
        let number = info.ssi_signo as i32;
        let name = Signal::try_from(number).map_or_else(|_| number.to_string(), |signal| signal.as_str().to_owned());
        say(&format!("got {name}"))?;
        if let Some((_, code)) = exits.iter().find(|(signal, _)| *signal as i32 == number) {
            std::process::exit(*code);
        }
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
