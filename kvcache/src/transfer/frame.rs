//! What a TCP data connection carries: a preamble, then one frame for each slice.
//!
//! ```text
//! preamble   magic "BKL1"  link token [16]                         answered by one byte, ACCEPTED
//! frame      magic "BKV1"  transfer id u128  page u32  layer u32  payload length u32  crc32 u32  payload
//! ```
//!
//! Numbers are big endian. The checksum (CRC-32, IEEE 802.3) covers the header before it, and the payload. The payload
//! is one (page, layer) slice, so its length is known before it is read.

use baton_proto::TransferId;

/// Shows that a data connection belongs to an open link. Random, and good once.
pub(super) type LinkToken = [u8; 16];

pub(super) const PREAMBLE_BYTES: usize = 20;
pub(super) const HEADER_BYTES: usize = 36;
pub(super) const ACCEPTED: u8 = 1;

const PREAMBLE_MAGIC: [u8; 4] = *b"BKL1";
const FRAME_MAGIC: [u8; 4] = *b"BKV1";
const CHECKED_BYTES: usize = HEADER_BYTES - 4;

/// Names one slice of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceName {
    pub(super) transfer: TransferId,
    /// Index of the page in its sequence.
    pub(super) page: u32,
    pub(super) layer: u32,
}

/// A frame's header as it came, with the checksum still to be compared.
#[derive(Debug)]
pub(super) struct FrameHeader {
    pub(super) name: SliceName,
    checked: [u8; CHECKED_BYTES],
    checksum: u32,
}

/// The stream does not carry frames, or no longer: there is no way to find the next one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadFrame {
    #[error("{0:02x?} where a frame should begin")]
    Magic([u8; 4]),
    #[error("a frame with {found} bytes where slices have {expected}")]
    Length { found: u32, expected: usize },
}

pub(super) fn encode_preamble(token: &LinkToken) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..4].copy_from_slice(&PREAMBLE_MAGIC);
    bytes[4..].copy_from_slice(token);
    bytes
}

/// The token, if this is a preamble.
pub(super) fn decode_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Option<LinkToken> {
    bytes.strip_prefix(&PREAMBLE_MAGIC)?.try_into().ok()
}

pub(super) fn encode_header(name: SliceName, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&FRAME_MAGIC);
    bytes[4..20].copy_from_slice(&name.transfer.0.to_be_bytes());
    bytes[20..24].copy_from_slice(&name.page.to_be_bytes());
    bytes[24..28].copy_from_slice(&name.layer.to_be_bytes());
    bytes[28..32].copy_from_slice(&(payload.len() as u32).to_be_bytes());
    let checksum = checksum(&bytes[..CHECKED_BYTES], payload);
    bytes[CHECKED_BYTES..].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// # Errors
/// [`BadFrame`] if this is not the header of a frame with `slice_bytes` of payload.
pub(super) fn decode_header(bytes: &[u8; HEADER_BYTES], slice_bytes: usize) -> Result<FrameHeader, BadFrame> {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if magic != FRAME_MAGIC {
        return Err(BadFrame::Magic(magic));
    }
    if word(28) as usize != slice_bytes {
        return Err(BadFrame::Length {
            found: word(28),
            expected: slice_bytes,
        });
    }
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[4..20]);
    let mut checked = [0; CHECKED_BYTES];
    checked.copy_from_slice(&bytes[..CHECKED_BYTES]);
    Ok(FrameHeader {
        name: SliceName {
            transfer: TransferId(u128::from_be_bytes(id)),
            page: word(20),
            layer: word(24),
        },
        checked,
        checksum: word(CHECKED_BYTES),
    })
}

impl FrameHeader {
    /// Whether header and payload are as they were sent.
    pub(super) fn is_intact(&self, payload: &[u8]) -> bool {
        checksum(&self.checked, payload) == self.checksum
    }
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(payload);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SliceName = SliceName {
        transfer: TransferId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        page: 7,
        layer: 3,
    };

    #[test]
    fn any_flipped_bit_is_noticed() {
        let payload: Vec<u8> = (0..64).collect();
        let header = encode_header(NAME, &payload);
        let decoded = decode_header(&header, 64).expect("own format");
        assert_eq!(decoded.name, NAME);
        assert!(decoded.is_intact(&payload));
        for bit in 0..(HEADER_BYTES + payload.len()) * 8 {
            let mut bytes = [header.as_slice(), &payload].concat();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let head: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().expect("length");
            if let Ok(decoded) = decode_header(&head, 64) {
                assert!(!decoded.is_intact(&bytes[HEADER_BYTES..]), "bit {bit}");
            }
        }
    }

    #[test]
    fn lengths_and_magic_are_checked_before_anything_is_read() {
        let header = encode_header(NAME, &[0; 64]);
        assert_eq!(
            decode_header(&header, 32).expect_err("other slice size"),
            BadFrame::Length {
                found: 64,
                expected: 32
            }
        );
        assert!(matches!(
            decode_header(&[b'G'; HEADER_BYTES], 64),
            Err(BadFrame::Magic(_))
        ));
    }

    #[test]
    fn a_preamble_carries_its_token() {
        let token = [9; 16];
        assert_eq!(decode_preamble(&encode_preamble(&token)), Some(token));
        assert_eq!(decode_preamble(&[9; PREAMBLE_BYTES]), None);
    }
}
