//! Names one hand-off of KV for life.

use std::fmt;

/// A 128-bit name that is never used twice; 16 big-endian bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u128);

/// The wire bytes were not 16 long.
#[derive(Debug, thiserror::Error)]
#[error("a transfer id is 16 bytes, found {0}")]
pub struct BadTransferId(pub usize);

impl TransferId {
    /// The bytes that cross the wire.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }
}

impl TryFrom<&[u8]> for TransferId {
    type Error = BadTransferId;

    fn try_from(bytes: &[u8]) -> Result<Self, BadTransferId> {
        let array: [u8; 16] = bytes.try_into().map_err(|_| BadTransferId(bytes.len()))?;
        Ok(Self(u128::from_be_bytes(array)))
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_other_lengths() {
        let id = TransferId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(
            TransferId::try_from(id.to_bytes().as_slice()).expect("16 bytes"),
            id
        );
        assert_eq!(id.to_string(), "0123456789abcdef0123456789abcdef");
        assert!(TransferId::try_from([0u8; 15].as_slice()).is_err());
    }
}
