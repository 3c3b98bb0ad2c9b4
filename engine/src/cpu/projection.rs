//! Linear layers, as checkpoints name them and as the kernels want them.

use baton_kernels::{
    Threads,
    linear::{PackedWeights, linear},
};

use crate::{
    model::ModelError,
    weights::{Checkpoint, Tensor},
};

/// `y = x W^T + b`.
pub(super) struct Projection {
    weights: PackedWeights,
    bias: Option<Vec<f32>>,
}

impl Projection {
    /// Several linear layers `{name}.weight [outputs][inputs]` over one input, stacked; `bias` says whether they have
    /// `{name}.bias [outputs]`.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<Self, ModelError> {
        let mut tensors = Vec::with_capacity(parts.len());
        let mut biases = Vec::new();
        for (name, outputs) in parts {
            let tensor = checkpoint.tensor(&format!("{name}.weight"), &[*outputs, inputs])?;
            tensors.push((tensor, *outputs));
            if bias {
                let tensor = checkpoint.tensor(&format!("{name}.bias"), &[*outputs])?;
                biases.extend(tensor.to_f32());
            }
        }
        Ok(Self {
            weights: pack(&tensors, inputs),
            bias: bias.then_some(biases),
        })
    }

    /// `x [rows][inputs]` to `y [rows][outputs]`.
    pub(super) fn apply(&self, threads: &Threads, x: &[f32], y: &mut [f32]) {
        linear(threads, x, &self.weights, self.bias.as_deref(), y);
    }
}

/// Stacks `[n_i][inputs]` matrices: bf16 stays bf16, everything else becomes f32.
pub(super) fn pack(parts: &[(Tensor<'_>, usize)], inputs: usize) -> PackedWeights {
    let narrow: Option<Vec<_>> = parts
        .iter()
        .map(|(tensor, outputs)| tensor.as_bf16().map(|values| (values, *outputs)))
        .collect();
    if let Some(narrow) = narrow {
        let parts: Vec<_> = narrow
            .iter()
            .map(|(values, outputs)| (&values[..], *outputs))
            .collect();
        return PackedWeights::stack_bf16(&parts, inputs);
    }
    let wide: Vec<_> = parts
        .iter()
        .map(|(tensor, outputs)| (tensor.to_f32(), *outputs))
        .collect();
    let parts: Vec<_> = wide
        .iter()
        .map(|(values, outputs)| (&values[..], *outputs))
        .collect();
    PackedWeights::stack_f32(&parts, inputs)
}
