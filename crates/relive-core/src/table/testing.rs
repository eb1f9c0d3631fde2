//! Rows for tests: counted out by a reader that keeps a record of its calls, or in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::{Column, ColumnShape, Out, Reader, Table};
use crate::error::{Error, Result};
use crate::gather::{Owner, RaggedRows, Rows};

/// What a row looks like: `width` bytes that repeat its number, and `number % 4` items of two
/// bytes, each the number.
pub(crate) fn fixed(number: u64, width: usize) -> Vec<u8> {
    (number as u32).to_le_bytes().into_iter().cycle().take(width).collect()
}

/// The ragged column of the same row.
pub(crate) fn ragged(number: u64) -> Vec<u8> {
    (number as u16).to_le_bytes().repeat(number as usize % 4)
}

/// The rows from `first` on, made when they are read.
pub(crate) struct Counted {
    pub(crate) first: u64,
    pub(crate) len: u64,
    shapes: Vec<ColumnShape>,
    width: usize,
    /// Rows that are corrupt, that panic when they are read or measured, and that claim to
    /// fill all memory.
    pub(crate) corrupt: Vec<u64>,
    pub(crate) panics: Option<u64>,
    pub(crate) unmeasured: Option<u64>,
    pub(crate) endless: Option<u64>,
    pub(crate) refuses: bool,
    /// The fixed column as memory, from the moment on that somebody sets it.
    pub(crate) direct: OnceLock<Rows>,
    /// Bytes that the rows pretend to be stored in, four for each.
    pub(crate) stored: Option<Vec<u8>>,
    pub(crate) begins: AtomicUsize,
    /// Rows and columns of each call.
    pub(crate) calls: Mutex<Vec<(Vec<u64>, Vec<usize>)>>,
}

impl Counted {
    pub(crate) fn new(first: u64, len: u64, width: usize, with_ragged: bool) -> Self {
        let mut shapes = vec![ColumnShape::Fixed { row_bytes: width }];
        if with_ragged {
            shapes.push(ColumnShape::Ragged { item_bytes: 2 });
        }
        Self {
            first,
            len,
            shapes,
            width,
            corrupt: Vec::new(),
            panics: None,
            unmeasured: None,
            endless: None,
            refuses: false,
            direct: OnceLock::new(),
            stored: None,
            begins: AtomicUsize::new(0),
            calls: Mutex::default(),
        }
    }

    pub(crate) fn table(self) -> (Arc<Self>, Table) {
        let reader = Arc::new(self);
        let table = Table::from_reader(Arc::clone(&reader) as Arc<dyn Reader>).unwrap();
        (reader, table)
    }

    /// Lets the fixed column be memory from now on.
    pub(crate) fn turn_direct(&self) {
        let rows = fixed_rows(self.first, self.len, self.width);
        assert!(self.direct.set(rows).is_ok());
    }

    /// The calls since this was asked last.
    pub(crate) fn take_calls(&self) -> Vec<(Vec<u64>, Vec<usize>)> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Reader for Counted {
    fn len(&self) -> u64 {
        self.len
    }

    fn columns(&self) -> &[ColumnShape] {
        &self.shapes
    }

    fn items(&self, column: usize, row: u64) -> usize {
        assert!(column == 1 && row < self.len && self.unmeasured != Some(row));
        if self.endless == Some(row) {
            return usize::MAX / 2;
        }
        (self.first + row) as usize % 4
    }

    fn begin(&self) -> Result<()> {
        self.begins.fetch_add(1, Ordering::Relaxed);
        if self.refuses {
            return Err(Error::Corrupt("the file was cut".into()));
        }
        Ok(())
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        assert!(self.begins.load(Ordering::Relaxed) > 0);
        let columns = outs.iter().map(|out| out.column).collect();
        self.calls.lock().unwrap().push((rows.to_vec(), columns));
        for (j, &row) in rows.iter().enumerate() {
            assert!(row < self.len && self.panics != Some(row));
            if self.corrupt.contains(&row) {
                return Err(Error::Corrupt(format!("row {row} is corrupt")));
            }
            for out in outs {
                let number = self.first + row;
                let bytes =
                    if out.column == 0 { fixed(number, self.width) } else { ragged(number) };
                let room = out.room.get(j).copied().unwrap_or(self.width);
                assert_eq!(room, bytes.len(), "the room that was asked for");
                // SAFETY: the caller promises room for the row.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.at[j], bytes.len()) };
            }
        }
        Ok(())
    }

    fn rows(&self, column: usize) -> Option<&Rows> {
        self.direct.get().filter(|_| column == 0)
    }

    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        let stored = self.stored.as_ref().filter(|_| column == 0)?;
        Some((&raw const stored[4 * row as usize], 4))
    }
}

/// The fixed column of the rows from `first` on, in memory.
fn fixed_rows(first: u64, len: u64, width: usize) -> Rows {
    let values: Arc<Vec<u8>> =
        Arc::new((first..first + len).flat_map(|k| fixed(k, width)).collect());
    // SAFETY: the rows own the bytes they describe.
    let rows = unsafe {
        let owner = Arc::clone(&values) as Owner;
        Rows::new(values.as_ptr(), len as usize, width as isize, &[(width, 1)], 1, owner)
    };
    rows.unwrap()
}

/// The rows from `first` on, in memory.
pub(crate) fn in_memory(first: u64, len: u64, width: usize, with_ragged: bool) -> Table {
    let numbers = first..first + len;
    let mut columns = vec![Column::Fixed(fixed_rows(first, len, width))];
    if with_ragged {
        let mut offsets = vec![0];
        let items: Arc<Vec<u8>> = Arc::new(numbers.clone().flat_map(ragged).collect());
        offsets.extend(numbers.scan(0, |end, number| {
            *end += number as i64 % 4;
            Some(*end)
        }));
        // SAFETY: as above.
        let rows = unsafe {
            let owner = Arc::clone(&items) as Owner;
            RaggedRows::new(items.as_ptr(), items.len() / 2, 2, offsets.into(), owner)
        };
        columns.push(Column::Ragged(rows.unwrap()));
    }
    Table::new(columns).unwrap()
}
