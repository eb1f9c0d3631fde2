//! Round trips, and everything hostile bytes may try.

use std::borrow::Cow;
use std::sync::Arc;

use super::*;

/// Bytes without a pattern, the same at every run.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn text(position: usize) -> Vec<u8> {
    let action = position * 7 % 5;
    let reward = position * 31 % 97;
    format!(
        "{{\"step\": {position}, \"action\": {action}, \"reward\": 0.{reward}, \"done\": false}}"
    )
    .into_bytes()
}

fn payloads() -> Vec<Vec<u8>> {
    vec![
        vec![],
        vec![0],
        b"a".to_vec(),
        b"abcabcabcabcabcabcabcabcabc".to_vec(),
        noise(15, 3),
        noise(1000, 5),
        noise(100_000, 7),
        vec![9; 65_534],
        vec![9; 65_535],
        vec![0; 300_000],
        (0..500).flat_map(text).collect(),
    ]
}

fn encoders() -> Vec<Encoder> {
    let mut all = vec![];
    for codec in Codec::ALL {
        all.push(Encoder::new(codec, None).unwrap());
        for level in codec.levels().into_iter().flatten() {
            all.push(Encoder::new(codec, Some(level)).unwrap());
        }
    }
    all
}

fn one_per_codec() -> [Encoder; 4] {
    Codec::ALL.map(|codec| Encoder::new(codec, None).unwrap())
}

fn stored(codec: Codec, bytes: &[u8], length: usize) -> Stored<'_> {
    Stored { codec, bytes, length: length as u64 }
}

fn dictionary() -> Arc<Dictionary> {
    let samples: Vec<_> = (0..2000).map(text).collect();
    let bytes = train_dictionary(&samples, 4096).unwrap();
    Arc::new(Dictionary::new(bytes).unwrap())
}

fn kind<T: fmt::Debug>(outcome: Result<T>) -> &'static str {
    outcome.map_or_else(|error| error.kind(), |_| "fine")
}

#[test]
fn ids_and_names_are_for_ever() {
    let names: Vec<_> = Codec::ALL.iter().map(|codec| (codec.id(), codec.name())).collect();
    assert_eq!(names, [(0, "raw"), (1, "deflate"), (2, "zstd"), (3, "lz4")]);
    for codec in Codec::ALL {
        assert_eq!(Codec::from_id(codec.id()).unwrap(), codec);
        assert_eq!(codec.to_string().parse::<Codec>().unwrap(), codec);
    }
    assert_eq!("none".parse::<Codec>().unwrap(), Codec::Raw);
    assert_eq!("flate".parse::<Codec>().unwrap(), Codec::Deflate);
    assert_eq!(kind(Codec::from_id(4)), "unsupported");
    for name in ["", "zlib", "ZSTD", "gzip", "lz4 ", "raw\0"] {
        let error = name.parse::<Codec>().unwrap_err();
        assert_eq!(error.kind(), "invalid");
        for choice in ["raw", "none", "deflate", "flate", "zstd", "lz4"] {
            assert!(error.to_string().contains(choice), "{error}");
        }
    }
}

#[test]
fn levels_have_limits() {
    for (codec, level) in [
        (Codec::Raw, 0),
        (Codec::Lz4, 1),
        (Codec::Deflate, -1),
        (Codec::Deflate, 10),
        (Codec::Zstd, -8),
        (Codec::Zstd, 23),
        (Codec::Zstd, i32::MIN),
    ] {
        assert_eq!(kind(Encoder::new(codec, Some(level))), "invalid");
    }
    assert_eq!(Encoder::new(Codec::Zstd, None).unwrap().level(), Some(3));
    assert_eq!(Encoder::new(Codec::Deflate, None).unwrap().level(), Some(6));
    assert_eq!(Encoder::new(Codec::Lz4, None).unwrap().level(), None);
}

#[test]
fn every_codec_and_level_round_trips() {
    let decoder = Decoder::new();
    for encoder in encoders() {
        for data in payloads() {
            let bytes = encoder.encode(&data).unwrap();
            let record = stored(encoder.codec(), &bytes, data.len());
            assert!(decoder.decode(&record).unwrap() == data, "{encoder:?} {}", data.len());
        }
    }
}

#[test]
fn a_larger_record_leaves_nothing_behind_for_the_next() {
    let decoder = Decoder::new();
    for encoder in one_per_codec() {
        for length in [200_000, 10, 0, 70_000, 3] {
            let data = noise(length, length as u64);
            let bytes = encoder.encode(&data).unwrap();
            assert_eq!(bytes, encoder.encode(&data).unwrap());
            let record = stored(encoder.codec(), &bytes, length);
            assert!(decoder.decode(&record).unwrap() == data);
        }
    }
}

#[test]
fn a_record_that_does_not_shrink_is_raw() {
    for encoder in one_per_codec() {
        for data in payloads() {
            let (codec, bytes) = encoder.encode_or_raw(&data).unwrap();
            if codec == Codec::Raw {
                assert!(matches!(&bytes, Cow::Borrowed(same) if *same == data));
            } else {
                assert!(bytes.len() < data.len());
            }
            let record = stored(codec, &bytes, data.len());
            assert!(Decoder::new().decode(&record).unwrap() == data);
        }
        assert_eq!(encoder.encode_or_raw(&noise(1000, 1)).unwrap().0, Codec::Raw);
        assert_eq!(encoder.encode_or_raw(&[7; 1000]).unwrap().0, encoder.codec());
    }
}

#[test]
fn a_length_that_is_not_the_records_is_corrupt() {
    let decoder = Decoder::new();
    for encoder in one_per_codec() {
        for data in payloads() {
            let bytes = encoder.encode(&data).unwrap();
            let length = data.len();
            for wrong in [0, 1, length.wrapping_sub(1), length + 1, length * 2 + 9, 1 << 30] {
                if wrong != length && wrong <= 1 << 30 {
                    let record = stored(encoder.codec(), &bytes, wrong);
                    assert_eq!(
                        kind(decoder.decode(&record)),
                        "corrupt",
                        "{encoder:?} {length} {wrong}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_cut_or_extended_record_is_corrupt() {
    let decoder = Decoder::new();
    let small = [vec![], vec![7], noise(40, 3), vec![5; 600], text(1).repeat(9)];
    for encoder in encoders() {
        for data in &small {
            let bytes = encoder.encode(data).unwrap();
            for end in 0..bytes.len() {
                let record = stored(encoder.codec(), &bytes[..end], data.len());
                assert_eq!(kind(decoder.decode(&record)), "corrupt", "{encoder:?} cut at {end}");
            }
            for tail in [vec![0], vec![0xFF], vec![0; 4], noise(9, 5), bytes.clone()] {
                // An empty raw record followed by nothing is not extended.
                if !tail.is_empty() {
                    let longer = [bytes.clone(), tail].concat();
                    let record = stored(encoder.codec(), &longer, data.len());
                    assert_eq!(kind(decoder.decode(&record)), "corrupt", "{encoder:?}");
                }
            }
        }
    }
}

#[test]
fn flipped_bits_never_panic_and_never_change_the_length() {
    let dictionary = dictionary();
    let decoder = Decoder::new().with_dictionary(Arc::clone(&dictionary));
    let with_dictionary =
        Encoder::new(Codec::Zstd, None).unwrap().with_dictionary(dictionary).unwrap();
    for encoder in one_per_codec().into_iter().chain([with_dictionary]) {
        let data = [text(3).repeat(5), noise(64, 9)].concat();
        let bytes = encoder.encode(&data).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match decoder.decode(&stored(encoder.codec(), &flipped, data.len())) {
                Ok(decoded) => assert_eq!(decoded.len(), data.len()),
                Err(error) => assert_eq!(error.kind(), "corrupt"),
            }
        }
    }
}

#[test]
fn lengths_over_the_limit_are_refused_whatever_the_bytes_say() {
    let decoder = Decoder::new().with_max_bytes(1000);
    for codec in Codec::ALL {
        let encoder = Encoder::new(codec, None).unwrap();
        let bytes = encoder.encode(&[1; 1001]).unwrap();
        assert_eq!(kind(decoder.decode(&stored(codec, &bytes, 1001))), "too-large");
        assert_eq!(kind(decoder.decode_into(codec, &bytes, &mut [0; 1001])), "too-large");
        let endless = Stored { codec, bytes: &bytes, length: u64::MAX };
        assert_eq!(kind(decoder.decode(&endless)), "too-large");
        assert_eq!(kind(Decoder::new().with_max_bytes(u64::MAX).decode(&endless)), "corrupt");
        let small = encoder.with_max_bytes(10);
        assert_eq!(kind(small.encode(&[0; 11])), "too-large");
        assert_eq!(kind(small.encode_or_raw(&[0; 11])), "too-large");
        assert_eq!(kind(small.encode(&[0; 10])), "fine");
    }
}

#[test]
fn zstd_frames_that_are_not_ours_are_refused() {
    let decoder = Decoder::new();
    // A skippable frame, an older format, a frame that does not say its length.
    let skippable = [0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 1, 2];
    assert_eq!(kind(decoder.decode(&stored(Codec::Zstd, &skippable, 0))), "corrupt");
    let older = [0x27, 0xB5, 0x2F, 0xFD, 0, 0, 0, 0, 0, 0];
    assert_eq!(kind(decoder.decode(&stored(Codec::Zstd, &older, 0))), "corrupt");
    let unsized_frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58, 0x09, 0x00, 0x00, b'x'];
    let error = decoder.decode(&stored(Codec::Zstd, &unsized_frame, 1)).unwrap_err();
    assert!(error.to_string().contains("has no length"), "{error}");
}

#[test]
fn a_dictionary_helps_small_records_and_is_named_by_them() {
    let dictionary = dictionary();
    let plain = Encoder::new(Codec::Zstd, None).unwrap();
    let encoder = plain.clone().with_dictionary(Arc::clone(&dictionary)).unwrap();
    let decoder = Decoder::new().with_dictionary(Arc::clone(&dictionary));
    for data in payloads().into_iter().chain((5000..5100).map(text)) {
        let bytes = encoder.encode(&data).unwrap();
        let record = stored(Codec::Zstd, &bytes, data.len());
        assert!(decoder.decode(&record).unwrap() == data);
        // A reader that has the dictionary still reads records made without it.
        let bytes = plain.encode(&data).unwrap();
        assert!(decoder.decode(&stored(Codec::Zstd, &bytes, data.len())).unwrap() == data);
    }
    let data = text(6000);
    let bytes = encoder.encode(&data).unwrap();
    assert!(bytes.len() * 2 < plain.encode(&data).unwrap().len());
    let error = Decoder::new().decode(&stored(Codec::Zstd, &bytes, data.len())).unwrap_err();
    assert_eq!(error.kind(), "corrupt");
    assert!(error.to_string().contains(&dictionary.id().to_string()), "{error}");

    let other: Vec<_> = (0..2000).map(|position| text(position * 3 + 1).repeat(2)).collect();
    let other = Arc::new(Dictionary::new(train_dictionary(&other, 4096).unwrap()).unwrap());
    assert_ne!(other.id(), dictionary.id());
    let wrong = Decoder::new().with_dictionary(other);
    assert_eq!(kind(wrong.decode(&stored(Codec::Zstd, &bytes, data.len()))), "corrupt");

    for end in 0..bytes.len() {
        let record = stored(Codec::Zstd, &bytes[..end], data.len());
        assert_eq!(kind(decoder.decode(&record)), "corrupt");
    }
    for codec in [Codec::Raw, Codec::Deflate, Codec::Lz4] {
        let encoder = Encoder::new(codec, None).unwrap();
        assert_eq!(kind(encoder.with_dictionary(Arc::clone(&dictionary))), "invalid");
    }
}

#[test]
fn training_says_what_it_lacks() {
    let samples: Vec<_> = (0..500).map(text).collect();
    assert_eq!(kind(train_dictionary(&samples[..MIN_SAMPLES - 1], 1024)), "invalid");
    assert_eq!(kind(train_dictionary::<Vec<u8>>(&[], 1024)), "invalid");
    assert_eq!(kind(train_dictionary(&samples, 255)), "invalid");
    assert_eq!(kind(train_dictionary(&samples, usize::MAX)), "invalid");
    assert_eq!(kind(train_dictionary(&vec![vec![]; 50], 1024)), "invalid");
    let trained = train_dictionary(&samples, 1024).unwrap();
    assert!(trained.len() <= 1024);
    assert_eq!(trained, train_dictionary(&samples, 1024).unwrap());
}

#[test]
fn bytes_that_are_no_dictionary_are_corrupt() {
    assert_eq!(kind(Dictionary::new(vec![])), "corrupt");
    assert_eq!(kind(Dictionary::new(noise(4096, 3))), "corrupt");
    assert_eq!(kind(Dictionary::new(vec![0; (16 << 20) + 1])), "too-large");
    let trained = dictionary().bytes().to_vec();
    for end in 0..64 {
        assert_eq!(kind(Dictionary::new(trained[..end].to_vec())), "corrupt");
    }
}

#[test]
fn a_batch_is_its_records_in_order() {
    let records: Vec<Vec<u8>> = payloads().into_iter().cycle().take(60).collect();
    for threads in [1, 2, 5] {
        for encoder in one_per_codec() {
            let batch = encoder.encode_batch(&records, threads).unwrap();
            assert_eq!(batch.len(), records.len());
            let items: Vec<_> = batch
                .iter()
                .zip(&records)
                .map(|(bytes, data)| stored(encoder.codec(), bytes, data.len()))
                .collect();
            let (values, offsets) = Decoder::new().decode_batch(&items, threads).unwrap();
            assert_eq!((offsets.len(), offsets[0]), (records.len() + 1, 0));
            assert_eq!(offsets[records.len()], values.len());
            for (position, data) in records.iter().enumerate() {
                assert!(values[offsets[position]..offsets[position + 1]] == data[..]);
            }
        }
    }
}

#[test]
fn a_batch_may_mix_codecs() {
    let data: Vec<Vec<u8>> = (0..200).map(|position| text(position).repeat(20)).collect();
    let encoders = one_per_codec();
    let bytes: Vec<Vec<u8>> = data
        .iter()
        .enumerate()
        .map(|(position, data)| encoders[position % 4].encode(data).unwrap())
        .collect();
    let items: Vec<_> = bytes
        .iter()
        .enumerate()
        .map(|(position, bytes)| stored(Codec::ALL[position % 4], bytes, data[position].len()))
        .collect();
    for threads in [1, 3] {
        let (values, offsets) = Decoder::new().decode_batch(&items, threads).unwrap();
        assert_eq!(offsets.len(), 201);
        for (data, ends) in data.iter().zip(offsets.windows(2)) {
            assert!(values[ends[0]..ends[1]] == data[..]);
        }
    }
}

#[test]
fn an_empty_batch_is_fine() {
    let (values, offsets) = Decoder::new().decode_batch(&[], 4).unwrap();
    assert_eq!((values.len(), offsets), (0, vec![0]));
    let none: [&[u8]; 0] = [];
    let encoder = Encoder::new(Codec::Zstd, None).unwrap();
    assert_eq!(encoder.encode_batch(&none, 4).unwrap().len(), 0);
}

#[test]
fn the_first_bad_record_of_a_batch_is_named() {
    let data = vec![3_u8; 50_000];
    let encoder = Encoder::new(Codec::Deflate, None).unwrap();
    let good = encoder.encode(&data).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let mut items = vec![stored(Codec::Deflate, &good, data.len()); 40];
    items[17].bytes = &bad;
    items[31].bytes = &bad;
    for threads in [1, 2, 4] {
        let error = Decoder::new().decode_batch(&items, threads).unwrap_err();
        assert_eq!(error.kind(), "corrupt");
        assert!(error.to_string().starts_with("record 17 "), "{error}");
    }
    items[5].length = 1 << 40;
    let error = Decoder::new().decode_batch(&items, 2).unwrap_err();
    assert_eq!(error.kind(), "too-large");
    assert!(error.to_string().starts_with("record 5 "), "{error}");
    let error =
        encoder.with_max_bytes(3).encode_batch(&[b"abc".as_slice(), b"abcd"], 2).unwrap_err();
    assert!(error.to_string().starts_with("record 1 "), "{error}");
}

#[test]
fn a_batch_is_cut_without_losing_records() {
    for threads in [1, 2, 8, usize::MAX] {
        for lengths in [vec![], vec![0], vec![1 << 20; 7], vec![usize::MAX; 3], vec![100; 5000]] {
            let ranges = parts::split(lengths.iter().copied(), threads);
            let all: Vec<usize> = ranges.iter().cloned().flatten().collect();
            assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            assert!(ranges.iter().all(|range| !range.is_empty()));
        }
    }
}
