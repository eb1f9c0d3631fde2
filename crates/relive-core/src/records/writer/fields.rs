//! Adds and drops fields and sets dictionaries, each with a checkpoint.

use std::sync::Arc;

use super::{Writer, push_column};
use crate::codec::{Codec, Dictionary};
use crate::latch::RecordIn;
use crate::records::files::write_dictionary;
use crate::records::journal_records::AppendedValues;
use crate::records::layout::{Entry, file_name};
use crate::records::state::{FieldSpec, FieldState, State};
use crate::records::value::Column;
use crate::{Error, Result, durable};

impl Writer {
    /// Adds a field after the others; without `values` they are missing in all records.
    ///
    /// When the call returns, the field and all its values are synced; on an error there is no
    /// new field.
    pub fn add_field(&mut self, spec: FieldSpec, values: Option<&Column<'_>>) -> Result<()> {
        self.check_open()?;
        spec.check()?;
        if self.state.column(&spec.name).is_some() {
            return Err(Error::Invalid(format!("field {:?} already exists", spec.name)));
        }
        let id = self.state.next_field;
        let next_field = id.checked_add(1).ok_or_else(|| {
            Error::TooLarge(
                "cannot add a field: the record store has used all 2^16 - 1 field ids".into(),
            )
        })?;
        self.sync()?;
        let before = Arc::clone(&self.state);
        let mut state = State::clone(&before);
        let spec = Arc::new(FieldSpec { id, ..spec });
        state.next_field = next_field;
        state.fields.push(FieldState::new(spec, state.chunk_records, state.chunk_bytes));
        self.state = Arc::new(state);
        let column = before.fields.len();
        let added = self.add_column(column);
        let values = values.unwrap_or(&Column::Missing);
        let length = self.length;
        if let Err(error) = added.and_then(|()| self.check_column(column, length, values)) {
            self.encoders.truncate(column);
            self.dense.truncate(column);
            self.state = before;
            return Err(error);
        }
        self.sequence += 1;
        let state = self.fill(column, values).record_in(&self.failure)?;
        self.install(state)
    }

    /// Returns the state with values for all rows of a new field.
    fn fill(&mut self, column: usize, values: &Column<'_>) -> Result<State> {
        let rows = self.length;
        let mut slots = None;
        match &mut self.dense[column] {
            Some(dense) => push_column(dense, values, &mut || self.numbers.take())?,
            None => slots = Some(self.put_column(column, rows, values)?),
        }
        let (created, entries) = self.drain_chunks()?;
        let mut state = State::clone(&self.state);
        created.iter().for_each(|op| state.apply(op));
        let field = &mut state.fields[column];
        match (slots, values) {
            (_, Column::Missing) => {}
            (Some(slots), _) => {
                let entry = |slot: Option<usize>| slot.and_then(|slot| entries.get(slot)).copied();
                let entry = |slot| entry(slot).unwrap_or(Entry::MISSING);
                let entries = slots.into_iter().map(entry).collect();
                field.append(0, rows, &AppendedValues::Entries(entries));
            }
            (None, Column::Rows(values)) => {
                let present = (0..).zip(*values).filter(|(_, value)| !value.is_missing());
                present.for_each(|(row, _)| field.append(row, 1, &AppendedValues::Dense));
            }
            (None, Column::Fixed(_)) => field.append(0, rows, &AppendedValues::Dense),
        }
        Ok(state)
    }

    /// Drops a field from all records.
    pub fn drop_field(&mut self, name: &str) -> Result<()> {
        self.check_open()?;
        let Some(column) = self.state.column(name) else {
            return Err(Error::Invalid(format!("the record store has no field {name:?}")));
        };
        if self.state.fields.len() == 1 {
            return Err(Error::Invalid(format!(
                "cannot drop field {name:?}: it is the only field"
            )));
        }
        self.sync()?;
        let mut state = State::clone(&self.state);
        let field = state.fields.remove(column);
        for number in &field.chunks {
            state.chunks.remove(number);
        }
        self.sequence += 1;
        self.install(state)
    }

    /// Compresses new values of a zstd field with a dictionary. Existing values do not change.
    pub fn set_dictionary(&mut self, column: usize, dictionary: Vec<u8>) -> Result<()> {
        self.check_open()?;
        self.check_columns_have(column)?;
        let spec = Arc::clone(&self.state.fields[column].spec);
        if spec.codec != Codec::Zstd {
            return Err(Error::Invalid(format!(
                "field {:?} has codec {}, but a dictionary requires codec zstd",
                spec.name, spec.codec
            )));
        }
        let dictionary = Dictionary::new(dictionary)?;
        self.sync()?;
        let mut state = State::clone(&self.state);
        let name = format!("{}.{}.dict", file_name(&spec.name, spec.id), state.generation + 1);
        let path = self.folder.join(&name);
        // No state names this file, so it can only be left by a writer that crashed here.
        durable::remove(&path)
            .and_then(|()| write_dictionary(&path, dictionary.bytes()))
            .record_in(&self.failure)?;
        state.fields[column].dictionaries.push(name);
        self.install(state)
    }
}
