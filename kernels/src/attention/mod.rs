//! Causal attention over paged KV.
//!
//! # Contract
//! A *span* is a run of query tokens of one sequence: `q [rows][q_heads][head_dim]` has the spans' tokens one after the
//! other, and a token at position `p` attends to the stored tokens `0..=p`, or with a window `w` to `p - w + 1 ..= p`.
//! Head `h` reads KV head `h / (q_heads / kv_heads)`. `out` has the shape of `q`:
//! `out = sum_t softmax_t(scale * q . k_t) v_t`, with k and v **as stored**, the span's own tokens included: they must
//! have been appended before.
//!
//! **Order** (one row, one head): pages from the first visible to the last. In a page, each score is a sequential fma chain
//! over the dimensions of the unscaled codes, times K's scale and then times `scale`; the page's largest score joins the
//! running maximum; weights `e^(score - max)` are added to the running sum in 16 lanes by token index; then the output
//! accumulates `weight * V's scale` times the unscaled code, token after token. When the maximum grows, sum and output are
//! multiplied by `e^(old - new)` (online softmax: Milakov and Gimelshein 2018). This depends on the position, the window and
//! the page size alone: not on batch, chunks, threads or instruction set.
//!
//! # Cost
//! 4 * head_dim FLOPs for each (row, head, visible token); stored KV is read and decoded once for each 16 rows of a span.

mod cpu;
mod page;
#[cfg(test)]
mod reference;
mod tile;

use crate::{
    SimdLevel, Threads,
    kv::{HostKv, KvMemory, PageId, SliceError},
};

/// What all spans of a call share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// A multiple of the layout's `kv_heads`.
    pub q_heads: usize,
    /// Multiplies scores: `1 / sqrt(head_dim)` as a rule.
    pub scale: f32,
    /// How many tokens are seen, the token itself included; none sees all.
    pub window: Option<u32>,
}

/// Consecutive query tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct QuerySpan<'a> {
    /// The sequence's block table: page `i` holds positions `i * page_tokens ..`. It must reach to the last query.
    pub pages: &'a [PageId],
    /// Position of the first query token.
    pub start: u32,
    /// Query tokens.
    pub len: u32,
}

/// `q` and `out` are `[sum of span.len][q_heads][head_dim]`; KV is that of `layer`.
///
/// # Errors
/// [`SliceError`] where a span names a page that `kv` has not, or there is no such layer.
///
/// # Panics
/// Where the lengths do not fit, `q_heads` is no multiple of `kv_heads`, the window is 0, or a block table is too short.
pub fn paged_attention(
    threads: &Threads,
    kv: &HostKv,
    layer: u32,
    shape: &AttentionShape,
    spans: &[QuerySpan<'_>],
    q: &[f32],
    out: &mut [f32],
) -> Result<(), SliceError> {
    let layout = kv.layout();
    assert!(
        shape.q_heads > 0 && shape.q_heads.is_multiple_of(layout.kv_heads),
        "{} query heads share {} KV heads evenly",
        shape.q_heads,
        layout.kv_heads
    );
    assert_ne!(shape.window, Some(0), "a token sees itself");
    let rows: usize = spans.iter().map(|span| span.len as usize).sum();
    assert_eq!(
        q.len(),
        rows * shape.q_heads * layout.head_dim,
        "q is [rows][q_heads][head_dim]"
    );
    assert_eq!(out.len(), q.len(), "out has the shape of q");
    for span in spans {
        let end = span.start as usize + span.len as usize;
        let pages = end.div_ceil(layout.page_tokens);
        assert!(
            span.pages.len() >= pages,
            "{end} tokens need {pages} pages, found {}",
            span.pages.len()
        );
        for &page in &span.pages[..pages] {
            if page.0 >= kv.pages() || layer as usize >= layout.layers {
                return Err(SliceError::OutOfRange {
                    page: page.0,
                    layer,
                    pages: kv.pages(),
                    layers: layout.layers,
                });
            }
        }
    }
    cpu::paged_attention(SimdLevel::detect(), threads, kv, layer, shape, spans, q, out);
    Ok(())
}

#[cfg(test)]
mod tests;
