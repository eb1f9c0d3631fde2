//! Columns of equal length that are gathered together, and views of them.
//!
//! Rows lie in memory, or a [`Reader`] makes them when they are read, which may fail.

mod copy;
mod map;
mod reader;

use std::ops::Range;
use std::sync::Arc;

pub use copy::{Target, part_range};
pub use map::Place;
pub use reader::{ColumnShape, Out, Reader};

use self::map::Map;
use crate::error::{Error, Result};
use crate::gather::{RaggedRows, Rows};

/// How many rows ahead a reader is told whose items will be asked for.
const AHEAD: usize = 8;

/// One column of a table in memory.
#[derive(Clone)]
pub enum Column {
    /// Rows of one size.
    Fixed(Rows),
    /// Rows of differing length.
    Ragged(RaggedRows),
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(rows) => rows.len(),
            Self::Ragged(rows) => rows.len(),
        }
    }

    fn shape(&self) -> ColumnShape {
        match self {
            Self::Fixed(rows) => ColumnShape::Fixed { row_bytes: rows.row_bytes() },
            Self::Ragged(rows) => ColumnShape::Ragged { item_bytes: rows.item_bytes() },
        }
    }
}

/// One table as it was first made.
#[derive(Clone)]
enum Leaf {
    Memory(Arc<[Column]>),
    Reader(Arc<dyn Reader>),
}

impl Leaf {
    /// Items of a row in a ragged column.
    fn items(&self, column: usize, row: u64) -> usize {
        match self {
            Self::Memory(columns) => match &columns[column] {
                Column::Ragged(rows) => rows.items(row as usize),
                Column::Fixed(_) => 0,
            },
            Self::Reader(reader) => reader.items(column, row),
        }
    }

    /// The rows of a fixed column, where they lie in memory.
    fn rows(&self, column: usize) -> Option<&Rows> {
        match self {
            Self::Memory(columns) => match &columns[column] {
                Column::Fixed(rows) => Some(rows),
                Column::Ragged(_) => None,
            },
            Self::Reader(reader) => reader.rows(column),
        }
    }

    /// Where the stored bytes of a row lie: those of one column, or, for a reader that keeps
    /// its rows in one piece, all of them under column 0.
    fn piece(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        match self {
            Self::Memory(columns) => Some(match &columns[column] {
                Column::Fixed(rows) => (rows.address(row as usize), rows.row_bytes()),
                Column::Ragged(rows) => {
                    let row = row as usize;
                    (rows.address(row), rows.items(row) * rows.item_bytes())
                }
            }),
            Self::Reader(reader) => reader.piece_of(column, row),
        }
    }
}

/// Columns of equal length, or a view of such tables. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    leaves: Vec<Leaf>,
    /// All leaves are alike in this.
    shapes: Arc<[ColumnShape]>,
    /// Whether some leaf is a reader.
    reads: bool,
    map: Arc<Map>,
    len: u64,
}

impl Table {
    /// A table of columns in memory; they must be equally long.
    pub fn new(columns: Vec<Column>) -> Result<Self> {
        let len = columns.first().map_or(0, Column::len);
        if let Some((number, other)) = (0..).zip(&columns).find(|(_, column)| column.len() != len) {
            let number: usize = number;
            return Err(Error::Invalid(format!(
                "column {number} has {} rows, column 0 has {len}",
                other.len()
            )));
        }
        let shapes = columns.iter().map(Column::shape).collect();
        Ok(Self::of_leaf(Leaf::Memory(columns.into()), shapes, len as u64))
    }

    /// A table of rows that are made when they are read.
    pub fn from_reader(reader: Arc<dyn Reader>) -> Result<Self> {
        let len = reader.len();
        if i64::try_from(len).is_err() {
            return Err(Error::TooLarge(format!("{len} rows are more than can be counted")));
        }
        let shapes: Arc<[ColumnShape]> = reader.columns().into();
        if shapes.iter().any(|shape| isize::try_from(shape.unit_bytes()).is_err()) {
            return Err(Error::TooLarge("a row has more bytes than memory can hold".into()));
        }
        Ok(Self::of_leaf(Leaf::Reader(reader), shapes, len))
    }

    fn of_leaf(leaf: Leaf, shapes: Arc<[ColumnShape]>, len: u64) -> Self {
        let reads = matches!(leaf, Leaf::Reader(_));
        Self { leaves: vec![leaf], shapes, reads, map: Arc::new(Map::Leaf(0)), len }
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the columns look like.
    pub fn columns(&self) -> &[ColumnShape] {
        &self.shapes
    }

    /// The rows `start`, `start + step`, … (`len` of them).
    pub fn select_range(&self, start: i64, step: i64, len: u64) -> Result<Self> {
        if let Some(steps) = len.checked_sub(1) {
            let last = i128::from(start) + i128::from(step) * i128::from(steps);
            for end in [i128::from(start), last] {
                if end < 0 || end >= i128::from(self.len) {
                    return Err(out_of_range(end, self.len));
                }
            }
        }
        let map = Map::Range { inner: Arc::clone(&self.map), start, step };
        Ok(Self { map: Arc::new(map), len, ..self.clone() })
    }

    /// The given rows, in that order.
    pub fn select(&self, rows: Arc<[i64]>) -> Result<Self> {
        self.check(&rows)?;
        let len = rows.len() as u64;
        let map = Map::Select { inner: Arc::clone(&self.map), rows };
        Ok(Self { map: Arc::new(map), len, ..self.clone() })
    }

    /// All rows of all tables, one table after the other.
    pub fn concat(tables: &[Self]) -> Result<Self> {
        let (joined, maps) = Self::joined(tables)?;
        let mut starts = Vec::with_capacity(tables.len());
        let mut len = 0_u64;
        for table in tables {
            starts.push(len);
            len += table.len;
        }
        // An empty part shares its start with the next one, which `find` then picks.
        let map = Map::Concat { parts: maps, starts };
        Ok(Self { map: Arc::new(map), len, ..joined })
    }

    /// `len` rows that go through the tables in rounds: slot `k` of a round takes the
    /// next row of table `slots[k]`, which starts over at its end.
    pub fn mix(tables: &[Self], slots: &[u32], len: u64) -> Result<Self> {
        let mut per_round = vec![0_u64; tables.len()];
        let mut ranked = Vec::with_capacity(slots.len());
        for &part in slots {
            let Some(count) = per_round.get_mut(part as usize) else {
                return Err(Error::Invalid(format!("slot for table {part} of {}", tables.len())));
            };
            let rank =
                u32::try_from(*count).map_err(|_| Error::TooLarge("too many slots".into()))?;
            ranked.push((part, rank));
            *count += 1;
        }
        let used = |part: usize| per_round.get(part).is_some_and(|&count| count > 0);
        if slots.is_empty() || tables.iter().enumerate().any(|(k, t)| t.is_empty() && used(k)) {
            return Err(Error::Invalid("a mix needs slots, and rows for each of them".into()));
        }
        let (joined, maps) = Self::joined(tables)?;
        let parts = maps.into_iter().zip(tables.iter().map(|table| table.len)).collect();
        let map = Map::Mix { parts, slots: ranked, per_round };
        Ok(Self { map: Arc::new(map), len, ..joined })
    }

    /// The leaves of all tables in one, and the map of each table into those.
    fn joined(tables: &[Self]) -> Result<(Self, Vec<Arc<Map>>)> {
        let alike = |first: &Self| tables.iter().all(|table| table.shapes == first.shapes);
        let Some(first) = tables.first().filter(|first| alike(first)) else {
            return Err(Error::Invalid("tables to be joined must have the same columns".into()));
        };
        let mut joined = Self { leaves: Vec::new(), ..first.clone() };
        let mut maps = Vec::with_capacity(tables.len());
        for table in tables {
            let first = u32::try_from(joined.leaves.len())
                .map_err(|_| Error::TooLarge("too many tables joined into one".into()))?;
            maps.push(table.map.renumbered(first));
            joined.leaves.extend(table.leaves.iter().cloned());
            joined.reads |= table.reads;
        }
        Ok((joined, maps))
    }

    /// Refuses rows that do not exist.
    pub fn check(&self, rows: &[i64]) -> Result<()> {
        // Negative numbers become huge ones, so one comparison finds both.
        let worst = rows.iter().fold(0_u64, |worst, &row| worst.max(row as u64));
        if worst < self.len || rows.is_empty() {
            return Ok(());
        }
        let bad = rows.iter().copied().find(|&row| row as u64 >= self.len);
        Err(out_of_range(i128::from(bad.unwrap_or_default()), self.len))
    }

    /// Finds the given rows; refuses those that do not exist.
    pub fn find(&self, rows: &[i64], places: &mut Vec<Place>) -> Result<()> {
        self.check(rows)?;
        places.clear();
        match &*self.map {
            Map::Leaf(leaf) => {
                places.extend(rows.iter().map(|&row| Place { leaf: *leaf, row: row as u64 }));
            }
            map => places.extend(rows.iter().map(|&row| map.find(row as u64))),
        }
        Ok(())
    }

    /// Whether some column in memory has some of these addresses. What readers read from is
    /// their own, and nobody can write there.
    pub fn overlaps(&self, addresses: &Range<usize>) -> bool {
        let memory = self.leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Memory(columns) => Some(columns),
            Leaf::Reader(_) => None,
        });
        memory.flat_map(|columns| columns.iter()).any(|column| {
            let extent = match column {
                Column::Fixed(rows) => rows.extent(),
                Column::Ragged(rows) => rows.extent(),
            };
            extent.start < addresses.end && addresses.start < extent.end
        })
    }

    /// Whether some rows are not in memory, nor in a file that is mapped there, so that one
    /// waits for them without work to do.
    pub fn is_elsewhere(&self) -> bool {
        self.leaves.iter().any(|leaf| match leaf {
            Leaf::Memory(_) => false,
            Leaf::Reader(reader) => !reader.is_empty() && reader.piece(0).is_none(),
        })
    }

    /// Bytes of one row of a fixed column, zero for a ragged one.
    pub fn row_bytes(&self, column: usize) -> usize {
        match self.shapes[column] {
            ColumnShape::Fixed { row_bytes } => row_bytes,
            ColumnShape::Ragged { .. } => 0,
        }
    }

    /// Where each of the rows will begin in a buffer of a ragged column, in items, and
    /// where the last one ends. Refuses rows that memory cannot hold.
    pub fn offsets(&self, column: usize, places: &[Place], offsets: &mut Vec<i64>) -> Result<()> {
        // How long a row is may be said where its values are, which must be there still.
        self.each_reader(places, &mut Vec::new(), |reader| reader.before_items())?;
        offsets.clear();
        offsets.reserve(places.len() + 1);
        let mut end = 0_usize;
        offsets.push(0);
        // Readers count items by what a file says, so the sum may be anything.
        let most = isize::MAX as usize / self.shapes[column].unit_bytes().max(1);
        for (k, place) in places.iter().enumerate() {
            if let Some(next) = places.get(k + AHEAD)
                && let Leaf::Reader(reader) = &self.leaves[next.leaf as usize]
            {
                reader.near(column, next.row);
            }
            let items = self.leaves[place.leaf as usize].items(column, place.row);
            end = end.checked_add(items).filter(|&end| end <= most).ok_or_else(|| {
                Error::TooLarge(format!("{} rows together do not fit in memory", places.len()))
            })?;
            offsets.push(end as i64);
        }
        Ok(())
    }

    /// Calls `visit` with the address and size of each row, in every column; neighbours
    /// that follow each other in memory, or are the same, count as one. Rows that are not in
    /// one piece count as if they were, and those that are not in memory do not count.
    pub(crate) fn each_piece(&self, places: &[Place], visit: impl Fn(*const u8, usize)) {
        for column in 0..self.shapes.len() {
            let mut piece = (std::ptr::null::<u8>(), 0_usize);
            for place in places {
                let leaf = &self.leaves[place.leaf as usize];
                let Some((start, bytes)) = leaf.piece(column, place.row) else { continue };
                if piece.0.wrapping_add(piece.1) == start {
                    piece.1 += bytes;
                } else if piece != (start, bytes) {
                    if piece.1 > 0 {
                        visit(piece.0, piece.1);
                    }
                    piece = (start, bytes);
                }
            }
            if piece.1 > 0 {
                visit(piece.0, piece.1);
            }
        }
    }
}

fn out_of_range(row: i128, len: u64) -> Error {
    Error::OutOfRange(format!("index {row} is outside of the {len} rows there are"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
