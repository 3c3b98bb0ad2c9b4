use proptest::prelude::*;

use super::*;

#[test]
fn every_code_decodes_and_encodes_to_itself() {
    for code in 0..=255_u8 {
        let exact = reference::value(code);
        let found = decode(code);
        if exact.is_nan() {
            assert!(found.is_nan());
            continue;
        }
        assert_eq!(f64::from(found), exact);
        assert_eq!(found.is_sign_negative(), code & 0x80 != 0);
        assert_eq!(encode(found), code);
        for level in SimdLevel::available() {
            let mut vector = [0.0; 17];
            dequantize_at(level, &[code; 17], 1.0, &mut vector);
            assert!(
                vector.iter().all(|v| v.to_bits() == found.to_bits()),
                "{level:?} {code}"
            );
        }
    }
}

#[test]
fn ties_between_every_two_neighbours_go_to_even() {
    for code in 0..0x7e_u8 {
        let middle = ((reference::value(code) + reference::value(code + 1)) / 2.0) as f32;
        let even = code + code % 2;
        assert_eq!(encode(middle), even);
        assert_eq!(encode(-middle), even | 0x80);
        assert_eq!(encode(f32::from_bits(middle.to_bits() - 1)), code);
        assert_eq!(encode(f32::from_bits(middle.to_bits() + 1)), code + 1);
    }
}

#[test]
fn what_is_not_finite_is_defined() {
    assert_eq!(encode(f32::NAN), 0x7f);
    assert_eq!(encode(-f32::NAN), 0x7f);
    assert_eq!(encode(f32::INFINITY), 0x7e);
    assert_eq!(encode(f32::NEG_INFINITY), 0xfe);
    assert_eq!(encode(f32::MAX), 0x7e);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut codes = [0; 3];
        assert_eq!(quantize(&[1.0, broken, -0.0], &mut codes), BROKEN_SCALE);
        assert_eq!(codes, [NAN_CODE; 3]);
        let mut back = [0.0; 3];
        dequantize(&codes, BROKEN_SCALE, &mut back);
        assert!(back.iter().all(|v| v.is_nan()));
    }
    let mut codes = [0; 2];
    assert_eq!(quantize(&[f32::MAX, 1.0], &mut codes), 247);
}

#[test]
fn zero_has_the_unit_scale() {
    let mut codes = [9; 3];
    assert_eq!(quantize(&[0.0, -0.0, 0.0], &mut codes), UNIT_SCALE);
    assert_eq!(codes, [0, 0x80, 0]);
    assert_eq!(quantize(&[], &mut []), UNIT_SCALE);
}

#[test]
fn the_scale_is_the_smallest_at_each_power_of_two() {
    for exponent in 0..255_u32 {
        for mantissa in [0, 1, 0x005f_ffff, 0x0060_0000, 0x0060_0001, 0x007f_ffff] {
            let amax = f32::from_bits((exponent << 23) | mantissa);
            let byte = scale_byte(amax.to_bits());
            assert_eq!(
                i32::from(byte) - 127,
                reference::scale_exponent(f64::from(amax)),
                "{amax:e}"
            );
            assert!(scale(byte).is_normal() && (1.0 / scale(byte)).is_normal());
        }
    }
}

#[test]
fn scale_bytes_follow_e8m0() {
    assert_eq!(scale(0), 2f32.powi(-127));
    for byte in 1..255 {
        assert_eq!(scale(byte), 2f32.powi(i32::from(byte) - 127));
    }
    assert!(scale(255).is_nan());
}

fn any_bits() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn rounds_as_the_reference(value in prop_oneof![any_bits(), -500f32..500.0, -0.05f32..0.05]) {
        prop_assert_eq!(encode(value), reference::nearest(f64::from(value)), "{:e}", value);
    }

    #[test]
    fn vectors_quantize_as_the_reference_on_every_level(
        vector in prop::collection::vec(prop_oneof![-3f32..3.0, any_bits().prop_filter("not near overflow", |v| v.abs() < 3e38)], 1..130),
    ) {
        let amax = vector.iter().fold(0f64, |a, v| a.max(f64::from(v.abs())));
        let exponent = reference::scale_exponent(amax);
        let exact: Vec<u8> = vector
            .iter()
            .map(|&v| reference::nearest(f64::from(v) / 2f64.powi(exponent)))
            .collect();
        for level in crate::SimdLevel::available() {
            let mut codes = vec![0; vector.len()];
            let byte = quantize_at(level, &vector, &mut codes);
            prop_assert_eq!(i32::from(byte) - 127, exponent);
            prop_assert_eq!(&codes, &exact);
            let mut back = vec![0.0; vector.len()];
            dequantize_at(level, &codes, scale(byte), &mut back);
            for (&b, &v) in back.iter().zip(&vector) {
                // Half a step of 3 mantissa bits, or of the subnormal grid.
                let bound = (f64::from(v.abs()) / 16.0).max(2f64.powi(exponent - 10));
                prop_assert!((f64::from(b) - f64::from(v)).abs() <= bound);
            }
        }
    }
}
