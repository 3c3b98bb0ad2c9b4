//! The name of a full page of KV: equal names mean equal KV.
//!
//! A keyed 128-bit SipHash-2-4 over what decides a page's content: the model's revision, the KV scheme, the adapter, the
//! tenant's salt, and every token from the start of the sequence (through the parent's hash). Keyed, so that nobody
//! outside the fleet can craft two prompts whose pages collide.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// Names one full page (a "block") of a token sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u128);

/// What every block of a request has in common beside its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheScope(u128);

/// Computes block hashes for one model and KV scheme under the fleet's key.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    key: [u8; 16],
    page_tokens: usize,
    model: u128,
}

impl BlockHasher {
    /// `page_tokens` is the block's length; `model_revision` and `kv_dtype` are those of the fingerprint.
    ///
    /// # Panics
    /// If `page_tokens` is zero.
    #[must_use]
    pub fn new(key: [u8; 16], page_tokens: usize, model_revision: &str, kv_dtype: &str) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        let mut hasher = SipHasher24::new_with_key(&key);
        write_text(&mut hasher, model_revision);
        write_text(&mut hasher, kv_dtype);
        hasher.write_u64(page_tokens as u64);
        Self {
            key,
            page_tokens,
            model: hasher.finish128().as_u128(),
        }
    }

    /// The scope of requests with this adapter and salt; either may be empty.
    #[must_use]
    pub fn scope(&self, adapter: &str, salt: &str) -> CacheScope {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&self.model.to_le_bytes());
        write_text(&mut hasher, adapter);
        write_text(&mut hasher, salt);
        CacheScope(hasher.finish128().as_u128())
    }

    /// The hash of the block that follows `parent` (none: the first block of a sequence).
    ///
    /// # Panics
    /// If `tokens` is not exactly one page long.
    #[must_use]
    pub fn block(&self, scope: CacheScope, parent: Option<BlockHash>, tokens: &[u32]) -> BlockHash {
        assert_eq!(tokens.len(), self.page_tokens, "only full pages have a hash");
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&scope.0.to_le_bytes());
        match parent {
            None => hasher.write_u8(0),
            Some(BlockHash(parent)) => {
                hasher.write_u8(1);
                hasher.write(&parent.to_le_bytes());
            }
        }
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        BlockHash(hasher.finish128().as_u128())
    }

    /// The hashes of all full pages of `tokens`, in order.
    #[must_use]
    pub fn blocks(&self, scope: CacheScope, tokens: &[u32]) -> Vec<BlockHash> {
        let mut parent = None;
        tokens
            .chunks_exact(self.page_tokens)
            .map(|page| {
                let hash = self.block(scope, parent, page);
                parent = Some(hash);
                hash
            })
            .collect()
    }
}

/// Length first, so that ("ab", "c") and ("a", "bc") differ.
fn write_text(hasher: &mut SipHasher24, text: &str) {
    hasher.write_u64(text.len() as u64);
    hasher.write(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hasher() -> BlockHasher {
        BlockHasher::new([7; 16], 4, "rev", "fp8_e4m3")
    }

    #[test]
    fn names_depend_on_everything_that_decides_the_content() {
        let base = hasher();
        let scope = base.scope("", "");
        let name = base.block(scope, None, &[1, 2, 3, 4]);
        let others = [
            base.block(scope, None, &[1, 2, 3, 5]),
            base.block(scope, Some(name), &[1, 2, 3, 4]),
            base.block(base.scope("lora", ""), None, &[1, 2, 3, 4]),
            base.block(base.scope("", "tenant"), None, &[1, 2, 3, 4]),
            BlockHasher::new([8; 16], 4, "rev", "fp8_e4m3").block(scope, None, &[1, 2, 3, 4]),
            {
                let other = BlockHasher::new([7; 16], 4, "rev2", "fp8_e4m3");
                other.block(other.scope("", ""), None, &[1, 2, 3, 4])
            },
        ];
        for other in others {
            assert_ne!(name, other);
        }
        assert_ne!(base.scope("a", "b"), base.scope("ab", ""));
    }

    #[test]
    fn a_chain_has_one_name_per_full_page_and_is_stable_across_builds() {
        let base = hasher();
        let names = base.blocks(base.scope("", ""), &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(names.len(), 2);
        assert_eq!(
            names[1],
            base.block(base.scope("", ""), Some(names[0]), &[5, 6, 7, 8])
        );
        // Routers and workers of different builds must agree: this value may only change with PROTOCOL_VERSION.
        assert_eq!(format!("{:032x}", names[1].0), "2804a075f2e3e82fd299ee797c8b4613");
    }
}
