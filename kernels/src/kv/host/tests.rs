use std::sync::Arc;

use super::*;

fn layout(dtype: KvDtype) -> KvLayout {
    KvLayout {
        dtype,
        page_tokens: 16,
        layers: 3,
        kv_heads: 2,
        head_dim: 20,
    }
}

fn vectors(seed: u32) -> Vec<f32> {
    (0..40)
        .map(|i| ((i * 37 + seed * 101) % 97) as f32 / 9.7 - 5.0)
        .collect()
}

#[test]
fn appended_tokens_read_back_and_never_change_again() {
    for dtype in [KvDtype::Fp8E4m3, KvDtype::Bf16, KvDtype::F32] {
        let kv = HostKv::new(layout(dtype), 2).unwrap();
        let mut stored: Vec<Vec<u8>> = Vec::new();
        for token in 0..16 {
            let (keys, values) = (vectors(token), vectors(token + 1000));
            kv.append(PageId(1), 2, token as usize, &keys, &values).unwrap();
            let slice = kv.slice(PageId(1), 2).unwrap();
            let bytes_of = |token: usize| {
                let mut all = Vec::new();
                for part in [KvPart::Key, KvPart::Value] {
                    for head in 0..2 {
                        let at = kv.layout.vector_offset(part, head, token);
                        all.extend_from_slice(&slice[at..at + 20 * dtype.bytes()]);
                        if dtype == KvDtype::Fp8E4m3 {
                            all.push(slice[kv.layout.scale_offset(part, head, token)]);
                        }
                    }
                }
                all
            };
            stored.push(bytes_of(token as usize));
            for (earlier, bytes) in stored.iter().enumerate() {
                assert_eq!(&bytes_of(earlier), bytes, "token {earlier} after {token}");
            }
            for (part, vectors) in [(KvPart::Key, &keys), (KvPart::Value, &values)] {
                for head in 0..2 {
                    let at = kv.layout.vector_offset(part, head, token as usize);
                    for (i, &v) in vectors[head * 20..][..20].iter().enumerate() {
                        let at = at + i * dtype.bytes();
                        let (found, bound) = match dtype {
                            KvDtype::F32 => (f32::from_le_bytes(slice[at..at + 4].try_into().unwrap()), 0.0),
                            KvDtype::Bf16 => {
                                let bits = u16::from_le_bytes(slice[at..at + 2].try_into().unwrap());
                                (f32::from_bits(u32::from(bits) << 16), v.abs() / 256.0)
                            }
                            KvDtype::Fp8E4m3 => {
                                let scale = slice[kv.layout.scale_offset(part, head, token as usize)];
                                (
                                    codec::decode(slice[at]) * codec::scale(scale),
                                    v.abs() / 16.0 + 1e-4,
                                )
                            }
                        };
                        assert!((found - v).abs() <= bound, "{found} {v}");
                    }
                }
            }
        }
        assert!(kv.slice(PageId(1), 1).unwrap().iter().all(|&b| b == 0));
        assert!(kv.slice(PageId(0), 2).unwrap().iter().all(|&b| b == 0));
    }
}

#[test]
fn pages_copy_and_slices_move() {
    let kv = HostKv::new(layout(KvDtype::Fp8E4m3), 3).unwrap();
    for layer in 0..3 {
        kv.append(PageId(0), layer, 5, &vectors(layer), &vectors(9))
            .unwrap();
    }
    kv.copy_page(PageId(0), PageId(2)).unwrap();
    kv.copy_page(PageId(2), PageId(2)).unwrap();
    let mut bytes = vec![1; 7];
    for layer in 0..3 {
        kv.read_slice(PageId(0), layer, &mut bytes).unwrap();
        assert_eq!(bytes.len(), kv.layout().slice_bytes());
        assert_eq!(&bytes[..], &*kv.slice(PageId(2), layer).unwrap());
        kv.write_slice(PageId(1), layer, &bytes).unwrap();
        assert_eq!(&bytes[..], &*kv.slice(PageId(1), layer).unwrap());
        assert_eq!(kv.slice(PageId(1), layer).unwrap().as_ptr() as usize % ALIGN, 0);
    }
}

#[test]
fn what_does_not_exist_is_refused() {
    let kv = HostKv::new(layout(KvDtype::Bf16), 2).unwrap();
    assert!(matches!(
        kv.slice(PageId(2), 0),
        Err(SliceError::OutOfRange { page: 2, .. })
    ));
    assert!(kv.slice(PageId(0), 3).is_err());
    assert!(kv.copy_page(PageId(0), PageId(7)).is_err());
    assert!(matches!(
        kv.write_slice(PageId(0), 0, &[0; 3]),
        Err(SliceError::Length { found: 3, .. })
    ));
    assert!(matches!(
        HostKv::new(layout(KvDtype::Bf16), 0),
        Err(HostKvError::NoPages)
    ));
    let huge = KvLayout {
        head_dim: 1 << 40,
        ..layout(KvDtype::F32)
    };
    assert!(matches!(
        HostKv::new(huge, u32::MAX),
        Err(HostKvError::OutOfMemory { .. })
    ));
    let odd = KvLayout {
        page_tokens: 17,
        ..layout(KvDtype::F32)
    };
    assert!(matches!(HostKv::new(odd, 1), Err(HostKvError::Layout(_))));
}

#[test]
fn a_slice_is_never_seen_half_written() {
    let kv = Arc::new(HostKv::new(layout(KvDtype::Fp8E4m3), 1).unwrap());
    let length = kv.layout().slice_bytes();
    std::thread::scope(|scope| {
        for byte in 1..3_u8 {
            let kv = Arc::clone(&kv);
            scope.spawn(move || {
                for _ in 0..2000 {
                    kv.write_slice(PageId(0), 1, &vec![byte; length]).unwrap();
                }
            });
        }
        for _ in 0..2000 {
            let slice = kv.slice(PageId(0), 1).unwrap();
            assert!(slice.iter().all(|&b| b == slice[0]));
        }
    });
}
