//! One tensor of a mapped file, and its values as f32.

use std::borrow::Cow;

use half::{bf16, f16};

/// How a tensor's values are stored, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorDtype {
    Bf16,
    F16,
    F32,
}

/// A tensor that lies in a mapped file: `shape.iter().product()` values in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    dtype: TensorDtype,
    bytes: &'a [u8],
}

impl TensorDtype {
    pub(super) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::BF16 => Some(Self::Bf16),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::F32 => Some(Self::F32),
            _ => None,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

impl<'a> Tensor<'a> {
    pub(super) fn new(dtype: TensorDtype, bytes: &'a [u8]) -> Self {
        Self { dtype, bytes }
    }

    #[must_use]
    pub fn dtype(&self) -> TensorDtype {
        self.dtype
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Converts values `first ..` into `out`. Every stored type widens to f32 exactly.
    ///
    /// # Panics
    /// Where the tensor has fewer than `first + out.len()` values.
    pub fn widen(&self, first: usize, out: &mut [f32]) {
        let size = self.dtype.bytes();
        let bytes = &self.bytes[first * size..(first + out.len()) * size];
        // Values are read bytewise: the format aligns neither its data nor its header.
        match self.dtype {
            TensorDtype::Bf16 => {
                for (value, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = bf16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            TensorDtype::F16 => {
                for (value, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = f16::from_le_bytes([b[0], b[1]]).to_f32();
                }
            }
            TensorDtype::F32 => {
                for (value, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
        }
    }

    /// All values as they lie in the file, without a copy where it aligns them; `None` where they are not bf16.
    #[must_use]
    pub fn as_bf16(&self) -> Option<Cow<'a, [bf16]>> {
        if self.dtype != TensorDtype::Bf16 {
            return None;
        }
        let in_place = bytemuck::try_cast_slice(self.bytes).ok();
        Some(match in_place.filter(|_| cfg!(target_endian = "little")) {
            Some(values) => Cow::Borrowed(values),
            None => self
                .bytes
                .chunks_exact(2)
                .map(|b| bf16::from_le_bytes([b[0], b[1]]))
                .collect(),
        })
    }

    /// All values, widened.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.widen(0, &mut values);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_each_dtype_exactly_from_any_offset() {
        let values = [1.5f32, -0.25, 3.0, 65504.0];
        let f32_bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let f16_bytes: Vec<u8> = values
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect();
        let bf16_values = [1.5f32, -0.25, 3.0, 256.0];
        let bf16_bytes: Vec<u8> = bf16_values
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();

        assert_eq!(Tensor::new(TensorDtype::F32, &f32_bytes).to_f32(), values);
        assert_eq!(Tensor::new(TensorDtype::F16, &f16_bytes).to_f32(), values);
        let tensor = Tensor::new(TensorDtype::Bf16, &bf16_bytes);
        assert_eq!(tensor.len(), 4);
        let mut part = [0.0; 2];
        tensor.widen(2, &mut part);
        assert_eq!(part, [3.0, 256.0]);

        let as_stored = bf16_values.map(bf16::from_f32);
        assert_eq!(*tensor.as_bf16().unwrap(), as_stored);
        let shifted = [&[0], bf16_bytes.as_slice()].concat();
        assert_eq!(
            *Tensor::new(TensorDtype::Bf16, &shifted[1..]).as_bf16().unwrap(),
            as_stored
        );
        assert!(Tensor::new(TensorDtype::F16, &f16_bytes).as_bf16().is_none());
    }
}
