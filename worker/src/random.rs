//! The process's one source of randomness: identities only, never tokens.

use baton_proto::TransferId;

/// 64 random bits.
#[must_use]
pub fn bits64() -> u64 {
    getrandom::u64().expect("the operating system provides randomness")
}

/// 128 random bits.
#[must_use]
pub fn bits128() -> u128 {
    u128::from(bits64()) << 64 | u128::from(bits64())
}

/// A name for a hand-off that has never been used.
#[must_use]
pub fn transfer_id() -> TransferId {
    TransferId(bits128())
}
