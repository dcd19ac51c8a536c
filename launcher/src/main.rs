//! prun: from arguments to exit code.
//!
//! The C library calls `main` directly: Rust's own start-up reads the process's memory map for the message that a stack
//! overflow would get, which takes 0.16 ms of the 3 that a short job has. What else it does is in [`begin`].

#![no_main]

mod begin;

use std::ffi::{OsString, c_char, c_int};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use launcher::command::{self, Command, OwnRank};
use launcher::refused::Refused;
use launcher::report::stdout::print;
use launcher::run::{self, Done};
use launcher::{bench, doctor, exit, experiment, machine, selftest, status};

/// # Safety
/// Called by the C library alone, once, with the process's own arguments.
#[expect(unsafe_code, reason = "the entry point, and the arguments as C hands them over")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: `main` is called as the C standard says: `count` strings.
    let arguments = unsafe { begin::arguments(count, arguments) };
    begin::sane_descriptors();
    let code = std::panic::catch_unwind(|| prun(arguments)).unwrap_or(exit::REFUSED);
    let _ = std::io::stdout().flush();
    c_int::from(code)
}

fn prun(arguments: Vec<OsString>) -> u8 {
    let inherited: Vec<_> = std::env::vars_os().collect();
    let Some(arguments) = experiment::child::entered(arguments) else {
        return exit::REFUSED; // the sweep that wanted this trial is gone
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
        Ok(Command::Measure(words)) => Ok(machine::measure::helper::run(&words)),
        Ok(Command::Plan(args)) => machine::plan::run(&args, &inherited).map(shown),
        Ok(Command::Topo(args)) => machine::topo::run(&args, &inherited).map(shown),
        Ok(Command::Doctor(args)) => machine::diagnose::run(&args, &inherited).map(shown),
        Ok(Command::Bench(args)) => bench::run(&args),
        Ok(Command::Selftest(args)) => selftest::run(&args, &inherited).map(shown),
        Ok(Command::Status(args)) => status::run(&args).map(shown),
        Ok(Command::Rank(OwnRank::Bench, job)) => Ok(programs::bench::run(&job)),
        Ok(Command::Rank(OwnRank::Selftest, case)) => Ok(programs::selftest::run(&case)),
        Ok(Command::Print(text)) => Ok(print(&text)),
        Ok(Command::Compile(argv)) => Err(become_compiler(&argv)),
        Err(refused) => Err(refused),
    };
    outcome.unwrap_or_else(|refused| {
        let _ = writeln!(std::io::stderr(), "{refused}");
        exit::REFUSED
    })
}

/// A look at the machine, and prun's exit code for it, unless it could not be shown.
fn shown(done: machine::Done) -> u8 {
    match print(&done.text) {
        exit::SUCCESS => done.code,
        closed => closed,
    }
}

fn write_script(script: &[u8], path: &Path) -> Result<u8, Refused> {
    let written =
        std::fs::write(path, script).and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o755)));
    written
        .map(|()| exit::SUCCESS)
        .map_err(|cause| Refused::new(format!("cannot write {}", path.display())).because(cause))
}

/// Returns only if the compiler cannot be started.
fn become_compiler(argv: &[OsString]) -> Refused {
    let cause = std::process::Command::new(&argv[0]).args(&argv[1..]).exec();
    Refused::new(format!("cannot run the compiler '{}'", argv[0].display()))
        .because(cause)
        .try_instead("name another with CC or CXX")
}
