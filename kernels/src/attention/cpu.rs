//! The fast path: a task is up to 16 query tokens of a span and one KV head; tasks are split over threads.

use std::{cell::RefCell, ops::Range};

use super::{
    AttentionShape, QuerySpan,
    page::{PageHead, PageScratch, Stored},
    tile::{blend, dots_of},
};
use crate::{
    SimdLevel, Threads,
    kv::{HostKv, KvDtype, KvLayout, KvMemory},
    math::{exp, exp_lanes},
    simd::{LANES, Lanes, multiversion, sum_lanes},
};

/// Query tokens that share one decoding of a page.
const TASK_ROWS: usize = 16;

/// Query-token products per head dimension that are worth waking a thread.
const WORK_PER_THREAD: usize = 200_000;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Buffers of one task. A *query* is one head of one query token; a task's are `[row][head of the group]`.
#[derive(Default)]
struct Scratch {
    page: PageScratch,
    /// `[query][page_tokens]`: scores, then weights.
    scores: Vec<f32>,
    /// `[query][head_dim up to a multiple of 16]`
    sums: Vec<f32>,
    /// `[query]`
    softmax: Vec<Softmax>,
}

/// The running state of one query's softmax.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    max: f32,
    total: f32,
    /// What the page's new maximum does to all that was summed before.
    pub(super) rescale: f32,
}

/// One call, read by all its threads.
struct Job<'a> {
    kv: &'a HostKv,
    layer: u32,
    shape: &'a AttentionShape,
    spans: &'a [QuerySpan<'a>],
    q: &'a [f32],
    out: *mut f32,
}

// SAFETY: tasks write disjoint rows and heads of `out`, which outlives them; all else is only read.
unsafe impl Sync for Job<'_> {}

#[derive(Clone, Copy)]
struct Task {
    span: usize,
    /// First query token in its span.
    first: usize,
    rows: usize,
    /// First row in `q` and `out`.
    row: usize,
    kv_head: usize,
}

#[allow(clippy::too_many_arguments)]
pub(super) fn paged_attention(
    level: SimdLevel,
    threads: &Threads,
    kv: &HostKv,
    layer: u32,
    shape: &AttentionShape,
    spans: &[QuerySpan<'_>],
    q: &[f32],
    out: &mut [f32],
) {
    let heads = kv.layout().kv_heads;
    let mut tasks = Vec::new();
    let mut work = 0_usize;
    let mut row = 0;
    for (index, span) in spans.iter().enumerate() {
        let len = span.len as usize;
        for first in (0..len).step_by(TASK_ROWS) {
            let rows = TASK_ROWS.min(len - first);
            tasks.extend((0..heads).map(|kv_head| Task {
                span: index,
                first,
                rows,
                row: row + first,
                kv_head,
            }));
        }
        let seen = shape
            .window
            .map_or(span.start + span.len, |w| w.min(span.start + span.len));
        // Decoding a page costs about as much as 16 queries.
        work += (len * shape.q_heads + 16 * heads) * seen as usize * kv.layout().head_dim / 16;
        row += len;
    }
    // The longest first: the last one to end then ends early.
    tasks.sort_by_key(|task| std::cmp::Reverse(spans[task.span].start as usize + task.first + task.rows));
    let job = Job {
        kv,
        layer,
        shape,
        spans,
        q,
        out: out.as_mut_ptr(),
    };
    threads.for_each(tasks.len(), work / (WORK_PER_THREAD / 16), |index| {
        SCRATCH.with_borrow_mut(|scratch| attend_at(level, &job, tasks[index], scratch));
    });
}

multiversion! { fn attend_at(job: &Job<'_>, task: Task, scratch: &mut Scratch) = attend }

#[inline(always)]
fn attend<V: Lanes>(job: &Job<'_>, task: Task, scratch: &mut Scratch) {
    let layout = job.kv.layout();
    let span = &job.spans[task.span];
    let group = job.shape.q_heads / layout.kv_heads;
    let queries = task.rows * group;
    let dim = layout.head_dim;
    let padded = dim.next_multiple_of(LANES);
    let page_tokens = layout.page_tokens;

    let Scratch {
        page,
        scores,
        sums,
        softmax,
    } = scratch;
    scores.resize(queries * page_tokens, 0.0);
    sums.clear();
    sums.resize(queries * padded, 0.0);
    softmax.clear();
    softmax.resize(
        queries,
        Softmax {
            max: f32::NEG_INFINITY,
            total: 0.0,
            rescale: 0.0,
        },
    );

    let first_position = span.start as usize + task.first;
    let last_position = first_position + task.rows - 1;
    let first_seen = first_seen(job.shape, first_position);
    for index in first_seen / page_tokens..=last_position / page_tokens {
        let from = index * page_tokens;
        let slice = job
            .kv
            .slice(span.pages[index], job.layer)
            .expect("the caller has checked pages and layer");
        // Of this page, the tokens that some row sees.
        let seen = first_seen.saturating_sub(from)..page_tokens.min(last_position + 1 - from);
        // Few queries read codes directly; many share them decoded.
        let direct = queries <= 4 && layout.dtype == KvDtype::Fp8E4m3 && padded == dim;
        let head = page.load::<V>(&slice, layout, task.kv_head, seen.clone(), direct);
        match &head {
            PageHead::Codes { keys, .. } => {
                dots::<V, u8>(job, task, layout, keys, seen.clone(), scores);
            }
            PageHead::Decoded { keys, .. } => {
                dots::<V, f32>(job, task, layout, keys, seen.clone(), scores);
            }
        }
        let (key_scales, value_scales) = head.scales();
        for row in 0..task.rows {
            let visible = visible(job.shape, first_position + row, from, page_tokens);
            for query in row * group..(row + 1) * group {
                let scores = &mut scores[query * page_tokens..][..page_tokens];
                let scale = job.shape.scale;
                weigh::<V>(
                    &mut softmax[query],
                    scores,
                    key_scales,
                    value_scales,
                    scale,
                    visible.clone(),
                );
            }
        }
        let mut row = 0;
        while row < task.rows {
            let tokens = visible(job.shape, first_position + row, from, page_tokens);
            let mut rows = 1;
            while row + rows < task.rows
                && visible(job.shape, first_position + row + rows, from, page_tokens) == tokens
            {
                rows += 1;
            }
            let range = row * group..(row + rows) * group;
            match &head {
                PageHead::Codes { values, .. } => {
                    blend::<V, u8>(values, padded, page_tokens, tokens, range, scores, softmax, sums);
                }
                PageHead::Decoded { values, .. } => {
                    blend::<V, f32>(values, padded, page_tokens, tokens, range, scores, softmax, sums);
                }
            }
            row += rows;
        }
    }
    for query in 0..queries {
        let (row, head) = (query / group, query % group);
        let at = ((task.row + row) * job.shape.q_heads + task.kv_head * group + head) * dim;
        for (i, sum) in sums[query * padded..][..dim].iter().enumerate() {
            // SAFETY: `out` is [rows][q_heads][head_dim]; no other task has this row and KV head.
            unsafe { *job.out.add(at + i) = sum / softmax[query].total };
        }
    }
}

/// The first position that the token at `position` sees.
fn first_seen(shape: &AttentionShape, position: usize) -> usize {
    shape
        .window
        .map_or(0, |window| (position + 1).saturating_sub(window as usize))
}

/// What the token at `position` sees of the page that begins at position `from`; maybe nothing.
#[inline(always)]
fn visible(shape: &AttentionShape, position: usize, from: usize, page_tokens: usize) -> Range<usize> {
    let start = first_seen(shape, position).saturating_sub(from).min(page_tokens);
    let end = (position + 1).saturating_sub(from).min(page_tokens);
    start..end.max(start)
}

/// `scores [query][page_tokens]` = q . k over the blocks of 16 tokens that touch `seen`; `keys [block][dim][16]`.
#[inline(always)]
fn dots<V: Lanes, T: Stored>(
    job: &Job<'_>,
    task: Task,
    layout: &KvLayout,
    keys: &[T],
    seen: Range<usize>,
    scores: &mut [f32],
) {
    let dim = layout.head_dim;
    let group = job.shape.q_heads / layout.kv_heads;
    let queries = task.rows * group;
    let vector = |query: usize| {
        let row = task.row + query / group;
        let head = task.kv_head * group + query % group;
        job.q[(row * job.shape.q_heads + head) * dim..][..dim].as_ptr()
    };
    let blocks = seen.start / LANES..seen.end.div_ceil(LANES);
    let mut query = 0;
    while query < queries {
        if queries - query >= 4 {
            let q = [
                vector(query),
                vector(query + 1),
                vector(query + 2),
                vector(query + 3),
            ];
            dots_of::<V, T, 4>(q, dim, keys, blocks.clone(), query, layout.page_tokens, scores);
            query += 4;
        } else if queries - query >= 2 {
            let q = [vector(query), vector(query + 1)];
            dots_of::<V, T, 2>(q, dim, keys, blocks.clone(), query, layout.page_tokens, scores);
            query += 2;
        } else {
            dots_of::<V, T, 1>(
                [vector(query)],
                dim,
                keys,
                blocks.clone(),
                query,
                layout.page_tokens,
                scores,
            );
            query += 1;
        }
    }
}

/// Turns the `visible` scores of one query and page into weights times V's scales, and carries its softmax on.
#[inline(always)]
fn weigh<V: Lanes>(
    softmax: &mut Softmax,
    scores: &mut [f32],
    key_scales: &[f32],
    value_scales: &[f32],
    scale: f32,
    visible: Range<usize>,
) {
    softmax.rescale = 1.0;
    if visible.is_empty() {
        return;
    }
    let blocks = visible.start / LANES * LANES..visible.end.next_multiple_of(LANES);
    let scores = &mut scores[blocks.clone()];
    let (key_scales, value_scales) = (&key_scales[blocks.clone()], &value_scales[blocks.clone()]);
    for (scores, key_scales) in scores.chunks_exact_mut(LANES).zip(key_scales.chunks_exact(LANES)) {
        // SAFETY: chunks of 16.
        unsafe {
            let scaled = V::load(scores.as_ptr()).mul(V::load(key_scales.as_ptr()));
            scaled.mul(V::splat(scale)).store(scores.as_mut_ptr());
        }
    }
    // What is not visible may be anything, NaN too.
    scores[..visible.start - blocks.start].fill(f32::NEG_INFINITY);
    scores[visible.end - blocks.start..].fill(f32::NEG_INFINITY);
    let mut max = V::splat(softmax.max);
    for scores in scores.chunks_exact(LANES) {
        // SAFETY: chunks of 16.
        max = unsafe { V::load(scores.as_ptr()) }.max(max);
    }
    let max = max
        .to_array()
        .into_iter()
        .fold(softmax.max, |a, b| if b > a { b } else { a });
    let mut total = V::splat(0.0);
    for (scores, value_scales) in scores
        .chunks_exact_mut(LANES)
        .zip(value_scales.chunks_exact(LANES))
    {
        // SAFETY: chunks of 16.
        unsafe {
            let weight = exp_lanes(V::load(scores.as_ptr()).sub(V::splat(max)));
            total = total.add(weight);
            weight
                .mul(V::load(value_scales.as_ptr()))
                .store(scores.as_mut_ptr());
        }
    }
    softmax.rescale = if max > softmax.max {
        exp(softmax.max - max)
    } else {
        1.0
    };
    softmax.total = softmax
        .total
        .mul_add(softmax.rescale, sum_lanes(total.to_array()));
    softmax.max = max;
}
