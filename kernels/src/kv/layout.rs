//! Where each value of a page lies.
//!
//! A page holds `page_tokens` tokens of one sequence for all layers. Inside it, each layer is one contiguous *slice*:
//!
//! ```text
//! payload  [K|V][kv_head][token][dim]   dtype bytes each
//! scales   [K|V][kv_head][token]        one E8M0 byte each (FP8 only)
//! ```
//!
//! Both parts start at a multiple of 128 bytes. A slice describes itself: whoever has it has its scales too, so a
//! hand-off, which moves slices, cannot lose them.

use serde::{Deserialize, Serialize};

const ALIGN: usize = 128;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KvDtype {
    /// E4M3 with one power-of-two scale for each token, KV head, K or V.
    #[default]
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
    #[serde(rename = "bf16")]
    Bf16,
    #[serde(rename = "f32")]
    F32,
}

impl KvDtype {
    /// Bytes of one stored value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Fp8E4m3 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The name in configuration and fingerprints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPart {
    Key,
    Value,
}

/// The shape of a page, and the byte offsets that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    pub dtype: KvDtype,
    /// Tokens in a page: 16, 32, 64 or 128.
    pub page_tokens: usize,
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// A page of that shape cannot be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    #[error("page_tokens is {0}; choose 16, 32, 64 or 128")]
    PageTokens(usize),
    #[error("{0} of the KV layout is 0")]
    Zero(&'static str),
}

impl KvLayout {
    /// # Errors
    /// [`LayoutError`] where a dimension is not supported.
    pub fn validate(&self) -> Result<(), LayoutError> {
        if ![16, 32, 64, 128].contains(&self.page_tokens) {
            return Err(LayoutError::PageTokens(self.page_tokens));
        }
        for (name, value) in [
            ("layers", self.layers),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
        ] {
            if value == 0 {
                return Err(LayoutError::Zero(name));
            }
        }
        Ok(())
    }

    /// Byte offset in a slice of the `head_dim` values of one token and head.
    #[must_use]
    pub fn vector_offset(&self, part: KvPart, kv_head: usize, token: usize) -> usize {
        self.vector_index(part, kv_head, token) * self.head_dim * self.dtype.bytes()
    }

    /// Byte offset in a slice of the scale of one token and head.
    #[must_use]
    pub fn scale_offset(&self, part: KvPart, kv_head: usize, token: usize) -> usize {
        self.payload_bytes() + self.vector_index(part, kv_head, token)
    }

    /// Bytes of one (page, layer) slice: what a hand-off sends as one frame.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        let scales = match self.dtype {
            KvDtype::Fp8E4m3 => (2 * self.kv_heads * self.page_tokens).next_multiple_of(ALIGN),
            KvDtype::Bf16 | KvDtype::F32 => 0,
        };
        self.payload_bytes() + scales
    }

    /// Bytes of one page, all layers.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.slice_bytes() * self.layers
    }

    fn payload_bytes(&self) -> usize {
        let values = 2 * self.kv_heads * self.page_tokens * self.head_dim;
        (values * self.dtype.bytes()).next_multiple_of(ALIGN)
    }

    fn vector_index(&self, part: KvPart, kv_head: usize, token: usize) -> usize {
        let part = match part {
            KvPart::Key => 0,
            KvPart::Value => 1,
        };
        (part * self.kv_heads + kv_head) * self.page_tokens + token
    }
}
