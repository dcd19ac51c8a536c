//! Threads that the library starts in the program.
#![expect(unsafe_code, reason = "blocks signals")]

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that gets no signals: they are the program's, whose handlers run in its own threads.
pub(crate) fn start(body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name("libcomm".into()).spawn(body))
}

/// What is started meanwhile has all signals blocked.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: plain sets of signals, filled and used here; the mask is this thread's own, and is put back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        let result = start();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        result
    }
}
