use super::{AttentionShape, QuerySpan};
use crate::{
    SimdLevel, Threads,
    kv::{HostKv, KvDtype, KvMemory, KvPart, SliceError, codec},
    math::exp,
};

#[allow(clippy::too_many_arguments)]
pub(super) fn paged_attention(
    _level: SimdLevel,
    _threads: &Threads,
    kv: &HostKv,
    layer: u32,
    shape: &AttentionShape,
    spans: &[QuerySpan<'_>],
    q: &[f32],
    out: &mut [f32],
) -> Result<(), SliceError> {
    let layout = kv.layout();
    let dim = layout.head_dim;
    let mut rows = q.chunks_exact(dim).zip(out.chunks_exact_mut(dim));
    let load = |slice: &[u8], part, head, token: usize| -> Vec<f32> {
        let at = layout.vector_offset(part, head, token);
        let bytes = &slice[at..at + dim * layout.dtype.bytes()];
        match layout.dtype {
            KvDtype::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            KvDtype::Bf16 => bytes
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
                .collect(),
            KvDtype::Fp8E4m3 => {
                let mut v = vec![0.0; dim];
                codec::dequantize(bytes, slice[layout.scale_offset(part, head, token)], &mut v);
                v
            }
        }
    };
    for span in spans {
        for position in span.start..span.start + span.len {
            let first = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
            for head in 0..shape.q_heads {
                let kv_head = head / (shape.q_heads / layout.kv_heads);
                let Some((query, out)) = rows.next() else {
                    return Ok(());
                };
                out.fill(0.0);
                let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                for t in first..=position {
                    let slice = kv.slice(span.pages[t as usize / layout.page_tokens], layer)?;
                    let at = t as usize % layout.page_tokens;
                    let key = load(&slice, KvPart::Key, kv_head, at);
                    let dot = query
                        .iter()
                        .zip(&key)
                        .fold(0.0, |s: f32, (a, b)| a.mul_add(*b, s));
                    let score = dot * shape.scale;
                    let new = max.max(score);
                    let (old_part, weight) = (exp(max - new), exp(score - new));
                    max = new;
                    sum = sum * old_part + weight;
                    for (o, v) in out.iter_mut().zip(load(&slice, KvPart::Value, kv_head, at)) {
                        *o = *o * old_part + weight * v;
                    }
                }
                for o in out {
                    *o /= sum;
                }
            }
        }
    }
    Ok(())
}
