//! prun: from arguments to exit code.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

use launcher::command::{self, Command, OwnRank};
use launcher::refused::Refused;
use launcher::run::{self, Done};
use launcher::{doctor, exit, experiment, machine, selftest};

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
        Ok(Command::Script(script, None)) => Ok(print(&script)),
        Ok(Command::Script(script, Some(path))) => write_script(&script, &path),
        Ok(Command::Watch(root)) => Ok(doctor::watch::helper(&root)),
        Ok(Command::Plan(args)) => machine::plan::run(&args, &inherited).map(shown),
        Ok(Command::Topo(args)) => machine::topo::run(&args).map(shown),
        Ok(Command::Doctor(args)) => machine::diagnose::run(&args).map(shown),
        Ok(Command::Selftest(args)) => selftest::run(&args, &inherited).map(shown),
        Ok(Command::Rank(OwnRank::Bench, job)) => Ok(programs::bench::run(&job)),
        Ok(Command::Rank(OwnRank::Selftest, case)) => Ok(programs::selftest::run(&case)),
        Ok(Command::Print(text)) => Ok(print(&text)),
        Ok(Command::Compile(argv)) => Err(become_compiler(&argv)),
        Err(refused) => Err(refused),
    };
    ExitCode::from(outcome.unwrap_or_else(|refused| {
        let _ = writeln!(std::io::stderr(), "{refused}");
        exit::REFUSED
    }))
}

/// A look at the machine, and prun's exit code for it.
fn shown(done: machine::Done) -> u8 {
    match print(&done.text) {
        exit::SUCCESS => done.code,
        closed => closed,
    }
}

/// Text that was asked for; a reader who has seen enough (`| head`) is no error worth words.
fn print(text: impl AsRef<[u8]>) -> u8 {
    let written = std::io::stdout().write_all(text.as_ref()).and_then(|()| std::io::stdout().flush());
    if written.is_ok() { exit::SUCCESS } else { exit::CLOSED_STDOUT }
}

fn write_script(script: &[u8], path: &Path) -> Result<u8, Refused> {
    let written =
        std::fs::write(path, script).and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o755)));
    written
        .map(|()| exit::SUCCESS)
        .map_err(|cause| Refused::new(format!("cannot write {}", path.display())).because(cause))
}

/// Returns only if the compiler cannot be started.
fn become_compiler(argv: &[std::ffi::OsString]) -> Refused {
    let cause = std::process::Command::new(&argv[0]).args(&argv[1..]).exec();
    Refused::new(format!("cannot run the compiler '{}'", argv[0].display()))
        .because(cause)
        .try_instead("name another with CC or CXX")
}
