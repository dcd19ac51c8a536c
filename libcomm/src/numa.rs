//! Keeps a rank's slots in the memory of the node that the rank runs on.
#![expect(unsafe_code, reason = "mbind and getcpu have no safe wrapper")]

use std::ffi::c_void;

const MPOL_PREFERRED: libc::c_ulong = 1;

/// Asks for pages near the current CPU, before the first touch. Only where there is more than one node; where
/// the kernel says no (a sandbox does), memory is merely farther away, so its answer does not matter.
pub(crate) fn bind_here((address, bytes): (*mut c_void, usize)) {
    if !several_nodes() {
        return;
    }
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: both pointers are to live integers; the third argument has been unused since Linux 2.6.24.
    if unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, std::ptr::null_mut::<c_void>()) } != 0 {
        return;
    }
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else { return };
    *word |= 1 << (node % 64);
    // SAFETY: mbind changes where pages of the caller's own mapping are taken from, not what is in them; the mask
    // has the 1024 bits that are announced, one more by the kernel's way to count.
    unsafe { libc::syscall(libc::SYS_mbind, address, bytes, MPOL_PREFERRED, mask.as_ptr(), 1025usize, 0usize) };
}

/// "0" means one node, "0-1" or "0,2" several.
fn several_nodes() -> bool {
    let online = std::fs::read_to_string("/sys/devices/system/node/online");
    online.is_ok_and(|nodes| nodes.contains(['-', ',']))
}
