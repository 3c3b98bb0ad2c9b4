use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

use super::{Checkpoint, TensorDtype, model_revision};
use crate::model::ModelError;

const SHARDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/llama3-rope-bf16-sharded");
const SINGLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/llama-f32-tied");

/// A copy that may be damaged.
fn copy(of: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(of).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn open(dir: &Path) -> Result<Checkpoint, ModelError> {
    Checkpoint::open(dir)
}

fn error(dir: &Path) -> String {
    open(dir).err().expect("must be refused").to_string()
}

fn shards(dir: &Path) -> Vec<PathBuf> {
    let mut shards: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("-of-"))
        .collect();
    shards.sort();
    shards
}

#[test]
fn tensors_of_all_shards_are_found_and_checked() {
    assert!(shards(Path::new(SHARDED)).len() > 1);
    let checkpoint = open(Path::new(SHARDED)).unwrap();
    let embedding = checkpoint
        .tensor("model.embed_tokens.weight", &[256, 64])
        .unwrap();
    assert_eq!(embedding.dtype(), TensorDtype::Bf16);
    assert_eq!(embedding.len(), 256 * 64);
    assert!(
        embedding
            .to_f32()
            .iter()
            .all(|value| value.is_finite() && value.abs() < 2.0)
    );
    assert!(checkpoint.contains("lm_head.weight"));

    let message = checkpoint
        .tensor("model.norm.weight", &[65])
        .unwrap_err()
        .to_string();
    for part in ["model.norm.weight", "[64]", "[65]"] {
        assert!(message.contains(part), "{message}");
    }
    let message = checkpoint
        .tensor("model.norm.bias", &[64])
        .unwrap_err()
        .to_string();
    assert!(message.contains("no tensor model.norm.bias"), "{message}");
}

#[test]
fn a_truncated_file_is_refused() {
    let dir = copy(SINGLE);
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for length in [0, 5, 100, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let message = error(dir.path());
        assert!(
            message.contains("model.safetensors is not an intact"),
            "{message}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(error(dir.path()).contains("model.safetensors"));
}

#[test]
fn a_missing_shard_is_named() {
    let dir = copy(SHARDED);
    let shard = shards(dir.path()).pop().unwrap();
    fs::remove_file(&shard).unwrap();
    let message = error(dir.path());
    assert!(
        message.contains(&*shard.file_name().unwrap().to_string_lossy()),
        "{message}"
    );
}

#[test]
fn a_shard_without_its_tensor_is_named() {
    let dir = copy(SHARDED);
    let shards = shards(dir.path());
    fs::copy(&shards[0], &shards[1]).unwrap();
    assert!(error(dir.path()).contains("has no tensor"));
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let dir = copy(SHARDED);
    let index = dir.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("model-00001", "../model-00001")).unwrap();
    assert!(matches!(open(dir.path()), Err(ModelError::MissingShard { .. })));
    fs::write(&index, "{}").unwrap();
    assert!(matches!(open(dir.path()), Err(ModelError::Corrupt { .. })));
}

#[test]
fn other_dtypes_are_named() {
    let dir = TempDir::new().unwrap();
    let tensor = TensorView::new(Dtype::I8, vec![4], &[1, 2, 3, 4]).unwrap();
    let tensors = HashMap::from([("packed", tensor)]);
    safetensors::serialize_to_file(tensors, None, &dir.path().join("model.safetensors")).unwrap();
    let checkpoint = open(dir.path()).unwrap();
    let message = checkpoint.tensor("packed", &[4]).unwrap_err().to_string();
    assert!(message.contains("I8") && message.contains("BF16"), "{message}");
}

#[test]
fn the_revision_changes_with_config_and_weights_only() {
    let revision = |dir: &Path| model_revision(dir, &open(dir).unwrap()).unwrap();
    let original = revision(Path::new(SINGLE));
    assert_eq!(original.len(), 32);
    assert_ne!(original, revision(Path::new(SHARDED)));

    let dir = copy(SINGLE);
    assert_eq!(revision(dir.path()), original);
    let config = dir.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("10000", "10001")).unwrap();
    assert_ne!(revision(dir.path()), original);
    fs::write(&config, text).unwrap();

    let weights = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    assert_ne!(revision(dir.path()), original);
}
