//! Which of many stretches a row belongs to.

/// Stretches of rows, one after the other.
pub(super) struct Search {
    /// How many rows come before each stretch, and the total.
    firsts: Vec<u64>,
    /// For every `1 << shift` rows, the last stretch that begins at or before the first.
    hints: Vec<u32>,
    shift: u32,
}

impl Search {
    /// Stretches that begin after so many rows; the last number is the total.
    pub(super) fn new(firsts: Vec<u64>) -> Self {
        let total = firsts.last().copied().unwrap_or_default();
        // About one hint for a stretch, so that few are left to look at between two hints.
        let shift = (total / firsts.len().max(1) as u64).checked_ilog2().unwrap_or_default();
        let mut hints = Vec::new();
        let mut position = 0;
        for row in (0..total).step_by(1 << shift) {
            while firsts.get(position + 1).is_some_and(|&first| first <= row) {
                position += 1;
            }
            // There are fewer stretches than that, as the table of steps has seen to.
            hints.push(position as u32);
        }
        Self { firsts, hints, shift }
    }

    /// The number of rows.
    pub(super) fn total(&self) -> u64 {
        self.firsts.last().copied().unwrap_or_default()
    }

    /// The stretch that has the row, and the row's position in it; `None` beyond the end.
    #[inline]
    pub(super) fn find(&self, row: u64) -> Option<(usize, u64)> {
        if let [_, end] = *self.firsts {
            return (row < end).then_some((0, row));
        }
        let bucket = (row >> self.shift) as usize;
        let start = *self.hints.get(bucket)? as usize;
        let end = match self.hints.get(bucket + 1) {
            // The stretch that the next hint names may begin before its first row.
            Some(&hint) => hint as usize + 1,
            None => self.firsts.len(),
        };
        let after = self.firsts.get(start..end)?.partition_point(|&first| first <= row);
        // One that has no rows begins where the next one does, so the last one is taken.
        let position = (start + after).checked_sub(1)?;
        (position + 1 < self.firsts.len()).then(|| (position, row - self.firsts[position]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::steps::games::Numbers;

    #[test]
    fn every_row_is_found_where_it_is() {
        let mut numbers = Numbers(3);
        for most in [1, 2, 5, 100, 5000] {
            for stretches in [0, 1, 2, 50] {
                let lengths: Vec<u64> = (0..stretches).map(|_| numbers.below(most)).collect();
                let mut firsts = vec![0];
                let mut expected = Vec::new();
                for (position, &length) in lengths.iter().enumerate() {
                    expected.extend((0..length).map(|row| (position, row)));
                    firsts.push(expected.len() as u64);
                }
                let search = Search::new(firsts);
                assert_eq!(search.total(), expected.len() as u64);
                for (row, place) in expected.iter().enumerate() {
                    assert_eq!(search.find(row as u64), Some(*place), "{lengths:?}");
                }
                for row in [expected.len() as u64, 1 << 40, u64::MAX] {
                    assert_eq!(search.find(row), None);
                }
            }
        }
    }
}
