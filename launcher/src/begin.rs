//! What a process does before anything else. Rust's runtime would do it, and more; see `main.rs`.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use nix::libc;

/// The arguments as C hands them to `main`.
///
/// # Safety
/// `arguments` points to `count` strings that end with NUL.
#[expect(unsafe_code, reason = "C's argument list")]
pub unsafe fn arguments(count: c_int, arguments: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller vouches for list and strings.
    let text = |at: usize| unsafe { CStr::from_ptr(*arguments.add(at)) };
    (0..count).map(|at| OsStr::from_bytes(text(at).to_bytes()).to_owned()).collect()
}

/// Opens `/dev/null` for each of 0, 1 and 2 that is closed, so that no file of ours ever has its number, and ignores
/// SIGPIPE: a reader who is gone is an error of `write`.
#[expect(unsafe_code, reason = "fcntl, open and signal before there is anything else")]
pub fn sane_descriptors() {
    for fd in 0..3 {
        // SAFETY: asks for a flag; opens a file, whose number is the lowest free one: `fd`, since those below are open.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// The last function of the C library's libm that a dependency (indicatif) asks for. Defined here, it lets that library
/// stay away; see `real.rs`.
#[expect(unsafe_code, reason = "a C function by its C name")]
#[unsafe(no_mangle)]
extern "C" fn pow(base: f64, x: f64) -> f64 {
    libm::pow(base, x)
}
