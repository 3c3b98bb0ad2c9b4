//! Weights in the order in which they are read.

use bytemuck::Zeroable;
use half::bf16;

/// Outputs of one panel: one cache line of bf16.
pub(super) const PANEL: usize = 32;

/// Weights `[n][k]`, packed once into panels `[n / 32][k][32]` of their own dtype, the last panel padded with zeros.
#[derive(Clone, Debug)]
pub struct PackedWeights {
    outputs: usize,
    inputs: usize,
    pub(super) panels: Panels,
}

/// `[panel][k]` lines of 32 outputs.
#[derive(Clone, Debug)]
pub(super) enum Panels {
    Bf16(Vec<Line<u16>>),
    F32(Vec<Line<f32>>),
}

/// The weights of 32 outputs for one input.
#[derive(Clone, Copy, Debug, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) [T; PANEL]);

impl PackedWeights {
    /// From row-major `weights [n][k]`.
    ///
    /// # Panics
    /// Where the length is another, or n or k is 0.
    #[must_use]
    pub fn from_bf16(weights: &[bf16], n: usize, k: usize) -> Self {
        Self::stack_bf16(&[(weights, n)], k)
    }

    /// From row-major `weights [n][k]`.
    ///
    /// # Panics
    /// Where the length is another, or n or k is 0.
    #[must_use]
    pub fn from_f32(weights: &[f32], n: usize, k: usize) -> Self {
        Self::stack_f32(&[(weights, n)], k)
    }

    /// Several row-major matrices `([n_i][k], n_i)` with one input as one: their outputs follow each other (query, key and
    /// value; gate and up).
    ///
    /// # Panics
    /// As [`PackedWeights::from_bf16`].
    #[must_use]
    pub fn stack_bf16(parts: &[(&[bf16], usize)], k: usize) -> Self {
        let (outputs, lines) = pack(parts, k, |b| b.to_bits());
        Self {
            outputs,
            inputs: k,
            panels: Panels::Bf16(lines),
        }
    }

    /// As [`PackedWeights::stack_bf16`], of f32.
    ///
    /// # Panics
    /// As [`PackedWeights::from_f32`].
    #[must_use]
    pub fn stack_f32(parts: &[(&[f32], usize)], k: usize) -> Self {
        let (outputs, lines) = pack(parts, k, |v| v);
        Self {
            outputs,
            inputs: k,
            panels: Panels::F32(lines),
        }
    }

    /// n.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::Bf16(lines) => size_of_val(lines.as_slice()),
            Panels::F32(lines) => size_of_val(lines.as_slice()),
        }
    }

    /// Writes the weights of one output into `out [k]`, widened.
    ///
    /// # Panics
    /// Where there is no such output or `out` has another length.
    pub fn row(&self, output: usize, out: &mut [f32]) {
        assert!(output < self.outputs, "output {output} of {}", self.outputs);
        assert_eq!(out.len(), self.inputs, "out is [k]");
        let (panel, lane) = (output / PANEL, output % PANEL);
        let lines = panel * self.inputs..(panel + 1) * self.inputs;
        match &self.panels {
            Panels::Bf16(all) => {
                for (v, line) in out.iter_mut().zip(&all[lines]) {
                    *v = f32::from_bits(u32::from(line.0[lane]) << 16);
                }
            }
            Panels::F32(all) => {
                for (v, line) in out.iter_mut().zip(&all[lines]) {
                    *v = line.0[lane];
                }
            }
        }
    }
}

fn pack<S: Copy, T: Copy + Zeroable>(
    parts: &[(&[S], usize)],
    k: usize,
    convert: impl Fn(S) -> T,
) -> (usize, Vec<Line<T>>) {
    let outputs = parts.iter().map(|part| part.1).sum::<usize>();
    assert!(outputs > 0 && k > 0, "weights [{outputs}][{k}] are not empty");
    let mut lines = vec![Line::zeroed(); outputs.div_ceil(PANEL) * k];
    let mut output = 0;
    for &(weights, n) in parts {
        assert_eq!(weights.len(), n * k, "weights are [n][k] = [{n}][{k}]");
        for row in weights.chunks_exact(k) {
            let panel = &mut lines[output / PANEL * k..][..k];
            for (line, &w) in panel.iter_mut().zip(row) {
                line.0[output % PANEL] = convert(w);
            }
            output += 1;
        }
    }
    (outputs, lines)
}
