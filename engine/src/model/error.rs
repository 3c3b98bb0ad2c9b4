//! Why a checkpoint cannot be served.

use std::{io, path::PathBuf};

use baton_kernels::kv::HostKvError;

/// A checkpoint, or the executor asked for it, is not one that runs here. Each message names the file or field.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a config.json: {source}")]
    ConfigSyntax {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// Well-formed, but of a kind that is not implemented.
    #[error("config.json: {field} is {found}; supported: {supported}")]
    Unsupported {
        field: &'static str,
        found: String,
        supported: &'static str,
    },
    /// Well-formed, but contradicts itself or leaves out what is needed.
    #[error("config.json: {field}: {problem}")]
    Inconsistent { field: &'static str, problem: String },
    #[error("{path} is not an intact safetensors file: {reason}; download it again")]
    Corrupt { path: PathBuf, reason: String },
    #[error("{path} names shard {shard}, which is not there; download the whole checkpoint")]
    MissingShard { path: PathBuf, shard: String },
    #[error("the checkpoint in {path} has no tensor {name}")]
    MissingTensor { path: PathBuf, name: String },
    #[error("tensor {name} has shape {found:?}, config.json asks for {expected:?}")]
    WrongShape {
        name: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("tensor {name} is stored as {found}; supported: BF16, F16, F32")]
    WrongDtype { name: String, found: String },
    #[error(transparent)]
    KvMemory(#[from] HostKvError),
    #[error("{field} is {found}; {rule}")]
    Executor {
        field: &'static str,
        found: u64,
        rule: String,
    },
    #[error("the prompt cannot run: {0}")]
    Prompt(String),
    #[error("cannot start compute threads: {0}")]
    Threads(String),
}
