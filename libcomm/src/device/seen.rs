//! Whether this process sees the GPUs that its launcher gave it: `CUDA_VISIBLE_DEVICES` names them by UUID, and CUDA
//! leaves out, without a word, what it does not know and all behind it.

use crate::cuda::{Context, Driver};
use crate::env;
use crate::error::CommError;

/// An error if what CUDA shows is not what the launcher said.
pub(crate) fn check(driver: &'static Driver) -> Result<(), CommError> {
    let (Some(_), Some(list)) = (env::text(env::GPU), env::text("CUDA_VISIBLE_DEVICES")) else { return Ok(()) };
    let count = Context::devices(driver)?;
    let seen = (0..count).map(|ordinal| Context::uuid_of(driver, ordinal)).collect::<Result<Vec<_>, _>>()?;
    differs(&list, &seen).map_or(Ok(()), |how| Err(CommError::OtherGpus { how }))
}

/// What is different; `None` if nothing is, or if the list names something other than whole GPUs by UUID.
fn differs(list: &str, seen: &[[u8; 16]]) -> Option<String> {
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    if names.iter().any(|name| !name.starts_with("GPU-")) {
        return None;
    }
    let shown: Vec<String> = seen.iter().map(name).collect();
    let wrong = names.iter().enumerate().find(|(at, name)| !shown.get(*at).is_some_and(|its| its.starts_with(**name)));
    match wrong {
        Some((at, name)) => {
            let instead = shown.get(at).map_or("nothing", String::as_str);
            Some(format!("number {at} should be {name}, and CUDA shows {instead}"))
        }
        None if shown.len() > names.len() => {
            Some(format!("{} were given, and CUDA shows {}", names.len(), shown.len()))
        }
        None => None,
    }
}

/// As the driver's tools write a UUID.
fn name(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_compared_one_by_one_with_what_was_given() {
        let uuid = |last: u8| {
            let mut uuid = [0xab; 16];
            uuid[15] = last;
            uuid
        };
        let [one, two] = [uuid(1), uuid(2)].map(|uuid| name(&uuid));
        assert_eq!(one, "GPU-abababab-abab-abab-abab-ababababab01");
        let both = format!("{one},{two}");
        assert_eq!(differs(&both, &[uuid(1), uuid(2)]), None);
        assert_eq!(differs(&both[..50], &[uuid(1), uuid(2)]), None, "the beginning of a UUID is a name, too");
        assert!(differs(&both, &[uuid(2), uuid(1)]).unwrap().starts_with("number 0 should be "));
        assert!(differs(&both, &[uuid(1)]).unwrap().ends_with("CUDA shows nothing"));
        assert!(differs(&one, &[uuid(1), uuid(2)]).is_some());
        assert_eq!(differs("0,1", &[uuid(1)]), None);
    }
}
