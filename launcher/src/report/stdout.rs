//! Text for standard output.

use std::io::{ErrorKind, Write};

use crate::exit;
use crate::refused::Refused;

/// Prints what was asked for and gives prun's exit code. A reader who has seen enough (`| head`) is no error worth words; a
/// full disk is one.
pub fn print(text: impl AsRef<[u8]>) -> u8 {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Ok(()) => exit::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit::CLOSED_STDOUT,
        Err(error) => {
            let refused = Refused::new("cannot write to standard output").because(error);
            let _ = writeln!(std::io::stderr(), "{refused}");
            exit::REFUSED
        }
    }
}
