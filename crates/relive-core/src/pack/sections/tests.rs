//! What is built is parsed back; what is damaged is refused or means something else, never a
//! panic.

use std::borrow::Cow;

use super::super::layout::SectionHeader;
use super::*;
use crate::Result;

/// Parses every truncation and every single-byte change of `bytes`; of the values that come
/// out, none may be `original` again.
fn abuse<T: PartialEq + std::fmt::Debug>(bytes: &[u8], parse: impl Fn(&[u8]) -> Result<T>) {
    let original = parse(bytes).unwrap();
    let check = |damaged: &[u8]| match parse(damaged) {
        Err(Error::Corrupt(_)) => {}
        Err(other) => panic!("{other:?}"),
        Ok(value) => assert_ne!(value, original),
    };
    for end in 0..bytes.len() {
        check(&bytes[..end]);
    }
    for at in 0..bytes.len() {
        for change in 1..=255 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= change;
            check(&damaged);
        }
    }
    check(&[bytes, &[0]].concat());
}

fn corrupt_with<T>(outcome: Result<T>, part: &str) {
    match outcome {
        Err(Error::Corrupt(text)) => assert!(text.contains(part), "{text}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("{part}: accepted"),
    }
}

#[test]
fn directories_come_back() {
    let places = [
        SectionLocation { tag: Tag::RUNS, offset: 4096, length: 28 },
        SectionLocation { tag: Tag::TEXT, offset: 4144, length: 16 },
        SectionLocation { tag: Tag(*b"NEW!"), offset: 4176, length: 0 },
    ];
    let bytes = Directory::build(&places, 4192);
    let directory = Directory::parse(&bytes, 4192, 4096).unwrap();
    assert!(directory.iter().eq(&places));
    assert_eq!(directory.find(Tag::TEXT), Some(&places[1]));
    assert_eq!(directory.find(Tag::NAME), None);
    assert_eq!(
        (directory.len(), places[0].range(), places[0].bytes_offset()),
        (3, 4096..4140, 4112)
    );
    abuse(&bytes, |bytes| Directory::parse(bytes, 4192, 4096));
    let empty = Directory::build(&[], 4096);
    assert!(Directory::parse(&empty, 4096, 4096).unwrap().is_empty());
}

#[test]
fn directories_that_cannot_be_are_refused() {
    let at = |tag, offset, length| SectionLocation { tag, offset, length };
    let (runs, text) = (Tag::RUNS, Tag::TEXT);
    for (places, why) in [
        (vec![at(runs, 64, 0)], "overlaps"),
        (vec![at(runs, 128, 40), at(text, 176, 0)], "overlaps"),
        (vec![at(runs, 160, 0), at(text, 128, 0)], "overlaps"),
        (vec![at(runs, 128, 1000)], "overlaps"),
        (vec![at(runs, 128, u64::MAX - 130)], "overlaps"),
        (vec![at(runs, u64::MAX - 7, 0)], "overlaps"),
        (vec![at(runs, 132, 0)], "is malformed"),
        (vec![at(runs, 128, 0), at(runs, 144, 0)], "RUNS is listed twice"),
        (vec![at(Tag::DIRS, 128, 0)], "lists itself"),
    ] {
        corrupt_with(Directory::parse(&Directory::build(&places, 1024), 1024, 128), why);
    }
    corrupt_with(Directory::parse(&Directory::build(&[], 8), 16, 0), "stores a wrong offset");
}

#[test]
fn sections_are_held_against_directory_and_checksum() {
    let place = SectionLocation { tag: Tag::KIND, offset: 64, length: 5 };
    let stored = [&SectionHeader::of(Tag::KIND, b"hello").to_bytes()[..], b"hello"].concat();
    let read =
        |bytes: &[u8]| section_bytes(&place, Cow::Owned(bytes.to_vec())).map(Cow::into_owned);
    assert_eq!(read(&stored).unwrap(), b"hello");
    let borrowed = section_bytes(&place, Cow::Borrowed(&stored)).unwrap();
    assert!(matches!(borrowed, Cow::Borrowed(b"hello")));
    for end in 0..stored.len() {
        assert!(read(&stored[..end]).is_err());
    }
    for at in 0..stored.len() {
        let mut damaged = stored.clone();
        damaged[at] ^= 4;
        corrupt_with(read(&damaged), "section KIND at offset 64: ");
    }
}

#[test]
fn strings_and_names_come_back() {
    let strings = Strings::parse(&Strings::build(&["one", "", "größer"])).unwrap();
    let all: Vec<_> = (0..4).map(|k| strings.get(k)).collect();
    assert_eq!(all, [Some("one"), Some(""), Some("größer"), None]);
    assert_eq!((strings.len(), strings.get(u64::MAX)), (3, None));
    abuse(&Strings::build(&["one", "", "ü"]), Strings::parse);
    assert!(Strings::parse(&Strings::build(&[""; 0])).unwrap().is_empty());

    let given = [Some("run b"), None, Some("ä"), Some("run a")];
    let bytes = Names::build(&given).unwrap();
    let names = Names::parse(&bytes, 4).unwrap();
    for (entry, name) in given.iter().enumerate() {
        assert_eq!(names.get(entry as u64), *name);
        if let Some(name) = name {
            assert_eq!(names.find(name), Some(entry as u64));
        }
    }
    assert_eq!(
        (names.get(4), names.find(""), names.find("run"), names.named()),
        (None, None, None, 3)
    );
    abuse(&bytes, |bytes| Names::parse(bytes, 4));
    corrupt_with(Names::parse(&bytes, 5), "5 entries");
    corrupt_with(Names::parse(&bytes, u64::MAX), "entries");
    assert_eq!(Names::parse(&Names::build(&[]).unwrap(), 0).unwrap().named(), 0);
}

#[test]
fn names_are_unique_and_not_empty() {
    let twice = Names::build(&[Some("x"), None, Some("x")]).unwrap_err();
    assert_eq!(twice.to_string(), "entries 0 and 2 have the same name `x`");
    assert_eq!(Names::build(&[Some("")]).unwrap_err().kind(), "invalid");
    // The same two names, listed in the wrong order, twice, or not at all.
    let bytes = Names::build(&[Some("a"), Some("b")]).unwrap();
    let order = |first: u8, second: u8| {
        let mut bytes = bytes.clone();
        (bytes[40], bytes[44]) = (first, second);
        Names::parse(&bytes, 2)
    };
    assert!(order(0, 1).is_ok());
    for (first, second) in [(1, 0), (0, 0), (1, 1), (0, 2)] {
        corrupt_with(order(first, second), "not sorted");
    }
    let mut fewer = bytes.clone();
    fewer[8] = 1;
    fewer.drain(44..48);
    corrupt_with(Names::parse(&fewer, 2), "every name");
}

#[test]
fn counts_that_are_not_there_cost_nothing() {
    let huge = u64::MAX.to_le_bytes();
    let mut bytes = [huge, huge].concat();
    bytes.resize(64, 0);
    corrupt_with(Strings::parse(&bytes), "number of strings");
    for count in [1 << 32, 1 << 60, u64::MAX] {
        let mut bytes = bytes.clone();
        bytes[..8].copy_from_slice(&u64::to_le_bytes(count));
        corrupt_with(Names::parse(&bytes, count), "number of names");
        corrupt_with(RunColumns::parse(&bytes, &[], count), "entries");
        bytes[..16]
            .copy_from_slice(&[&[64, 0, 0, 0, 0, 0, 0, 0], &count.to_le_bytes()[..]].concat());
        corrupt_with(Checkpoints::parse(&bytes, count), "entries");
    }
    // One entry that claims more steps than memory could hold.
    let mut steps = [&[64, 0, 0, 0, 0, 0, 0, 0], &1_u64.to_le_bytes()[..]].concat();
    steps.extend_from_slice(&u32::MAX.to_le_bytes());
    corrupt_with(Checkpoints::parse(&steps, 1), "does not match its number of steps");
}

#[test]
fn kinds_come_back() {
    let mut kinds = Kinds::default();
    assert_eq!(kinds.add("frame").unwrap(), 256);
    assert_eq!(kinds.add("größe").unwrap(), 257);
    assert_eq!(kinds.add("frame").unwrap(), 256);
    let bytes = kinds.build();
    assert_eq!(Kinds::parse(&bytes).unwrap(), kinds);
    assert_eq!(
        (kinds.name(257), kinds.id("frame"), kinds.name(2)),
        (Some("größe"), Some(256), None)
    );
    assert!(kinds.iter().eq([(256, "frame"), (257, "größe")]));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Kinds::parse(&damaged).map_or(true, |read| read != kinds), "byte {at}");
        assert!(Kinds::parse(&bytes[..at]).map_or(true, |read| read != kinds), "cut at {at}");
    }
    let item = |id: u16, name: &[u8]| {
        [&id.to_le_bytes()[..], &(name.len() as u16).to_le_bytes(), name].concat()
    };
    assert!(Kinds::parse(&[item(300, b"x"), item(u16::MAX, b"y")].concat()).is_ok());
    for bad in [
        item(255, b"x"),
        item(256, b""),
        item(256, b"v2"),
        item(256, &[0xFF]),
        item(256, &[b'x'; 65]),
        item(256, b"a\nb"),
        [item(256, b"x"), item(256, b"y")].concat(),
        [item(257, b"x"), item(256, b"y")].concat(),
        [item(256, b"x"), item(257, b"x")].concat(),
        [item(u16::MAX, b"x"), item(u16::MAX, b"y")].concat(),
    ] {
        corrupt_with(Kinds::parse(&bad), "section KIND: ");
    }
    let mut full = Kinds::parse(&item(u16::MAX, b"x")).unwrap();
    assert_eq!(full.add("y").unwrap_err().kind(), "too-large");
}

#[test]
fn names_of_kinds_are_checked() {
    for name in ["frame", "über", &"x".repeat(64)] {
        assert!(check_kind_name(name).is_ok());
    }
    for name in ["", "bytes", "v1", "v2", "auto", "a\tb", "a\u{85}", &"x".repeat(65)] {
        assert!(check_kind_name(name).is_err_and(|error| error.kind() == "invalid"), "{name}");
    }
    assert_eq!(
        [0, 1, 2, 3, 256].map(kind_name),
        [Some("bytes"), Some("v1"), Some("v2"), None, None]
    );
}

#[test]
fn run_columns_come_back() {
    let mut builder = RunColumnsBuilder::default();
    builder.push(u64::MAX, 959, 2048, Some("expectimax"));
    builder.push_other();
    builder.push(4, 0, 2, None);
    builder.push(5, 1, 4, Some("expectimax"));
    builder.push(6, 2, 8, Some("ntuple"));
    let columns = builder.finish();
    assert_eq!(columns.engine, [0, NO_ENGINE, NO_ENGINE, 0, 1]);
    assert_eq!(
        (columns.engine_of(4), columns.engine_of(1), columns.engine_of(9)),
        (Some("ntuple"), None, None)
    );
    let (runs, text) = columns.build();
    assert_eq!(RunColumns::parse(&runs, &text, 5).unwrap(), columns);
    abuse(&runs, |runs| RunColumns::parse(runs, &text, 5));
    abuse(&text, |text| RunColumns::parse(&runs, text, 5));
    corrupt_with(RunColumns::parse(&runs, &text, 4), "4 entries");
    corrupt_with(RunColumns::parse(&runs, &Strings::build(&["one"]), 5), "entry 4");
    let (runs, text) = RunColumns::default().build();
    assert!(RunColumns::parse(&runs, &text, 0).unwrap().is_empty());
}

#[test]
fn checkpoints_come_back() {
    let mut checkpoints = Checkpoints::default();
    checkpoints.push(65, &[20, 900]).unwrap();
    checkpoints.push(0, &[]).unwrap();
    checkpoints.push(64, &[18]).unwrap();
    checkpoints.push(129, &[30, 200, 1000]).unwrap();
    assert_eq!(checkpoints.push(64, &[1, 2]).unwrap_err().kind(), "invalid");
    let bytes = checkpoints.build();
    let read = Checkpoints::parse(&bytes, 4).unwrap();
    assert_eq!(read, checkpoints);
    assert_eq!(
        (read.of(0), read.of(1), read.of(3)),
        (&[20, 900][..], &[][..], &[30, 200, 1000][..])
    );
    assert!(read.of(4).is_empty() && read.of(usize::MAX).is_empty());
    assert_eq!([0, 1, 2, 3, 4, 5].map(|entry| read.first_step(entry)), [0, 65, 65, 129, 258, 258]);
    assert_eq!((read.total(), read.len(), read.first_steps().len()), (258, 4, 5));
    abuse(&bytes, |bytes| Checkpoints::parse(bytes, 4));
    let empty = Checkpoints::default();
    assert_eq!(Checkpoints::parse(&empty.build(), 0).unwrap(), empty);
}
