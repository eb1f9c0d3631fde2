//! An unfinished pack: its file names, and the records of its journal.
//!
//! The journal has the options of the pack and each entry. `docs/format/journal.md` §3 is the
//! specification.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{ENTRY_BYTES, Entry, u16_at, u32_at, u64_at};
use crate::codec::{Decoder, Dictionary};
use crate::journal::{Journal, JournalReader};
use crate::runs::{CHECKPOINT_EVERY, Meta, Outline};
use crate::{Error, Result, durable};

const OPENING: u8 = 1;
const KIND: u8 = 2;
const ENTRY: u8 = 3;
const SEALING: u8 = 4;

const CHECKSUM: u8 = 1;
const STEP_TABLE: u8 = 1 << 1;
const IS_RUN: u8 = 1;
const NO_ENGINE: u32 = u32::MAX;

/// Separates the name of a pack from the digits in the name of an unfinished one.
pub(super) const INFIX: &str = ".unfinished-";

/// The number of those digits.
pub(super) const DIGITS: usize = 8;

/// Returns the path of the journal of the unfinished pack at `path`.
pub(super) fn journal_of(path: &Path) -> PathBuf {
    with_suffix(path, ".journal")
}

/// Returns the path of the bytes that recovery could not use. They have the same offsets there.
pub(super) fn rest_of(path: &Path) -> PathBuf {
    with_suffix(path, ".rest")
}

/// Returns the path of the copy that is written if the index does not fit before the entries.
pub(super) fn moved_of(path: &Path) -> PathBuf {
    with_suffix(path, ".moved")
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Checks that a pack can be written at `target`.
pub(super) fn check_target(target: &Path, overwrite: bool) -> Result<()> {
    if target.file_name().is_none() || target.is_dir() {
        let name = target.display();
        return Err(Error::Invalid(format!(
            "`{name}` is a directory, expected the path of a file"
        )));
    }
    if !overwrite && durable::is_taken(target) {
        return Err(durable::exists_already(target));
    }
    let folder = durable::folder_of(target);
    if !folder.is_dir() {
        let text = format!("the directory `{}` does not exist", folder.display());
        return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, text)));
    }
    Ok(())
}

/// Returns a new path for an unfinished pack.
pub(super) fn unfinished_name(target: &Path) -> PathBuf {
    // 32 random bits are enough: creating the file fails if the name is taken.
    with_suffix(target, &format!("{INFIX}{:0DIGITS$x}", durable::any_number() as u32))
}

/// Returns the error for an unfinished pack that is locked.
pub(super) fn being_written(path: &Path) -> Error {
    Error::Closed(format!(
        "cannot lock `{}`: it is being written by another process",
        path.display()
    ))
}

/// Removes an unfinished pack.
pub(super) fn remove_unfinished(path: &Path) -> Result<()> {
    // The journal goes last: entries without their journal would be reported as damage.
    durable::remove(path)?;
    durable::remove(&moved_of(path))?;
    durable::remove(&journal_of(path))
}

/// The first record: the options of the pack.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) checksum: bool,
    pub(super) step_table: bool,
    pub(super) align: u32,
    /// The offset of the first entry.
    pub(super) start: u64,
    pub(super) max_payload_bytes: u64,
    pub(super) dictionary: Option<Arc<Dictionary>>,
}

impl Opening {
    pub(super) fn to_record(&self) -> Vec<u8> {
        let dictionary = self.dictionary.as_ref().map_or(&[][..], |found| found.bytes());
        let mut record = Vec::with_capacity(24 + dictionary.len());
        let checksum = if self.checksum { CHECKSUM } else { 0 };
        let steps = if self.step_table { STEP_TABLE } else { 0 };
        record.extend_from_slice(&[OPENING, checksum | steps, 0, 0]);
        record.extend_from_slice(&self.align.to_le_bytes());
        record.extend_from_slice(&self.start.to_le_bytes());
        record.extend_from_slice(&self.max_payload_bytes.to_le_bytes());
        record.extend_from_slice(dictionary);
        record
    }

    /// Returns a decoder for the entries.
    pub(super) fn decoder(&self) -> Decoder {
        let decoder = Decoder::new().with_max_bytes(self.max_payload_bytes);
        match &self.dictionary {
            Some(dictionary) => decoder.with_dictionary(Arc::clone(dictionary)),
            None => decoder,
        }
    }
}

/// Encodes the record of a user-defined kind.
pub(super) fn kind_record(id: u16, name: &str) -> Vec<u8> {
    let [low, high] = id.to_le_bytes();
    [&[KIND, 0, low, high], name.as_bytes()].concat()
}

/// Encodes the record that is written before index, sections and footer.
pub(super) fn sealing_record(count: u64, end: u64) -> [u8; 24] {
    let mut record = [0; 24];
    record[0] = SEALING;
    record[8..16].copy_from_slice(&count.to_le_bytes());
    record[16..].copy_from_slice(&end.to_le_bytes());
    record
}

/// Encodes the record of one entry.
pub(super) fn entry_record(
    entry: &Entry,
    crc: u32,
    name: Option<&str>,
    outline: Option<&Outline>,
    record: &mut Vec<u8>,
) {
    let name = name.unwrap_or_default();
    record.clear();
    record.extend_from_slice(&[ENTRY, if outline.is_some() { IS_RUN } else { 0 }, 0, 0]);
    record.extend_from_slice(&crc.to_le_bytes());
    record.extend_from_slice(&entry.to_bytes());
    // `PackWriter` refuses names of more than 65535 bytes.
    record.extend_from_slice(&(name.len() as u32).to_le_bytes());
    record.extend_from_slice(name.as_bytes());
    let Some(Outline { meta, checkpoints, .. }) = outline else { return };
    record.extend_from_slice(&meta.max_score.to_le_bytes());
    record.extend_from_slice(&meta.steps.to_le_bytes());
    record.extend_from_slice(&meta.highest_tile.to_le_bytes());
    // An engine is part of a payload, whose length fits in 32 bits.
    let engine = meta.engine.as_ref().map_or(NO_ENGINE, |engine| engine.len() as u32);
    record.extend_from_slice(&engine.to_le_bytes());
    record.extend_from_slice(meta.engine.as_deref().unwrap_or_default().as_bytes());
    record.extend(checkpoints.iter().flat_map(|offset| offset.to_le_bytes()));
}

/// The properties of a run in its record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunRecord<'a> {
    pub(super) max_score: u64,
    pub(super) steps: u32,
    pub(super) highest_tile: u32,
    pub(super) engine: Option<&'a str>,
    pub(super) checkpoints: Vec<u32>,
}

impl<'a> RunRecord<'a> {
    /// Returns the properties in an outline.
    pub(super) fn of(outline: &'a Outline) -> Self {
        let Meta { max_score, steps, highest_tile, engine, .. } = &outline.meta;
        Self {
            max_score: *max_score,
            steps: *steps,
            highest_tile: *highest_tile,
            engine: engine.as_deref(),
            checkpoints: outline.checkpoints.clone(),
        }
    }
}

/// The record of one entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryRecord<'a> {
    /// The entry of the index, if entries are not moved.
    pub(super) entry: Entry,
    /// The CRC of the stored bytes, even if the index will not have it.
    pub(super) crc: u32,
    pub(super) name: Option<&'a str>,
    pub(super) run: Option<RunRecord<'a>>,
}

/// One record of the journal.
#[derive(Debug)]
pub(super) enum Record<'a> {
    Opening(Opening),
    Kind {
        id: u16,
        name: &'a str,
    },
    Entry(EntryRecord<'a>),
    /// All entries are written, and everything after `end` can be written again.
    Sealing {
        count: u64,
        end: u64,
    },
}

impl<'a> Record<'a> {
    pub(super) fn parse(record: &'a [u8]) -> Result<Self> {
        parse_record(record)?
            .ok_or_else(|| Error::Corrupt("the journal of the pack has a malformed record".into()))
    }
}

fn parse_record(record: &[u8]) -> Result<Option<Record<'_>>> {
    Ok(match record {
        [OPENING, flags, 0, 0, ..] if record.len() >= 24 && *flags <= CHECKSUM | STEP_TABLE => {
            let dictionary = match &record[24..] {
                [] => None,
                bytes => Some(Arc::new(Dictionary::new(bytes.to_vec())?)),
            };
            Some(Record::Opening(Opening {
                checksum: flags & CHECKSUM != 0,
                step_table: flags & STEP_TABLE != 0,
                align: super::layout::check_align(u32_at(record, 4))?,
                start: u64_at(record, 8),
                max_payload_bytes: u64_at(record, 16),
                dictionary,
            }))
        }
        [KIND, 0, _, _, name @ ..] => {
            let name = std::str::from_utf8(name).ok();
            name.map(|name| Record::Kind { id: u16_at(record, 2), name })
        }
        [SEALING, 0, 0, 0, 0, 0, 0, 0, ..] if record.len() == 24 => {
            Some(Record::Sealing { count: u64_at(record, 8), end: u64_at(record, 16) })
        }
        [ENTRY, flags @ (0 | IS_RUN), 0, 0, rest @ ..] => {
            parse_entry(rest, *flags == IS_RUN).map(Record::Entry)
        }
        _ => None,
    })
}

fn parse_entry(rest: &[u8], is_run: bool) -> Option<EntryRecord<'_>> {
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (entry, rest) = rest.split_first_chunk::<ENTRY_BYTES>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let name = std::str::from_utf8(name).ok()?;
    let run = if is_run { Some(parse_run(rest)?) } else { None };
    (is_run || rest.is_empty()).then_some(EntryRecord {
        entry: Entry::parse(entry),
        crc: u32::from_le_bytes(*crc),
        name: (!name.is_empty()).then_some(name),
        run,
    })
}

fn parse_run(rest: &[u8]) -> Option<RunRecord<'_>> {
    let (fixed, rest) = rest.split_first_chunk::<20>()?;
    let (engine, rest) = match u32_at(fixed, 16) {
        NO_ENGINE => (None, rest),
        length => {
            let (engine, rest) = rest.split_at_checked(length as usize)?;
            (Some(std::str::from_utf8(engine).ok()?), rest)
        }
    };
    let steps = u32_at(fixed, 8);
    let (offsets, left) = rest.as_chunks::<4>();
    let fits =
        left.is_empty() && offsets.len() as u64 == u64::from(steps.div_ceil(CHECKPOINT_EVERY));
    fits.then(|| RunRecord {
        max_score: u64_at(fixed, 0),
        steps,
        highest_tile: u32_at(fixed, 12),
        engine,
        checkpoints: offsets.iter().map(|offset| u32::from_le_bytes(*offset)).collect(),
    })
}

/// Reads the records of the journal of an unfinished pack.
pub(super) struct PackJournal(JournalReader);

impl PackJournal {
    /// Opens the journal at `path`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Journal::read(path).map(Self)
    }

    /// Returns the next record; `None` after the last complete one.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>> {
        self.0.next_record()?.map(Record::parse).transpose()
    }

    /// Returns the offset after the records read so far, and their number.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.0.position(), self.0.sequence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(steps: u32, engine: Option<&str>) -> Outline {
        Outline {
            meta: Meta {
                steps,
                start_unix_s: 1,
                elapsed_s: 2.0,
                max_score: 1 << 40,
                highest_tile: 2048,
                engine: engine.map(str::to_owned),
            },
            final_board: 0,
            checkpoints: (0..steps.div_ceil(64)).map(|k| 100 * k).collect(),
        }
    }

    #[test]
    fn entries_round_trip() {
        let entry = Entry { offset: 4096, length: 3, kind: 2, flags: 0x12, crc: 5, logical: 9 };
        let mut record = Vec::new();
        let outlines = [
            None,
            Some(outline(130, Some("größer"))),
            Some(outline(0, None)),
            Some(outline(64, Some(""))),
        ];
        for outline in &outlines {
            for name in [None, Some("a/b.bin")] {
                entry_record(&entry, 77, name, outline.as_ref(), &mut record);
                let Ok(Record::Entry(part)) = Record::parse(&record) else { panic!("{record:?}") };
                assert_eq!((part.entry, part.crc, part.name), (entry, 77, name));
                let Some(Outline { meta, checkpoints, .. }) = outline else {
                    assert!(part.run.is_none());
                    continue;
                };
                let run = part.run.unwrap();
                assert_eq!(run.engine, meta.engine.as_deref());
                assert_eq!(
                    (run.max_score, run.steps, run.highest_tile, run.checkpoints),
                    (meta.max_score, meta.steps, meta.highest_tile, checkpoints.clone())
                );
            }
        }
    }

    #[test]
    fn openings_and_kinds_round_trip() {
        let opening = Opening {
            checksum: true,
            step_table: false,
            align: 512,
            start: 65536,
            max_payload_bytes: 1 << 30,
            dictionary: None,
        };
        let record = opening.to_record();
        let Ok(Record::Opening(read)) = Record::parse(&record) else { panic!("{record:?}") };
        assert_eq!((read.checksum, read.step_table), (true, false));
        assert_eq!((read.align, read.start, read.max_payload_bytes), (512, 65536, 1 << 30));
        assert!(read.dictionary.is_none());
        let record = sealing_record(7, 1 << 40);
        let sealing = Record::parse(&record);
        assert!(matches!(sealing, Ok(Record::Sealing { count: 7, end: 0x100_0000_0000 })));
        let record = kind_record(300, "frame");
        assert!(matches!(Record::parse(&record), Ok(Record::Kind { id: 300, name: "frame" })));
    }

    #[test]
    fn truncated_records_are_refused() {
        let entry = Entry { offset: 1, length: 0, kind: 1, flags: 0, crc: 0, logical: 0 };
        let mut record = Vec::new();
        entry_record(&entry, 0, Some("name"), Some(&outline(65, Some("engine"))), &mut record);
        for cut in 0..record.len() {
            assert!(Record::parse(&record[..cut]).is_err_and(|e| e.kind() == "corrupt"), "{cut}");
        }
        record.push(0);
        assert!(Record::parse(&record).is_err());
        for bad in
            [&[][..], &[0], &[9, 0, 0, 0], &[OPENING; 30], &[SEALING; 24], &[KIND, 0, 0, 0, 0xFF]]
        {
            assert!(Record::parse(bad).is_err_and(|error| error.kind() == "corrupt"), "{bad:?}");
        }
    }
}
