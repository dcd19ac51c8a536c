//! Gives `libcomm.so` the SONAME that programs linked against it will look for, and the name to go with it.

use std::path::Path;

/// Grows when programs that are linked already could not go on with a newer library.
const SONAME: &str = "libcomm.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // target/<profile>/build/<package>/out: cargo puts libcomm.so three above, and knows nothing of SONAMEs.
    if let Some(folder) = std::env::var_os("OUT_DIR").as_deref().and_then(|out| Path::new(out).ancestors().nth(3)) {
        let _ = std::os::unix::fs::symlink("libcomm.so", folder.join(SONAME));
    }
}
