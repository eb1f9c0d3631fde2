//! Seals an unfinished pack: writes index, stats, sections and footer, then renames it.
//!
//! Entries and journal are not changed until the pack has its name, so that any failure leaves an
//! unfinished pack that can be recovered.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::index::at;
use super::layout::{
    ENTRY_BYTES, Entry, Footer, HAS_DATA_CRC, HAS_SECTIONS, HEADER_BYTES, Header,
    SECTION_HEADER_BYTES, SectionHeader, Tag, align_up,
};
use super::reader::{Options, PackReader, checksum_mismatch, push_others};
use super::sections::{
    Checkpoints, Directory, Kinds, Names, ROWS_PER_BLOCK, RunColumnsBuilder, SectionLocation,
    StepLayout,
};
use super::stats::Summary;
use super::unfinished::{Opening, PackJournal, Record, journal_of, moved_of};
use crate::crc::{Crc32c, crc32c, crc32c_combine};
use crate::durable::{self, Appender};
use crate::runs::{Run, STEP_ROW_BYTES, project};
use crate::{Error, Result, pool};

/// The size of write buffers.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// The steps or bytes of runs that are decoded at a time for the step table.
const BATCH_STEPS: u64 = 64 * 1024;
const BATCH_BYTES: u64 = 16 << 20;

/// The alignment of sections and of the stats block.
const SECTION_ALIGN: u64 = 8;

/// The size of a finished pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The number of entries.
    pub entries: u64,
    /// The size of the file.
    pub file_bytes: u64,
    /// The zeros that align the entries.
    pub padding_bytes: u64,
}

/// The range of all entries of an unfinished pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// The number of entries.
    pub(super) count: u64,
    /// The end of the last entry; without entries, the offset of the first.
    pub(super) end: u64,
    /// CRC from the first entry to `end`, including padding.
    pub(super) crc: u32,
    /// Zeros between entries.
    pub(super) padding: u64,
}

impl Extent {
    /// Creates an empty range.
    pub(super) fn new(start: u64) -> Self {
        Self { count: 0, end: start, crc: 0, padding: 0 }
    }

    /// Returns the offset of the next entry; `None` on overflow.
    pub(super) fn next(&self, align: u32) -> Option<u64> {
        align_up(self.end, u64::from(align))
    }

    /// Adds the next entry; the caller sets the CRC.
    pub(super) fn push(&mut self, entry: &Entry) {
        self.padding += entry.offset.saturating_sub(self.end);
        self.end = entry.offset + u64::from(entry.length);
        self.count += 1;
    }
}

/// An unfinished pack that is ready to be sealed.
pub(super) struct Unfinished<'a> {
    /// The locked file with the entries.
    pub(super) path: &'a Path,
    pub(super) file: &'a File,
    pub(super) opening: &'a Opening,
    pub(super) extent: Extent,
    /// Whether the file may contain more than its entries: the index of a failed seal, or an
    /// incomplete entry.
    pub(super) dirty: bool,
    /// Whether the pack must be written to another file.
    pub(super) copy: bool,
    pub(super) threads: usize,
}

/// Writes the pack and renames it to `target`.
pub(super) fn seal(unfinished: &Unfinished<'_>, target: &Path, replace: bool) -> Result<Finished> {
    let start = nearest_start(unfinished)?;
    // Without stored bytes nothing has to be moved, and reserved room is released.
    let is_bare = unfinished.extent.end == unfinished.opening.start;
    let kept = if is_bare { start } else { unfinished.opening.start };
    if start <= kept && !unfinished.copy {
        let finished = write_around(unfinished, unfinished.file, unfinished.path, kept)?;
        publish(unfinished, unfinished.path, target, replace)?;
        return Ok(finished);
    }
    let copy = copy_path(unfinished.path, target);
    let outcome = write_copy(unfinished, &copy, start)
        .and_then(|finished| publish(unfinished, &copy, target, replace).map(|()| finished));
    if outcome.is_err() {
        // It may have filled the disk, and has nothing that the unfinished pack does not have.
        let _ = durable::remove(&copy);
    }
    outcome
}

/// Returns the lowest offset of the first entry, after the complete index.
fn nearest_start(unfinished: &Unfinished<'_>) -> Result<u64> {
    align_up(index_end(unfinished), u64::from(unfinished.opening.align))
        .ok_or_else(|| Error::TooLarge("the pack would exceed the maximum file size".into()))
}

fn index_end(unfinished: &Unfinished<'_>) -> u64 {
    // `PackWriter` and `recover` limit a pack to u32::MAX entries.
    HEADER_BYTES as u64 + ENTRY_BYTES as u64 * unfinished.extent.count
}

/// Returns the path of a pack that is not written into its unfinished file: in the directory of
/// the target, so that it can be renamed.
fn copy_path(path: &Path, target: &Path) -> PathBuf {
    let moved = moved_of(path);
    match moved.file_name() {
        Some(name) => durable::folder_of(target).join(name),
        None => moved,
    }
}

fn publish(unfinished: &Unfinished<'_>, from: &Path, target: &Path, replace: bool) -> Result<()> {
    durable::publish(from, target, replace)?;
    durable::sync_folder_of(target)?;
    // The pack is complete: failing to remove leftovers is not an error.
    if from != unfinished.path {
        let _ = durable::remove(unfinished.path);
    }
    let _ = durable::remove(&journal_of(unfinished.path));
    Ok(())
}

/// Copies the entries to another file with room for the index, and writes the pack there.
fn write_copy(unfinished: &Unfinished<'_>, copy: &Path, start: u64) -> Result<Finished> {
    let about = |error: std::io::Error| durable::about(copy, &error);
    // A leftover of a process that ended here; no other process can hold the lock.
    durable::remove(copy)?;
    let mut file = durable::create_new(copy).map_err(about)?;
    let (from, bytes) =
        (unfinished.opening.start, unfinished.extent.end - unfinished.opening.start);
    let mut entries = unfinished.file;
    entries.seek(SeekFrom::Start(from)).map_err(about)?;
    file.seek(SeekFrom::Start(start)).map_err(about)?;
    // The kernel copies, and shares blocks if the filesystem supports it.
    let copied = std::io::copy(&mut entries.take(bytes), &mut file).map_err(about)?;
    if copied != bytes {
        return Err(Error::Corrupt(format!(
            "`{}` is truncated: the last {} bytes are missing",
            unfinished.path.display(),
            bytes - copied
        )));
    }
    write_around(unfinished, &file, copy, start)
}

/// Writes all except the entries, which begin at `start` in `file`; syncs and checks the result.
fn write_around(
    unfinished: &Unfinished<'_>,
    file: &File,
    path: &Path,
    start: u64,
) -> Result<Finished> {
    let Opening { checksum, step_table, .. } = *unfinished.opening;
    let Extent { count, crc, padding, .. } = unfinished.extent;
    let about = |error: std::io::Error| durable::about(path, &error);
    // Entries may move towards the start of the file: wrapping sums are exact.
    let shift = start.wrapping_sub(unfinished.opening.start);
    let data_end = unfinished.extent.end.wrapping_add(shift);
    let handle = || file.try_clone().map_err(about);
    if unfinished.dirty {
        file.set_len(data_end).map_err(about)?;
    }

    let mut index = IndexWriter::new(Appender::new(handle()?, HEADER_BYTES as u64, BUFFER_BYTES));
    let known = read_journal(unfinished, |entry| {
        let offset = entry.offset.wrapping_add(shift);
        index.push(&Entry { offset, ..*entry }).map_err(about)
    })?;
    let index_crc = index.finish().map_err(about)?;
    if unfinished.dirty {
        durable::clear(file, index_end(unfinished)..start).map_err(about)?;
    }

    let mut out = SectionsWriter {
        out: Appender::new(handle()?, data_end, BUFFER_BYTES),
        locations: Vec::new(),
        path,
    };
    out.align(SECTION_ALIGN)?;
    let stats_offset = out.out.position();
    let stats = known.summary().build();
    out.append(&stats)?;
    let steps = known.checkpoints.total();
    if step_table && known.runs > 0 {
        out.steps(unfinished, steps)?;
    }
    if known.runs > 0 {
        let (runs, text) = known.columns.finish().build();
        out.section(Tag::CKPT, &known.checkpoints.build())?;
        out.section(Tag::RUNS, &runs)?;
        out.section(Tag::TEXT, &text)?;
    }
    if !known.names.is_empty() {
        out.section(Tag::NAME, &names_section(&known.names, count)?)?;
    }
    if !known.kinds.is_empty() {
        out.section(Tag::KIND, &known.kinds.build())?;
    }
    if let Some(dictionary) = &unfinished.opening.dictionary {
        out.section(Tag::DICT, dictionary.bytes())?;
    }
    out.section(Tag::STAT, &crc32c(&stats).to_le_bytes())?;
    out.directory()?;
    let data_crc = if checksum { crc } else { 0 };
    let footer = Footer { data_end, index_crc, data_crc, stats_offset };
    out.append(&footer.to_bytes())?;
    out.out.flush().map_err(about)?;
    let flags = HAS_SECTIONS | if checksum { HAS_DATA_CRC } else { 0 };
    let header = Header { flags, count };
    file.write_all_at(&header.to_bytes(), 0).map_err(about)?;
    file.sync_all().map_err(about)?;

    let pack = PackReader::open(path, true, Options::default())?;
    let finished =
        Finished { entries: count, file_bytes: out.out.position(), padding_bytes: padding };
    let as_meant = pack.header() == header
        && pack.footer() == footer
        && pack.storage().len() == finished.file_bytes;
    if as_meant {
        return Ok(finished);
    }
    Err(Error::Corrupt(format!(
        "verification of `{}` failed: the bytes read back differ from the bytes written",
        path.display()
    )))
}

fn names_section(named: &[(u64, String)], count: u64) -> Result<Vec<u8>> {
    let mut named = named.iter().peekable();
    let name_of = |entry| named.next_if(|(at, _)| *at == entry).map(|(_, name)| name.as_str());
    let names: Vec<Option<&str>> = (0..count).map(name_of).collect();
    Names::build(&names)
}

/// The contents of the journal.
#[derive(Default)]
struct Known {
    runs: u64,
    /// Has all entries if there is a run, else none.
    columns: RunColumnsBuilder,
    checkpoints: Checkpoints,
    /// The steps of each run.
    steps: Vec<u32>,
    names: Vec<(u64, String)>,
    kinds: Kinds,
}

impl Known {
    fn summary(&self) -> Summary {
        Summary::of(self.steps.iter().copied())
    }
}

/// Reads the journal up to the last sealed entry, and calls `each` with every entry in order.
fn read_journal(
    unfinished: &Unfinished<'_>,
    mut each: impl FnMut(&Entry) -> Result<()>,
) -> Result<Known> {
    let mut known = Known::default();
    let mut count = 0;
    let mut journal = PackJournal::open(&journal_of(unfinished.path))?;
    while count < unfinished.extent.count {
        match journal.next()? {
            Some(Record::Entry(record)) => {
                each(&record.entry)?;
                if let Some(name) = record.name {
                    known.names.push((count, name.to_owned()));
                }
                if let Some(run) = record.run {
                    if known.runs == 0 {
                        push_others(&mut known.columns, &mut known.checkpoints, count)?;
                    }
                    known.runs += 1;
                    known.steps.push(run.steps);
                    known.columns.push(run.max_score, run.steps, run.highest_tile, run.engine);
                    known.checkpoints.push(run.steps, &run.checkpoints)?;
                } else if known.runs > 0 {
                    push_others(&mut known.columns, &mut known.checkpoints, 1)?;
                }
                count += 1;
            }
            Some(Record::Kind { id, name }) => {
                if known.kinds.add(name)? != id {
                    return Err(Error::Corrupt(format!(
                        "the pack journal has the wrong number {id} for entry kind `{name}`"
                    )));
                }
            }
            Some(Record::Opening(_) | Record::Sealing { .. }) => {}
            None => return Err(journal_ends(unfinished, count)),
        }
    }
    Ok(known)
}

fn journal_ends(unfinished: &Unfinished<'_>, count: u64) -> Error {
    Error::Corrupt(format!(
        "`{}` is truncated: it has only {count} of {} entries",
        journal_of(unfinished.path).display(),
        unfinished.extent.count
    ))
}

/// Writes the index.
struct IndexWriter {
    out: Appender,
    crc: Crc32c,
}

impl IndexWriter {
    fn new(out: Appender) -> Self {
        Self { out, crc: Crc32c::default() }
    }

    fn push(&mut self, entry: &Entry) -> std::io::Result<()> {
        let bytes = entry.to_bytes();
        self.crc.update(&bytes);
        self.out.append(&bytes)
    }

    /// Flushes the index and returns its CRC.
    fn finish(mut self) -> std::io::Result<u32> {
        self.out.flush()?;
        Ok(self.crc.value())
    }
}

/// Writes stats block, sections and footer.
struct SectionsWriter<'a> {
    out: Appender,
    locations: Vec<SectionLocation>,
    path: &'a Path,
}

impl SectionsWriter<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.append(bytes).map_err(|error| durable::about(self.path, &error))
    }

    fn align(&mut self, align: u64) -> Result<()> {
        let padding = self.out.position().wrapping_neg() % align;
        self.out.zeros(padding).map_err(|error| durable::about(self.path, &error))
    }

    /// Begins a section; the caller writes its header.
    fn begin(&mut self, tag: Tag, length: impl FnOnce(u64) -> Option<u64>) -> Result<u64> {
        self.align(SECTION_ALIGN)?;
        let offset = self.out.position();
        let length = length(offset).ok_or_else(|| {
            Error::TooLarge(format!("`{}`: section {tag} is too large", self.path.display()))
        })?;
        self.locations.push(SectionLocation { tag, offset, length });
        Ok(offset)
    }

    fn section(&mut self, tag: Tag, bytes: &[u8]) -> Result<()> {
        self.begin(tag, |_| Some(bytes.len() as u64))?;
        self.append(&SectionHeader::of(tag, bytes).to_bytes())?;
        self.append(bytes)
    }

    fn directory(&mut self) -> Result<()> {
        self.align(SECTION_ALIGN)?;
        let bytes = Directory::build(&self.locations, self.out.position());
        self.append(&SectionHeader::of(Tag::DIRS, &bytes).to_bytes())?;
        self.append(&bytes)
    }

    /// Writes the step table: runs are decoded in parallel and written in order.
    fn steps(&mut self, unfinished: &Unfinished<'_>, rows: u64) -> Result<()> {
        let about = |error: std::io::Error| durable::about(self.path, &error);
        let offset = self.begin(Tag::STEP, |offset| Some(StepLayout::new(offset, rows)?.length))?;
        let Some(layout) = StepLayout::new(offset, rows) else { return Ok(()) };
        self.out.flush().map_err(about)?;
        let file = self.out.file().try_clone().map_err(about)?;
        let mut table = StepWriter::new(Appender::new(file, layout.rows_offset, BUFFER_BYTES));
        each_batch_of_runs(unfinished, |batch| {
            let rows = rows_of(unfinished, batch)?;
            rows.iter().try_for_each(|rows| table.push(rows)).map_err(about)
        })?;
        let (out, crcs, rows_crc) = table.finish().map_err(about)?;
        if out.position() != layout.rows_offset + layout.rows * STEP_ROW_BYTES as u64 {
            return Err(Error::Corrupt(format!(
                "cannot finish `{}`: the file was changed, and its runs no longer have {rows} steps",
                unfinished.path.display()
            )));
        }
        let mut head = vec![0; (layout.rows_offset - offset) as usize];
        let bytes = &mut head[SECTION_HEADER_BYTES..];
        bytes[..layout.head().len()].copy_from_slice(&layout.head());
        let at = layout.head().len();
        for (slot, crc) in bytes[at..].as_chunks_mut::<4>().0.iter_mut().zip(crcs) {
            *slot = crc.to_le_bytes();
        }
        let mut digest = SectionHeader::digest(Tag::STEP, layout.length);
        digest.update(bytes);
        let crc = crc32c_combine(digest.value(), rows_crc, rows * STEP_ROW_BYTES as u64);
        let header = SectionHeader { tag: Tag::STEP, crc, length: layout.length };
        head[..SECTION_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        out.file().write_all_at(&head, offset).map_err(about)?;
        self.out = out;
        Ok(())
    }
}

/// Writes step rows, with the CRC of each block.
struct StepWriter {
    out: Appender,
    block: Crc32c,
    /// Bytes in the current block.
    in_block: usize,
    crcs: Vec<u32>,
    all: Crc32c,
}

impl StepWriter {
    const BLOCK: usize = ROWS_PER_BLOCK as usize * STEP_ROW_BYTES;

    fn new(out: Appender) -> Self {
        let (block, all) = (Crc32c::default(), Crc32c::default());
        Self { out, block, in_block: 0, crcs: Vec::new(), all }
    }

    fn push(&mut self, rows: &[u8]) -> std::io::Result<()> {
        self.all.update(rows);
        let mut rest = rows;
        while !rest.is_empty() {
            let (bytes, after) = rest.split_at(rest.len().min(Self::BLOCK - self.in_block));
            self.block.update(bytes);
            self.in_block += bytes.len();
            if self.in_block == Self::BLOCK {
                self.end_block();
            }
            rest = after;
        }
        self.out.append(rows)
    }

    fn end_block(&mut self) {
        self.crcs.push(std::mem::take(&mut self.block).value());
        self.in_block = 0;
    }

    fn finish(mut self) -> std::io::Result<(Appender, Vec<u32>, u32)> {
        if self.in_block > 0 {
            self.end_block();
        }
        self.out.flush()?;
        Ok((self.out, self.crcs, self.all.value()))
    }
}

/// Position, entry, CRC and number of steps of a run.
type RunAt = (u64, Entry, u32, u32);

/// Calls `work` with batches of all runs, in order.
fn each_batch_of_runs(
    unfinished: &Unfinished<'_>,
    mut work: impl FnMut(&[RunAt]) -> Result<()>,
) -> Result<()> {
    let mut journal = PackJournal::open(&journal_of(unfinished.path))?;
    let (mut batch, mut steps, mut bytes, mut count) = (Vec::new(), 0, 0, 0);
    while count < unfinished.extent.count {
        let Some(record) = journal.next()? else { return Err(journal_ends(unfinished, count)) };
        let Record::Entry(record) = record else { continue };
        if let Some(run) = record.run {
            batch.push((count, record.entry, record.crc, run.steps));
            steps += u64::from(run.steps);
            bytes += record.entry.payload_bytes();
        }
        count += 1;
        if steps >= BATCH_STEPS || bytes >= BATCH_BYTES {
            work(&batch)?;
            batch.clear();
            (steps, bytes) = (0, 0);
        }
    }
    work(&batch)
}

fn rows_of(unfinished: &Unfinished<'_>, batch: &[RunAt]) -> Result<Vec<Vec<u8>>> {
    let decoder = unfinished.opening.decoder();
    let rows = pool::map(batch, unfinished.threads, |&(position, entry, crc, steps)| {
        let about = |error: Error| {
            at(position, &entry, error).about(format_args!("`{}`", unfinished.path.display()))
        };
        let bad = |text: &str| about(Error::Corrupt(text.into()));
        let mut stored = vec![0; entry.length as usize];
        unfinished
            .file
            .read_exact_at(&mut stored, entry.offset)
            .map_err(|error| durable::about(unfinished.path, &error))?;
        if crc32c(&stored) != crc {
            return Err(about(checksum_mismatch()));
        }
        let payload = entry.decode(stored.into(), &decoder).map_err(about)?;
        let version = entry.run_version().ok_or_else(|| bad("the entry is not a run"))?;
        let run = Run::parse_as(version, &payload).map_err(about)?;
        let mut rows = Vec::new();
        // A pack has at most u32::MAX entries.
        project(&run, position as u32, &mut rows);
        if rows.len() != steps as usize {
            return Err(bad("the number of steps has changed: the file was modified"));
        }
        let mut bytes = Vec::with_capacity(rows.len() * STEP_ROW_BYTES);
        rows.iter().for_each(|row| bytes.extend_from_slice(&row.to_bytes()));
        Ok(bytes)
    });
    rows.into_iter().collect()
}
