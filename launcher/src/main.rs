//! prun: from arguments to exit code.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use launcher::command::{self, Command};
use launcher::{exit, experiment};
use launcher::refused::Refused;
use launcher::run::{self, Done};

fn main() -> ExitCode {
    let inherited: Vec<_> = std::env::vars_os().collect();
    let Some(arguments) = experiment::child::entered(std::env::args_os().collect()) else {
        return ExitCode::from(exit::REFUSED); // the sweep that wanted this trial is gone
    };
    let outcome = match command::read(arguments, &inherited) {
        Ok(Command::Run(job)) => run::run(&job, inherited).map(|done| match done {
            Done::Code(code) => code,
            Done::Text(text) => print(&text),
        }),
        Ok(Command::Sweep(args)) => experiment::enter::run(&args, &inherited),
        Ok(Command::Print(text)) => Ok(print(&text)),
        Ok(Command::Compile(argv)) => Err(become_compiler(&argv)),
        Err(refused) => Err(refused),
    };
    ExitCode::from(outcome.unwrap_or_else(|refused| {
        let _ = writeln!(std::io::stderr(), "{refused}");
        exit::REFUSED
    }))
}

/// Text that was asked for; a reader who has seen enough (`| head`) is no error worth words.
fn print(text: &str) -> u8 {
    let written = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    if written.is_ok() { exit::SUCCESS } else { exit::CLOSED_STDOUT }
}

/// Returns only if the compiler cannot be started.
fn become_compiler(argv: &[std::ffi::OsString]) -> Refused {
    let cause = std::process::Command::new(&argv[0]).args(&argv[1..]).exec();
    Refused::new(format!("cannot run the compiler '{}'", argv[0].display()))
        .because(cause)
        .try_instead("name another with CC or CXX")
}
