//! Whether the KV of two workers means the same thing.

use crate::v1::KvFingerprint;

/// The first field in which two workers differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("KV of the two workers is not interchangeable: {field} is {ours} here and {theirs} at the peer")]
pub struct FingerprintMismatch {
    /// Name of the field in `KvFingerprint`.
    pub field: &'static str,
    /// Its value on this side.
    pub ours: String,
    /// Its value on the peer's side.
    pub theirs: String,
}

impl KvFingerprint {
    /// Compares field by field, so that a refusal can name what differs.
    ///
    /// # Errors
    /// [`FingerprintMismatch`] with the first field that differs.
    pub fn check_peer(&self, peer: &Self) -> Result<(), FingerprintMismatch> {
        let fields = [
            (
                "model_revision",
                self.model_revision.clone(),
                peer.model_revision.clone(),
            ),
            ("kv_dtype", self.kv_dtype.clone(), peer.kv_dtype.clone()),
            (
                "page_tokens",
                self.page_tokens.to_string(),
                peer.page_tokens.to_string(),
            ),
            ("layers", self.layers.to_string(), peer.layers.to_string()),
            ("kv_heads", self.kv_heads.to_string(), peer.kv_heads.to_string()),
            ("head_dim", self.head_dim.to_string(), peer.head_dim.to_string()),
            (
                "tensor_parallel",
                self.tensor_parallel.to_string(),
                peer.tensor_parallel.to_string(),
            ),
        ];
        match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
            None => Ok(()),
            Some((field, ours, theirs)) => Err(FingerprintMismatch { field, ours, theirs }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_field_that_differs() {
        let ours = KvFingerprint {
            kv_dtype: "fp8_e4m3".into(),
            page_tokens: 64,
            ..Default::default()
        };
        assert_eq!(ours.check_peer(&ours.clone()), Ok(()));
        let peer = KvFingerprint {
            page_tokens: 16,
            ..ours.clone()
        };
        let error = ours.check_peer(&peer).expect_err("page sizes differ").to_string();
        assert!(
            error.contains("page_tokens is 64 here and 16 at the peer"),
            "{error}"
        );
    }
}
