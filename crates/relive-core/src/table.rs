//! Columns of equal length that are gathered together, and views of them.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::gather::{RaggedRows, Rows};
use crate::pool;

/// Below this a second thread costs more than it brings.
const BYTES_PER_PART: usize = 96 * 1024;

/// Rows whose addresses are worked out before they are copied; fits the stack.
const CHUNK: usize = 256;

/// One column of a table.
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

    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fixed(a), Self::Fixed(b)) => a.row_bytes() == b.row_bytes(),
            (Self::Ragged(a), Self::Ragged(b)) => a.item_bytes() == b.item_bytes(),
            _ => false,
        }
    }
}

/// The columns of one table as it was first made.
type Leaf = Arc<[Column]>;

/// Where a row of a table really lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    leaf: u32,
    row: u64,
}

/// How the rows of a table are found in its leaves. Rows given to a map are in range.
enum Map {
    Leaf(u32),
    Range { inner: Arc<Map>, start: i64, step: i64 },
    Select { inner: Arc<Map>, rows: Arc<[i64]> },
    Concat { parts: Vec<Arc<Map>>, starts: Vec<u64> },
    Mix { parts: Vec<(Arc<Map>, u64)>, slots: Vec<(u32, u32)>, per_round: Vec<u64> },
}

impl Map {
    fn find(&self, row: u64) -> Place {
        match self {
            Self::Leaf(leaf) => Place { leaf: *leaf, row },
            Self::Range { inner, start, step } => inner.find((*start + row as i64 * *step) as u64),
            Self::Select { inner, rows } => inner.find(rows[row as usize] as u64),
            Self::Concat { parts, starts } => {
                let part = starts.partition_point(|&start| start <= row) - 1;
                parts[part].find(row - starts[part])
            }
            Self::Mix { parts, slots, per_round } => {
                let rounds = row / slots.len() as u64;
                let (part, rank) = slots[(row % slots.len() as u64) as usize];
                let (map, len) = &parts[part as usize];
                let turn = rounds * per_round[part as usize] + u64::from(rank);
                map.find(turn % len)
            }
        }
    }

    /// The same map with its leaves numbered from `first` on.
    fn renumbered(self: &Arc<Self>, first: u32) -> Arc<Self> {
        if first == 0 {
            return Arc::clone(self);
        }
        Arc::new(match &**self {
            Self::Leaf(leaf) => Self::Leaf(leaf + first),
            Self::Range { inner, start, step } => {
                Self::Range { inner: inner.renumbered(first), start: *start, step: *step }
            }
            Self::Select { inner, rows } => {
                Self::Select { inner: inner.renumbered(first), rows: Arc::clone(rows) }
            }
            Self::Concat { parts, starts } => Self::Concat {
                parts: parts.iter().map(|part| part.renumbered(first)).collect(),
                starts: starts.clone(),
            },
            Self::Mix { parts, slots, per_round } => Self::Mix {
                parts: parts.iter().map(|(part, len)| (part.renumbered(first), *len)).collect(),
                slots: slots.clone(),
                per_round: per_round.clone(),
            },
        })
    }
}

/// Columns of equal length, or a view of such tables. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    leaves: Vec<Leaf>,
    map: Arc<Map>,
    len: u64,
}

impl Table {
    /// A table of columns; they must be equally long.
    pub fn new(columns: Vec<Column>) -> Result<Self> {
        let len = columns.first().map_or(0, Column::len);
        if let Some((number, other)) = (0..).zip(&columns).find(|(_, column)| column.len() != len) {
            let number: usize = number;
            return Err(Error::Invalid(format!(
                "column {number} has {} rows, column 0 has {len}",
                other.len()
            )));
        }
        Ok(Self { leaves: vec![columns.into()], map: Arc::new(Map::Leaf(0)), len: len as u64 })
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The columns, as the first leaf has them; all leaves are alike.
    pub fn columns(&self) -> &[Column] {
        self.leaves.first().map_or(&[], |leaf| leaf)
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
        let (leaves, maps) = Self::joined(tables)?;
        let mut starts = Vec::with_capacity(tables.len());
        let mut len = 0_u64;
        for table in tables {
            starts.push(len);
            len += table.len;
        }
        // An empty part shares its start with the next one, which `find` then picks.
        let map = Map::Concat { parts: maps, starts };
        Ok(Self { leaves, map: Arc::new(map), len })
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
        let (leaves, maps) = Self::joined(tables)?;
        let parts = maps.into_iter().zip(tables.iter().map(|table| table.len)).collect();
        let map = Map::Mix { parts, slots: ranked, per_round };
        Ok(Self { leaves, map: Arc::new(map), len })
    }

    fn joined(tables: &[Self]) -> Result<(Vec<Leaf>, Vec<Arc<Map>>)> {
        let mut leaves: Vec<Leaf> = Vec::new();
        let mut maps = Vec::with_capacity(tables.len());
        for table in tables {
            let first = u32::try_from(leaves.len())
                .map_err(|_| Error::TooLarge("too many tables joined into one".into()))?;
            maps.push(table.map.renumbered(first));
            leaves.extend(table.leaves.iter().cloned());
        }
        let alike = |leaf: &Leaf| {
            leaf.len() == leaves[0].len()
                && leaf.iter().zip(leaves[0].iter()).all(|(a, b)| a.is_like(b))
        };
        if leaves.is_empty() || !leaves.iter().all(alike) {
            return Err(Error::Invalid("tables to be joined must have the same columns".into()));
        }
        Ok((leaves, maps))
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

    /// Whether some column has memory among these addresses.
    pub fn overlaps(&self, addresses: &Range<usize>) -> bool {
        self.leaves.iter().flat_map(|leaf| leaf.iter()).any(|column| {
            let extent = match column {
                Column::Fixed(rows) => rows.extent(),
                Column::Ragged(rows) => rows.extent(),
            };
            extent.start < addresses.end && addresses.start < extent.end
        })
    }

    /// Bytes of one row of a fixed column, zero for a ragged one.
    pub fn row_bytes(&self, column: usize) -> usize {
        match &self.columns()[column] {
            Column::Fixed(rows) => rows.row_bytes(),
            Column::Ragged(_) => 0,
        }
    }

    /// Where each of the rows will begin in a buffer of a ragged column, in items, and
    /// where the last one ends.
    pub fn offsets(&self, column: usize, places: &[Place], offsets: &mut Vec<i64>) {
        offsets.clear();
        offsets.reserve(places.len() + 1);
        let mut end = 0;
        offsets.push(end);
        for place in places {
            if let Column::Ragged(rows) = &self.leaves[place.leaf as usize][column] {
                end += rows.items(place.row as usize) as i64;
            }
            offsets.push(end);
        }
    }

    /// Copies `places[range]` of one column to its place in `out`.
    ///
    /// # Safety
    /// `places` came from [`find`](Self::find) on this table. `out` is the buffer for all
    /// of `places`: `row_bytes` for each in a fixed column, or `offsets.last()` items in
    /// a ragged one whose `offsets` came from [`offsets`](Self::offsets). Nobody else
    /// touches the part of it that belongs to `range`.
    pub unsafe fn copy(
        &self,
        column: usize,
        places: &[Place],
        range: Range<usize>,
        offsets: &[i64],
        out: *mut u8,
    ) {
        match &self.columns()[column] {
            Column::Fixed(shape) => {
                let bytes = shape.row_bytes();
                let one_leaf = self.leaves.len() == 1;
                for start in range.clone().step_by(CHUNK) {
                    let chunk = &places[start..range.end.min(start + CHUNK)];
                    let mut sources = [std::ptr::null(); CHUNK];
                    for (source, place) in sources.iter_mut().zip(chunk) {
                        *source = if one_leaf {
                            shape.address(place.row as usize)
                        } else {
                            self.fixed(place.leaf, column).address(place.row as usize)
                        };
                    }
                    // SAFETY: the sources are rows of this column, and `out` has room for
                    // all places, so for this chunk from its start on.
                    unsafe {
                        let out = out.add(start * bytes);
                        if one_leaf {
                            shape.copy(&sources[..chunk.len()], out);
                        } else {
                            self.copy_mixed(column, chunk, &sources[..chunk.len()], out);
                        }
                    }
                }
            }
            Column::Ragged(_) => {
                for k in range {
                    let place = places[k];
                    if let Column::Ragged(rows) = &self.leaves[place.leaf as usize][column] {
                        let bytes = rows.items(place.row as usize) * rows.item_bytes();
                        // SAFETY: `offsets` were made for these places, so row `k` has its
                        // own room of exactly this size.
                        unsafe {
                            let out = out.add(offsets[k] as usize * rows.item_bytes());
                            std::ptr::copy_nonoverlapping(
                                rows.address(place.row as usize),
                                out,
                                bytes,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Calls `visit` with the address and size of each row, in every column; neighbours
    /// that follow each other in memory count as one. Rows that are not in one piece count
    /// as if they were.
    pub(crate) fn each_piece(&self, places: &[Place], visit: impl Fn(*const u8, usize)) {
        for column in 0..self.columns().len() {
            let mut piece = (std::ptr::null::<u8>(), 0_usize);
            for place in places {
                let row = place.row as usize;
                let (start, bytes) = match &self.leaves[place.leaf as usize][column] {
                    Column::Fixed(rows) => (rows.address(row), rows.row_bytes()),
                    Column::Ragged(rows) => {
                        (rows.address(row), rows.items(row) * rows.item_bytes())
                    }
                };
                if piece.0.wrapping_add(piece.1) == start {
                    piece.1 += bytes;
                } else {
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

    /// # Safety
    /// `sources` are the addresses of `places` in this column, `out` has room for them.
    unsafe fn copy_mixed(
        &self,
        column: usize,
        places: &[Place],
        sources: &[*const u8],
        out: *mut u8,
    ) {
        // Neighbours from one leaf are copied together; leaves may differ in strides.
        let mut start = 0;
        for group in places.chunk_by(|a, b| a.leaf == b.leaf) {
            let rows = self.fixed(group[0].leaf, column);
            // SAFETY: these sources are rows of this leaf; groups follow each other in `out`.
            unsafe {
                rows.copy(&sources[start..start + group.len()], out.add(start * rows.row_bytes()));
            }
            start += group.len();
        }
    }

    fn fixed(&self, leaf: u32, column: usize) -> &Rows {
        match &self.leaves[leaf as usize][column] {
            Column::Fixed(rows) => rows,
            Column::Ragged(_) => unreachable!("leaves of one table have the same columns"),
        }
    }

    /// Gathers several columns on up to `threads` threads.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), for the whole of `places` and every target.
    pub unsafe fn gather(&self, places: &[Place], targets: &[Target<'_>], threads: usize) {
        let bytes: usize =
            targets.iter().map(|target| self.target_bytes(target, places.len())).sum();
        let parts = part_count(bytes, places.len(), threads);
        let copy = |part: usize| {
            let range = part_range(places.len(), part, parts);
            for target in targets {
                // SAFETY: passed on from the caller; parts do not overlap.
                unsafe {
                    self.copy(target.column, places, range.clone(), target.offsets, target.out);
                };
            }
        };
        pool::run(parts, threads, &copy);
    }

    fn target_bytes(&self, target: &Target<'_>, rows: usize) -> usize {
        match &self.columns()[target.column] {
            Column::Fixed(shape) => shape.row_bytes() * rows,
            Column::Ragged(shape) => {
                target.offsets.last().map_or(0, |&end| end as usize) * shape.item_bytes()
            }
        }
    }
}

/// Where one column of a gather goes.
pub struct Target<'a> {
    /// Which column.
    pub column: usize,
    /// For a ragged column, where each row begins; empty otherwise.
    pub offsets: &'a [i64],
    /// The buffer.
    pub out: *mut u8,
}

// SAFETY: the pointer is only written through `Table::copy`, part by part, each part by
// one thread.
unsafe impl Sync for Target<'_> {}

/// Into how many parts to cut a gather so that `threads` threads share it well.
pub fn part_count(bytes: usize, rows: usize, threads: usize) -> usize {
    if threads <= 1 {
        return 1;
    }
    (bytes / BYTES_PER_PART).clamp(1, threads * 4).min(rows.max(1))
}

/// The rows of one part.
pub fn part_range(rows: usize, part: usize, parts: usize) -> Range<usize> {
    rows * part / parts..rows * (part + 1) / parts
}

fn out_of_range(row: i128, len: u64) -> Error {
    Error::OutOfRange(format!("index {row} is outside of the {len} rows there are"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::gather::Owner;

    fn numbers(first: u32, len: u32) -> Table {
        let data: Arc<Vec<u8>> =
            Arc::new((first..first + len).flat_map(u32::to_le_bytes).collect());
        // SAFETY: the rows own the four bytes of each number.
        let rows = unsafe {
            Rows::new(data.as_ptr(), len as usize, 4, &[], 4, Arc::clone(&data) as Owner)
        };
        Table::new(vec![Column::Fixed(rows.unwrap())]).unwrap()
    }

    fn gather(table: &Table, rows: &[i64]) -> Vec<u32> {
        let mut places = Vec::new();
        table.find(rows, &mut places).unwrap();
        let mut out = vec![0_u8; rows.len() * 4];
        let target = Target { column: 0, offsets: &[], out: out.as_mut_ptr() };
        // SAFETY: `out` has room for one number per row.
        unsafe { table.gather(&places, &[target], 3) };
        out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn order_and_repeats() {
        assert_eq!(gather(&numbers(100, 10), &[7, 0, 7]), [107, 100, 107]);
        assert_eq!(gather(&numbers(100, 10), &[]), [0_u32; 0]);
    }

    #[test]
    fn many_rows_on_many_threads() {
        let table = numbers(0, 500_000);
        let rows: Vec<i64> = (0..500_000).rev().collect();
        let expected: Vec<u32> = (0..500_000).rev().collect();
        assert_eq!(gather(&table, &rows), expected);
    }

    #[test]
    fn rows_that_do_not_exist_are_refused() {
        for bad in [-1, 10, i64::MAX, i64::MIN] {
            let error = numbers(0, 10).find(&[1, bad], &mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), "out-of-range");
            assert!(error.to_string().contains(&bad.to_string()));
        }
        assert!(numbers(0, 0).find(&[], &mut Vec::new()).is_ok());
        assert!(numbers(0, 0).find(&[0], &mut Vec::new()).is_err());
    }

    #[test]
    fn views_of_views() {
        let joined = Table::concat(&[numbers(0, 3), numbers(50, 0), numbers(100, 2)]).unwrap();
        assert_eq!(gather(&joined, &[0, 1, 2, 3, 4]), [0, 1, 2, 100, 101]);
        let picked = joined.select(Arc::from([4, 0, 3])).unwrap();
        assert_eq!(gather(&picked, &[0, 1, 2]), [101, 0, 100]);
        let backwards = picked.select_range(2, -1, 3).unwrap();
        let both = Table::concat(&[numbers(7, 1), backwards]).unwrap();
        assert_eq!(gather(&both, &[0, 1, 2, 3]), [7, 100, 0, 101]);
        assert!(joined.select(Arc::from([5])).is_err());
        assert!(joined.select_range(3, 1, 3).is_err());
        assert!(joined.select_range(3, 1, 0).is_ok());
    }

    #[test]
    fn a_mix_takes_turns_and_starts_over() {
        let mixed = Table::mix(&[numbers(0, 2), numbers(100, 9)], &[0, 1, 1], 9).unwrap();
        assert_eq!(
            gather(&mixed, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
            [0, 100, 101, 1, 102, 103, 0, 104, 105]
        );
        assert!(Table::mix(&[numbers(0, 0), numbers(0, 1)], &[0, 1], 2).is_err());
        assert!(Table::mix(&[numbers(0, 1)], &[1], 2).is_err());
    }

    #[test]
    fn ragged_rows_keep_their_lengths() {
        let values = Arc::new((0..10_u8).collect::<Vec<u8>>());
        // SAFETY: the rows own the ten values.
        let rows = unsafe {
            RaggedRows::new(
                values.as_ptr(),
                5,
                2,
                Arc::from([0, 2, 2, 5]),
                Arc::clone(&values) as Owner,
            )
        };
        let table = Table::new(vec![Column::Ragged(rows.unwrap())]).unwrap();
        let (mut places, mut offsets) = (Vec::new(), Vec::new());
        table.find(&[2, 1, 0, 2], &mut places).unwrap();
        table.offsets(0, &places, &mut offsets);
        assert_eq!(offsets, [0, 3, 3, 5, 8]);
        let mut out = vec![0; 16];
        let target = Target { column: 0, offsets: &offsets, out: out.as_mut_ptr() };
        // SAFETY: eight items of two bytes.
        unsafe { table.gather(&places, &[target], 1) };
        assert_eq!(out, [4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn pieces_that_follow_each_other_are_one() {
        let table = numbers(0, 10);
        let mut places = Vec::new();
        table.find(&[3, 4, 5, 9, 0, 1], &mut places).unwrap();
        let pieces = std::cell::RefCell::new(Vec::new());
        table.each_piece(&places, |_, bytes| pieces.borrow_mut().push(bytes));
        assert_eq!(*pieces.borrow(), [12, 4, 8]);
    }

    #[test]
    fn unequal_columns_are_refused() {
        let (a, b) = (numbers(0, 3), numbers(0, 4));
        let columns = vec![a.columns()[0].clone(), b.columns()[0].clone()];
        assert!(Table::new(columns).is_err_and(|error| error.kind() == "invalid"));
    }
}
