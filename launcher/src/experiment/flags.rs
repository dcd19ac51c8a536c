//! The table `[job]` of an experiment as the flags of each trial's prun: its keys are those of a job file.

use std::ffi::OsString;

use toml::{Table, Value};

use crate::job::file::{KEYS, edit_distance};
use crate::refused::Refused;

/// Keys of a job file that a trial cannot have: the sweep itself says these.
const NOT_IN_TRIALS: [&str; 3] = ["dry-run", "json", "verbose"];

/// The flags that mean what `job` says.
pub fn of(job: &Table) -> Result<Vec<OsString>, Refused> {
    let mut flags = Vec::new();
    for (key, value) in job {
        match (key.as_str(), value) {
            ("env", Value::Table(variables)) => {
                for (name, value) in variables {
                    let value = scalar(value).ok_or_else(|| wrong(&format!("env.{name}")))?;
                    flags.extend(["-x".into(), format!("{name}={value}").into()]);
                }
            }
            ("pass-env", Value::Array(names)) => {
                for name in names {
                    flags.extend(["-x".into(), name.as_str().ok_or_else(|| wrong(key))?.into()]);
                }
            }
            (_, Value::Table(inner)) => {
                for (inner, value) in inner {
                    one(&format!("{key}.{inner}"), value, &mut flags)?;
                }
            }
            _ => one(key, value, &mut flags)?,
        }
    }
    Ok(flags)
}

fn one(key: &str, value: &Value, flags: &mut Vec<OsString>) -> Result<(), Refused> {
    let known = KEYS.iter().find(|(_, known)| *known == key);
    let Some((flag, _)) = known.filter(|_| !NOT_IN_TRIALS.contains(&key)) else { return Err(unknown(key)) };
    match value {
        Value::Boolean(true) if *flag == "quiet" => flags.push("--quiet".into()),
        Value::Boolean(false) if *flag == "quiet" => {}
        Value::Array(items) if *flag == "ranks" => {
            let items: Option<Vec<String>> = items.iter().map(scalar).collect();
            flags.push(format!("--{flag}={}", items.ok_or_else(|| wrong(key))?.join(",")).into());
        }
        Value::Array(items) if *flag == "env-file" => {
            for item in items {
                flags.push(format!("--{flag}={}", scalar(item).ok_or_else(|| wrong(key))?).into());
            }
        }
        Value::Boolean(on) => flags.push(switch(flag, *on).into()),
        _ => flags.push(format!("--{flag}={}", scalar(value).ok_or_else(|| wrong(key))?).into()),
    }
    Ok(())
}

/// What `true` and `false` stand for is each option's own matter.
fn switch(flag: &str, on: bool) -> String {
    match (flag, on) {
        ("label", true) => "--label".into(),
        ("label", false) => "--label=".into(),
        ("verify", true) => "--verify=every".into(),
        ("verify", false) => "--verify=off".into(),
        ("pty", true) => "--pty=all".into(),
        ("pty" | "bind" | "stdin" | "timeout" | "stall-timeout", false) => format!("--{flag}=none"),
        (_, true) => format!("--{flag}=yes"),
        (_, false) => format!("--{flag}=no"),
    }
}

/// A scalar as text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(switch) => Some(switch.to_string()),
        _ => None,
    }
}

fn unknown(key: &str) -> Refused {
    let refused = Refused::new(format!("a trial's [job] has no key `{key}`"));
    let near = KEYS.iter().map(|(_, known)| *known).filter(|known| !NOT_IN_TRIALS.contains(known));
    match near.min_by_key(|known| edit_distance(known, key)).filter(|near| edit_distance(near, key) <= 3) {
        Some(near) => refused.try_instead(format!("`{near}`")),
        None => refused.try_instead("`prun man` lists the keys of a job"),
    }
}

fn wrong(key: &str) -> Refused {
    Refused::new(format!("`{key}` in [job] holds a value that no flag takes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Vec<String> {
        let flags = of(&text.parse().unwrap()).unwrap();
        flags.into_iter().map(|flag| flag.into_string().unwrap()).collect()
    }

    #[test]
    fn keys_become_flags() {
        let text = "bind = 'core'\nverify = true\nenv = { A = 1, B = '{chunk}' }\npass-env = ['C']\nwdir = 'd'\n[output]\nranks = [0, 1]\n[ending]\ngrace = 2\nkeep-going = false";
        assert_eq!(
            flags(text),
            [
                "--bind=core",
                "--grace=2",
                "--keep-going=no",
                "-x",
                "A=1",
                "-x",
                "B={chunk}",
                "--ranks=0,1",
                "-x",
                "C",
                "--verify=every",
                "--wdir=d"
            ]
        );
    }

    #[test]
    fn what_no_trial_can_have_is_refused() {
        for (text, message, try_) in [
            ("bindd = 'core'", "no key `bindd`", "`bind`"),
            ("json = 'x'", "no key `json`", ""),
            ("bind = [[1]]", "`bind` in [job] holds a value that no flag takes", ""),
            ("[ending]\ngraze = 1", "no key `ending.graze`", "`ending.grace`"),
        ] {
            let refused = of(&text.parse().unwrap()).unwrap_err();
            assert!(refused.message.contains(message) && refused.try_.unwrap_or_default().contains(try_), "{text}");
        }
    }

    #[test]
    fn every_key_of_a_job_file_becomes_a_flag_that_prun_reads() {
        let text = "ranks = 2\nquiet = true\nenv-clear = true\nstdin = 'none'\nbind = 'none'\nverify = 'off'\n[output]\nlabel = true\ndir = 'out-{rank}'\ntee = true\nmerge-stderr = true\nranks = [0]\npty = false\n[ending]\ntimeout = '2m'\ngrace = 3\nkill-on-fail = true\nsignal = 'USR1@10'\nmax-restarts = 1\nstall-timeout = false";
        let words: Vec<OsString> =
            std::iter::once("prun".into()).chain(of(&text.parse().unwrap()).unwrap()).chain(["true".into()]).collect();
        let read = crate::command::read(words, &[]);
        assert!(matches!(read, Ok(crate::command::Command::Run(_))), "{read:?}");
    }
}
