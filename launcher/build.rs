//! How prun is linked, so that it starts quickly: 0.4 ms of the 3 to 4 that a job of two short ranks takes.
//!
//! - At a fixed address: otherwise the loader writes 15 000 addresses into 76 pages first, which fork then copies twice
//!   (0.3 ms). prun reads only what its own user gives it.
//! - With the static form of libgcc_s where this machine has it. A shared library costs the loader a dozen system calls,
//!   page faults and relocations, and this one asks the processor what it can, which a virtual machine answers slowly
//!   (0.1 ms). libc itself stays shared, since NVML is loaded at run time.
//!
//! What was tried beside that: binding symbols lazily gives nothing more, and a static libm does not link with a shared
//! libc, so `src/real.rs` does without.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_gnu_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    let is_cross = env::var("HOST").ok() != env::var("TARGET").ok();
    let Some(directory) = env::var_os("OUT_DIR").map(PathBuf::from).filter(|_| is_gnu_linux && !is_cross) else {
        return;
    };
    println!("cargo:rustc-link-arg-bin=prun=-no-pie");
    // A linker script in place of the library: the linker looks here before it looks in the system's directories.
    if let Some(archive) = installed("libgcc_eh.a") {
        let _ = fs::write(directory.join("libgcc_s.so"), format!("INPUT(\"{}\")\n", archive.display()));
        println!("cargo:rustc-link-search=native={}", directory.display());
    }
}

/// The path of an archive that the C compiler would link; `None` if it has none.
fn installed(archive: &str) -> Option<PathBuf> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg(format!("-print-file-name={archive}")).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let path = Path::new(path.trim());
    (path.is_absolute() && path.exists()).then(|| path.to_owned())
}
