//! What was asked for since the last drain, in the order asked.

use crate::records::frames::{How, Op};
use crate::records::lane::Slot;
use crate::records::layout::Entry;

/// Entries of one journal record: far below what a record may have, whatever the fields.
const ENTRIES_PER_OP: usize = 1 << 20;

/// How an append gives a field its values, before it is known where these are.
pub(super) enum Given {
    Missing,
    Dense,
    /// One slot for each row; none where there is no value.
    Slots(Vec<Option<Slot>>),
}

impl Given {
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

enum Asked {
    Append { rows: u64, fields: Vec<(u16, Given)> },
    Change { row: u64, fields: Vec<(u16, Option<Slot>)> },
    Delete { row: u64 },
}

/// What was asked for since the last drain.
#[derive(Default)]
pub(super) struct Pending {
    asked: Vec<Asked>,
    weight: usize,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// How many things wait, roughly.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn append(&mut self, rows: u64, fields: Vec<(u16, Given)>) {
        let slots = |given: &Given| match given {
            Given::Slots(slots) => slots.len(),
            _ => 0,
        };
        self.weight += 1 + fields.iter().map(|(_, given)| slots(given)).sum::<usize>();
        // Rows that came one by one are one run.
        if let Some(Asked::Append { rows: before, fields: known }) = self.asked.last_mut()
            && known.iter().zip(&fields).all(|((_, a), (_, b))| a.is_like(b))
        {
            *before += rows;
            for ((_, known), (_, given)) in known.iter_mut().zip(fields) {
                if let (Given::Slots(known), Given::Slots(given)) = (known, given) {
                    known.extend(given);
                }
            }
            return;
        }
        self.asked.push(Asked::Append { rows, fields });
    }

    /// Appends one more row like the last ones, without a list of its own; false when the
    /// last thing asked for was something else.
    pub(super) fn append_dense(&mut self) -> bool {
        let Some(Asked::Append { rows, fields }) = self.asked.last_mut() else {
            return false;
        };
        let dense = fields.iter().all(|(_, given)| matches!(given, Given::Dense));
        if dense {
            *rows += 1;
        }
        dense
    }

    pub(super) fn change(&mut self, row: u64, fields: Vec<(u16, Option<Slot>)>) {
        self.weight += fields.len() + 1;
        self.asked.push(Asked::Change { row, fields });
    }

    pub(super) fn delete(&mut self, row: u64) {
        self.weight += 1;
        self.asked.push(Asked::Delete { row });
    }

    /// Everything, now that it is known where the values of all slots are.
    pub(super) fn ops(&mut self, entries: &[Entry]) -> Vec<Op> {
        let entry = |slot: &Option<Slot>| {
            slot.and_then(|slot| entries.get(slot)).copied().unwrap_or(Entry::MISSING)
        };
        self.weight = 0;
        let mut ops = Vec::with_capacity(self.asked.len());
        for asked in std::mem::take(&mut self.asked) {
            match asked {
                Asked::Append { rows, fields } => cut(rows, &fields, entry, &mut ops),
                Asked::Change { row, fields } => {
                    let fields = fields.iter().map(|(id, slot)| (*id, entry(slot))).collect();
                    ops.push(Op::Change { row, fields });
                }
                Asked::Delete { row } => ops.push(Op::Delete { row }),
            }
        }
        ops
    }
}

/// One append as several that each fit a record of the journal.
fn cut(
    rows: u64,
    fields: &[(u16, Given)],
    entry: impl Fn(&Option<Slot>) -> Entry,
    ops: &mut Vec<Op>,
) {
    let lists = fields.iter().filter(|(_, given)| matches!(given, Given::Slots(_))).count();
    let most = ENTRIES_PER_OP.checked_div(lists).map_or(rows, |most| most.max(1) as u64);
    let mut first = 0;
    while first < rows {
        let count = most.min(rows - first);
        let how = |given: &Given| match given {
            Given::Missing => How::Missing,
            Given::Dense => How::Dense,
            Given::Slots(slots) => {
                let part = slots.iter().skip(first as usize).take(count as usize);
                How::Entries(part.map(&entry).collect())
            }
        };
        let fields = fields.iter().map(|(id, given)| (*id, how(given))).collect();
        ops.push(Op::Append { rows: count, fields });
        first += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_one_by_one_are_one_run() {
        let mut pending = Pending::default();
        for slot in 0..5 {
            let given = if slot == 3 { None } else { Some(slot) };
            pending.append(1, vec![(1, Given::Dense), (2, Given::Slots(vec![given]))]);
        }
        pending.delete(2);
        pending.append(2, vec![(1, Given::Dense), (2, Given::Missing)]);
        pending.change(0, vec![(2, None), (1, Some(4))]);
        assert!(pending.weight() > 5);
        let entries: Vec<Entry> =
            (0..5).map(|k| Entry { chunk: 0, offset: 8 * k, length: 40 }).collect();
        let mut wanted = entries.clone();
        wanted[3] = Entry::MISSING;
        let change = vec![(2, Entry::MISSING), (1, entries[4])];
        assert_eq!(
            pending.ops(&entries),
            [
                Op::Append { rows: 5, fields: vec![(1, How::Dense), (2, How::Entries(wanted))] },
                Op::Delete { row: 2 },
                Op::Append { rows: 2, fields: vec![(1, How::Dense), (2, How::Missing)] },
                Op::Change { row: 0, fields: change },
            ]
        );
        assert!(pending.is_empty() && pending.weight() == 0);
    }

    #[test]
    fn long_appends_are_cut() {
        let rows = 2 * ENTRIES_PER_OP as u64 + 3;
        let mut pending = Pending::default();
        let slots = || Given::Slots((0..rows as usize).map(|_| None).collect());
        pending.append(rows, vec![(1, slots()), (2, slots()), (3, Given::Dense)]);
        let ops = pending.ops(&[]);
        assert_eq!(ops.len(), 5);
        let total: u64 = ops
            .iter()
            .map(|op| match op {
                Op::Append { rows, .. } => *rows,
                _ => 0,
            })
            .sum();
        assert_eq!(total, rows);
        assert!(ops.iter().all(|op| op.to_bytes().len() < crate::journal::MAX_RECORD_BYTES));
    }

    #[test]
    fn dense_rows_need_no_list() {
        let mut pending = Pending::default();
        assert!(!pending.append_dense());
        pending.append(1, vec![(1, Given::Dense)]);
        assert!(pending.append_dense());
        assert_eq!(pending.ops(&[]), [Op::Append { rows: 2, fields: vec![(1, How::Dense)] }]);
    }
}
