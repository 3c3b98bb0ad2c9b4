//! Rotary position embedding.
//!
//! # Contract
//! The two halves of a vector are turned against each other (Su et al. 2021, in the "rotate half" layout of Hugging
//! Face): with `i < head_dim / 2` and angle `a = position * frequency[i]`,
//! `out[i] = x[i] cos a - x[i + head_dim/2] sin a` and `out[i + head_dim/2] = x[i + head_dim/2] cos a + x[i] sin a`.
//!
//! Frequencies are `theta^(-2i / head_dim)` in f32, scaled as `transformers.modeling_rope_utils` does (v4.43 and on);
//! the angle is an f32 product, as there; its sine and cosine are taken in f64 and rounded.
//!
//! # Cost
//! 8 bytes and 3 FLOPs for each value, and a table of `4 * head_dim` bytes for each position.

mod cpu;
#[cfg(test)]
mod reference;

/// How frequencies are stretched for contexts longer than those of training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    #[default]
    Default,
    /// Positions divided by `factor`.
    Linear { factor: f32 },
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        /// Context length of training.
        original_max_position_embeddings: f32,
    },
}

/// Cosines and sines of every position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    /// `[position][cos, sin][half]`
    angles: Vec<f32>,
}

impl RopeTable {
    /// A table for positions below `positions`.
    ///
    /// # Panics
    /// Where `head_dim` is odd or 0.
    #[must_use]
    pub fn new(head_dim: usize, theta: f64, scaling: RopeScaling, positions: usize) -> Self {
        let frequencies = inverse_frequencies(head_dim, theta, scaling);
        let mut angles = Vec::with_capacity(positions * head_dim);
        for position in 0..positions {
            let turns = frequencies.iter().map(|f| f64::from(position as f32 * f));
            angles.extend(turns.clone().map(|a| a.cos() as f32));
            angles.extend(turns.map(|a| a.sin() as f32));
        }
        Self {
            half: head_dim / 2,
            angles,
        }
    }

    /// Positions it has.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.angles.len() / (2 * self.half)
    }

    /// Turns `vectors [heads][head_dim]`, all at one position, where they lie.
    ///
    /// # Panics
    /// Where the position is not in the table, or `vectors` is not a whole number of heads.
    pub fn apply(&self, position: usize, vectors: &mut [f32]) {
        let dim = 2 * self.half;
        assert!(
            position < self.positions(),
            "position {position} is in the table of {}",
            self.positions()
        );
        assert!(vectors.len().is_multiple_of(dim), "vectors are [heads][head_dim]");
        let (cos, sin) = self.angles[position * dim..][..dim].split_at(self.half);
        cpu::rotate(crate::SimdLevel::detect(), cos, sin, vectors);
    }
}

/// `head_dim / 2` frequencies in radians per position.
///
/// # Panics
/// Where `head_dim` is odd or 0.
#[must_use]
pub fn inverse_frequencies(head_dim: usize, theta: f64, scaling: RopeScaling) -> Vec<f32> {
    assert!(head_dim > 0 && head_dim.is_multiple_of(2), "head_dim is even");
    let plain = (0..head_dim / 2).map(|i| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        1.0 / (theta.powf(f64::from(exponent)) as f32)
    });
    match scaling {
        RopeScaling::Default => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: trained,
        } => plain
            .map(|f| {
                let wavelength = 2.0 * std::f32::consts::PI / f;
                if wavelength > trained / low_freq_factor {
                    f / factor
                } else if wavelength < trained / high_freq_factor {
                    f
                } else {
                    let smooth =
                        (trained / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
