//! The interface of sources whose rows are verified, decoded, computed or fetched on reading.

use crate::error::Result;
use crate::gather::Rows;

/// The shape of a gathered column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnShape {
    /// Rows of one size.
    Fixed {
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Rows that differ in length.
    Ragged {
        /// Bytes of an item; a row has any number of items.
        item_bytes: usize,
    },
}

impl ColumnShape {
    /// Returns the bytes of a row of a fixed column, or of an item of a ragged one.
    pub(crate) fn unit_bytes(self) -> usize {
        match self {
            Self::Fixed { row_bytes } => row_bytes,
            Self::Ragged { item_bytes } => item_bytes,
        }
    }
}

/// The destination of one column: row `rows[j]` of the call is written to `at[j]`.
pub struct Out<'a> {
    /// The column.
    pub column: usize,
    /// One address for each row.
    pub at: &'a [*mut u8],
    /// For a ragged column the bytes of each row, from [`Reader::items`] when memory was laid out.
    /// Empty for a fixed column, whose rows have `row_bytes`.
    pub room: &'a [usize],
}

/// Rows that are produced on reading. Implementations are thread-safe.
///
/// The results of `len`, `columns` and `items` never change, since memory is laid out by them
/// before rows are read.
pub trait Reader: Send + Sync {
    /// Returns the number of rows.
    fn len(&self) -> u64;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shape of each column.
    fn columns(&self) -> &[ColumnShape];

    /// Returns the number of items of a row in a ragged column. All passed rows are below `len`.
    fn items(&self, column: usize, row: u64) -> usize;

    /// Called some rows before [`items`](Self::items), to prefetch what it reads.
    fn prefetch(&self, column: usize, row: u64) {
        let _ = (column, row);
    }

    /// Called before [`items`](Self::items) of the rows of a batch.
    fn before_items(&self) -> Result<()> {
        Ok(())
    }

    /// Called once for each batch that has rows of this reader, before they are read.
    fn begin(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the rows of all wanted columns to their destinations: exactly `row_bytes` or
    /// `items * item_bytes` each. Rows may be in any order and may repeat. An error names the row;
    /// the destinations are then undefined.
    ///
    /// # Safety
    /// Every `at` has one address for each of `rows`, with room for that row, which nothing else
    /// accesses until the call returns.
    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()>;

    /// Returns a fixed column as rows in memory, if they need no further work: `len` rows of
    /// `row_bytes`. Once returned they stay valid.
    fn rows(&self, column: usize) -> Option<&Rows> {
        let _ = column;
        None
    }

    /// Returns address and size of the stored bytes of a row's column in memory, for advice to the
    /// kernel; `None` if they are not in memory. A reader that stores all columns of a row
    /// together returns them for column 0 only.
    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        let _ = (column, row);
        None
    }
}
