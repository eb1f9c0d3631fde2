//! Where the rows of a view really lie.

use std::sync::Arc;

/// Where a row of a table really lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) leaf: u32,
    pub(super) row: u64,
}

/// How the rows of a table are found in its leaves. Rows given to a map are in range.
pub(super) enum Map {
    Leaf(u32),
    Range { inner: Arc<Map>, start: i64, step: i64 },
    Select { inner: Arc<Map>, rows: Arc<[i64]> },
    Concat { parts: Vec<Arc<Map>>, starts: Vec<u64> },
    Mix { parts: Vec<(Arc<Map>, u64)>, slots: Vec<(u32, u32)>, per_round: Vec<u64> },
}

impl Map {
    pub(super) fn find(&self, row: u64) -> Place {
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
    pub(super) fn renumbered(self: &Arc<Self>, first: u32) -> Arc<Self> {
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
