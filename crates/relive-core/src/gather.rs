//! Copies rows from memory to one buffer, in the requested order.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Keeps the memory of a column valid; dropped with the last user.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// How many rows ahead the copy loop prefetches: enough to cover a cache miss at a few nanoseconds
/// per row, few enough for the miss buffers of a core.
const AHEAD: usize = 8;

/// Rows of one size in memory, at a constant distance.
#[derive(Clone)]
pub struct Rows {
    base: *const u8,
    len: usize,
    stride: isize,
    shape: RowShape,
    #[allow(dead_code, reason = "held for its drop")]
    owner: Owner,
}

// SAFETY: the memory is only read through `Rows`, and `owner` keeps it valid wherever
// the value goes.
unsafe impl Send for Rows {}
// SAFETY: as above; shared reads do not race with each other.
unsafe impl Sync for Rows {}

/// The memory layout of a row: `run` contiguous bytes, repeated along `outer`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RowShape {
    run: usize,
    outer: Vec<(usize, isize)>,
    bytes: usize,
}

impl RowShape {
    /// Creates the layout from the axes of a row, outermost first; contiguous inner axes are merged
    /// into one run.
    fn new(axes: &[(usize, isize)], item_bytes: usize) -> Result<Self> {
        let bytes = axes
            .iter()
            .try_fold(item_bytes, |bytes, &(count, _)| bytes.checked_mul(count))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| Error::TooLarge("a row is too large to fit in memory".into()))?;
        let mut run = item_bytes;
        let mut outer: Vec<(usize, isize)> = Vec::new();
        for &(count, stride) in axes.iter().rev() {
            if count == 1 {
                continue;
            }
            if outer.is_empty() && stride == run as isize {
                run *= count;
            } else {
                outer.insert(0, (count, stride));
            }
        }
        Ok(Self { run, outer, bytes })
    }
}

impl Rows {
    /// Describes rows that are `stride` bytes apart from `base` on, each with the given axes of
    /// `(count, stride in bytes)` and items of `item_bytes`.
    ///
    /// # Safety
    /// All these bytes must stay readable at their address while `owner` exists. (Values that
    /// another thread changes meanwhile are copied old, new or mixed.)
    pub unsafe fn new(
        base: *const u8,
        len: usize,
        stride: isize,
        axes: &[(usize, isize)],
        item_bytes: usize,
        owner: Owner,
    ) -> Result<Self> {
        Ok(Self { base, len, stride, shape: RowShape::new(axes, item_bytes)?, owner })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of one gathered row.
    pub fn row_bytes(&self) -> usize {
        self.shape.bytes
    }

    /// Returns the address range of all rows, including the bytes between them.
    pub(crate) fn extent(&self) -> Range<usize> {
        if self.len == 0 || self.shape.bytes == 0 {
            return 0..0;
        }
        let (mut low, mut high) = (self.base as isize, self.base as isize);
        let rows = (self.len, self.stride);
        for &(count, stride) in self.shape.outer.iter().chain([&rows]) {
            let reach = (count as isize - 1) * stride;
            low += reach.min(0);
            high += reach.max(0);
        }
        low as usize..high as usize + self.shape.run
    }

    #[inline]
    pub(crate) fn address(&self, row: usize) -> *const u8 {
        debug_assert!(row < self.len);
        // SAFETY: `row` is below `len` (the table checks every index), so the offset
        // stays inside the memory promised to `new`.
        unsafe { self.base.offset(row as isize * self.stride) }
    }

    /// Copies the rows at `sources` to `out`, one after the other.
    ///
    /// # Safety
    /// Each source is an [`address`](Self::address) of rows of this shape, and `out` has
    /// room for `sources.len() * row_bytes` bytes that overlap none of them.
    pub(crate) unsafe fn copy(&self, sources: &[*const u8], out: *mut u8) {
        let RowShape { run, outer, bytes } = &self.shape;
        if *bytes == 0 {
            return;
        }
        if !outer.is_empty() {
            let mut out = out;
            for &source in sources {
                // SAFETY: the axes describe memory promised to `new`; `out` advances by
                // one row per source.
                out = unsafe { copy_axes(source, outer, *run, out) };
            }
            return;
        }
        // With a constant size the compiler keeps the row in registers.
        // SAFETY: passed on from the caller.
        unsafe {
            match *run {
                1 => copy_sized::<1>(sources, out),
                2 => copy_sized::<2>(sources, out),
                4 => copy_sized::<4>(sources, out),
                8 => copy_sized::<8>(sources, out),
                12 => copy_sized::<12>(sources, out),
                16 => copy_sized::<16>(sources, out),
                32 => copy_sized::<32>(sources, out),
                64 => copy_sized::<64>(sources, out),
                128 => copy_sized::<128>(sources, out),
                256 => copy_sized::<256>(sources, out),
                run => copy_runs(sources, run, out),
            }
        }
    }
}

/// # Safety
/// As for [`Rows::copy`], with rows of `N` contiguous bytes.
unsafe fn copy_sized<const N: usize>(sources: &[*const u8], out: *mut u8) {
    for (k, &source) in sources.iter().enumerate() {
        if let Some(&next) = sources.get(k + AHEAD) {
            prefetch(next, N);
        }
        // SAFETY: passed on from the caller.
        unsafe { std::ptr::copy_nonoverlapping(source, out.add(k * N), N) };
    }
}

/// # Safety
/// As for [`Rows::copy`], with rows of `run` contiguous bytes.
unsafe fn copy_runs(sources: &[*const u8], run: usize, out: *mut u8) {
    // The hardware prefetches the rest of a long row; only its beginning is worth a prefetch, and
    // less far ahead.
    let (ahead, lines) = if run < 1024 { (AHEAD, run) } else { (2, 512) };
    for (k, &source) in sources.iter().enumerate() {
        if let Some(&next) = sources.get(k + ahead) {
            prefetch(next, lines);
        }
        // SAFETY: passed on from the caller.
        unsafe { copy_run(source, out.add(k * run), run) };
    }
}

/// Like `copy_from_slice`, as fast as [`copy_run`].
#[inline]
pub(crate) fn copy_bytes(source: &[u8], out: &mut [u8]) {
    assert_eq!(source.len(), out.len());
    // SAFETY: both have this length, and a mutable borrow does not overlap.
    unsafe { copy_run(source.as_ptr(), out.as_mut_ptr(), source.len()) };
}

/// Like `copy_nonoverlapping`, but fast in a case in which that is slow: the string instruction that
/// the C library uses for long copies loses half to four fifths of its speed on some processors if
/// the target is a few bytes further into its page than the source, as with page-aligned rows and
/// an array right after the header of an allocation.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline]
pub(crate) unsafe fn copy_run(source: *const u8, out: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        const LONG: usize = 2048;
        const PAGE: usize = 4096;
        const NEAR: usize = 64;
        let further = (out as usize).wrapping_sub(source as usize) % PAGE;
        if bytes >= LONG && further != 0 && further < NEAR {
            // SAFETY: passed on from the caller.
            return unsafe { copy_by_registers(source, out, bytes) };
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { std::ptr::copy_nonoverlapping(source, out, bytes) };
}

/// Like `copy_nonoverlapping`, with plain loads and stores.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_by_registers(source: *const u8, out: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_storeu_si128};
    let whole = bytes - bytes % 64;
    for at in (0..whole).step_by(64) {
        // SAFETY: both have 64 bytes there; the accesses are unaligned.
        unsafe {
            let (from, to) = (source.add(at), out.add(at));
            let first = _mm_loadu_si128(from.cast());
            let second = _mm_loadu_si128(from.add(16).cast());
            let third = _mm_loadu_si128(from.add(32).cast());
            let fourth = _mm_loadu_si128(from.add(48).cast());
            _mm_storeu_si128(to.cast(), first);
            _mm_storeu_si128(to.add(16).cast(), second);
            _mm_storeu_si128(to.add(32).cast(), third);
            _mm_storeu_si128(to.add(48).cast(), fourth);
        }
    }
    // SAFETY: the rest of the range that the caller guarantees.
    unsafe { std::ptr::copy_nonoverlapping(source.add(whole), out.add(whole), bytes - whole) };
}

/// # Safety
/// `source` with these axes is readable and `out` has room for all of it.
unsafe fn copy_axes(
    source: *const u8,
    axes: &[(usize, isize)],
    run: usize,
    out: *mut u8,
) -> *mut u8 {
    let Some((&(count, stride), inner)) = axes.split_first() else {
        // SAFETY: passed on from the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(source, out, run);
            return out.add(run);
        }
    };
    let mut out = out;
    for k in 0..count as isize {
        // SAFETY: passed on from the caller.
        out = unsafe { copy_axes(source.offset(k * stride), inner, run, out) };
    }
    out
}

/// Prefetches `bytes` from `address` on; a hint that never faults.
#[inline]
pub(crate) fn prefetch(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

/// Rows that differ in length: row `i` has the items from `offsets[i]` to `offsets[i + 1]`.
#[derive(Clone)]
pub struct RaggedRows {
    values: *const u8,
    item_bytes: usize,
    offsets: Arc<[i64]>,
    #[allow(dead_code, reason = "held for its drop")]
    owner: Owner,
}

// SAFETY: as for `Rows`.
unsafe impl Send for RaggedRows {}
// SAFETY: as for `Rows`.
unsafe impl Sync for RaggedRows {}

impl RaggedRows {
    /// Describes rows of `items` contiguous items of `item_bytes`, split at `offsets`.
    ///
    /// # Safety
    /// `values` must have `items * item_bytes` bytes that stay readable at their address while
    /// `owner` exists.
    pub unsafe fn new(
        values: *const u8,
        items: usize,
        item_bytes: usize,
        offsets: Arc<[i64]>,
        owner: Owner,
    ) -> Result<Self> {
        let rising = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let inside = offsets.first().is_some_and(|&start| start >= 0)
            && offsets
                .last()
                .is_some_and(|&end| usize::try_from(end).is_ok_and(|end| end <= items));
        if !rising || !inside {
            return Err(Error::Invalid(format!(
                "offsets must not decrease and must be from 0 to {items}"
            )));
        }
        Ok(Self { values, item_bytes, offsets, owner })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of one item.
    pub fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// Returns the address range of all values.
    pub(crate) fn extent(&self) -> Range<usize> {
        let items = self.offsets.last().map_or(0, |&end| end as usize);
        self.values as usize..self.values as usize + items * self.item_bytes
    }

    /// Returns the number of items of a row.
    #[inline]
    pub(crate) fn items(&self, row: usize) -> usize {
        (self.offsets[row + 1] - self.offsets[row]) as usize
    }

    #[inline]
    pub(crate) fn address(&self, row: usize) -> *const u8 {
        // SAFETY: `new` checked that every offset is inside the values.
        unsafe { self.values.add(self.offsets[row] as usize * self.item_bytes) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rows(
        data: &Arc<Vec<u8>>,
        len: usize,
        stride: isize,
        axes: &[(usize, isize)],
        item: usize,
    ) -> Rows {
        // SAFETY: the tests describe memory inside `data`, which the rows own.
        unsafe { Rows::new(data.as_ptr(), len, stride, axes, item, Arc::clone(data) as Owner) }
            .unwrap()
    }

    fn take(rows: &Rows, wanted: &[usize]) -> Vec<u8> {
        let sources: Vec<*const u8> = wanted.iter().map(|&row| rows.address(row)).collect();
        let mut out = vec![0; wanted.len() * rows.row_bytes()];
        // SAFETY: `out` has exactly the room.
        unsafe { rows.copy(&sources, out.as_mut_ptr()) };
        out
    }

    #[test]
    fn every_row_size_comes_out_in_order() {
        let data = Arc::new((0..60_000_u32).map(|x| (x % 251) as u8).collect::<Vec<u8>>());
        for size in [1, 2, 3, 4, 8, 12, 16, 31, 32, 64, 100, 128, 256, 300, 1500] {
            let rows = rows(&data, 40, size as isize, &[(size, 1)], 1);
            let wanted = [7, 0, 7, 39, 12];
            let expected: Vec<u8> = wanted
                .iter()
                .flat_map(|&row| data[row * size..(row + 1) * size].to_vec())
                .collect();
            assert_eq!(take(&rows, &wanted), expected);
        }
    }

    #[test]
    fn strided_and_transposed_rows_come_out_contiguous() {
        let data = Arc::new((0..240_u8).collect::<Vec<u8>>());
        // A (4, 5, 6) array read as if its last two axes were swapped.
        let rows = rows(&data, 4, 30, &[(6, 1), (5, 6)], 1);
        let expected: Vec<u8> =
            (0..6_u8).flat_map(|column| (0..5_u8).map(move |row| 60 + row * 6 + column)).collect();
        assert_eq!(take(&rows, &[2]), expected);
        assert_eq!(
            RowShape::new(&[(5, 6), (6, 1)], 1).unwrap(),
            RowShape { run: 30, outer: vec![], bytes: 30 }
        );
    }

    #[test]
    fn long_pieces_are_copied_wherever_they_go() {
        let source: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        let mut out = vec![0; 30_000];
        let page = |bytes: &[u8]| bytes.as_ptr() as usize % 4096;
        // Where `out` lies as far into its page as `source` does.
        let level = (4096 + page(&source) - page(&out)) % 4096;
        for further in [0, 1, 15, 16, 17, 31, 63, 64, 100, 4095] {
            for length in [0, 1, 2047, 2048, 2049, 4096, 5000, 20_000] {
                out.fill(0xFF);
                let at = level + further;
                copy_bytes(&source[..length], &mut out[at..at + length]);
                assert_eq!(out[at..at + length], source[..length], "{length} at {further}");
                assert_eq!(
                    (out[..at].iter().min(), out[at + length]),
                    (out[..at].iter().max(), 0xFF)
                );
            }
        }
    }

    #[test]
    fn bad_offsets_are_refused() {
        let data = Arc::new(vec![0_u8; 10]);
        for offsets in [vec![], vec![-1, 2], vec![0, 5, 3], vec![0, 11], vec![0, -1]] {
            // SAFETY: the values are ten bytes that the rows own.
            let outcome = unsafe {
                RaggedRows::new(data.as_ptr(), 10, 1, offsets.into(), Arc::clone(&data) as Owner)
            };
            assert!(outcome.is_err_and(|error| error.kind() == "invalid"));
        }
    }
}
