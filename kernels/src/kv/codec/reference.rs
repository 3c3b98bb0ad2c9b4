//! The codec in f64, by searching all codes: the oracle.

/// Value of a code, from the definition.
pub(super) fn value(code: u8) -> f64 {
    let mantissa = f64::from(code & 7);
    let exponent = i32::from((code >> 3) & 15);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest code by exhaustive search; of two equally near the one with an even mantissa.
pub(super) fn nearest(value_f64: f64) -> u8 {
    if value_f64.is_nan() {
        return 0x7f;
    }
    let target = value_f64.abs().min(448.0);
    let mut best = 0;
    for code in 1..=0x7e {
        let (old, new) = ((value(best) - target).abs(), (value(code) - target).abs());
        if new < old || (new == old && code % 2 == 0) {
            best = code;
        }
    }
    if value_f64.is_sign_negative() {
        best | 0x80
    } else {
        best
    }
}

/// Exponent of the smallest power of two s with amax / s <= 448, not below -126; 0 for amax = 0.
pub(super) fn scale_exponent(amax: f64) -> i32 {
    if amax == 0.0 {
        return 0;
    }
    (-126..=127)
        .find(|&e| amax / 2f64.powi(e) <= 448.0)
        .expect("2^120 is enough for every f32")
}
