//! Priorities of rows in a tree of sums, from which rows are drawn in proportion.
//!
//! A row with priority `p` has the weight `p^alpha`. The rows are a window of numbers that only
//! grow: row `i` has leaf `i` modulo the number of leaves, which is a power of two and doubles when
//! the window does not fit. A node is always the sum of its two children and is never changed by a
//! difference, so the error of a sum does not depend on the number of changes.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::ops::Range;

use crate::error::{Error, Result};
use crate::sample::MAX_LENGTH;

/// The largest weight of a row: the sum of the most rows is finite.
const MAX_WEIGHT: f64 = f64::MAX / (4 * MAX_LENGTH) as f64;

/// Sum and least weight of the leaves below a node. A leaf without a row has no weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    sum: f64,
    min: f64,
}

/// How many positions are searched for together.
const TOGETHER: usize = 16;

const EMPTY: Node = Node { sum: 0.0, min: f64::INFINITY };

impl Node {
    fn leaf(weight: f64) -> Self {
        Self { sum: weight, min: weight }
    }

    fn above(left: Self, right: Self) -> Self {
        Self { sum: left.sum + right.sum, min: left.min.min(right.min) }
    }
}

/// The priorities of a window of rows.
#[derive(Clone, Debug)]
pub struct SumTree {
    first: u64,
    end: u64,
    alpha: f64,
    /// The root is node 1, the children of node `k` are `2k` and `2k + 1`, and the leaves are the
    /// second half.
    nodes: Vec<Node>,
    /// The priority of each leaf.
    priorities: Vec<f64>,
}

impl SumTree {
    /// Creates a tree without rows.
    pub fn new(alpha: f64) -> Result<Self> {
        check_exponent("alpha", alpha)?;
        Ok(Self { first: 0, end: 0, alpha, nodes: vec![EMPTY; 2], priorities: vec![0.0] })
    }

    /// Creates a tree of the rows from `first` on, with `capacity` leaves.
    ///
    /// The order of the leaves depends on their number, so a tree that draws as another needs as
    /// many.
    pub fn with(alpha: f64, first: u64, capacity: usize, priorities: &[f64]) -> Result<Self> {
        let mut tree = Self::new(alpha)?;
        let end = first.checked_add(priorities.len() as u64).filter(|&end| end <= MAX_LENGTH);
        let Some(end) = end else { return Err(too_many_rows()) };
        let most = usize::try_from(MAX_LENGTH).unwrap_or(usize::MAX / 4);
        if !capacity.is_power_of_two() || !(priorities.len()..=most).contains(&capacity) {
            return Err(Error::Invalid(format!(
                "the capacity must be a power of two and at least the {} rows, got {capacity}",
                priorities.len()
            )));
        }
        tree.grow(capacity)?;
        tree.first = first;
        for (row, &priority) in (first..).zip(priorities) {
            if priority == 0.0 {
                continue; // the row does not exist
            }
            let weight = weight_of(priority, alpha)?;
            let leaf = tree.leaf_of(row);
            tree.priorities[leaf] = priority;
            tree.nodes[capacity + leaf] = Node::leaf(weight);
        }
        tree.end = end;
        tree.sum_all();
        Ok(tree)
    }

    /// Returns the rows.
    pub fn window(&self) -> Range<u64> {
        self.first..self.end
    }

    /// Returns the number of leaves.
    pub fn capacity(&self) -> usize {
        self.priorities.len()
    }

    /// Returns the exponent of the priorities.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Returns the sum of all weights.
    pub fn total(&self) -> f64 {
        self.nodes[1].sum
    }

    /// Returns the least weight of a row; infinite if there are no rows.
    pub fn least(&self) -> f64 {
        self.nodes[1].min
    }

    /// Returns the weight of a row; 0 if it is outside of the window.
    pub fn weight(&self, row: u64) -> f64 {
        if self.window().contains(&row) {
            self.nodes[self.capacity() + self.leaf_of(row)].sum
        } else {
            0.0
        }
    }

    /// Returns the priorities in the order of the rows; 0 where there is none.
    pub fn priorities(&self) -> Result<Vec<f64>> {
        let mut found = reserved((self.end - self.first) as usize)?;
        let (head, tail) = self.leaves(self.window());
        found.extend_from_slice(&self.priorities[head]);
        found.extend_from_slice(&self.priorities[tail]);
        Ok(found)
    }

    /// Changes the exponent. An error changes nothing.
    pub fn set_alpha(&mut self, alpha: f64) -> Result<()> {
        let changed = Self::with(alpha, self.first, self.capacity(), &self.priorities()?)?;
        *self = changed;
        Ok(())
    }

    /// Adds rows at the end of the window, up to `end`.
    pub fn extend(&mut self, end: u64, priority: f64) -> Result<()> {
        if end <= self.end {
            return Ok(());
        }
        if end > MAX_LENGTH {
            return Err(too_many_rows());
        }
        let weight = weight_of(priority, self.alpha)?;
        let needed = (end - self.first).next_power_of_two();
        if needed > self.capacity() as u64 {
            self.grow(usize::try_from(needed).map_err(|_| no_memory(needed))?)?;
        }
        let (head, tail) = self.leaves(self.end..end);
        self.end = end;
        for leaves in [head, tail] {
            self.fill(leaves, priority, Node::leaf(weight));
        }
        Ok(())
    }

    /// Adds rows in increasing order, some of which the window may have already. Others between them
    /// are not there, and have no weight.
    /// Returns how many were added.
    pub fn insert(&mut self, rows: &[i64], priority: f64) -> Result<usize> {
        let weight = weight_of(priority, self.alpha)?;
        let Some(&last) = rows.last() else { return Ok(0) };
        let end = u64::try_from(last).ok().and_then(|last| last.checked_add(1));
        let Some(end) = end.filter(|&end| end <= MAX_LENGTH) else { return Err(too_many_rows()) };
        let end = end.max(self.end);
        let needed = (end - self.first).next_power_of_two();
        if needed > self.capacity() as u64 {
            self.grow(usize::try_from(needed).map_err(|_| no_memory(needed))?)?;
        }
        self.end = end;
        let capacity = self.capacity();
        let mut nodes = reserved(rows.len())?;
        for &row in rows {
            let Some(row) = u64::try_from(row).ok().filter(|&row| row >= self.first) else {
                continue;
            };
            let leaf = self.leaf_of(row);
            if self.nodes[capacity + leaf].sum <= 0.0 {
                self.priorities[leaf] = priority;
                self.nodes[capacity + leaf] = Node::leaf(weight);
                nodes.push((capacity + leaf) / 2);
            }
        }
        let added = nodes.len();
        self.sum_above(nodes);
        Ok(added)
    }

    /// Removes the rows before `below` from the window.
    pub fn evict(&mut self, below: u64) -> Result<()> {
        if below > self.end {
            return Err(Error::OutOfRange(format!(
                "cannot remove the rows before {below}: there are only {}",
                self.end
            )));
        }
        if below > self.first {
            let (head, tail) = self.leaves(self.first..below);
            self.first = below;
            for leaves in [head, tail] {
                self.fill(leaves, 0.0, EMPTY);
            }
        }
        Ok(())
    }

    /// Removes rows, which then have no weight. Others that are not there are skipped.
    pub fn remove(&mut self, rows: &[i64]) -> Result<()> {
        let capacity = self.capacity();
        let mut nodes = reserved(rows.len())?;
        for &row in rows {
            if let Some(row) = u64::try_from(row).ok().filter(|&row| self.weight(row) > 0.0) {
                let leaf = self.leaf_of(row);
                self.priorities[leaf] = 0.0;
                self.nodes[capacity + leaf] = EMPTY;
                nodes.push((capacity + leaf) / 2);
            }
        }
        self.sum_above(nodes);
        Ok(())
    }

    /// Sets the priorities of rows and returns how many were ignored because they have left the
    /// window. If a row is listed twice, its last priority counts. An error changes nothing.
    pub fn update(&mut self, rows: &[i64], priorities: &[f64]) -> Result<u64> {
        if rows.len() != priorities.len() {
            return Err(Error::Invalid(format!(
                "there must be as many priorities as rows, got {} for {} rows",
                priorities.len(),
                rows.len()
            )));
        }
        let capacity = self.capacity();
        let mut changes = reserved(rows.len())?;
        for (&row, &priority) in rows.iter().zip(priorities) {
            let weight = weight_of(priority, self.alpha)?;
            match u64::try_from(row).ok().filter(|&row| row < self.end) {
                None => return Err(Error::out_of_range(row, self.end, "index", "rows")),
                Some(row) if self.weight(row) <= 0.0 => {} // it has left, or was never there
                Some(row) => changes.push((self.leaf_of(row), priority, weight)),
            }
        }
        let mut nodes = reserved(changes.len())?;
        for &(leaf, priority, weight) in &changes {
            self.priorities[leaf] = priority;
            self.nodes[capacity + leaf] = Node::leaf(weight);
            nodes.push((capacity + leaf) / 2);
        }
        self.sum_above(nodes);
        Ok((rows.len() - changes.len()) as u64)
    }

    /// Adds up nodes of one level, and all above them.
    fn sum_above(&mut self, mut nodes: Vec<usize>) {
        nodes.sort_unstable();
        // Level by level, so that a node is added up once after all below it.
        while nodes.first().is_some_and(|&node| node > 0) {
            nodes.dedup();
            for node in &mut nodes {
                self.nodes[*node] = self.above(*node);
                *node /= 2;
            }
        }
    }

    /// Calls `found` with the row at each position from 0 to the sum of all weights, which must not
    /// be 0. A position that rounding has moved to the end, or beyond, is in the last row with a
    /// weight. What `positions` has afterwards is not used.
    ///
    /// Several descend together, level by level and without branches: memory is awaited for all of
    /// them at once, and nothing depends on a guess of where a random position leads.
    pub fn find(&self, positions: &mut [f64], mut found: impl FnMut(u64)) {
        let capacity = self.capacity();
        let mask = capacity as u64 - 1;
        for positions in positions.chunks_mut(TOGETHER) {
            let mut nodes = [1; TOGETHER];
            for _ in 0..capacity.trailing_zeros() {
                for (node, at) in nodes.iter_mut().zip(positions.iter_mut()) {
                    let [left, right] =
                        [2 * *node, 2 * *node + 1].map(|child| self.nodes[child].sum);
                    // A sum is 0 only if all below it is, so this ends at a leaf with a weight.
                    let is_right = (left <= 0.0) | ((*at >= left) & (right > 0.0));
                    *at -= if is_right { left } else { 0.0 };
                    *node = 2 * *node + usize::from(is_right);
                }
            }
            for &node in &nodes[..positions.len()] {
                let leaf = (node - capacity) as u64;
                found(self.first + (leaf.wrapping_sub(self.first) & mask));
            }
        }
    }

    fn leaf_of(&self, row: u64) -> usize {
        row as usize & (self.capacity() - 1)
    }

    /// Returns the leaves of consecutive rows: up to the last leaf, and from the first on.
    fn leaves(&self, rows: Range<u64>) -> (Range<usize>, Range<usize>) {
        let count = (rows.end - rows.start) as usize;
        let start = self.leaf_of(rows.start);
        let head = count.min(self.capacity() - start);
        (start..start + head, 0..count - head)
    }

    /// Sets consecutive leaves.
    fn fill(&mut self, leaves: Range<usize>, priority: f64, node: Node) {
        if leaves.is_empty() {
            return;
        }
        let capacity = self.capacity();
        self.priorities[leaves.clone()].fill(priority);
        self.nodes[capacity + leaves.start..capacity + leaves.end].fill(node);
        let (mut low, mut high) = (capacity + leaves.start, capacity + leaves.end - 1);
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            for node in low..=high {
                self.nodes[node] = self.above(node);
            }
        }
    }

    fn above(&self, node: usize) -> Node {
        Node::above(self.nodes[2 * node], self.nodes[2 * node + 1])
    }

    fn sum_all(&mut self) {
        for node in (1..self.capacity()).rev() {
            self.nodes[node] = self.above(node);
        }
    }

    /// Moves the rows to a tree with more leaves.
    fn grow(&mut self, capacity: usize) -> Result<()> {
        let mut nodes = reserved(2 * capacity)?;
        let mut priorities = reserved(capacity)?;
        nodes.resize(2 * capacity, EMPTY);
        priorities.resize(capacity, 0.0);
        for row in self.window() {
            let (old, new) = (self.leaf_of(row), row as usize & (capacity - 1));
            priorities[new] = self.priorities[old];
            nodes[capacity + new] = self.nodes[self.capacity() + old];
        }
        (self.nodes, self.priorities) = (nodes, priorities);
        self.sum_all();
        Ok(())
    }
}

/// Returns the weight of a row with this priority.
fn weight_of(priority: f64, alpha: f64) -> Result<f64> {
    if !(priority > 0.0 && priority.is_finite()) {
        return Err(Error::Invalid(format!(
            "a priority must be finite and greater than 0, got {priority}"
        )));
    }
    let weight = priority.powf(alpha);
    if !(f64::MIN_POSITIVE..=MAX_WEIGHT).contains(&weight) {
        return Err(Error::Invalid(format!(
            "the priority {priority} to the power of `alpha` = {alpha} is {weight:e}, which is \
             outside of the range from {:e} to {MAX_WEIGHT:e}",
            f64::MIN_POSITIVE
        )));
    }
    Ok(weight)
}

/// Checks an exponent of priorities.
pub(crate) fn check_exponent(name: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::Invalid(format!("`{name}` must be finite and at least 0, got {value}")))
}

fn reserved<T>(items: usize) -> Result<Vec<T>> {
    let mut made = Vec::new();
    made.try_reserve_exact(items).map_err(|_| no_memory(items))?;
    Ok(made)
}

fn no_memory(rows: impl std::fmt::Display) -> Error {
    Error::TooLarge(format!("not enough memory for the priorities of {rows} rows"))
}

fn too_many_rows() -> Error {
    Error::Invalid(format!("the priorities exceed the limit of {MAX_LENGTH} rows"))
}
