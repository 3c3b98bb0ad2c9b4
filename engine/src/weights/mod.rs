//! Checkpoints in the safetensors format: one file or several, memory-mapped, each tensor checked when it is asked for.

mod checkpoint;
mod revision;
mod tensor;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use revision::model_revision;
pub use tensor::{Tensor, TensorDtype};
