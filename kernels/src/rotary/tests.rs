use proptest::prelude::*;

use super::*;

const LLAMA_3_1: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192.0,
};

#[test]
fn frequencies_follow_the_formulas() {
    let plain = inverse_frequencies(128, 500_000.0, RopeScaling::Default);
    assert_eq!(plain.len(), 64);
    assert_eq!(plain[0], 1.0);
    for (i, &f) in plain.iter().enumerate() {
        let exact = 500_000f64.powf(-(i as f64) / 64.0);
        assert!((f64::from(f) - exact).abs() < 1e-6 * exact);
    }
    let linear = inverse_frequencies(128, 500_000.0, RopeScaling::Linear { factor: 4.0 });
    assert!(linear.iter().zip(&plain).all(|(l, p)| *l == p / 4.0));

    let llama = inverse_frequencies(128, 500_000.0, LLAMA_3_1);
    let mut kept = 0;
    let mut divided = 0;
    for (&scaled, &f) in llama.iter().zip(&plain) {
        let wavelength = 2.0 * std::f64::consts::PI / f64::from(f);
        if wavelength < 2048.0 {
            assert_eq!(scaled, f);
            kept += 1;
        } else if wavelength > 8192.0 {
            assert_eq!(scaled, f / 8.0);
            divided += 1;
        } else {
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            let exact = f64::from(f) * ((1.0 - smooth) / 8.0 + smooth);
            assert!((f64::from(scaled) - exact).abs() < 1e-6 * exact);
        }
    }
    assert!(kept > 20 && divided > 20 && kept + divided < 64);
}

#[test]
fn position_zero_changes_nothing() {
    let table = RopeTable::new(64, 10_000.0, RopeScaling::Default, 3);
    let vector: Vec<f32> = (0..128).map(|i| i as f32 - 60.0).collect();
    let mut turned = vector.clone();
    table.apply(0, &mut turned);
    assert_eq!(turned, vector);
}

proptest! {
    #[test]
    fn equals_the_reference_on_every_level(
        half in 1usize..65,
        heads in 1usize..5,
        position in 0usize..5000,
        llama in any::<bool>(),
    ) {
        let scaling = if llama { LLAMA_3_1 } else { RopeScaling::Default };
        let table = RopeTable::new(2 * half, 10_000.0, scaling, position + 1);
        prop_assert_eq!(table.positions(), position + 1);
        let frequencies = inverse_frequencies(2 * half, 10_000.0, scaling);
        let vectors: Vec<f32> = (0..heads * 2 * half).map(|i| ((i * 31) % 17) as f32 / 4.0 - 2.0).collect();
        let mut turned = vectors.clone();
        table.apply(position, &mut turned);
        for (found, vector) in turned.chunks_exact(2 * half).zip(vectors.chunks_exact(2 * half)) {
            for (f, exact) in found.iter().zip(reference::rotate(&frequencies, position, vector)) {
                prop_assert!((f64::from(*f) - exact).abs() < 1e-6, "{} {}", f, exact);
            }
        }
        let (cos, sin) = table.angles[position * 2 * half..].split_at(half);
        for level in crate::SimdLevel::available() {
            let mut again = vectors.clone();
            cpu::rotate(level, cos, sin, &mut again);
            prop_assert_eq!(&again, &turned);
        }
    }
}
