//! `prun cc` and `prun c++`: the system's compiler with libcomm's flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::refused::Refused;

/// Which compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// `$CC`, or `cc`.
    C,
    /// `$CXX`, or `c++`.
    Cxx,
}

/// What `prun cc` shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compile {
    /// Print the command.
    Show(String),
    /// Become the compiler.
    Become(Vec<OsString>),
}

/// Where libcomm's header and library are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Libcomm {
    include: PathBuf,
    library: PathBuf,
}

/// The compiler's command line for `arguments`, the first of which may be `--show`.
pub fn command(language: Language, mut arguments: Vec<OsString>) -> Result<Compile, Refused> {
    let show = arguments.first().is_some_and(|argument| argument == "--show");
    if show {
        arguments.remove(0);
    }
    let executable =
        std::env::current_exe().map_err(|error| Refused::new("cannot tell where prun itself lies").because(error))?;
    let libcomm = find(&executable, |path| path.is_file())?;
    let (variable, usual) = match language {
        Language::C => ("CC", "cc"),
        Language::Cxx => ("CXX", "c++"),
    };
    let compiler =
        std::env::var_os(variable).filter(|set| !set.is_empty() && !names_prun(set)).unwrap_or_else(|| usual.into());
    let argv = argv(compiler, &libcomm, arguments);
    Ok(if show { Compile::Show(shown(&argv)) } else { Compile::Become(argv) })
}

/// `make CC="prun cc"` hands the whole of it on in the environment: that is us, not the compiler to run.
fn names_prun(command: &OsString) -> bool {
    let text = command.to_string_lossy();
    let program = text.split_whitespace().next().unwrap_or_default();
    Path::new(program).file_name().is_some_and(|name| name == "prun")
}

/// Beside a prun that cargo built (`target/release/prun`), or in the prefix that it was installed to (`bin/prun`).
fn find(executable: &Path, is_file: impl Fn(&Path) -> bool) -> Result<Libcomm, Refused> {
    let folder = executable.parent().unwrap_or(Path::new("/"));
    let up = |levels: usize| folder.ancestors().nth(levels).unwrap_or(Path::new("/")).to_path_buf();
    let prefix = up(1);
    let includes = [prefix.join("include"), up(2).join("libcomm/include")];
    let triplet = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let libraries = [folder.to_path_buf(), prefix.join("lib"), prefix.join("lib64"), prefix.join(triplet)];
    let include = includes.iter().find(|folder| is_file(&folder.join("libcomm.h")));
    let library =
        libraries.iter().find(|folder| is_file(&folder.join("libcomm.so")) || is_file(&folder.join("libcomm.a")));
    match (include, library) {
        (Some(include), Some(library)) => Ok(Libcomm { include: include.clone(), library: library.clone() }),
        (include, _) => {
            let (what, places) =
                if include.is_none() { ("libcomm.h", &includes[..]) } else { ("libcomm.so", &libraries[..]) };
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            Err(Refused::new(format!("cannot find {what}"))
                .because(format!("it is not in {}", places.join(", ")))
                .try_instead("build libcomm (`cargo build --release -p libcomm`), or install it beside prun"))
        }
    }
}

/// The header's folder goes before the arguments, the library behind them, as linkers want it.
fn argv(compiler: OsString, libcomm: &Libcomm, arguments: Vec<OsString>) -> Vec<OsString> {
    let joined = |flag: &str, path: &Path| {
        let mut joined = OsString::from(flag);
        joined.push(path);
        joined
    };
    let links = !arguments
        .iter()
        .any(|argument| ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"].iter().any(|only| argument == *only));
    let mut argv = vec![compiler, joined("-I", &libcomm.include)];
    argv.extend(arguments);
    if links {
        argv.extend([joined("-L", &libcomm.library), joined("-Wl,-rpath,", &libcomm.library), "-lcomm".into()]);
    }
    argv
}

/// The command as a shell would read it.
fn shown(argv: &[OsString]) -> String {
    let quoted: Vec<String> = argv.iter().map(|argument| quoted(&argument.to_string_lossy())).collect();
    quoted.join(" ") + "\n"
}

/// `text` as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%^".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(executable: &str, files: &[&str]) -> Result<Libcomm, Refused> {
        find(Path::new(executable), |path| files.iter().any(|file| path == Path::new(file)))
    }

    #[test]
    fn libcomm_is_found_where_cargo_builds_and_where_it_is_installed() {
        let built = found("/w/target/release/prun", &["/w/libcomm/include/libcomm.h", "/w/target/release/libcomm.so"]);
        assert_eq!(built, Ok(Libcomm { include: "/w/libcomm/include".into(), library: "/w/target/release".into() }));
        let installed = found("/usr/bin/prun", &["/usr/include/libcomm.h", "/usr/lib64/libcomm.a"]);
        assert_eq!(installed, Ok(Libcomm { include: "/usr/include".into(), library: "/usr/lib64".into() }));
        assert!(found("/usr/bin/prun", &[]).unwrap_err().message.contains("libcomm.h"));
        assert!(found("/usr/bin/prun", &["/usr/include/libcomm.h"]).unwrap_err().message.contains("libcomm.so"));
    }

    #[test]
    fn a_compiler_that_is_prun_itself_is_passed_over() {
        assert!(names_prun(&"/opt/bin/prun cc".into()) && names_prun(&"prun c++".into()));
        assert!(!names_prun(&"gcc-12 -m32".into()) && !names_prun(&"/opt/prun/bin/clang".into()));
    }

    #[test]
    fn the_library_comes_last_and_only_where_something_is_linked() {
        let libcomm = Libcomm { include: "/i".into(), library: "/l l".into() };
        let line =
            |arguments: &[&str]| shown(&argv("cc".into(), &libcomm, arguments.iter().map(OsString::from).collect()));
        assert_eq!(line(&["a.c", "-o", "a b"]), "cc -I/i a.c -o 'a b' '-L/l l' '-Wl,-rpath,/l l' -lcomm\n");
        assert_eq!(line(&["-c", "a.c"]), "cc -I/i -c a.c\n");
    }
}
