//! Rows of the token embedding.
//!
//! # Contract
//! `out [tokens][dim]`, row `t` being row `tokens[t]` of the table `[vocab][dim]`, widened exactly.
//!
//! # Cost
//! The bytes of the rows, read once. A tied table is read from the output projection's panels, a stride of 32 values
//! apart: one cache line for each value, which buys not storing the table twice.

use std::sync::Arc;

use half::bf16;

use crate::linear::PackedWeights;

/// A table `[vocab][dim]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    vocab: usize,
    dim: usize,
    table: Table,
}

#[derive(Clone, Debug)]
enum Table {
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
    Tied(Arc<PackedWeights>),
}

impl Embedding {
    /// From `table [vocab][dim]`.
    ///
    /// # Panics
    /// Where the length is another.
    #[must_use]
    pub fn from_bf16(table: Vec<bf16>, vocab: usize, dim: usize) -> Self {
        assert_eq!(table.len(), vocab * dim, "the table is [vocab][dim]");
        Self {
            vocab,
            dim,
            table: Table::Bf16(table),
        }
    }

    /// From `table [vocab][dim]`.
    ///
    /// # Panics
    /// Where the length is another.
    #[must_use]
    pub fn from_f32(table: Vec<f32>, vocab: usize, dim: usize) -> Self {
        assert_eq!(table.len(), vocab * dim, "the table is [vocab][dim]");
        Self {
            vocab,
            dim,
            table: Table::F32(table),
        }
    }

    /// The rows of an output projection `[vocab][dim]`, shared with it.
    #[must_use]
    pub fn tied(projection: Arc<PackedWeights>) -> Self {
        Self {
            vocab: projection.outputs(),
            dim: projection.inputs(),
            table: Table::Tied(projection),
        }
    }

    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Writes the rows of `tokens` into `out [tokens][dim]`.
    ///
    /// # Panics
    /// Where a token is not in the vocabulary or `out` has another length.
    pub fn gather(&self, tokens: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), tokens.len() * self.dim, "out is [tokens][dim]");
        for (&token, row) in tokens.iter().zip(out.chunks_exact_mut(self.dim)) {
            let token = token as usize;
            assert!(
                token < self.vocab,
                "token {token} is in the vocabulary of {}",
                self.vocab
            );
            let start = token * self.dim;
            match &self.table {
                Table::Bf16(table) => {
                    for (v, b) in row.iter_mut().zip(&table[start..]) {
                        *v = b.to_f32();
                    }
                }
                Table::F32(table) => row.copy_from_slice(&table[start..start + self.dim]),
                Table::Tied(projection) => projection.row(token, row),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_exact_however_the_table_is_stored() {
        let (vocab, dim) = (37, 21);
        let table: Vec<bf16> = (0..vocab * dim)
            .map(|i| bf16::from_f32(((i * 7919) % 1001) as f32 / 100.0 - 5.0))
            .collect();
        let wide: Vec<f32> = table.iter().map(|b| b.to_f32()).collect();
        let tokens = [0, 36, 5, 5, 32, 31];
        let exact: Vec<f32> = tokens
            .iter()
            .flat_map(|&t| wide[t as usize * dim..][..dim].iter().copied())
            .collect();
        for embedding in [
            Embedding::from_bf16(table.clone(), vocab, dim),
            Embedding::from_f32(wide.clone(), vocab, dim),
            Embedding::tied(Arc::new(PackedWeights::from_bf16(&table, vocab, dim))),
            Embedding::tied(Arc::new(PackedWeights::from_f32(&wide, vocab, dim))),
        ] {
            assert_eq!((embedding.vocab(), embedding.dim()), (vocab, dim));
            let mut out = vec![0.0; exact.len()];
            embedding.gather(&tokens, &mut out);
            assert_eq!(out, exact);
        }
    }
}
