//! Filters that are undone, and datasets that HDF5 cannot have.

use super::*;
use crate::codec::Codec;
use crate::crc::crc32c;

#[test]
fn the_checksum_is_lookup3() {
    // Known values of the function, with an initial value of 0.
    assert_eq!(checksum::lookup3(b""), 0xdead_beef);
    assert_eq!(checksum::lookup3(b"Four score and seven years ago"), 0x1777_0551);
}

#[test]
fn filters_are_undone() {
    let bytes: Vec<u8> = (0..4099_u32).map(|i| (i * i / 50) as u8).collect();
    for codec in Codec::ALL {
        for shuffle in [false, true] {
            let filters = Filters { codec, level: None, shuffle };
            for item_bytes in [1, 2, 4, 8] {
                for length in [0, 1, 7, 4099] {
                    let encoded = filters.encode(&bytes[..length], item_bytes).unwrap();
                    let mut out = vec![1; length];
                    filters.decode(&encoded, item_bytes, &mut out).unwrap();
                    assert_eq!(out, bytes[..length], "{filters:?} {item_bytes} {length}");
                    filters.check(&encoded, length as u64).unwrap();
                    let mut other = vec![1; length + 1];
                    assert!(filters.decode(&encoded, item_bytes, &mut other).is_err());
                    let checked = filters.check(&encoded, 1 << 31);
                    assert!(matches!(checked, Err(Error::Corrupt(_))), "{filters:?}");
                }
            }
        }
    }
}

#[test]
fn metadata_ends_with_its_checksum() {
    let found = [48, 99_u64].map(|at| {
        let made = metadata(&Group::default(), at).unwrap();
        let (covered, rest) = made.bytes.split_at(made.bytes.len() - 8);
        assert_eq!(covered[covered.len() - 8..], at.to_le_bytes());
        let crc = crc32c(&[covered, &made.superblock].concat());
        assert_eq!(rest, [&crc.to_le_bytes()[..], b"RPLY"].concat());
        crc32c(&[&made.superblock, &made.bytes[..]].concat())
    });
    assert_ne!(found[0], found[1]);
}

#[test]
fn wrong_datasets_are_refused() {
    let chunks = |first: [u64; 2]| Values::Chunks {
        rows: 4,
        filters: Filters { codec: Codec::Raw, level: None, shuffle: false },
        chunks: first.map(|first_row| Chunk { first_row, offset: 48, bytes: 4 }).to_vec(),
    };
    let made = |shape: Vec<u64>, values| {
        let datatype = Datatype::Uint(1);
        let mut root = Group::default();
        root.insert("a/b", Dataset { datatype, shape, values, attributes: Attributes::new() })?;
        metadata(&root, 100)
    };
    assert!(made(vec![8], chunks([0, 4])).is_ok());
    assert!(made(vec![8], chunks([4, 0])).is_err());
    assert!(made(vec![8], chunks([0, 3])).is_err());
    assert!(made(vec![], chunks([0, 4])).is_err());
    assert!(made(vec![1; 32], chunks([0, 4])).is_err());
    let mut root = Group::default();
    let dataset = || Dataset {
        datatype: Datatype::Bool,
        shape: vec![2],
        values: Values::Bytes(vec![0, 1]),
        attributes: Attributes::new(),
    };
    root.insert("a/b", dataset()).unwrap();
    assert!(root.insert("a", dataset()).is_err());
    assert!(root.insert("a/b", dataset()).is_err());
    assert!(root.insert("a/b/c", dataset()).is_err());
    assert!(root.insert("", dataset()).is_err());
    assert!(root.insert(&vec!["x"; 512].join("/"), dataset()).is_ok());
    let deep = root.insert(&vec!["x"; 513].join("/"), dataset());
    assert!(matches!(deep, Err(Error::TooLarge(_))));
    let made = metadata(&root, 100).unwrap();
    assert_eq!(described_end(&made.superblock), Some(100 + made.bytes.len() as u64));
    assert!(matches!(metadata(&root, u64::MAX - 8), Err(Error::TooLarge(_))));
    for text in ["U5", ">f4", "f16", "O", ""] {
        assert!(text.parse::<Datatype>().is_err(), "{text}");
    }
}
