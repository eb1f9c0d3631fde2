//! Opening any bytes as a segment of a live lane, and reading it, returns a result or an error. A
//! frame that is read has the bytes of its slot. No call panics, reads after the end of the file,
//! or allocates more memory than the size of the file justifies.
//!
//! An input that begins with the magic is a segment, such as the golden one. Any other input
//! describes one: a byte of bits, the sizes, the head, the flags and the length of the description,
//! then the description and the slots. The bits, from the lowest:
//!
//! 1. The sizes, each of eight bytes, may be any; otherwise each takes one byte and they agree.
//! 2. The slot of the newest frame has the sequence number that makes the frame whole.
//! 3. The file lacks its last bytes.
//!
//! The target corrects the checksum of the header: otherwise no input would get past it.

#![no_main]

mod watched;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use relive_core::Error;
use relive_core::crc::crc32c;
use relive_core::ring::RingReader;

use crate::watched::LARGEST;

const MAGIC: &[u8] = b"RELVRING";
const HEADER_BYTES: usize = 4096;
const FIXED_BYTES: usize = 56;
const HEAD_AT: usize = 3968;
const FLAGS_AT: usize = 4032;
const SLOT_HEADER_BYTES: usize = 64;

/// A larger segment is not made.
const MAX_BYTES: usize = 1 << 16;

/// Reading may allocate this many bytes in addition to the content of a slot, for messages.
const SLACK_BYTES: usize = 1 << 12;

fuzz_target!(|input: &[u8]| {
    let mut bytes = if input.starts_with(MAGIC) {
        input.to_vec()
    } else {
        let Some(bytes) = segment(input) else { return };
        bytes
    };
    make_checksum_match(&mut bytes);
    let path = path();
    fs::write(&path, &bytes).expect("there is room");
    LARGEST.store(0, Ordering::Relaxed);
    read(&path, &bytes);
    let largest = LARGEST.load(Ordering::Relaxed);
    // A scalar of ten bytes becomes a name and a value of forty.
    let most = SLACK_BYTES + 8 * bytes.len();
    assert!(largest <= most, "a block of {largest} bytes was requested");
});

fn read(path: &Path, bytes: &[u8]) {
    let file = File::open(path).expect("it was just written");
    let reader = match RingReader::open(&file, path) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(matches!(error, Error::Corrupt(_) | Error::Unsupported(_)), "{error}");
            return;
        }
    };
    let length = u64_at(bytes, 40) as usize;
    assert_eq!(reader.description(), &bytes[FIXED_BYTES..FIXED_BYTES + length]);
    assert_eq!(reader.published().expect("the file is whole"), u64_at(bytes, HEAD_AT));
    assert_eq!(reader.has_ended().expect("as before"), bytes[FLAGS_AT] & 1 != 0);
    let sizes = reader.geometry();
    assert!(sizes.segment_bytes().expect("they were checked") <= bytes.len());
    let mut frame = vec![0; sizes.frame_bytes];
    match reader.latest_within(&mut frame, Duration::ZERO) {
        Ok(None) => assert_eq!(u64_at(bytes, HEAD_AT), 0),
        Ok(Some(latest)) => {
            assert_eq!(latest.number + 1, u64_at(bytes, HEAD_AT));
            let slot_bytes = u64_at(bytes, 16) as usize;
            let at = HEADER_BYTES + (latest.number % sizes.slots as u64) as usize * slot_bytes;
            assert_eq!(u64_at(bytes, at), 2 * latest.number + 2);
            let start = at + SLOT_HEADER_BYTES + sizes.scalar_bytes.next_multiple_of(8);
            assert_eq!(frame, bytes[start..start + sizes.frame_bytes]);
            let stored: usize = latest.scalars.iter().map(|(name, _)| name.len() + 10).sum();
            assert!(stored <= sizes.scalar_bytes);
        }
        Err(error) => assert!(matches!(error, Error::Corrupt(_)), "{error}"),
    }
    assert!(reader.latest_within(&mut vec![0; sizes.frame_bytes + 1], Duration::ZERO).is_err());
}

/// Returns the segment that an input describes.
fn segment(input: &[u8]) -> Option<Vec<u8>> {
    let (&way, mut rest) = input.split_first()?;
    let mut number = |bytes: usize| {
        let (head, tail) = rest.split_at_checked(bytes)?;
        rest = tail;
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(head);
        Some(u64::from_le_bytes(word))
    };
    let width = if way & 1 == 0 { 1 } else { 8 };
    let [slots, frame, scalar] = [number(width)?, number(width)?, number(width)?];
    let content = scalar.checked_next_multiple_of(8)?.checked_add(frame)?;
    let stride = content.checked_add(SLOT_HEADER_BYTES as u64)?.checked_next_multiple_of(64)?;
    let stated = if way & 1 == 0 { stride } else { number(8)? };
    let (head, flags) = (number(if way & 2 == 0 { 8 } else { 1 })?, number(1)?);
    let length = number(2)?;
    let size = slots.saturating_mul(stride).saturating_add(HEADER_BYTES as u64);
    let size = (size as usize).min(MAX_BYTES);
    let mut bytes = vec![0; size.max(HEADER_BYTES)];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&(slots as u32).to_le_bytes());
    for (at, value) in [(16, stated), (24, frame), (32, scalar), (40, length)] {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let (description, slots_bytes) = rest.split_at((length as usize).min(rest.len()));
    let kept = description.len().min(HEAD_AT - FIXED_BYTES);
    bytes[FIXED_BYTES..FIXED_BYTES + kept].copy_from_slice(&description[..kept]);
    bytes[HEAD_AT..HEAD_AT + 8].copy_from_slice(&head.to_le_bytes());
    bytes[FLAGS_AT] = flags as u8;
    let kept = slots_bytes.len().min(bytes.len() - HEADER_BYTES);
    bytes[HEADER_BYTES..HEADER_BYTES + kept].copy_from_slice(&slots_bytes[..kept]);
    if way & 2 != 0
        && let Some(number) = head.checked_sub(1)
        && let Some(place) = number.checked_rem(slots).and_then(|slot| slot.checked_mul(stride))
        && let Some(slot) = bytes[HEADER_BYTES..].get_mut(place as usize..)
        && let Some(sequence) = slot.first_chunk_mut::<8>()
    {
        *sequence = (2 * head).to_le_bytes();
    }
    if way & 4 != 0 {
        let left = bytes.len() - usize::from(way >> 3) * 8;
        bytes.truncate(left);
    }
    Some(bytes)
}

fn make_checksum_match(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let length = (u64_at(bytes, 40) as usize).min(HEAD_AT - FIXED_BYTES);
    let mut checked = bytes[..FIXED_BYTES - 4].to_vec();
    checked.extend_from_slice(&bytes[FIXED_BYTES..FIXED_BYTES + length]);
    bytes[FIXED_BYTES - 4..FIXED_BYTES].copy_from_slice(&crc32c(&checked).to_le_bytes());
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A file of this process, in memory where there is such a place.
fn path() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("relive-fuzz-ring-{}", std::process::id()))
}
