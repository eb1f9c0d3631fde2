//! Reads a store from `meta.json` and its journal, up to the last valid Commit.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunk::{Chunk, Window};
use super::files::Files;
use super::journal_records::{AppendedValues, Commit, JournalRecord, Op, Position};
use super::layout::{BLOCK, ChunkKind, Entry, PAGE};
use super::meta::Meta;
use super::state::State;
use crate::crc::Crc32c;
use crate::journal::{self, Journal};
use crate::{Error, Result};

/// The state of a store and the end of its journal.
pub(crate) struct Replayed {
    /// The state after the last valid group.
    pub(crate) state: State,
    /// The name of the journal.
    pub(crate) journal_name: String,
    /// Whether `meta.json` records that the journal has a synced Commit.
    pub(crate) begun: bool,
    /// The end of the journal; `None` if the file does not exist.
    pub(crate) journal: Option<JournalEnd>,
    /// Whether the last Commit is synced.
    pub(crate) synced: bool,
    /// Whether the journal has a synced Commit.
    pub(crate) has_synced: bool,
}

/// The end of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalEnd {
    /// The offset after the last valid Commit.
    pub(crate) end: u64,
    /// The number of journal records before it.
    pub(crate) sequence: u64,
}

/// Reads the store whose `meta.json` has this name, for a writer: bytes that are in chunks now
/// count as written by other processes.
pub(crate) fn replay(files: &Arc<Files>, name: &str) -> Result<Replayed> {
    let meta = Meta::read(files.folder(), name)?;
    let state = State::from_meta(&meta)?;
    let mut tail = Tail::new(files.folder(), &meta)?;
    let state = tail.read_on(files, &state, None)?.unwrap_or(state);
    tail.check(&meta)?;
    files.found(&state);
    let journal = tail.is_there.then_some(JournalEnd { end: tail.end, sequence: tail.sequence });
    let (begun, journal_name) = (meta.begun, meta.journal);
    let (synced, has_synced) = (tail.synced, tail.begun);
    Ok(Replayed { state, journal_name, begun, journal, synced, has_synced })
}

/// The end of the part of a journal that was read.
#[derive(Clone)]
pub(super) struct Tail {
    path: PathBuf,
    /// The uid of the store.
    pub(super) uid: String,
    is_there: bool,
    end: u64,
    sequence: u64,
    synced: bool,
    /// Whether it has any synced Commit.
    begun: bool,
}

impl Tail {
    pub(super) fn new(folder: &Path, meta: &Meta) -> Result<Self> {
        let name = &meta.journal;
        // The name must be that of a file in the store's own folder.
        if name.contains(['/', '\0']) || name.starts_with('.') || name.is_empty() {
            return Err(Error::Corrupt(format!(
                "`meta.json` has an invalid journal name {name:?}"
            )));
        }
        Ok(Self {
            path: folder.join(name),
            uid: meta.uid.clone(),
            is_there: false,
            end: 0,
            sequence: 0,
            synced: true,
            begun: false,
        })
    }

    /// Checks that the journal has a synced Commit if `meta.json` records one; else `Corrupt`.
    pub(super) fn check(&self, meta: &Meta) -> Result<()> {
        if self.begun || !meta.begun {
            return Ok(());
        }
        let text = if self.is_there {
            "the journal is truncated: synced records are missing"
        } else {
            "the journal is missing"
        };
        Err(self.about(Error::Corrupt(text.into())))
    }

    /// Applies further groups, up to the sequence number `until`, and returns the new state; `None`
    /// if there are no further groups.
    pub(super) fn read_on(
        &mut self,
        files: &Files,
        state: &State,
        until: Option<u64>,
    ) -> Result<Option<State>> {
        let mut records = match Journal::read_from(&self.path, self.end, self.sequence) {
            Err(error) if error.kind() == "not-found" => return Ok(None),
            records => records?,
        };
        self.is_there = true;
        (self.end, self.sequence) = (records.position(), records.sequence());
        let synced = self.last_synced(&mut records)?;
        self.begun |= synced.is_some();
        records.rewind(self.end, self.sequence)?;
        let mut next: Option<State> = None;
        let mut group = Group::default();
        let mut bytes = Bytes::default();
        loop {
            // Damage before the last synced Commit is an error.
            let sure = synced.is_some_and(|last| records.sequence() <= last);
            let Some(record) = records.next_record()? else { break };
            let current = next.as_ref().unwrap_or(state);
            let checked = match JournalRecord::parse(record) {
                Ok(JournalRecord::Op(op)) => {
                    group.push(op, record);
                    continue;
                }
                Ok(JournalRecord::Commit(commit)) if until.is_some_and(|u| commit.sequence > u) => {
                    break;
                }
                Ok(JournalRecord::Commit(commit)) => {
                    let verified = group.check(current, &commit).and_then(|()| {
                        if sure {
                            Ok(())
                        } else {
                            bytes.verify(files, current, &group.ops, &commit)
                        }
                    });
                    verified.map(|()| commit)
                }
                Err(error) => Err(Bad::Group(error)),
            };
            let commit = match checked {
                Ok(commit) => commit,
                Err(Bad::Group(error)) if sure => return Err(self.about(error)),
                Err(Bad::Group(_)) => break,
                Err(Bad::Store(error)) => return Err(error),
            };
            let target = next.get_or_insert_with(|| state.clone());
            for op in group.ops.drain(..) {
                target.apply(&op);
            }
            target.commit(&commit.chunks, commit.sequence);
            group = Group::default();
            (self.end, self.sequence) = (records.position(), records.sequence());
            self.synced = commit.synced;
        }
        Ok(next)
    }

    /// Returns the number of the last synced Commit. A damaged record before it is an error.
    fn last_synced(&self, records: &mut journal::JournalReader) -> Result<Option<u64>> {
        let mut last = None;
        while let Some(record) = records.next_record()? {
            if is_synced(record) {
                last = Some(records.sequence() - 1);
            }
        }
        if records.find_after(&mut |record| is_synced(record))? {
            let text = format!("the journal record at offset {} is damaged", records.position());
            return Err(self.about(Error::Corrupt(text)));
        }
        Ok(last)
    }

    fn about(&self, error: Error) -> Error {
        error.in_file(&self.path)
    }
}

fn is_synced(record: &[u8]) -> bool {
    matches!(JournalRecord::parse(record), Ok(JournalRecord::Commit(Commit { synced: true, .. })))
}

/// Why a group is not valid.
enum Bad {
    /// The group itself is damaged.
    Group(Error),
    /// Something before it is damaged or cannot be read.
    Store(Error),
}

type Checked = std::result::Result<(), Bad>;

impl From<Error> for Bad {
    fn from(error: Error) -> Self {
        match error {
            Error::Corrupt(_) => Self::Group(error),
            other => Self::Store(other),
        }
    }
}

/// The operations since the last Commit.
#[derive(Default)]
struct Group {
    ops: Vec<Op>,
    crc: Crc32c,
}

impl Group {
    fn push(&mut self, op: Op, record: &[u8]) {
        self.ops.push(op);
        self.crc.update(record);
    }

    fn check(&self, state: &State, commit: &Commit) -> Checked {
        if (self.ops.len(), self.crc.value()) != (commit.ops as usize, commit.crc) {
            let text = format!(
                "the journal is damaged: the changes of commit {} are incomplete",
                commit.sequence
            );
            return Err(Bad::Group(Error::Corrupt(text)));
        }
        Ok(state.check(&self.ops, commit)?)
    }
}

/// Verifies the bytes that groups added to chunks, each byte once.
#[derive(Default)]
struct Bytes {
    dense: HashMap<u32, Running>,
}

/// The checksum of the last block of a dense chunk, up to a position.
struct Running {
    position: u64,
    crc: Crc32c,
}

impl Bytes {
    fn verify(&mut self, files: &Files, state: &State, ops: &[Op], commit: &Commit) -> Checked {
        self.try_verify(files, state, ops, commit).inspect_err(|_| {
            // The chunks of a discarded group may be written again with other bytes.
            files.forget(commit.chunks.iter().map(|position| position.chunk));
        })
    }

    fn try_verify(&mut self, files: &Files, state: &State, ops: &[Op], commit: &Commit) -> Checked {
        let mut chunks: HashMap<u32, (Arc<Chunk>, u64, Window)> = HashMap::new();
        for position in &commit.chunks {
            let number = position.chunk;
            let before = state.chunks.get(&number);
            let kind = before.map(|chunk| chunk.kind).or_else(|| kind_of(state, ops, number));
            let Some(kind) = kind else {
                return Err(Bad::Group(Error::Corrupt(format!(
                    "the journal writes to chunk {number}, which does not exist"
                ))));
            };
            // A chunk that existed before must still exist.
            let chunk = files.chunk(&state.uid, number, kind);
            let chunk = if before.is_some() { chunk.map_err(Bad::Store)? } else { chunk? };
            chunk.check_size(position.position)?;
            if matches!(kind, ChunkKind::Dense { .. }) {
                let start = before.map_or((PAGE, 0), |chunk| (chunk.position, chunk.tail));
                self.dense(&chunk, start, position)?;
            } else {
                // Records are verified below; the bytes between them must have arrived too.
                let start = before.map_or(PAGE, |chunk| chunk.position);
                chunk.check_records(start..position.position, &mut |_, _, _| Ok(()))?;
            }
            chunks.insert(number, (chunk, position.position, Window::default()));
        }
        let mut verify = |field: u16, entry: &Entry| match chunks.get_mut(&entry.chunk) {
            Some((chunk, end, window))
                if !entry.is_missing() && !chunk.has_record(entry.offset) =>
            {
                chunk.verify_record(*entry, field, *end, window)
            }
            // The record is older than the group.
            _ => Ok(()),
        };
        for op in ops {
            match op {
                Op::Append { fields, .. } => {
                    for (field, how) in fields {
                        if let AppendedValues::Entries(entries) = how {
                            entries.iter().try_for_each(|entry| verify(*field, entry))?;
                        }
                    }
                }
                Op::Change { fields, .. } => {
                    fields.iter().try_for_each(|(field, entry)| verify(*field, entry))?;
                }
                Op::Chunk { .. } | Op::Delete { .. } => {}
            }
        }
        Ok(())
    }

    fn dense(&mut self, chunk: &Chunk, (start, tail): (u64, u32), to: &Position) -> Checked {
        let mut buffer = vec![0; BLOCK as usize];
        let running = match self.dense.entry(to.chunk) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                let inside = (start - PAGE) % BLOCK;
                let part = &mut buffer[..inside as usize];
                chunk.read(start - inside, part).map_err(Bad::Store)?;
                let mut crc = Crc32c::default();
                crc.update(part);
                if inside > 0 && crc.value() != tail {
                    return Err(Bad::Store(chunk.bad_block((start - PAGE) / BLOCK)));
                }
                free.insert(Running { position: start, crc })
            }
        };
        while running.position < to.position {
            let inside = running.position - PAGE;
            let block = inside / BLOCK;
            let bytes = (BLOCK - inside % BLOCK).min(to.position - running.position);
            let part = &mut buffer[..bytes as usize];
            chunk.read(running.position, part)?;
            running.crc.update(part);
            running.position += bytes;
            if (inside + bytes).is_multiple_of(BLOCK) {
                let crc = std::mem::take(&mut running.crc);
                if crc.value() != chunk.block_crc(block)? {
                    return Err(chunk.bad_block(block).into());
                }
                chunk.note_block(block);
            }
        }
        if !(to.position - PAGE).is_multiple_of(BLOCK) {
            if running.crc.value() != to.tail {
                return Err(chunk.bad_block((to.position - PAGE) / BLOCK).into());
            }
            chunk.note_tail(to.position);
        }
        Ok(())
    }
}

/// Returns the kind of a chunk that a group creates.
fn kind_of(state: &State, ops: &[Op], number: u32) -> Option<ChunkKind> {
    ops.iter().find_map(|op| match op {
        Op::Chunk { number: own, field } if *own == number => Some(match field {
            Some(id) => state.field(*id)?.chunk_kind(),
            None => ChunkKind::Heap,
        }),
        _ => None,
    })
}
