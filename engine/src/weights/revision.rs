//! A name for exactly these weights.

use std::{fs, hash::Hasher as _, path::Path};

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::Checkpoint;
use crate::model::ModelError;

/// A hash, in hex, that differs for different models: of `config.json`, of all tensors' names, types and shapes, and of
/// the first and last 64 KiB of each file. Workers whose revisions are equal may exchange KV.
///
/// Whole files are not read: that would take minutes for large models. Two fine-tunes of one base that keep both ends of
/// every file unchanged would be taken for the same model.
///
/// # Errors
/// [`ModelError::Io`] where `config.json` cannot be read.
pub fn model_revision(model_dir: &Path, checkpoint: &Checkpoint) -> Result<String, ModelError> {
    const SAMPLE: usize = 64 * 1024;
    let path = model_dir.join("config.json");
    let config = fs::read(&path).map_err(|source| ModelError::Io { path, source })?;

    let mut hasher = SipHasher13::new();
    field(&mut hasher, &config);
    for (name, info) in checkpoint.contents() {
        field(&mut hasher, name.as_bytes());
        field(
            &mut hasher,
            format!("{:?}{:?}", info.dtype, info.shape).as_bytes(),
        );
    }
    for bytes in checkpoint.files() {
        hasher.write_u64(bytes.len() as u64);
        hasher.write(&bytes[..bytes.len().min(SAMPLE)]);
        hasher.write(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
    }
    Ok(format!("{:032x}", hasher.finish128().as_u128()))
}

/// With its length, so that neighbours cannot flow into each other.
fn field(hasher: &mut SipHasher13, bytes: &[u8]) {
    hasher.write_u64(bytes.len() as u64);
    hasher.write(bytes);
}
