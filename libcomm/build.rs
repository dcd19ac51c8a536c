//! Gives `libcomm.so` the SONAME that programs linked against it will look for, and the name to go with it. Makes constants
//! of the table by which the paths between GPUs are chosen.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

#[path = "src/device/table.rs"]
mod table;

/// Grows when programs that are linked already could not go on with a newer library.
const SONAME: &str = "libcomm.so.0";

/// In the folder above this one.
const TABLE: &str = "configs/protocol-choice.toml";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/device/table.rs");
    println!("cargo:rerun-if-changed=../{TABLE}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    // target/<profile>/build/<package>/out: cargo puts libcomm.so three above, and knows nothing of SONAMEs.
    if let Some(folder) = Path::new(&out).ancestors().nth(3) {
        let _ = std::os::unix::fs::symlink("libcomm.so", folder.join(SONAME));
    }
    let text = fs::read_to_string(Path::new("..").join(TABLE)).map_err(|error| error.to_string());
    let constants = text.and_then(|text| table::constants(&text));
    let written = constants.and_then(|constants| {
        fs::write(Path::new(&out).join("protocol_choice.rs"), constants).map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{TABLE}: {why}");
            ExitCode::FAILURE
        }
    }
}
