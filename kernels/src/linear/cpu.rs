//! The fast path: tiles of rows and outputs in registers, panels of outputs over threads.

use std::{cell::RefCell, ops::Range};

use super::{
    PackedWeights,
    packed::{Line, PANEL, Panels},
};
use crate::{
    SimdLevel, Threads,
    simd::{LANES, Lanes, multiversion},
};

/// Rows that one tile can have, best first.
const TILE_ROWS: [usize; 6] = [8, 6, 4, 3, 2, 1];

/// Bytes of weights in one task: they stay in a core's L2 while all rows pass.
const TASK_BYTES: usize = 256 << 10;

/// Multiply-adds, counting two more for reading a weight, that are worth waking a thread.
const WORK_PER_THREAD: usize = 400_000;

thread_local! {
    /// Rows of x regrouped for the tiles.
    static REGROUPED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn linear(
    level: SimdLevel,
    threads: &Threads,
    x: &[f32],
    rows: usize,
    weights: &PackedWeights,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    match &weights.panels {
        Panels::Bf16(lines) => split(level, threads, x, rows, (weights, lines), bias, y, sweep_bf16),
        Panels::F32(lines) => split(level, threads, x, rows, (weights, lines), bias, y, sweep_f32),
    }
}

multiversion! { fn sweep_bf16(job: &Job<'_, u16>, panels: Range<usize>) = sweep[u16] }
multiversion! { fn sweep_f32(job: &Job<'_, f32>, panels: Range<usize>) = sweep[f32] }

/// One product, read by all its threads.
struct Job<'a, T> {
    rows: usize,
    k: usize,
    n: usize,
    /// Tile after tile: `[k][rows of the tile]`.
    x: &'a [f32],
    /// The most rows of a tile.
    tallest: usize,
    lines: &'a [Line<T>],
    bias: Option<&'a [f32]>,
    /// `[rows][n]`; each task writes the columns of its own panels.
    y: *mut f32,
}

// SAFETY: tasks write disjoint columns of `y`, which outlives them; all else is only read.
unsafe impl<T: Sync> Sync for Job<'_, T> {}

#[allow(clippy::too_many_arguments)]
fn split<T: Sync>(
    level: SimdLevel,
    threads: &Threads,
    x: &[f32],
    rows: usize,
    (weights, lines): (&PackedWeights, &[Line<T>]),
    bias: Option<&[f32]>,
    y: &mut [f32],
    sweep: fn(SimdLevel, &Job<'_, T>, Range<usize>),
) {
    let (n, k) = (weights.outputs(), weights.inputs());
    let tallest = match level {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => 8,
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => 6,
        SimdLevel::Portable => 3,
    };
    let panels = n.div_ceil(PANEL);
    let limit = n.saturating_mul(k).saturating_mul(rows + 2) / WORK_PER_THREAD;
    let fit = (TASK_BYTES / (k * size_of::<Line<T>>())).max(1);
    // At least four tasks for each thread, so that a slow one does not hold up the rest; whole tiles of four panels.
    let share = panels.div_ceil(threads.count().min(limit.max(1)) * 4);
    let step = fit.min(share).next_multiple_of(4);
    REGROUPED.with_borrow_mut(|buffer| {
        let x = if rows > 1 {
            regroup(x, rows, k, tallest, buffer);
            buffer.as_slice()
        } else {
            x
        };
        let job = Job {
            rows,
            k,
            n,
            x,
            tallest,
            lines,
            bias,
            y: y.as_mut_ptr(),
        };
        threads.for_each(panels.div_ceil(step), limit, |task| {
            let first = task * step;
            sweep(level, &job, first..(first + step).min(panels));
        });
    });
}

/// The rows that the next tile takes.
#[inline(always)]
fn tile_rows(left: usize, tallest: usize) -> usize {
    let mut best = 1;
    for rows in TILE_ROWS {
        if rows <= left && rows <= tallest {
            best = best.max(rows);
        }
    }
    best
}

/// `x [rows][k]` to tiles of `[k][rows of the tile]`.
fn regroup(x: &[f32], rows: usize, k: usize, tallest: usize, out: &mut Vec<f32>) {
    out.resize(rows * k, 0.0);
    let mut row = 0;
    while row < rows {
        let tile = tile_rows(rows - row, tallest);
        let out = &mut out[row * k..][..tile * k];
        for (r, x) in x[row * k..][..tile * k].chunks_exact(k).enumerate() {
            for (group, &v) in out.chunks_exact_mut(tile).zip(x) {
                group[r] = v;
            }
        }
        row += tile;
    }
}

/// A stored weight.
trait Weight: Copy {
    /// # Safety
    /// `from` must be readable for 16 values.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

impl Weight for u16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller says that 16 values are readable.
        unsafe { V::load_bf16(from) }
    }
}

impl Weight for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller says that 16 values are readable.
        unsafe { V::load(from) }
    }
}

/// All rows times some panels.
#[inline(always)]
fn sweep<V: Lanes, T: Weight>(job: &Job<'_, T>, panels: Range<usize>) {
    let mut row = 0;
    while row < job.rows {
        let rows = tile_rows(job.rows - row, job.tallest);
        match rows {
            8 => sweep_rows::<V, T, 8>(job, row, panels.clone()),
            6 => sweep_rows::<V, T, 6>(job, row, panels.clone()),
            4 => sweep_rows::<V, T, 4>(job, row, panels.clone()),
            3 => sweep_rows::<V, T, 3>(job, row, panels.clone()),
            2 => sweep_rows::<V, T, 2>(job, row, panels.clone()),
            _ => sweep_rows::<V, T, 1>(job, row, panels.clone()),
        }
        row += rows;
    }
}

/// R rows times some panels, as many columns at once as registers allow.
#[inline(always)]
fn sweep_rows<V: Lanes, T: Weight, const R: usize>(job: &Job<'_, T>, row: usize, panels: Range<usize>) {
    const HALVES: usize = PANEL / LANES;
    let end = panels.end * HALVES;
    let mut column = panels.start * HALVES;
    while column < end {
        let left = end - column;
        if 8 * R <= V::ACCUMULATORS && left >= 8 {
            tile::<V, T, R, 8>(job, row, column);
            column += 8;
        } else if 4 * R <= V::ACCUMULATORS && left >= 4 {
            tile::<V, T, R, 4>(job, row, column);
            column += 4;
        } else if 2 * R <= V::ACCUMULATORS {
            tile::<V, T, R, 2>(job, row, column);
            column += 2;
        } else {
            tile::<V, T, R, 1>(job, row, column);
            column += 1;
        }
    }
}

/// R rows times C columns of 16 outputs; `column` counts columns.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // unrolled over registers
fn tile<V: Lanes, T: Weight, const R: usize, const C: usize>(job: &Job<'_, T>, row: usize, column: usize) {
    let k = job.k;
    let x = job.x[row * k..][..R * k].as_ptr();
    let mut columns = [std::ptr::null::<T>(); C];
    for (c, start) in columns.iter_mut().enumerate() {
        let (panel, half) = ((column + c) / 2, (column + c) % 2);
        *start = job.lines[panel * k..][..k].as_ptr().cast::<T>();
        // SAFETY: a line has two halves of 16 weights.
        *start = unsafe { start.add(half * LANES) };
    }
    let mut sums = [[V::splat(0.0); C]; R];
    for i in 0..k {
        let mut w = [V::splat(0.0); C];
        for c in 0..C {
            // SAFETY: the panel has k lines of PANEL weights, checked by the slice above.
            w[c] = unsafe { T::load(columns[c].add(i * PANEL)) };
        }
        for r in 0..R {
            // SAFETY: the tile has R * k values, checked by the slice above.
            let v = V::splat(unsafe { *x.add(i * R + r) });
            for c in 0..C {
                sums[r][c] = v.fma(w[c], sums[r][c]);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (c, sum) in sums.into_iter().enumerate() {
            let output = (column + c) * LANES;
            let width = LANES.min(job.n.saturating_sub(output));
            if width == 0 {
                continue;
            }
            // SAFETY: y is [rows][n], the row exists, and `width` outputs follow `output` in it. No other task has this
            // panel.
            unsafe {
                let y = job.y.add((row + r) * job.n + output);
                if width == LANES {
                    let sum = match job.bias {
                        Some(bias) => sum.add(V::load(bias[output..][..LANES].as_ptr())),
                        None => sum,
                    };
                    sum.store(y);
                } else {
                    for (i, v) in sum.to_array().into_iter().take(width).enumerate() {
                        *y.add(i) = job.bias.map_or(v, |bias| v + bias[output + i]);
                    }
                }
            }
        }
    }
}
