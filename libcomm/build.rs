//! Gives `libcomm.so` the SONAME that programs linked against it will look for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcomm.so.0");
}
