//! Words for a POSIX shell: what it reads back is, byte for byte, what went in.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// One word of a shell command, in quotes where it needs them. Any byte but NUL goes through.
pub fn word(text: &OsStr) -> Vec<u8> {
    let bytes = text.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) && !bytes.starts_with(b"-=") {
        return bytes.to_vec();
    }
    let mut quoted = vec![b'\''];
    for &byte in bytes {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The same for people to read: bytes that are no text are shown as such.
pub fn shown(text: &OsStr) -> String {
    String::from_utf8_lossy(&word(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn read_back(words: &[OsString]) -> Vec<Vec<u8>> {
        let mut script = b"printf '%s\\0' end".to_vec();
        for each in words {
            script.push(b' ');
            script.extend(word(each));
        }
        let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).env("LC_ALL", "C").output().unwrap();
        output.stdout.split(|&byte| byte == 0).skip(1).take(words.len()).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn plain_words_stay_plain() {
        for (text, quoted) in [
            ("./a-b_c.d", "./a-b_c.d"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("$x", "'$x'"),
            ("~", "'~'"),
            ("{a}", "'{a}'"),
            ("#", "'#'"),
        ] {
            assert_eq!(shown(OsStr::new(text)), quoted);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_reads_back_every_byte(words in prop::collection::vec(prop::collection::vec(1u8.., 0..20), 1..8)) {
            let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            let expected: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            prop_assert_eq!(read_back(&words), expected);
        }
    }
}
