//! A checkpoint: one file with all of [`State`], from which a run goes on as if it had not been interrupted.
//!
//! Form, numbers little-endian: `digits1\n`, the length of the header (u32), the header (JSON, for people and
//! scripts to read), the weights and then the velocities (f32 each), and an FNV-1a hash of all before (u64).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::hash::fnv1a;
use crate::net::{Net, Tally};
use crate::options::Settings;
use crate::state::State;

const MAGIC: &[u8] = b"digits1\n";
const LENGTH_BYTES: usize = size_of::<u32>();
const HASH_BYTES: usize = size_of::<u64>();

#[derive(Serialize, Deserialize)]
struct Header {
    settings: Settings,
    ranks: u32,
    epochs_complete: u32,
    steps_complete: usize,
    loss: f64,
    correct: f64,
}

/// A checkpoint as it was read.
#[derive(Debug, PartialEq)]
pub struct Checkpoint {
    /// Where the training stood.
    pub state: State,
    /// How many ranks there were: with the same number the rest of the run gives the same bits.
    pub ranks: u32,
}

/// The bytes of a checkpoint.
pub fn encode(state: &State, ranks: u32) -> Result<Vec<u8>> {
    let header = serde_json::to_vec(&Header {
        settings: state.settings.clone(),
        ranks,
        epochs_complete: state.epoch,
        steps_complete: state.step,
        loss: state.tally.loss,
        correct: state.tally.correct,
    })?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(u32::try_from(header.len())?.to_le_bytes());
    bytes.extend(header);
    bytes.extend(state.net.weights.iter().chain(&state.velocity).flat_map(|number| number.to_le_bytes()));
    let hash = fnv1a(bytes.iter().copied());
    bytes.extend(hash.to_le_bytes());
    Ok(bytes)
}

/// Reads back what [`encode`] made, and nothing else.
pub fn decode(bytes: &[u8]) -> Result<Checkpoint> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else { bail!("it is not a checkpoint of this program") };
    let damaged = "it is damaged or was cut short\n  try: an older checkpoint, or start again without --resume";
    let (_, hash) = bytes.split_last_chunk::<HASH_BYTES>().context(damaged)?;
    ensure!(fnv1a(bytes[..bytes.len() - HASH_BYTES].iter().copied()) == u64::from_le_bytes(*hash), damaged);

    // The hash fits: from here on a misfit is a writer's mistake, not damage, but it must not panic either.
    let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>().context(damaged)?;
    let (header, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).context(damaged)?;
    let header: Header = serde_json::from_slice(header).context("its header cannot be read")?;
    let body = rest.strip_suffix(hash).context(damaged)?;
    let mut weights: Vec<f32> = body.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect();
    let velocity = weights.split_off(weights.len() / 2);
    let velocity_fits = velocity.len() == weights.len();
    let net = Net::with_weights(header.settings.hidden, weights).filter(|_| velocity_fits);
    Ok(Checkpoint {
        state: State {
            net: net.context("it does not hold as many weights as its header says")?,
            settings: header.settings,
            velocity,
            epoch: header.epochs_complete,
            step: header.steps_complete,
            tally: Tally { loss: header.loss, correct: header.correct },
        },
        ranks: header.ranks,
    })
}

/// Replaces `path` by these bytes in one step: whoever reads it, also after a crash or a power cut, finds the
/// old checkpoint or the new one, never half of one.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = part_of(path)?;
    let written = write_synced(&part, bytes).and_then(|()| fs::rename(&part, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&part); // the error that counts is the first one
        return Err(error.into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?; // the new name is on the disk, too
    Ok(())
}

/// Whether [`save`] could make its file now: better known before hours of training than after.
pub fn try_place(path: &Path) -> Result<()> {
    let part = part_of(path)?;
    write_synced(&part, b"")?;
    fs::remove_file(&part)?;
    Ok(())
}

/// The name of the new file until it is complete.
fn part_of(path: &Path) -> Result<PathBuf> {
    let mut name = path.file_name().context("it names no file")?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(name))
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use crate::state::tests::train;

    fn small() -> Settings {
        Settings { hidden: 3, ..Settings::default() }
    }

    #[test]
    fn a_resumed_run_ends_with_the_same_bits() {
        let data = Data::split(1);
        let mut whole = State::new(small());
        train(&mut whole, &data, 2, 20);
        let bytes = encode(&whole, 2).expect("encoded");
        train(&mut whole, &data, 2, 50);

        let Checkpoint { mut state, ranks } = decode(&bytes).expect("decoded");
        train(&mut state, &data, 2, 50);
        assert_eq!((&state, ranks), (&whole, 2));
        assert_eq!(state.net.hash(), whole.net.hash());
    }

    #[test]
    fn damage_anywhere_is_refused() {
        let bytes = encode(&State::new(small()), 1).expect("encoded");
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut to {length} bytes");
        }
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(decode(&altered).is_err(), "byte {at} altered");
        }
        let longer = [&bytes[..], &[0; 8]].concat();
        let error = decode(&longer).expect_err("8 bytes too many").to_string();
        assert!(error.starts_with("it is damaged or was cut short"), "{error}");
    }

    #[test]
    fn a_file_of_another_kind_is_named_as_such() {
        let error = decode(b"PK\x03\x04 something else").expect_err("not ours").to_string();
        assert_eq!(error, "it is not a checkpoint of this program");
    }

    #[test]
    fn saving_replaces_the_old_file_and_leaves_no_other() {
        let folder = std::env::temp_dir().join(format!("train-checkpoint-{}", std::process::id()));
        let obstacle = folder.join("obstacle");
        fs::create_dir_all(&obstacle).expect("folders of our own");
        let path = folder.join("train.checkpoint");
        for text in [&b"old"[..], b"newer"] {
            save(&path, text).expect("saved");
            assert_eq!(fs::read(&path).expect("read back"), text);
        }
        assert!(save(&obstacle, b"a folder cannot be replaced").is_err());
        let listed = fs::read_dir(&folder).expect("listed");
        let mut names: Vec<_> = listed.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["obstacle", "train.checkpoint"]);
        fs::remove_dir_all(&folder).expect("removed");
    }
}
