//! Saves a machine and loads it again, as TOML that people can read and change.

use std::path::Path;

use super::{Machine, lspci, smi_topo};
use crate::refused::Refused;

/// The text of a saved machine.
pub fn save(machine: &Machine) -> String {
    // Every field is a number, a text, a list or a table, so this does not fail.
    let text = toml::to_string(machine).unwrap_or_default();
    format!("# A machine, saved by `prun topo --save`; `prun plan --node FILE -n N` plans for it anywhere.\n{text}")
}

/// Reads a saved machine, or the output of `nvidia-smi topo -m`.
///
/// # Errors
/// [`Refused`] with the line and column of what is wrong.
pub fn load(path: &Path) -> Result<Machine, Refused> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Refused::new(format!("cannot read the saved machine {shown}"))
            .because(error)
            .try_instead("`prun topo --save FILE` makes one")
    })?;
    parse(&text).map_err(|why| {
        Refused::new(format!("{shown} holds no machine"))
            .because(why)
            .try_instead("a file of `prun topo --save`, or the text of `nvidia-smi topo -m`")
    })
}

/// As [`load`], from text.
///
/// # Errors
/// What is wrong, with its place.
pub fn parse(text: &str) -> Result<Machine, String> {
    if smi_topo::looks_like_it(text) {
        return smi_topo::read(text).map_err(|error| error.to_string());
    }
    if !lspci::read(text).is_empty() {
        return Err("it is the text of lspci, which `prun doctor --lspci FILE` judges".into());
    }
    let machine: Machine = toml::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
    if machine.is_nothing() {
        return Err("it names no CPU, no GPU and no other device".into());
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn a_machine_is_read_back_as_it_was() {
        let machine = two_sockets();
        let text = save(&machine);
        assert_eq!(parse(&text).unwrap(), machine, "{text}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = parse("name = 'a'\n[[gpu]]\nindex = 0\naddress = 'nowhere'\n").unwrap_err();
        assert!(error.contains("line 4") && error.contains("nowhere"), "{error}");
        assert!(parse("nmae = 'a'").unwrap_err().contains("nmae"));
        assert!(parse("").unwrap_err().contains("no CPU"));
        assert!(parse("41:00.0 3D controller: NVIDIA Corporation Device\n").unwrap_err().contains("doctor --lspci"));
    }

    mod any_text {
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn is_a_machine_or_an_error(text in "(name|\\[\\[gpu\\]\\]|index|=|'a'|[0-9]|\n| ){0,20}") {
                let _ = super::super::parse(&text);
            }
        }
    }
}
