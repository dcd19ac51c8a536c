//! Per-rank output files: from a pattern to paths, and creating them before anything starts.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use super::label::Place;
use super::{OutputError, Stream};

/// The path for one rank's stream. A pattern with no placeholder is a directory.
///
/// `{stream}` is `out` or `err` here, as file name endings go.
pub(super) fn path_for(pattern: &str, place: &Place<'_>, rank: u32, stream: Stream) -> Result<PathBuf, OutputError> {
    if !pattern.contains('{') {
        return path_for(&format!("{}/rank-{{rank}}.{{stream}}", pattern.trim_end_matches('/')), place, rank, stream);
    }
    let mut path = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let unknown = |name: &str| OutputError::Placeholder { pattern: pattern.to_owned(), name: name.to_owned() };
        let (name, after) = after.split_once('}').ok_or_else(|| unknown(after))?;
        path.push_str(before);
        match name {
            "rank" => path.push_str(&rank.to_string()),
            "host" => path.push_str(place.host),
            "job" => path.push_str(place.job_id),
            "stream" => path.push_str(match stream {
                Stream::Stdout => "out",
                Stream::Stderr => "err",
            }),
            _ => return Err(unknown(name)),
        }
        rest = after;
    }
    path.push_str(rest);
    Ok(PathBuf::from(path))
}

/// Creates a file and its directories. `append`: a restarted job adds to what it wrote before.
pub(super) fn create(path: &Path, append: bool) -> Result<File, OutputError> {
    let cannot = |cause| OutputError::CreateFile { path: path.to_owned(), cause };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(cannot)?;
    }
    let mut options = OpenOptions::new();
    options.create(true);
    if append {
        options.append(true)
    } else {
        options.write(true).truncate(true)
    };
    options.open(path).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn expand(pattern: &str) -> Result<String, OutputError> {
        let place = Place { world_size: 4, host: "node7", job_id: "j42", started: Instant::now() };
        Ok(path_for(pattern, &place, 3, Stream::Stderr)?.to_str().unwrap().to_owned())
    }

    #[test]
    fn patterns_and_plain_directories() {
        assert_eq!(expand("logs").unwrap(), "logs/rank-3.err");
        assert_eq!(expand("logs/").unwrap(), "logs/rank-3.err");
        assert_eq!(expand("/").unwrap(), "/rank-3.err");
        assert_eq!(expand("a/{host}-{job}/{rank}.{stream}").unwrap(), "a/node7-j42/3.err");
        assert_eq!(expand("{rank}").unwrap(), "3");
    }

    #[test]
    fn an_unknown_placeholder_is_named() {
        let message = expand("x-{rnk}").unwrap_err().to_string();
        assert!(message.contains("{rnk}") && message.contains("{rank}"), "{message}");
        assert!(expand("x-{rank").is_err());
    }
}
