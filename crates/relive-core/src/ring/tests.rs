//! Writers and readers of one process, damaged segments, and readers that are too slow.

use std::fs::OpenOptions;
use std::sync::atomic::AtomicBool;

use super::layout::{HEADER_BYTES, MAX_DESCRIPTION, parse_header};
use super::*;
use crate::durable::Folder;

fn geometry() -> Geometry {
    Geometry { slots: 4, frame_bytes: 1003, scalar_bytes: 90 }
}

fn file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn lane(folder: &Folder) -> (RingWriter, RingReader) {
    let path = folder.path("lane");
    let writer = RingWriter::create(&file(&path), &path, geometry(), b"{\"x\": 1}").unwrap();
    let reader = RingReader::open(&File::open(&path).unwrap(), &path).unwrap();
    (writer, reader)
}

#[test]
fn the_newest_frame_is_read() {
    let folder = Folder::new();
    let (mut writer, reader) = lane(&folder);
    assert_eq!((reader.description(), reader.geometry()), (&b"{\"x\": 1}"[..], &geometry()));
    let mut frame = vec![0; 1003];
    assert_eq!(reader.latest(&mut frame).unwrap(), None);
    for number in 0..10 {
        let published = vec![number as u8; 1003];
        let scalars = [("reward", Scalar::Float(-0.5)), ("step", Scalar::Int(number))];
        assert_eq!(writer.publish(&published, scalars.into_iter()).unwrap(), number as u64);
        let latest = reader.latest(&mut frame).unwrap().unwrap();
        assert_eq!((latest.number, &frame), (number as u64, &published));
        assert_eq!(latest.scalars[0].0, "step_rate");
        assert_eq!(latest.scalars[1..], scalars.map(|(name, value)| (name.to_owned(), value)));
    }
    assert!(!reader.has_ended().unwrap());
    writer.end();
    assert!(reader.has_ended().unwrap());
    drop(writer);
    assert_eq!(reader.latest(&mut frame).unwrap().unwrap().number, 9);
}

#[test]
fn wrong_sizes_are_refused() {
    let folder = Folder::new();
    let (mut writer, reader) = lane(&folder);
    let none = || std::iter::empty();
    assert!(matches!(writer.publish(&[0; 1002], none()), Err(Error::Invalid(_))));
    let long = "n".repeat(80);
    let scalars = [(long.as_str(), Scalar::Bool(true))];
    assert!(matches!(writer.publish(&[0; 1003], scalars.into_iter()), Err(Error::TooLarge(_))));
    assert!(matches!(reader.latest(&mut [0; 5]), Err(Error::Invalid(_))));
    assert_eq!(reader.published().unwrap(), 0);
    let path = folder.path("other");
    for slots in [0, 1, 1 << 20] {
        let wrong = Geometry { slots, ..geometry() };
        let made = RingWriter::create(&file(&path), &path, wrong, b"");
        assert!(matches!(made, Err(Error::Invalid(_))), "{slots}");
    }
    let wrong = Geometry { frame_bytes: usize::MAX / 2, ..geometry() };
    let made = RingWriter::create(&file(&path), &path, wrong, b"");
    assert!(matches!(made, Err(Error::TooLarge(_))));
    let long = vec![b'x'; MAX_DESCRIPTION + 1];
    let made = RingWriter::create(&file(&path), &path, geometry(), &long);
    assert!(matches!(made, Err(Error::TooLarge(_))));
}

#[test]
fn damaged_headers_are_refused() {
    let folder = Folder::new();
    let (_writer, reader) = lane(&folder);
    let mut page = [0; HEADER_BYTES];
    let path = folder.path("lane");
    file(&path).read_exact_at(&mut page, 0).unwrap();
    assert_eq!(parse_header(&page).unwrap().0, geometry());
    for bit in 0..8 * (56 + reader.description().len()) {
        page[bit / 8] ^= 1 << (bit % 8);
        let parsed = parse_header(&page);
        assert!(matches!(parsed, Err(Error::Corrupt(_) | Error::Unsupported(_))), "bit {bit}");
        page[bit / 8] ^= 1 << (bit % 8);
    }
    for length in [0, HEADER_BYTES as u64, HEADER_BYTES as u64 + 100] {
        file(&path).set_len(length).unwrap();
        let opened = RingReader::open(&file(&path), &path);
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{length}");
    }
}

#[test]
fn a_damaged_slot_is_an_error() {
    let folder = Folder::new();
    let (mut writer, reader) = lane(&folder);
    writer.publish(&[1; 1003], std::iter::empty()).unwrap();
    writer.segment.slot(0).write(4, &[], &[2; 1003]);
    assert!(matches!(reader.latest(&mut [0; 1003]), Err(Error::Corrupt(_))));
    writer.segment.slot(0).write(0, &[0; 96], &[2; 1003]);
    assert!(matches!(reader.latest(&mut [0; 1003]), Err(Error::Corrupt(_))));
    for published in [1 << 63, u64::MAX] {
        writer.segment.head().store(published, Ordering::Release);
        assert!(matches!(reader.latest(&mut [0; 1003]), Err(Error::Corrupt(_))));
    }
}

#[test]
fn a_reader_that_is_too_slow_is_not_told_of_damage() {
    let folder = Folder::new();
    let (writer, reader) = lane(&folder);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whatever frame a reader looks for, a later one is in its slot.
        scope.spawn(|| {
            for number in (1..).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                writer.segment.head().store(number, Ordering::Release);
            }
        });
        let error = loop {
            match reader.latest(&mut [0; 1003]) {
                Ok(found) => assert_eq!(found, None),
                Err(error) => break error,
            }
        };
        is_done.store(true, Ordering::Relaxed);
        assert!(error.to_string().contains("more slots"), "{error}");
        assert!(matches!(error, Error::Io(_)));
    });
}

#[test]
fn a_truncated_segment_is_an_error_and_not_a_signal() {
    let folder = Folder::new();
    let (mut writer, reader) = lane(&folder);
    writer.publish(&[1; 1003], std::iter::empty()).unwrap();
    let path = folder.path("lane");
    let bytes = std::fs::metadata(&path).unwrap().len();
    for length in [bytes - 1, HEADER_BYTES as u64, 0] {
        file(&path).set_len(length).unwrap();
        assert!(matches!(reader.latest(&mut [0; 1003]), Err(Error::Corrupt(_))), "{length}");
        assert!(matches!(reader.published(), Err(Error::Corrupt(_))), "{length}");
        assert!(matches!(reader.has_ended(), Err(Error::Corrupt(_))), "{length}");
    }
}

#[test]
fn other_users_cannot_open_a_segment() {
    let folder = Folder::new();
    drop(lane(&folder));
    let mode = std::fs::metadata(folder.path("lane")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn damaged_scalars_are_refused() {
    let mut bytes = Vec::new();
    let scalars = [("a", Scalar::Bool(true)), ("bc", Scalar::Float(1.0)), ("", Scalar::Int(-1))];
    scalars::encode(scalars.into_iter(), &mut bytes, 100).unwrap();
    let known = scalars.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(scalars::decode(&bytes).unwrap(), known);
    for length in (1..bytes.len()).filter(|length| ![11, 23].contains(length)) {
        assert!(matches!(scalars::decode(&bytes[..length]), Err(Error::Corrupt(_))), "{length}");
    }
    assert!(scalars::decode(&[1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    assert!(scalars::decode(&[0, 7, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn frames_are_whole_while_the_writer_runs_at_full_speed() {
    let folder = Folder::new();
    let (mut writer, reader) = lane(&folder);
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for _ in 0..2 {
            readers.push(scope.spawn(|| {
                let mut frame = vec![0; 1003];
                let mut last = 0;
                let reads = if cfg!(miri) { 10 } else { 20_000 };
                for _ in 0..reads {
                    let Some(latest) = reader.latest(&mut frame).unwrap() else { continue };
                    let byte = latest.number as u8;
                    assert!(frame.iter().all(|&found| found == byte));
                    assert_eq!(latest.scalars[1].1, Scalar::Int(latest.number as i64));
                    assert!(latest.number >= last);
                    last = latest.number;
                }
            }));
        }
        let mut number = 0;
        while readers.iter().all(|reader| !reader.is_finished()) {
            let scalars = [("step", Scalar::Int(number))];
            writer.publish(&[number as u8; 1003], scalars.into_iter()).unwrap();
            number += 1;
        }
    });
}

#[test]
fn the_step_rate_follows_the_pauses() {
    let mut rate = StepRate::default();
    let start = Instant::now();
    assert_eq!(rate.after(start), 0.0);
    let mut now = start;
    for _ in 0..500 {
        now += Duration::from_millis(10);
        rate.after(now);
    }
    let at_100 = rate.after(now + Duration::from_millis(10));
    assert!((99.0..101.0).contains(&at_100), "{at_100}");
}
