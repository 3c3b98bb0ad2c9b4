//! The fast path: 16 lanes.

use crate::{
    math::exp_lanes,
    simd::{LANES, Lanes, multiversion},
};

multiversion! {
    pub(super) fn swiglu(gate_up: &[f32], inner: usize, out: &mut [f32]) = swiglu_on
}

#[inline(always)]
fn swiglu_on<V: Lanes>(gate_up: &[f32], inner: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * inner).zip(out.chunks_exact_mut(inner)) {
        let (gate, up) = row.split_at(inner);
        for ((gate, up), out) in gate
            .chunks(LANES)
            .zip(up.chunks(LANES))
            .zip(out.chunks_mut(LANES))
        {
            if gate.len() == LANES {
                // SAFETY: three chunks of 16 f32.
                unsafe {
                    gated(V::load(gate.as_ptr()), V::load(up.as_ptr())).store(out.as_mut_ptr());
                }
            } else {
                let (mut gate_lanes, mut up_lanes) = ([0.0; LANES], [0.0; LANES]);
                gate_lanes[..gate.len()].copy_from_slice(gate);
                up_lanes[..up.len()].copy_from_slice(up);
                // SAFETY: both arrays have 16 f32.
                let lanes = unsafe { gated(V::load(gate_lanes.as_ptr()), V::load(up_lanes.as_ptr())) };
                out.copy_from_slice(&lanes.to_array()[..out.len()]);
            }
        }
    }
}

/// With t = e^-|g| there is no overflow: silu(g) = g / (1 + t) for g >= 0, g * t / (1 + t) below.
#[inline(always)]
fn gated<V: Lanes>(gate: V, up: V) -> V {
    let zero = V::splat(0.0);
    let one = V::splat(1.0);
    let positive = gate.zero_where_less(gate, zero);
    let negative = gate.zero_where_less(zero, gate);
    let t = exp_lanes(negative.sub(positive));
    // One of the two halves is zero.
    positive.add(negative.mul(t)).div(one.add(t)).mul(up)
}
