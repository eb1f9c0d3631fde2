//! Rows that are made when they are read: checked, decoded, computed, fetched.

use crate::error::Result;
use crate::gather::Rows;

/// What a column looks like once it is gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnShape {
    /// Rows of one size.
    Fixed {
        /// Bytes of a row.
        row_bytes: usize,
    },
    /// Rows of differing length.
    Ragged {
        /// Bytes of an item; a row has any number of them.
        item_bytes: usize,
    },
}

impl ColumnShape {
    /// Bytes of a row of a fixed column, or of an item of a ragged one.
    pub(crate) fn unit_bytes(self) -> usize {
        match self {
            Self::Fixed { row_bytes } => row_bytes,
            Self::Ragged { item_bytes } => item_bytes,
        }
    }
}

/// Where the rows of one column go: row `rows[j]` of the call to `at[j]`.
pub struct Out<'a> {
    /// Which column.
    pub column: usize,
    /// One address for each row.
    pub at: &'a [*mut u8],
    /// Bytes that each row has there, of a ragged column: what [`Reader::items`] said when
    /// memory was laid out. Empty for a fixed column, whose rows have `row_bytes`.
    pub room: &'a [usize],
}

/// Rows that are made when they are read.
///
/// What `len`, `columns` and `items` say never changes: memory is laid out by it before
/// rows are read. Calls come from several threads at once.
pub trait Reader: Send + Sync {
    /// The number of rows.
    fn len(&self) -> u64;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each column looks like.
    fn columns(&self) -> &[ColumnShape];

    /// Items of a row in a ragged column. Rows given here and below are below `len`.
    fn items(&self, column: usize, row: u64) -> usize;

    /// Told a few rows before [`items`](Self::items) is asked for, so that what says it can be
    /// brought near.
    fn near(&self, column: usize, row: u64) {
        let _ = (column, row);
    }

    /// Called before the items of rows of a batch are asked for.
    fn before_items(&self) -> Result<()> {
        Ok(())
    }

    /// Called once for each batch that has rows of this reader, before any is read.
    fn begin(&self) -> Result<()> {
        Ok(())
    }

    /// Writes the rows to their places, all wanted columns at once: exactly `row_bytes` for
    /// each, or `items * item_bytes`. Rows come in any order and may repeat. An error names
    /// the row; what was written is then of no use.
    ///
    /// # Safety
    /// Every `at` has one address for each of `rows`, with room for that row, which nobody
    /// else touches until the call returns.
    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()>;

    /// A fixed column as rows in memory, where nothing needs to be done for them any more.
    /// They are `len` rows of `row_bytes`; once they are there, they stay.
    fn rows(&self, column: usize) -> Option<&Rows> {
        let _ = column;
        None
    }

    /// Where the stored bytes of a row lie in memory, for advice to the kernel; none when
    /// they are not in memory.
    fn piece(&self, row: u64) -> Option<(*const u8, usize)> {
        let _ = row;
        None
    }

    /// The same for one column, where a reader has the columns of a row in different places;
    /// others have all of them under column 0.
    fn piece_of(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        if column == 0 { self.piece(row) } else { None }
    }
}
