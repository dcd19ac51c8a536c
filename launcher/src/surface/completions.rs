//! `prun completions SHELL`.

use std::ffi::OsString;

use clap::ValueEnum;

use crate::cli::Shell;
use crate::refused::Refused;
use crate::surface::help;

/// The completion script for the shell that `arguments` name.
pub fn script(arguments: Vec<OsString>) -> Result<String, Refused> {
    let shell = match arguments.as_slice() {
        [shell] => shell.to_str().and_then(|name| Shell::from_str(name, false).ok()),
        _ => None,
    };
    let shell = shell.ok_or_else(|| {
        Refused::new("`prun completions` takes the name of one shell")
            .try_instead("`prun completions bash`, zsh or fish")
    })?;
    Ok(script_for(shell))
}

fn script_for(shell: Shell) -> String {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut help::whole(), "prun", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::file::KEYS;

    #[test]
    fn every_option_is_completed_in_every_shell() {
        for shell in Shell::value_variants() {
            let script = script_for(*shell);
            for (flag, _) in KEYS {
                assert!(script.contains(flag), "{shell:?} {flag}");
            }
        }
    }

    #[test]
    fn an_unknown_shell_is_refused() {
        assert!(script(vec!["tcsh".into()]).is_err() && script(vec![]).is_err() && script(vec!["bash".into()]).is_ok());
    }
}
