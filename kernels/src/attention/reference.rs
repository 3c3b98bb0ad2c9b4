//! Attention in f64 over the stored values: the oracle.

use super::{AttentionShape, QuerySpan};
use crate::kv::{HostKv, KvDtype, KvMemory, KvPart, codec};

/// One stored vector, exactly.
fn stored(slice: &[u8], kv: &HostKv, part: KvPart, head: usize, token: usize) -> Vec<f64> {
    let layout = kv.layout();
    let at = layout.vector_offset(part, head, token);
    let bytes = &slice[at..at + layout.head_dim * layout.dtype.bytes()];
    match layout.dtype {
        KvDtype::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        KvDtype::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)))
            .collect(),
        KvDtype::Fp8E4m3 => {
            let scale = f64::from(codec::scale(slice[layout.scale_offset(part, head, token)]));
            bytes
                .iter()
                .map(|&b| f64::from(codec::decode(b)) * scale)
                .collect()
        }
    }
}

pub(super) fn paged_attention(
    kv: &HostKv,
    layer: u32,
    shape: &AttentionShape,
    spans: &[QuerySpan<'_>],
    q: &[f32],
) -> Vec<f64> {
    let layout = kv.layout();
    let dim = layout.head_dim;
    let mut queries = q.chunks_exact(dim);
    let mut out = Vec::with_capacity(q.len());
    for span in spans {
        for position in span.start..span.start + span.len {
            let first = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
            for head in 0..shape.q_heads {
                let kv_head = head / (shape.q_heads / layout.kv_heads);
                let query = queries.next().expect("a query for each row and head");
                let read = |part, token: u32| {
                    let page = span.pages[token as usize / layout.page_tokens];
                    let slice = kv.slice(page, layer).expect("the page exists");
                    stored(&slice, kv, part, kv_head, token as usize % layout.page_tokens)
                };
                let scores: Vec<f64> = (first..=position)
                    .map(|t| {
                        let key = read(KvPart::Key, t);
                        let dot: f64 = query.iter().zip(&key).map(|(&q, k)| f64::from(q) * k).sum();
                        dot * f64::from(shape.scale)
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                let mut result = vec![0.0; dim];
                for (t, score) in (first..=position).zip(&scores) {
                    let weight = (score - max).exp() / total;
                    for (o, v) in result.iter_mut().zip(read(KvPart::Value, t)) {
                        *o += weight * v;
                    }
                }
                out.extend(result);
            }
        }
    }
    out
}
