//! What a writer refuses before it does anything.

use super::Writer;
use crate::codec::Codec;
use crate::records::lane::Lanes;
use crate::records::state::{FieldSpec, Kind};
use crate::records::value::{Column, Value};
use crate::{Error, Result};

impl Writer {
    pub(super) fn check_open(&self) -> Result<()> {
        if self.lock.is_none() {
            return Err(Error::Closed(format!("`{}` is closed", self.folder.display())));
        }
        self.failure.check()
    }

    pub(super) fn check_columns(&self, given: usize) -> Result<()> {
        let fields = self.state.fields.len();
        if given == fields {
            return Ok(());
        }
        Err(Error::Invalid(format!("{given} values for {fields} fields")))
    }

    pub(super) fn check_columns_have(&self, column: usize) -> Result<()> {
        let fields = self.state.fields.len();
        if column < fields {
            return Ok(());
        }
        Err(Error::OutOfRange(format!("field {column} of {fields}")))
    }

    pub(super) fn check_row(&self, row: u64) -> Result<()> {
        if row < self.length {
            return Ok(());
        }
        let length = self.length;
        Err(Error::OutOfRange(format!("row {row} is outside of the {length} records there are")))
    }

    pub(super) fn check_value(&self, column: usize, value: Value<'_>) -> Result<()> {
        let spec = &self.state.fields[column].spec;
        let (bytes, dims) = match value {
            Value::Missing => return Ok(()),
            // Only a rebalance gives those, of the same store.
            Value::Stored { codec, .. } if codec != Codec::Raw => return Ok(()),
            Value::Bytes { bytes, dims } | Value::Stored { bytes, dims, .. } => (bytes, dims),
        };
        fits(spec, bytes, dims)?;
        if spec.is_dense() {
            return Ok(());
        }
        Lanes::check(&self.encoders[column], bytes.len(), dims.len())
            .map_err(|error| error.about(format!("field {:?}", spec.name)))
    }

    pub(super) fn check_column(&self, column: usize, rows: u64, values: &Column<'_>) -> Result<()> {
        let spec = &self.state.fields[column].spec;
        let wrong = |what: String| Err(Error::Invalid(format!("field {:?}: {what}", spec.name)));
        match values {
            Column::Missing => Ok(()),
            Column::Fixed(_) if spec.kind != Kind::Fixed => wrong("values differ in size".into()),
            Column::Fixed(bytes) if spec.bytes.checked_mul(rows) != Some(bytes.len() as u64) => {
                wrong(format!("{} bytes are not {rows} values of {}", bytes.len(), spec.bytes))
            }
            Column::Fixed(_) => Ok(()),
            Column::Rows(values) if values.len() as u64 != rows => {
                wrong(format!("{} values for {rows} records", values.len()))
            }
            Column::Rows(values) => {
                values.iter().try_for_each(|&value| self.check_value(column, value))
            }
        }
    }
}

/// Refuses bytes that are no value of the field.
fn fits(spec: &FieldSpec, bytes: &[u8], dims: &[u64]) -> Result<()> {
    let wrong = |what: String| Err(Error::Invalid(format!("field {:?}: {what}", spec.name)));
    let length = bytes.len() as u64;
    if dims.len() != spec.dims() {
        return wrong(format!("{} dimensions, and {} vary", dims.len(), spec.dims()));
    }
    match spec.kind {
        Kind::Fixed if length != spec.bytes => {
            wrong(format!("a value of {length} bytes, and {} are needed", spec.bytes))
        }
        Kind::Ragged if !dims.is_empty() => {
            let items = dims.iter().try_fold(spec.bytes, |all, &dim| all.checked_mul(dim));
            if items == Some(length) {
                return Ok(());
            }
            wrong(format!("{length} bytes are no array of {dims:?} items of {}", spec.bytes))
        }
        Kind::Ragged
            if !length.is_multiple_of(spec.bytes.max(1)) || (spec.bytes == 0 && length > 0) =>
        {
            wrong(format!("{length} bytes are no whole items of {}", spec.bytes))
        }
        Kind::Str if std::str::from_utf8(bytes).is_err() => wrong("it is not UTF-8".into()),
        _ => Ok(()),
    }
}
