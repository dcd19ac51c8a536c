//! C programs as users write them: compiled against the header, linked to the library, alone and as two ranks.

use comm::env;
use comm::node::JobSegment;
use rustix::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where cargo puts the libcomm.so and libcomm.a that it builds for tests: beside the tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles tests/c/NAME.c and returns the program.
fn compile(name: &str, link: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}", link.len()));
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/c").join(format!("{name}.c")))
        .arg("-o")
        .arg(&program)
        .args(link)
        .current_dir(libraries())
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{status}: {text}");
    text
}

#[test]
fn a_lone_c_program_is_rank_0_of_1_and_every_error_has_a_sentence() {
    let program = compile("calls", &["-L.", "-lcomm"]);
    // As it is installed: under its SONAME.
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
    std::fs::create_dir_all(&installed).unwrap();
    let _ = std::fs::remove_file(installed.join("libcomm.so.0"));
    std::os::unix::fs::symlink(libraries().join("libcomm.so"), installed.join("libcomm.so.0")).unwrap();
    let text = run(Command::new(program).env("LD_LIBRARY_PATH", installed));
    assert!(text.ends_with("rank 0 of 1: fine\n"), "{text}");
}

/// What two ranks of a program print, with `extra` in their environment.
fn two_ranks(program: &Path, job: &str, extra: &[(&str, &Path)]) -> [String; 2] {
    let segment = JobSegment::create(job, 2, 2).unwrap();
    let fd = rustix::io::dup(segment.as_fd()).unwrap();
    let rank = |rank: u32| {
        let mut command = Command::new(program);
        command
            .env(env::RANK, rank.to_string())
            .env(env::SIZE, "2")
            .env(env::JOB_ID, job)
            .env(env::SEGMENT_FD, fd.as_raw_fd().to_string())
            .envs(extra.iter().copied());
        run(&mut command)
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| rank(1));
        [rank(0), second.join().unwrap()]
    })
}

#[test]
fn two_ranks_in_c_with_the_static_library() {
    let program = compile("calls", &["libcomm.a", "-lpthread", "-ldl", "-lm"]);
    for (rank, text) in two_ranks(&program, "c", &[]).iter().enumerate() {
        assert!(text.ends_with(&format!("rank {rank} of 2: fine\n")), "{text}");
    }
}

#[test]
fn a_driver_that_finds_no_gpu_is_in_the_way_of_no_call_on_host_memory() {
    // In the process already, as PyTorch has it where CUDA_VISIBLE_DEVICES is empty.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, driver) = (folder.join("no_gpu.c"), folder.join("no_gpu.so"));
    let text = r#"
        #include <unistd.h>
        int cuInit(unsigned flags) { return write(1, "cuInit\n", 7) == 7 && flags == 0 ? 100 : 1; }
    "#;
    std::fs::write(&source, text).unwrap();
    run(Command::new("cc").args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&driver).arg(source));
    let program = compile("calls", &["libcomm.a", "-lpthread", "-ldl", "-lm", "-lc"]);
    for (rank, text) in two_ranks(&program, "no-gpu", &[("LD_PRELOAD", &driver)]).iter().enumerate() {
        assert_eq!(*text, format!("cuInit\nrank {rank} of 2: fine\n"));
    }
}

#[test]
fn the_shared_library_has_its_soname_and_exports_only_comm_names() {
    let library = libraries().join("libcomm.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("Library soname: [libcomm.so.0]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let names = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let others: Vec<&str> = names.filter(|name| !name.starts_with("comm_")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn the_header_is_also_cplusplus() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = here.join("include/libcomm.h");
    run(Command::new("c++").args(["-std=c++11", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++"]).arg(header));
}
