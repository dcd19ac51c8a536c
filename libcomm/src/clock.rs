//! The clock of the records.
#![expect(
    unsafe_code,
    reason = "the C library's clock_gettime; rustix reads the vDSO itself, which a debugger may hide"
)]

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
