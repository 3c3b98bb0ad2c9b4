//! The router: where text becomes tokens, requests become plans, and token streams become answers. See ARCHITECTURE.md.
//!
//! It never links kernels or engine: workers speak token ids only.

pub mod text;
