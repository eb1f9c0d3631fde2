//! Between what `meta.json` says and what a store holds.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use super::{ChunkState, Extent, Extents, FieldSpec, FieldState, State};
use crate::records::layout::{ChunkKind, PAGE, is_dense};
use crate::records::meta::{Chunks, Field, Meta};
use crate::{Error, Result};

impl State {
    /// What `meta.json` says.
    pub(crate) fn from_meta(meta: &Meta) -> Result<Self> {
        let damaged =
            |what: String| Error::Corrupt(format!("`meta.json` is damaged: invalid {what}"));
        let uid = parse_uid(&meta.uid)
            .ok_or_else(|| damaged("`uid`, expected 32 hexadecimal digits".into()))?;
        let mut chunks = BTreeMap::new();
        for &(number, position, records, tail) in meta.chunks.full.iter().chain(&meta.chunks.unfull)
        {
            let chunk = ChunkState { kind: ChunkKind::Heap, position, records, tail };
            let fits = number < meta.chunks.next && position >= PAGE;
            if !fits || chunks.insert(number, chunk).is_some() {
                return Err(damaged(format!("entry of chunk {number}")));
            }
        }
        let mut fields: Vec<FieldState> = Vec::with_capacity(meta.fields.len());
        let mut owned = 0;
        for field in &meta.fields {
            let found = field_state(field, meta.length)
                .map_err(|error| error.about(format!("`meta.json`, field {:?}", field.name)))?;
            let known = |other: &FieldState| {
                other.spec.id == found.spec.id || other.spec.name == found.spec.name
            };
            if fields.iter().any(known) || field.id >= meta.next_field {
                return Err(damaged(format!("id or name of field {:?}", field.name)));
            }
            for number in &found.chunks {
                let chunk = chunks.get_mut(number).filter(|chunk| chunk.kind == ChunkKind::Heap);
                let chunk = chunk.ok_or_else(|| damaged(format!("entry of chunk {number}")))?;
                chunk.kind = found.chunk_kind();
                owned += 1;
            }
            fields.push(found);
        }
        let heap = |number: &u32| chunks.get(number).is_some_and(|c| c.kind == ChunkKind::Heap);
        if !meta.heap.iter().all(heap) || meta.heap.len() + owned != chunks.len() {
            return Err(damaged("list of heap chunks".into()));
        }
        if i64::try_from(meta.length).is_err() {
            return Err(damaged(format!("length {}", meta.length)));
        }
        Ok(Self {
            uid,
            generation: meta.generation,
            sequence: meta.sequence,
            length: meta.length,
            next_chunk: meta.chunks.next,
            next_field: meta.next_field,
            chunk_records: meta.chunks.size,
            chunk_bytes: meta.chunks.bytes,
            chunks,
            fields,
        })
    }

    /// What `meta.json` will say: all rows must be in tables or extents.
    pub(crate) fn to_meta(&self, journal: &str) -> Meta {
        let (format, version) = Meta::names();
        let line = |(&number, chunk): (&u32, &ChunkState)| {
            (number, chunk.position, chunk.records, chunk.tail)
        };
        let (full, unfull): (Vec<_>, Vec<_>) =
            self.chunks.iter().partition(|(_, chunk)| self.is_full(chunk));
        let heap = self.chunks.iter().filter(|(_, chunk)| chunk.kind == ChunkKind::Heap);
        Meta {
            format,
            version,
            uid: self.uid.iter().map(|byte| format!("{byte:02x}")).collect(),
            generation: self.generation,
            sequence: self.sequence,
            length: self.length,
            journal: journal.into(),
            begun: false,
            heap: heap.map(|(&number, _)| number).collect(),
            next_field: self.next_field,
            chunks: Chunks {
                num: self.chunks.len() as u64,
                size: self.chunk_records,
                bytes: self.chunk_bytes,
                next: self.next_chunk,
                full: full.into_iter().map(line).collect(),
                unfull: unfull.into_iter().map(line).collect(),
            },
            fields: self.fields.iter().map(to_field).collect(),
            of: None,
        }
    }

    /// Whether nothing more is written to a chunk.
    pub fn is_full(&self, chunk: &ChunkState) -> bool {
        match chunk.kind {
            ChunkKind::Dense { rows, .. } => chunk.records >= rows,
            ChunkKind::Heap => {
                chunk.position >= self.chunk_bytes
                    || self.chunk_records.is_some_and(|most| chunk.records >= most)
            }
        }
    }
}

fn parse_uid(text: &str) -> Option<[u8; 16]> {
    let mut uid = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in uid.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(uid)
}

fn field_state(field: &Field, length: u64) -> Result<FieldState> {
    let damaged = |what: &str| Error::Corrupt(format!("invalid {what}"));
    let spec = FieldSpec {
        id: field.id,
        name: field.name.clone(),
        dtype: field.dtype.clone(),
        shape: field.shape.clone(),
        kind: field.kind.parse()?,
        ragged: field.ragged,
        codec: field.compress.parse()?,
        level: field.level,
        bytes: field.bytes,
    };
    spec.check()?;
    let dense = spec.is_dense();
    if dense != is_dense(field.bytes, field.rows) || (!dense && !field.chunks.is_empty()) {
        return Err(damaged("number of rows in a chunk"));
    }
    let room = field.rows.checked_mul(field.chunks.len() as u64);
    if room.is_none_or(|room| field.physical > room) {
        return Err(damaged("number of physical rows"));
    }
    let extent = |&(logical, physical, rows): &(u64, u64, u64)| Extent { logical, physical, rows };
    let extents = field.extents.iter().map(extent).collect();
    let extents = Extents::checked(extents, length, field.physical)
        .filter(|extents| dense || extents.all().is_empty())
        .ok_or_else(|| damaged("list of extents"))?;
    let tabled = field.table.as_ref().map_or(0, |(_, rows)| *rows);
    if tabled > length || extents.all().first().is_some_and(|first| first.logical < tabled) {
        return Err(damaged("number of rows in the table file"));
    }
    for name in field.table.iter().map(|(name, _)| name).chain(&field.dictionaries) {
        // A name is of a file in the store, and leads nowhere else.
        if name.contains(['/', '\0']) || name.starts_with('.') || name.is_empty() {
            return Err(damaged("file name"));
        }
    }
    Ok(FieldState {
        spec: Arc::new(spec),
        rows_per_chunk: field.rows,
        chunks: field.chunks.clone(),
        physical: field.physical,
        table: field.table.clone(),
        dictionaries: field.dictionaries.clone(),
        tabled,
        extents,
        entries: Vec::new(),
        changes: HashMap::default(),
    })
}

fn to_field(state: &FieldState) -> Field {
    let spec = &state.spec;
    let line = |extent: &Extent| (extent.logical, extent.physical, extent.rows);
    let extents = if spec.is_dense() { state.extents.all() } else { &[] };
    Field {
        id: spec.id,
        name: spec.name.clone(),
        dtype: spec.dtype.clone(),
        shape: spec.shape.clone(),
        kind: spec.kind.name().into(),
        ragged: spec.ragged,
        compress: spec.codec.name().into(),
        level: spec.level,
        bytes: spec.bytes,
        rows: state.rows_per_chunk,
        chunks: state.chunks.clone(),
        physical: state.physical,
        extents: extents.iter().map(line).collect(),
        table: state.table.clone(),
        dictionaries: state.dictionaries.clone(),
    }
}

impl FieldState {
    /// The same rows, all of them in this table.
    pub fn in_table(&self, name: String, rows: u64) -> Self {
        Self {
            table: Some((name, rows)),
            tabled: rows,
            extents: Extents::default(),
            entries: Vec::new(),
            changes: HashMap::default(),
            ..self.clone()
        }
    }
}
