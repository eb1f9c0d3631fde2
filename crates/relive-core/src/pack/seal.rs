//! From an unfinished pack to a pack: index, stats, sections and footer, then the name.
//!
//! Entries and journal stay as they are until the pack has its name, so that whatever
//! fails or dies here leaves an unfinished pack that can be recovered.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::layout::{
    ENTRY_BYTES, Entry, Footer, HAS_DATA_CRC, HAS_SECTIONS, HEADER_BYTES, Header, KIND_V1,
    SECTION_HEADER_BYTES, SectionHeader, Tag, align_up,
};
use super::reader::{Options, PackReader};
use super::sections::{
    Checkpoints, Directory, Kinds, Names, ROWS_PER_BLOCK, RunColumnsBuilder, SectionPlace,
    StepLayout,
};
use super::stats::Summary;
use super::unfinished::{Opening, Part, Parts, journal_of, moved_of};
use crate::codec::{Codec, Stored};
use crate::crc::{Crc32c, crc32c, crc32c_combine};
use crate::durable::{self, Appender};
use crate::runs::{Run, STEP_ROW_BYTES, Version, project};
use crate::{Error, Result, pool};

/// What is written goes through so much memory.
pub(super) const ROOM: usize = 1 << 20;

/// Runs are decoded for the step table in batches of about so many steps, or bytes.
const BATCH_STEPS: u64 = 64 * 1024;
const BATCH_BYTES: u64 = 16 << 20;

/// Sections and the stats block begin at multiples of this.
const SECTION_ALIGN: u64 = 8;

/// What became of a finished pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How many entries it has.
    pub entries: u64,
    /// How many bytes the file has.
    pub file_bytes: u64,
    /// How many of them are zeros that align the entries.
    pub padding_bytes: u64,
}

/// The entries of an unfinished pack, taken together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// How many there are.
    pub(super) count: u64,
    /// Where the last one ends; without entries, where the first would begin.
    pub(super) end: u64,
    /// CRC from the first one to `end`, padding included.
    pub(super) crc: u32,
    /// Zeros between them.
    pub(super) padding: u64,
}

impl Extent {
    /// No entries yet.
    pub(super) fn new(start: u64) -> Self {
        Self { count: 0, end: start, crc: 0, padding: 0 }
    }

    /// Where the next entry goes; `None` on overflow.
    pub(super) fn next(&self, align: u32) -> Option<u64> {
        align_up(self.end, u64::from(align))
    }

    /// Takes in the next entry; the CRC is the caller's to set.
    pub(super) fn push(&mut self, entry: &Entry) {
        self.padding += entry.offset.saturating_sub(self.end);
        self.end = entry.offset + u64::from(entry.length);
        self.count += 1;
    }
}

/// An unfinished pack whose entries are all there.
pub(super) struct Draft<'a> {
    /// The file with the entries, which is locked.
    pub(super) path: &'a Path,
    pub(super) file: &'a File,
    pub(super) opening: &'a Opening,
    pub(super) extent: Extent,
    /// The file may hold more than its entries: an earlier finish that failed, or a tail
    /// that did not arrive whole.
    pub(super) touched: bool,
    /// The file must not become the pack itself.
    pub(super) apart: bool,
    pub(super) threads: usize,
}

/// Makes the pack and gives it its name.
pub(super) fn seal(draft: &Draft<'_>, target: &Path, replace: bool) -> Result<Finished> {
    let start = nearest_start(draft)?;
    // Where nothing is stored nothing has to be moved, and room that was kept is given back.
    let is_bare = draft.extent.end == draft.opening.start;
    let kept = if is_bare { start } else { draft.opening.start };
    if start <= kept && !draft.apart {
        let finished = write_around(draft, draft.file, draft.path, kept)?;
        publish(draft, draft.path, target, replace)?;
        return Ok(finished);
    }
    let place = place_beside(draft.path, target);
    let outcome = write_apart(draft, &place, start)
        .and_then(|finished| publish(draft, &place, target, replace).map(|()| finished));
    if outcome.is_err() {
        // It may have filled the disk, and holds nothing that the draft does not.
        let _ = durable::remove(&place);
    }
    outcome
}

/// Where the first entry can be, behind an index of all of them.
fn nearest_start(draft: &Draft<'_>) -> Result<u64> {
    align_up(index_end(draft), u64::from(draft.opening.align))
        .ok_or_else(|| Error::TooLarge("the pack would be longer than a file can be".into()))
}

fn index_end(draft: &Draft<'_>) -> u64 {
    // `PackWriter` and `recover` see to it that a pack has at most u32::MAX entries.
    HEADER_BYTES as u64 + ENTRY_BYTES as u64 * draft.extent.count
}

/// Where a pack is put together that is not made in the file of its draft: in the folder of
/// its name, so that it can be renamed.
fn place_beside(path: &Path, target: &Path) -> PathBuf {
    let moved = moved_of(path);
    match moved.file_name() {
        Some(name) => durable::folder_of(target).join(name),
        None => moved,
    }
}

fn publish(draft: &Draft<'_>, from: &Path, target: &Path, replace: bool) -> Result<()> {
    durable::publish(from, target, replace)?;
    durable::sync_folder_of(target)?;
    // The pack is there and whole: what cannot be removed now is litter, not loss.
    if from != draft.path {
        let _ = durable::remove(draft.path);
    }
    let _ = durable::remove(&journal_of(draft.path));
    Ok(())
}

/// Copies the entries behind a longer index, and makes the pack there.
fn write_apart(draft: &Draft<'_>, place: &Path, start: u64) -> Result<Finished> {
    let about = |error: std::io::Error| durable::about(place, &error);
    // Left by a process that died here, which did not hold the lock we hold.
    durable::remove(place)?;
    let mut file = durable::create_new(place).map_err(about)?;
    let (from, bytes) = (draft.opening.start, draft.extent.end - draft.opening.start);
    let mut entries = draft.file;
    entries.seek(SeekFrom::Start(from)).map_err(about)?;
    file.seek(SeekFrom::Start(start)).map_err(about)?;
    // The standard library lets the kernel copy, and shares blocks where the filesystem can.
    let copied = std::io::copy(&mut entries.take(bytes), &mut file).map_err(about)?;
    if copied != bytes {
        return Err(Error::Corrupt(format!(
            "`{}` ends {} bytes before its last entry",
            draft.path.display(),
            bytes - copied
        )));
    }
    write_around(draft, &file, place, start)
}

/// Writes everything but the entries, which begin at `start` in `file`; syncs and checks.
fn write_around(draft: &Draft<'_>, file: &File, path: &Path, start: u64) -> Result<Finished> {
    let Opening { checksum, step_table, .. } = *draft.opening;
    let Extent { count, crc, padding, .. } = draft.extent;
    let about = |error: std::io::Error| durable::about(path, &error);
    // Entries may come nearer to the beginning: the sums below are exact all the same.
    let shift = start.wrapping_sub(draft.opening.start);
    let data_end = draft.extent.end.wrapping_add(shift);
    let handle = || file.try_clone().map_err(about);
    if draft.touched {
        file.set_len(data_end).map_err(about)?;
    }

    let mut index = IndexOut::new(Appender::new(handle()?, HEADER_BYTES as u64, ROOM));
    let known = read_journal(draft, |entry| {
        let offset = entry.offset.wrapping_add(shift);
        index.push(&Entry { offset, ..*entry }).map_err(about)
    })?;
    let index_crc = index.finish().map_err(about)?;
    if draft.touched {
        durable::clear(file, index_end(draft)..start).map_err(about)?;
    }

    let mut out =
        SectionsOut { out: Appender::new(handle()?, data_end, ROOM), places: Vec::new(), path };
    out.align(SECTION_ALIGN)?;
    let stats_offset = out.out.position();
    let stats = known.summary().build();
    out.append(&stats)?;
    let steps = known.checkpoints.total();
    if step_table && known.runs > 0 {
        out.steps(draft, steps)?;
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
    if let Some(dictionary) = &draft.opening.dictionary {
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
    Err(Error::Corrupt(format!("`{}` is not what was written to it", path.display())))
}

fn names_section(named: &[(u64, String)], count: u64) -> Result<Vec<u8>> {
    let mut named = named.iter().peekable();
    let name_of = |entry| named.next_if(|(at, _)| *at == entry).map(|(_, name)| name.as_str());
    let names: Vec<Option<&str>> = (0..count).map(name_of).collect();
    Names::build(&names)
}

/// What the journal says of all entries.
#[derive(Default)]
struct Known {
    runs: u64,
    /// Of every entry, once there is a run.
    columns: RunColumnsBuilder,
    checkpoints: Checkpoints,
    /// Steps of the runs.
    steps: Vec<u32>,
    names: Vec<(u64, String)>,
    kinds: Kinds,
}

impl Known {
    fn summary(&self) -> Summary {
        Summary::of(self.steps.iter().copied())
    }
}

/// Goes through the entries that count, in order.
fn read_journal(draft: &Draft<'_>, mut each: impl FnMut(&Entry) -> Result<()>) -> Result<Known> {
    let mut known = Known::default();
    let mut count = 0;
    let mut parts = Parts::read(&journal_of(draft.path))?;
    while count < draft.extent.count {
        match parts.next_part()? {
            Some(Part::Entry(part)) => {
                each(&part.entry)?;
                if let Some(name) = part.name {
                    known.names.push((count, name.to_owned()));
                }
                if let Some(run) = part.run {
                    if known.runs == 0 {
                        for _ in 0..count {
                            known.columns.push_other();
                            known.checkpoints.push(0, &[])?;
                        }
                    }
                    known.runs += 1;
                    known.steps.push(run.steps);
                    known.columns.push(run.max_score, run.steps, run.highest_tile, run.engine);
                    known.checkpoints.push(run.steps, &run.checkpoints)?;
                } else if known.runs > 0 {
                    known.columns.push_other();
                    known.checkpoints.push(0, &[])?;
                }
                count += 1;
            }
            Some(Part::Kind { id, name }) => {
                if known.kinds.add(name)? != id {
                    return Err(Error::Corrupt(format!("kind `{name}` is not number {id}")));
                }
            }
            Some(Part::Opening(_)) => {}
            None => return Err(journal_ends(draft, count)),
        }
    }
    Ok(known)
}

fn journal_ends(draft: &Draft<'_>, count: u64) -> Error {
    Error::Corrupt(format!(
        "`{}` ends after {count} of {} entries",
        journal_of(draft.path).display(),
        draft.extent.count
    ))
}

/// The index, entry by entry.
struct IndexOut {
    out: Appender,
    crc: Crc32c,
}

impl IndexOut {
    fn new(out: Appender) -> Self {
        Self { out, crc: Crc32c::default() }
    }

    fn push(&mut self, entry: &Entry) -> std::io::Result<()> {
        let bytes = entry.to_bytes();
        self.crc.update(&bytes);
        self.out.append(&bytes)
    }

    /// Ends the index; its CRC.
    fn finish(mut self) -> std::io::Result<u32> {
        self.out.flush()?;
        Ok(self.crc.value())
    }
}

/// What follows the entries.
struct SectionsOut<'a> {
    out: Appender,
    places: Vec<SectionPlace>,
    path: &'a Path,
}

impl SectionsOut<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.append(bytes).map_err(|error| durable::about(self.path, &error))
    }

    fn align(&mut self, align: u64) -> Result<()> {
        let padding = self.out.position().wrapping_neg() % align;
        self.out.zeros(padding).map_err(|error| durable::about(self.path, &error))
    }

    /// Begins a section, whose header is the caller's to write.
    fn begin(&mut self, tag: Tag, length: impl FnOnce(u64) -> Option<u64>) -> Result<u64> {
        self.align(SECTION_ALIGN)?;
        let offset = self.out.position();
        let length = length(offset).ok_or_else(|| {
            Error::TooLarge(format!("`{}`: section {tag} is too long", self.path.display()))
        })?;
        self.places.push(SectionPlace { tag, offset, length });
        Ok(offset)
    }

    fn section(&mut self, tag: Tag, bytes: &[u8]) -> Result<()> {
        self.begin(tag, |_| Some(bytes.len() as u64))?;
        self.append(&SectionHeader::of(tag, bytes).to_bytes())?;
        self.append(bytes)
    }

    fn directory(&mut self) -> Result<()> {
        self.align(SECTION_ALIGN)?;
        let bytes = Directory::build(&self.places, self.out.position());
        self.append(&SectionHeader::of(Tag::DIRS, &bytes).to_bytes())?;
        self.append(&bytes)
    }

    /// The step table: every run is decoded, several at a time, and written in order.
    fn steps(&mut self, draft: &Draft<'_>, rows: u64) -> Result<()> {
        let about = |error: std::io::Error| durable::about(self.path, &error);
        let offset = self.begin(Tag::STEP, |offset| Some(StepLayout::new(offset, rows)?.length))?;
        let Some(layout) = StepLayout::new(offset, rows) else { return Ok(()) };
        self.out.flush().map_err(about)?;
        let file = self.out.file().try_clone().map_err(about)?;
        let mut table = RowsOut::new(Appender::new(file, layout.rows_offset, ROOM));
        each_batch_of_runs(draft, |batch| {
            let rows = rows_of(draft, batch)?;
            rows.iter().try_for_each(|rows| table.push(rows)).map_err(about)
        })?;
        let (out, crcs, rows_crc) = table.finish().map_err(about)?;
        if out.position() != layout.rows_offset + layout.rows * STEP_ROW_BYTES as u64 {
            return Err(Error::Corrupt(format!(
                "`{}`: the runs do not have the {rows} steps that they had when appended",
                draft.path.display()
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

/// Rows of steps one behind the other, with the CRC of each block of them.
struct RowsOut {
    out: Appender,
    block: Crc32c,
    /// Bytes of the block that is not full yet.
    in_block: usize,
    crcs: Vec<u32>,
    all: Crc32c,
}

impl RowsOut {
    const BLOCK: usize = ROWS_PER_BLOCK as usize * STEP_ROW_BYTES;

    fn new(out: Appender) -> Self {
        let (block, all) = (Crc32c::default(), Crc32c::default());
        Self { out, block, in_block: 0, crcs: Vec::new(), all }
    }

    fn push(&mut self, rows: &[u8]) -> std::io::Result<()> {
        self.all.update(rows);
        let mut rest = rows;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(Self::BLOCK - self.in_block));
            self.block.update(part);
            self.in_block += part.len();
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

/// One run of an unfinished pack: its position, entry, CRC and number of steps.
type RunAt = (u64, Entry, u32, u32);

/// Calls `work` with all runs, in order, some at a time.
fn each_batch_of_runs(
    draft: &Draft<'_>,
    mut work: impl FnMut(&[RunAt]) -> Result<()>,
) -> Result<()> {
    let mut parts = Parts::read(&journal_of(draft.path))?;
    let (mut batch, mut steps, mut bytes, mut count) = (Vec::new(), 0, 0, 0);
    while count < draft.extent.count {
        let Some(part) = parts.next_part()? else { return Err(journal_ends(draft, count)) };
        let Part::Entry(part) = part else { continue };
        if let Some(run) = part.run {
            batch.push((count, part.entry, part.crc, run.steps));
            steps += u64::from(run.steps);
            bytes += part.entry.payload_bytes();
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

fn rows_of(draft: &Draft<'_>, batch: &[RunAt]) -> Result<Vec<Vec<u8>>> {
    let decoder = draft.opening.decoder();
    let rows = map_each(batch.len(), draft.threads, |at| {
        let (position, entry, crc, steps) = batch[at];
        let bad = |text: &str| {
            let name = draft.path.display();
            Error::Corrupt(format!("`{name}`: entry {position} at offset {}: {text}", entry.offset))
        };
        let mut stored = vec![0; entry.length as usize];
        draft
            .file
            .read_exact_at(&mut stored, entry.offset)
            .map_err(|error| durable::about(draft.path, &error))?;
        if crc32c(&stored) != crc {
            return Err(bad("the checksum does not match"));
        }
        let codec = entry.codec()?;
        let payload = match codec {
            Codec::Raw => stored,
            _ => {
                decoder.decode(&Stored { codec, bytes: &stored, length: entry.payload_bytes() })?
            }
        };
        let version = if entry.kind == KIND_V1 { Version::V1 } else { Version::V2 };
        let run = Run::parse_as(version, &payload)?;
        let mut rows = Vec::new();
        // A pack has at most u32::MAX entries.
        project(&run, position as u32, &mut rows);
        if rows.len() != steps as usize {
            return Err(bad("it does not have the steps that it had when appended"));
        }
        let mut bytes = Vec::with_capacity(rows.len() * STEP_ROW_BYTES);
        rows.iter().for_each(|row| bytes.extend_from_slice(&row.to_bytes()));
        Ok(bytes)
    });
    rows.into_iter().collect()
}

/// `work(0)`, …, `work(count - 1)`, in order, done on at most `threads` threads.
pub(super) fn map_each<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let cells: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    pool::run(count, threads, &|at| {
        // Each position is claimed once, so the lock is never waited for.
        *cells[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(work(at));
    });
    let value = |cell: Mutex<Option<T>>| cell.into_inner().unwrap_or_else(PoisonError::into_inner);
    cells.into_iter().filter_map(value).collect()
}

/// Opens the file of an unfinished pack to read and write it.
pub(super) fn open_draft(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| durable::about(path, &error))
}
