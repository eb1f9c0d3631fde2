//! Operations that wait until their values are stored, in the order of the calls.

use crate::records::heap_encoder::Slot;
use crate::records::journal_records::{AppendedValues, Op};
use crate::records::layout::Entry;

/// Entries of one journal record; keeps it far below the limit with any number of fields.
const ENTRIES_PER_OP: usize = 1 << 20;

/// The values that an append has for a field, before they are stored.
pub(super) enum PendingValues {
    Missing,
    Dense,
    /// One slot for each row; `None` for a missing value.
    Slots(Vec<Option<Slot>>),
}

impl PendingValues {
    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

enum PendingOp {
    Append { rows: u64, fields: Vec<(u16, PendingValues)> },
    Change { row: u64, fields: Vec<(u16, Option<Slot>)> },
    Delete { row: u64 },
}

/// The operations since the last drain.
#[derive(Default)]
pub(super) struct Pending {
    ops: Vec<PendingOp>,
    weight: usize,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns roughly how many values and operations wait.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn append(&mut self, rows: u64, fields: Vec<(u16, PendingValues)>) {
        let slots = |given: &PendingValues| match given {
            PendingValues::Slots(slots) => slots.len(),
            _ => 0,
        };
        self.weight += 1 + fields.iter().map(|(_, given)| slots(given)).sum::<usize>();
        // Rows that are appended one by one become one operation.
        if let Some(PendingOp::Append { rows: before, fields: known }) = self.ops.last_mut()
            && known.iter().zip(&fields).all(|((_, a), (_, b))| a.is_like(b))
        {
            *before += rows;
            for ((_, known), (_, given)) in known.iter_mut().zip(fields) {
                if let (PendingValues::Slots(known), PendingValues::Slots(given)) = (known, given) {
                    known.extend(given);
                }
            }
            return;
        }
        self.ops.push(PendingOp::Append { rows, fields });
    }

    /// Appends one more row with values in all dense fields; returns false if the last operation
    /// was another one.
    pub(super) fn append_dense(&mut self) -> bool {
        let Some(PendingOp::Append { rows, fields }) = self.ops.last_mut() else {
            return false;
        };
        let dense = fields.iter().all(|(_, given)| matches!(given, PendingValues::Dense));
        if dense {
            *rows += 1;
        }
        dense
    }

    pub(super) fn change(&mut self, row: u64, fields: Vec<(u16, Option<Slot>)>) {
        self.weight += fields.len() + 1;
        self.ops.push(PendingOp::Change { row, fields });
    }

    pub(super) fn delete(&mut self, row: u64) {
        self.weight += 1;
        self.ops.push(PendingOp::Delete { row });
    }

    /// Returns all operations, given the entries of all slots.
    pub(super) fn ops(&mut self, entries: &[Entry]) -> Vec<Op> {
        let entry = |slot: &Option<Slot>| {
            slot.and_then(|slot| entries.get(slot)).copied().unwrap_or(Entry::MISSING)
        };
        self.weight = 0;
        let mut ops = Vec::with_capacity(self.ops.len());
        for op in std::mem::take(&mut self.ops) {
            match op {
                PendingOp::Append { rows, fields } => split(rows, &fields, entry, &mut ops),
                PendingOp::Change { row, fields } => {
                    let fields = fields.iter().map(|(id, slot)| (*id, entry(slot))).collect();
                    ops.push(Op::Change { row, fields });
                }
                PendingOp::Delete { row } => ops.push(Op::Delete { row }),
            }
        }
        ops
    }
}

/// Splits one append into several that each fit a journal record.
fn split(
    rows: u64,
    fields: &[(u16, PendingValues)],
    entry: impl Fn(&Option<Slot>) -> Entry,
    ops: &mut Vec<Op>,
) {
    let lists = fields.iter().filter(|(_, given)| matches!(given, PendingValues::Slots(_))).count();
    let most = ENTRIES_PER_OP.checked_div(lists).map_or(rows, |most| most.max(1) as u64);
    let mut first = 0;
    while first < rows {
        let count = most.min(rows - first);
        let values = |given: &PendingValues| match given {
            PendingValues::Missing => AppendedValues::Missing,
            PendingValues::Dense => AppendedValues::Dense,
            PendingValues::Slots(slots) => {
                let part = slots.iter().skip(first as usize).take(count as usize);
                AppendedValues::Entries(part.map(&entry).collect())
            }
        };
        let fields = fields.iter().map(|(id, given)| (*id, values(given))).collect();
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
            pending
                .append(1, vec![(1, PendingValues::Dense), (2, PendingValues::Slots(vec![given]))]);
        }
        pending.delete(2);
        pending.append(2, vec![(1, PendingValues::Dense), (2, PendingValues::Missing)]);
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
                Op::Append {
                    rows: 5,
                    fields: vec![(1, AppendedValues::Dense), (2, AppendedValues::Entries(wanted))]
                },
                Op::Delete { row: 2 },
                Op::Append {
                    rows: 2,
                    fields: vec![(1, AppendedValues::Dense), (2, AppendedValues::Missing)]
                },
                Op::Change { row: 0, fields: change },
            ]
        );
        assert!(pending.is_empty() && pending.weight() == 0);
    }

    #[test]
    fn long_appends_are_cut() {
        let rows = 2 * ENTRIES_PER_OP as u64 + 3;
        let mut pending = Pending::default();
        let slots = || PendingValues::Slots((0..rows as usize).map(|_| None).collect());
        pending.append(rows, vec![(1, slots()), (2, slots()), (3, PendingValues::Dense)]);
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
        pending.append(1, vec![(1, PendingValues::Dense)]);
        assert!(pending.append_dense());
        assert_eq!(
            pending.ops(&[]),
            [Op::Append { rows: 2, fields: vec![(1, AppendedValues::Dense)] }]
        );
    }
}
