//! How the steps of an epoch are dealt to partitions.
//!
//! An epoch has steps of [`Partitions::rows_per_step`] rows. Every partition has its share of every
//! step, and the shares of one partition are consecutive rows of the shuffled blocks. Ranks take
//! consecutive shares of a step as well, so a rank reads only its own partitions as long as the
//! world size divides their number.

use std::ops::Range;

/// The partitions of one epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partitions {
    /// Rows of the epoch.
    pub length: u64,
    /// The number of partitions.
    pub count: u64,
    /// Rows of a full step of all ranks.
    pub rows_per_step: u64,
    /// Rows of the first step that belong to the epoch before; `None` if steps end with the epoch.
    pub shared_step: Option<u64>,
}

impl Partitions {
    /// Calls `each` with a partition and a range of its offsets, for consecutive parts of `rows`.
    pub fn each_part(&self, rows: Range<u64>, mut each: impl FnMut(u64, Range<u64>)) {
        if self.count == 1 {
            return each(0, rows);
        }
        let mut row = self.skipped() + rows.start;
        let end = self.skipped() + rows.end;
        while row < end {
            let (step, in_step) = (row / self.rows_per_step, row % self.rows_per_step);
            let partition = self.partition_at(step, in_step);
            let stop = end.min(step * self.rows_per_step + self.cut(step, partition + 1));
            let offset = self.before_step(step, partition) + in_step - self.cut(step, partition);
            each(partition, offset..offset + (stop - row));
            row = stop;
        }
    }

    /// Returns where the rows of a partition begin in the shuffled blocks, or those after the last.
    pub fn start(&self, partition: u64) -> u64 {
        if self.count == 1 {
            return partition * self.length;
        }
        let last = self.steps() - 1;
        let first = self.cut(0, partition) - self.skipped();
        match last {
            0 => first,
            _ => first + (last - 1) * self.full_cut(partition) + self.cut(last, partition),
        }
    }

    /// Returns the number of rows of a partition.
    pub fn size(&self, partition: u64) -> u64 {
        self.start(partition + 1) - self.start(partition)
    }

    /// Returns the row of the epoch that has this offset in a partition.
    pub fn row_of(&self, partition: u64, offset: u64) -> u64 {
        if self.count == 1 {
            return offset;
        }
        let last = self.steps() - 1;
        let first = self.cut(0, partition + 1) - self.cut(0, partition);
        let full = self.full_cut(partition + 1) - self.full_cut(partition);
        let step = match offset.checked_sub(first) {
            None => 0,
            Some(rest) => last.min(1 + rest.checked_div(full).unwrap_or(last)),
        };
        let in_step = offset - self.before_step(step, partition) + self.cut(step, partition);
        step * self.rows_per_step + in_step - self.skipped()
    }

    /// Returns the rows of the first step that belong to the epoch before.
    fn skipped(&self) -> u64 {
        self.shared_step.unwrap_or(0)
    }

    fn steps(&self) -> u64 {
        (self.skipped() + self.length).div_ceil(self.rows_per_step)
    }

    /// Returns the end of a step, counted from its start.
    fn end(&self, step: u64) -> u64 {
        self.rows_per_step.min(self.skipped() + self.length - step * self.rows_per_step)
    }

    /// Returns the rows that are dealt in a step. A step that is shared by two epochs is dealt as a
    /// whole, so that ranks find their own partitions in it.
    fn dealt(&self, step: u64) -> u64 {
        if self.shared_step.is_some() { self.rows_per_step } else { self.end(step) }
    }

    /// Returns where the share of a partition begins in a step.
    fn cut(&self, step: u64, partition: u64) -> u64 {
        let start = if step == 0 { self.skipped() } else { 0 };
        share(self.dealt(step), partition, self.count).clamp(start, self.end(step))
    }

    fn full_cut(&self, partition: u64) -> u64 {
        share(self.rows_per_step, partition, self.count)
    }

    /// Returns the partition that has this row of a step: the last that begins at or before it.
    fn partition_at(&self, step: u64, in_step: u64) -> u64 {
        let product = (u128::from(in_step) + 1) * u128::from(self.count);
        (product.div_ceil(u128::from(self.dealt(step))) - 1) as u64
    }

    /// Returns the rows of a partition in the steps before this one.
    fn before_step(&self, step: u64, partition: u64) -> u64 {
        if step == 0 {
            return 0;
        }
        let first = self.cut(0, partition + 1) - self.cut(0, partition);
        first + (step - 1) * (self.full_cut(partition + 1) - self.full_cut(partition))
    }
}

/// Returns where share `number` of `count` shares of `rows` rows begins.
pub(super) fn share(rows: u64, number: u64, count: u64) -> u64 {
    (u128::from(rows) * u128::from(number) / u128::from(count)) as u64
}
