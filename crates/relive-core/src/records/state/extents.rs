//! Maps rows of a field to stored rows, in extents.

/// Consecutive rows that are stored in consecutive rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first row of the field.
    pub logical: u64,
    /// The stored row of the first.
    pub physical: u64,
    /// The number of rows.
    pub rows: u64,
}

impl Extent {
    fn end(&self) -> u64 {
        self.logical + self.rows
    }
}

/// Extents in ascending order; rows in none of them have no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

impl Extents {
    /// Checks extents of a file; `None` if they overlap, do not ascend, or end after `length` or
    /// `physical`.
    pub fn checked(extents: Vec<Extent>, length: u64, physical: u64) -> Option<Self> {
        let mut free = 0;
        for extent in &extents {
            let end = extent.logical.checked_add(extent.rows)?;
            let stored = extent.physical.checked_add(extent.rows)?;
            if extent.logical < free || extent.rows == 0 || end > length || stored > physical {
                return None;
            }
            free = end;
        }
        Some(Self(extents))
    }

    /// Returns all extents.
    pub fn all(&self) -> &[Extent] {
        &self.0
    }

    /// Adds rows from `logical` on, after all others, which are stored from row `physical` on.
    pub fn push(&mut self, logical: u64, physical: u64, rows: u64) {
        if rows == 0 {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.end() == logical
            && last.physical + last.rows == physical
        {
            last.rows += rows;
            return;
        }
        self.0.push(Extent { logical, physical, rows });
    }

    /// Removes the rows from `length` on.
    pub fn truncate(&mut self, length: u64) {
        while let Some(last) = self.0.last_mut() {
            if last.end() <= length {
                return;
            }
            if last.logical < length {
                last.rows = length - last.logical;
                return;
            }
            self.0.pop();
        }
    }

    /// Returns the stored row of a row.
    #[inline]
    pub fn find(&self, row: u64) -> Option<u64> {
        let at = match self.0.len() {
            0 => return None,
            1 => 0,
            _ => self.0.partition_point(|extent| extent.logical <= row).checked_sub(1)?,
        };
        let extent = &self.0[at];
        let inside = row.checked_sub(extent.logical).filter(|&inside| inside < extent.rows)?;
        Some(extent.physical + inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_as_in_a_list() {
        let mut extents = Extents::default();
        let mut list: Vec<Option<u64>> = Vec::new();
        let mut physical = 0;
        let mut number = 7_u64;
        for _ in 0..2000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let rows = (number >> 33) % 5;
            match (number >> 60) % 3 {
                0 => {
                    extents.push(list.len() as u64, physical, rows);
                    list.extend((physical..physical + rows).map(Some));
                    physical += rows;
                }
                1 => list.extend((0..rows).map(|_| None)),
                _ => {
                    list.truncate(list.len().saturating_sub(rows as usize));
                    extents.truncate(list.len() as u64);
                }
            }
            for row in 0..list.len() + 3 {
                assert_eq!(extents.find(row as u64), list.get(row).copied().flatten());
            }
            let again = Extents::checked(extents.0.clone(), list.len() as u64, physical);
            assert_eq!(again.as_ref(), Some(&extents));
        }
    }

    #[test]
    fn neighbours_are_one() {
        let mut extents = Extents::default();
        extents.push(0, 0, 5);
        extents.push(5, 5, 5);
        extents.push(10, 20, 1);
        extents.push(11, 21, 0);
        assert_eq!(extents.all().len(), 2);
        assert!(Extents::checked(extents.0.clone(), 10, 21).is_none());
        assert!(Extents::checked(extents.0.clone(), 11, 20).is_none());
        let overlap = [Extent { logical: 4, physical: 0, rows: 9 }; 2].to_vec();
        assert!(Extents::checked(overlap, 100, 100).is_none());
        let huge = vec![Extent { logical: 1, physical: 0, rows: u64::MAX }];
        assert!(Extents::checked(huge, u64::MAX, u64::MAX).is_none());
    }
}
