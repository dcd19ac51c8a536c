//! Finds the program that a rank names, and says in a sentence why one cannot run.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::child::{SpawnError, Step};

/// A reason, and the exit code that goes with it: 126 and 127 as in shells, 125 where prun itself is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Sentences: what, `cause:`, `try:`.
    pub reason: String,
    /// The exit code.
    pub code: i32,
}

/// Where `name` is: itself if it has a slash, else the first executable file along `path`.
pub fn find(name: &OsStr, path: Option<&OsStr>, working_dir: Option<&Path>) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(Refusal {
            reason: "the program's name is empty\n  try: name a program; a variable in its place may be unset".into(),
            code: 127,
        });
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = path.map_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"), OsStr::to_owned);
    let mut forbidden = None;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        // An empty or relative entry of PATH counts from where the rank will stand.
        let seen = working_dir.map_or_else(|| candidate.clone(), |base| base.join(&candidate));
        let Ok(status) = fs::metadata(&seen) else { continue };
        if status.is_dir() {
            continue;
        }
        if status.permissions().mode() & 0o111 != 0 {
            return Ok(if candidate.as_os_str().as_bytes().contains(&b'/') {
                candidate
            } else {
                Path::new(".").join(candidate)
            });
        }
        forbidden.get_or_insert(candidate);
    }
    let shown = name.display();
    Err(match forbidden {
        Some(candidate) => Refusal {
            reason: format!(
                "cannot run '{shown}'\n  cause: {} is not executable\n  try: chmod +x {}",
                candidate.display(),
                candidate.display()
            ),
            code: 126,
        },
        None if working_dir.unwrap_or(Path::new(".")).join(name).is_file() => Refusal {
            reason: format!(
                "cannot find program '{shown}'\n  cause: it is in no directory of PATH\n  try: './{shown}', since there is such a file in the working directory"
            ),
            code: 127,
        },
        None => Refusal {
            reason: format!(
                "cannot find program '{shown}'\n  cause: it is in no directory of PATH ({})\n  try: give its path, or correct PATH",
                path.display()
            ),
            code: 127,
        },
    })
}

/// Whether `file` may be handed to `/bin/sh`, as `execvp` does with a file that has no `#!` line.
///
/// Only text is: a damaged or foreign binary would make the shell run random words as commands.
pub fn is_shell_text(file: &Path) -> bool {
    let mut start = Vec::new();
    let Ok(opened) = File::open(file) else { return false };
    if opened.take(1024).read_to_end(&mut start).is_err() {
        return false;
    }
    let text = match std::str::from_utf8(&start) {
        Ok(text) => text,
        // The 1024 bytes may end inside a character.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or(""),
        Err(_) => return false,
    };
    text.chars().all(|letter| !letter.is_control() || matches!(letter, '\n' | '\t' | '\r' | '\x0c' | '\x1b'))
}

/// Why `program` could not be started.
pub fn explain(program: &Path, working_dir: Option<&Path>, error: &SpawnError) -> Refusal {
    let shown = program.display();
    let cause = os_text(&error.cause);
    match error.step {
        Step::Clone => Refusal {
            reason: format!(
                "cannot make a process for '{shown}'\n  cause: clone: {cause}\n  try: fewer ranks, or a higher limit (`ulimit -u`, the cgroup's pids.max, /proc/sys/kernel/pid_max)"
            ),
            code: 125,
        },
        Step::Group | Step::DeathSignal | Step::Descriptors | Step::Device => Refusal {
            reason: format!("cannot prepare a process for '{shown}'\n  cause: {:?}: {cause}", error.step),
            code: 125,
        },
        Step::WorkingDirectory => {
            let directory = working_dir.unwrap_or(Path::new(".")).display();
            Refusal {
                reason: format!(
                    "cannot enter the working directory '{directory}'\n  cause: {cause}\n  try: create it, or give another with --wdir"
                ),
                code: 125,
            }
        }
        Step::Affinity => Refusal {
            reason: format!(
                "cannot bind a rank to its CPUs\n  cause: sched_setaffinity: {cause}\n  try: --bind none, or CPUs that `taskset -p $$` shows"
            ),
            code: 125,
        },
        Step::AffinityDiffers => Refusal {
            reason: "a rank got other CPUs than those it was bound to\n  cause: the cgroup or a seccomp filter narrows them\n  try: --bind none, or `prun doctor`".into(),
            code: 125,
        },
        Step::Memory => Refusal {
            reason: format!(
                "a rank did not get the memory policy of its NUMA node\n  cause: set_mempolicy: {cause}\n  try: --bind none, or `prun doctor`"
            ),
            code: 125,
        },
        Step::Exec => explain_exec(program, working_dir, &error.cause),
    }
}

fn explain_exec(program: &Path, working_dir: Option<&Path>, error: &io::Error) -> Refusal {
    let shown = program.display();
    let file = working_dir.map_or_else(|| program.to_owned(), |base| base.join(program));
    let refusal = |code, cause: String, advice: String| Refusal {
        reason: format!("cannot run '{shown}'\n  cause: {cause}\n  try: {advice}"),
        code,
    };
    match error.raw_os_error() {
        Some(libc::ENOENT) => match fs::metadata(&file) {
            Ok(_) => explain_interpreter(&file, &shown.to_string()),
            Err(_) => Refusal {
                reason: format!(
                    "cannot find program '{shown}'\n  cause: no such file\n  try: check the path; prun was started in {}",
                    current_dir(working_dir)
                ),
                code: 127,
            },
        },
        Some(libc::ENOTDIR) => Refusal {
            reason: format!(
                "cannot find program '{shown}'\n  cause: a part of the path is not a directory\n  try: check the path"
            ),
            code: 127,
        },
        Some(libc::EACCES) => match fs::metadata(&file) {
            Ok(status) if status.is_dir() => refusal(126, "it is a directory".into(), "name the program in it".into()),
            Ok(status) if status.permissions().mode() & 0o111 == 0 => {
                refusal(126, "it is not executable".into(), format!("chmod +x '{shown}'"))
            }
            _ => refusal(
                126,
                "permission denied (a directory on the way, a mount with noexec, or its interpreter)".into(),
                format!("namei -l '{shown}'"),
            ),
        },
        Some(libc::ENOEXEC) => {
            let head = read_head(&file);
            match foreign_machine(&head) {
                Some(machine) => refusal(
                    126,
                    format!("exec format error: it is built for {machine}, this machine is {}", std::env::consts::ARCH),
                    "build it for this machine".into(),
                ),
                None => refusal(
                    126,
                    "exec format error: it is neither a program for this machine nor a text with a '#!' line".into(),
                    format!("file '{shown}'"),
                ),
            }
        }
        Some(libc::E2BIG) => refusal(
            126,
            "arguments and environment together are too long".into(),
            "shorter ones, a file instead of arguments, or --env-clear".into(),
        ),
        Some(libc::ETXTBSY) => {
            refusal(126, "it is open for writing".into(), "wait until whoever builds or copies it is done".into())
        }
        _ => refusal(126, os_text(error), format!("file '{shown}'")),
    }
}

/// The file is there, so what is missing is what it asks to be run by.
fn explain_interpreter(file: &Path, shown: &str) -> Refusal {
    let head = read_head(file);
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let name: Vec<u8> =
            line.trim_ascii_start().split(|&byte| byte == b' ' || byte == b'\t').next().unwrap_or_default().to_vec();
        let (cause, advice) = match name.strip_suffix(b"\r") {
            Some(clean) => (
                format!("its interpreter '{}\\r' does not exist: the file has Windows line ends", clean.escape_ascii()),
                format!("sed -i 's/\\r$//' '{shown}'"),
            ),
            None => (
                format!("its interpreter '{}' (first line) does not exist", name.escape_ascii()),
                "install it, or correct the '#!' line".to_owned(),
            ),
        };
        return Refusal { reason: format!("cannot run '{shown}'\n  cause: {cause}\n  try: {advice}"), code: 127 };
    }
    let cause = match elf_interpreter(&head) {
        Some(loader) => format!("its loader '{loader}' does not exist"),
        None => "something that it needs does not exist".to_owned(),
    };
    Refusal {
        reason: format!(
            "cannot run '{shown}'\n  cause: {cause}\n  try: install the libraries that it was built for, or build it on this machine"
        ),
        code: 127,
    }
}

fn read_head(file: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok(opened) = File::open(file) {
        let _ = opened.take(4096).read_to_end(&mut head);
    }
    head
}

/// The machine an ELF file is for, if it is not this one.
fn foreign_machine(head: &[u8]) -> Option<String> {
    if !head.starts_with(b"\x7fELF") || head.len() < 20 {
        return None;
    }
    let little = head[5] == 1;
    let pair = [head[18], head[19]];
    let machine = if little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) };
    let name = match machine {
        3 => "x86 (32 bit)",
        8 => "mips",
        20 => "powerpc",
        21 => "powerpc64",
        22 => "s390",
        40 => "arm (32 bit)",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv",
        258 => "loongarch",
        other => return Some(format!("ELF machine {other}")),
    };
    (name != std::env::consts::ARCH).then(|| name.to_owned())
}

/// The loader that a 64-bit little-endian ELF file asks for (PT_INTERP), if it lies in `head`.
fn elf_interpreter(head: &[u8]) -> Option<String> {
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word =
        |at: usize| head.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize);
    let half = |at: usize| {
        head.get(at..at + 2).map(|bytes| usize::from(u16::from_le_bytes(bytes.try_into().expect("2 bytes"))))
    };
    let (table, size, count) = (word(32)?, half(54)?, half(56)?);
    (0..count).find_map(|index| {
        let entry = table.checked_add(index.checked_mul(size)?)?;
        let kind = head.get(entry..entry.checked_add(4)?)?;
        if kind != 3u32.to_le_bytes() {
            return None;
        }
        let (offset, bytes) = (word(entry + 8)?, word(entry + 32)?);
        let text = head.get(offset..offset.checked_add(bytes)?)?;
        Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
    })
}

fn current_dir(working_dir: Option<&Path>) -> String {
    working_dir
        .map(Path::to_owned)
        .or_else(|| std::env::current_dir().ok())
        .map_or_else(|| "?".into(), |directory| directory.display().to_string())
}

/// "No such file or directory", without Rust's "(os error 2)".
pub(crate) fn os_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec_error(errno: i32) -> SpawnError {
        SpawnError { step: Step::Exec, cause: io::Error::from_raw_os_error(errno) }
    }

    fn file(name: &str, content: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rankd-program-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("a writable temp directory");
        path
    }

    #[test]
    fn the_missing_interpreter_is_named_and_a_carriage_return_is_shown() {
        let missing = file("missing", b"#!/bin/nonexistent -x\necho hi\n");
        let refusal = explain(&missing, None, &exec_error(libc::ENOENT));
        assert!(refusal.reason.contains("'/bin/nonexistent'") && refusal.code == 127, "{refusal:?}");
        let crlf = file("crlf", b"#!/bin/sh\r\necho hi\r\n");
        let refusal = explain(&crlf, None, &exec_error(libc::ENOENT));
        assert!(refusal.reason.contains("/bin/sh\\r") && refusal.code == 127, "{refusal:?}");
        for path in [missing, crlf] {
            fs::remove_file(path).expect("ours");
        }
    }

    #[test]
    fn only_text_reaches_the_shell() {
        for (name, content, expected) in [
            ("text", "echo hi\n".as_bytes(), true),
            ("empty", b"".as_slice(), true),
            ("utf8", "echo grüße €\n".as_bytes(), true),
            ("nul", b"echo\0hi".as_slice(), false),
            ("elf", b"\x7fELF\x02\x01\x01".as_slice(), false),
            ("random", &[0x91, 0xfe, 0x07, 0x33, 0xc3, 0x28], false),
        ] {
            let path = file(name, content);
            assert_eq!(is_shell_text(&path), expected, "{name}");
            fs::remove_file(path).expect("ours");
        }
    }

    #[test]
    fn a_foreign_program_is_named_by_its_machine() {
        let mut head = vec![0u8; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
        let path = file("foreign", &head);
        let refusal = explain(&path, None, &exec_error(libc::ENOEXEC));
        assert!(refusal.reason.contains("built for") && refusal.code == 126, "{refusal:?}");
        fs::remove_file(path).expect("ours");
    }

    #[test]
    fn a_damaged_elf_header_is_no_panic() {
        let mut head = b"\x7fELF\x02\x01".to_vec();
        head.resize(64, 0xff);
        assert_eq!(elf_interpreter(&head), None);
        assert_eq!(elf_interpreter(b"\x7fELF\x02\x01"), None);
    }

    #[test]
    fn a_program_in_the_working_directory_but_not_in_path_is_hinted_at() {
        let path = file("here", b"x");
        let (directory, name) = (path.parent().expect("has one"), path.file_name().expect("has one"));
        let refusal = find(name, Some(OsStr::new("/nonexistent")), Some(directory)).expect_err("not in PATH");
        assert!(refusal.reason.contains("try: './") && refusal.code == 127, "{refusal:?}");
        fs::remove_file(path).expect("ours");
    }
}
