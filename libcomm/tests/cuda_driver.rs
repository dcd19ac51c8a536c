//! The driver as libcomm meets it: absent, too old, newer than anyone knew. A few lines of C stand in for it.
#![allow(unsafe_code, reason = "calls of the driver")]

use comm::cuda::{CudaError, Driver};
use std::path::PathBuf;
use std::process::Command;

/// Builds a library from C and returns where it is.
fn library(name: &str, source: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (c, so) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&c, source).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&so).arg(&c).status().unwrap();
    assert!(built.success());
    so
}

fn failure(library: &std::path::Path) -> CudaError {
    match Driver::load(library) {
        Ok(_) => panic!("it loaded"),
        Err(error) => error,
    }
}

#[test]
fn no_driver_is_an_error_that_says_so() {
    let error = failure(&PathBuf::from("/nowhere/libcuda.so.1"));
    assert!(matches!(&error, CudaError::NoDriver(_)), "{error}");
    assert!(error.to_string().starts_with("cannot load the CUDA driver: "), "{error}");
    assert!(error.means_no_gpu());
}

#[test]
fn a_library_without_the_first_function_is_an_error_that_names_it() {
    let empty = library("empty", "int nothing;");
    assert_eq!(failure(&empty), CudaError::NoFunction("cuInit"));
}

#[test]
fn a_driver_that_cannot_start_is_an_error_with_its_own_words() {
    let source = r#"
        int cuInit(unsigned flags) { return 100; }
        int cuGetErrorName(int status, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
    "#;
    let error = failure(&library("no_device", source));
    assert_eq!(error.to_string(), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
    assert_eq!(error.status(), Some(100));
    assert!(error.means_no_gpu());
}

#[test]
fn a_status_that_nobody_knows_and_a_function_that_is_missing_are_errors_and_the_rest_works() {
    let source = r#"
        int cuInit(unsigned flags) { return 0; }
        int cuDriverGetVersion(int *version) { *version = 99000; return 0; }
        int cuDeviceGetCount(int *count) { return 91700; }
        int cuGetErrorName(int status, const char **name) { return 1; }
    "#;
    let driver = Driver::load(&library("newer", source)).unwrap();
    let mut number = 0;
    // SAFETY: each writes one number.
    unsafe {
        driver.driver_version(&mut number).unwrap();
        assert_eq!(number, 99000);
        let error = driver.device_count(&mut number).unwrap_err();
        assert_eq!(error.to_string(), "cuDeviceGetCount: unknown status (91700)");
        assert!(!error.means_no_gpu());
        let error = driver.device_get(&mut number, 0).unwrap_err();
        assert_eq!(error.to_string(), "this CUDA driver has no cuDeviceGet");
    }
}
