//! Decoding never panics, never requests more memory than its limit, and returns the bytes that
//! were encoded, for any codec id, declared length, dictionary and bytes.
//!
//! An input is a control byte, four bytes of argument, and the payload:
//!
//! | control bits | meaning |
//! |---|---|
//! | 0–2 | codec id, known or unknown |
//! | 3 | decode with the dictionary |
//! | 4 | the payload is not encoded: encode it, damage one byte, decode it |
//! | 5 | use the length that the zstd frame states |
//! | 6 | the payload is also the dictionary |

#![no_main]

mod watched;

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use relive_core::Error;
use relive_core::codec::{Codec, Decoder, Dictionary, Encoder, Stored, train_dictionary};

use crate::watched::LARGEST;

/// The limit of the decoder.
const MAX_BYTES: u64 = 1 << 16;

/// A decoder may allocate this many bytes in addition to the record, for messages and buffers.
const SLACK_BYTES: usize = 1 << 16;

static DICTIONARY: LazyLock<Arc<Dictionary>> = LazyLock::new(|| {
    let samples: Vec<String> = (0..500)
        .map(|step| format!("{{\"step\": {step}, \"action\": {}, \"done\": false}}", step % 7))
        .collect();
    let bytes = train_dictionary(&samples, 1024).expect("the samples suffice");
    Arc::new(Dictionary::new(bytes).expect("what was trained is a dictionary"))
});

fuzz_target!(|input: &[u8]| {
    let [control, a, b, c, d, payload @ ..] = input else {
        return;
    };
    let dictionary = Arc::clone(&DICTIONARY);
    let mut decoder = Decoder::new().with_max_bytes(MAX_BYTES);
    if control & 8 != 0 {
        decoder = decoder.with_dictionary(Arc::clone(&dictionary));
    }
    if control & 64 != 0
        && let Ok(own) = Dictionary::new(payload.to_vec())
    {
        decoder = decoder.with_dictionary(Arc::new(own));
    }
    let codec = match Codec::from_id(control & 7) {
        Ok(codec) => codec,
        Err(error) => {
            assert!((control & 7) > 3 && error.kind() == "unsupported");
            return;
        }
    };

    if control & 16 == 0 {
        let mut length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
        if control & 32 != 0 {
            // The error states the length of the frame only as text, so read it from the frame:
            // a single-segment frame has one byte of content size.
            if let [0x28, 0xB5, 0x2F, 0xFD, 0x20, size, ..] = payload {
                length = u64::from(*size);
            }
        }
        decode(&decoder, codec, payload, length);
        return;
    }

    let mut encoder = Encoder::new(codec, None).expect("the default level is a level");
    if codec == Codec::Zstd && control & 8 != 0 {
        encoder = encoder.with_dictionary(dictionary).expect("zstd takes a dictionary");
    }
    let mut stored = encoder.encode(payload).expect("the payload is small");
    let whole = decode(&decoder, codec, &stored, payload.len() as u64);
    if control & 64 == 0 && payload.len() as u64 <= MAX_BYTES {
        assert_eq!(whole.expect("what was encoded decodes"), payload);
    }
    if !stored.is_empty() {
        let position = usize::from(u16::from_le_bytes([*a, *b])) % stored.len();
        stored[position] ^= c;
        stored.truncate(stored.len() - usize::from(*d) % stored.len());
        decode(&decoder, codec, &stored, payload.len() as u64);
    }
});

/// Decodes with every function of the decoder and checks that the results agree.
fn decode(decoder: &Decoder, codec: Codec, bytes: &[u8], length: u64) -> Option<Vec<u8>> {
    let record = Stored { codec, bytes, length };
    LARGEST.store(0, Ordering::Relaxed);
    let decoded = decoder.decode(&record);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= MAX_BYTES as usize + SLACK_BYTES, "{largest} bytes were asked for");

    let batch = decoder.decode_batch(&[record, record], 1);
    match &decoded {
        Ok(data) => {
            assert_eq!(data.len() as u64, length);
            let (values, offsets) = batch.expect("a batch of good records is good");
            assert_eq!(offsets, [0, data.len(), 2 * data.len()]);
            assert_eq!((&values[..data.len()], &values[data.len()..]), (&data[..], &data[..]));
            let mut out = vec![0; data.len()];
            decoder.decode_into(codec, bytes, &mut out).expect("it fits");
            assert_eq!(&out, data);
        }
        Err(error) => {
            assert!(matches!(error, Error::Corrupt(_) | Error::TooLarge(_)), "{error}");
            assert_eq!(batch.expect_err("the record is bad").kind(), error.kind());
        }
    }
    decoded.ok()
}
