//! The index of a dataset's chunks: a B-tree of version 1, which every version of HDF5 reads.

use super::{Chunk, Output, UNDEFINED};
use crate::{Error, Result};

/// The most children of a node: twice the default rank of HDF5, since the superblock states none.
const CHILDREN: usize = 64;

/// Writes the tree of chunks and returns the address of its root.
pub(super) fn write(output: &mut Output, chunks: &[Chunk], rank: usize, rows: u64) -> Result<u64> {
    let Some(last) = chunks.last() else { return Ok(UNDEFINED) };
    let is_valid = rows > 0
        && chunks.iter().all(|chunk| chunk.first_row.is_multiple_of(rows))
        && chunks.windows(2).all(|pair| pair[0].first_row < pair[1].first_row);
    let end = last.first_row.checked_add(rows).filter(|_| is_valid);
    let end =
        end.ok_or_else(|| Error::Invalid("chunks must be in the order of rows".to_owned()))?;
    let mut children: Vec<_> = chunks
        .iter()
        .map(|chunk| (key(chunk.first_row, chunk.bytes, rank), chunk.offset))
        .collect();
    let end = key(end, 0, rank);
    let node_bytes = 24 + (CHILDREN + 1) * end.len() + CHILDREN * 8;
    for level in 0_u8.. {
        let first = output.append(&[]);
        let nodes = children.len().div_ceil(CHILDREN);
        let address = |node: usize| first + (node * node_bytes) as u64;
        let mut parents = Vec::with_capacity(nodes);
        for (number, part) in children.chunks(CHILDREN).enumerate() {
            let left = if number == 0 { UNDEFINED } else { address(number - 1) };
            let right = if number + 1 == nodes { UNDEFINED } else { address(number + 1) };
            let mut node = Vec::with_capacity(node_bytes);
            node.extend_from_slice(b"TREE");
            node.extend_from_slice(&[1, level]);
            node.extend_from_slice(&(part.len() as u16).to_le_bytes());
            node.extend_from_slice(&left.to_le_bytes());
            node.extend_from_slice(&right.to_le_bytes());
            for (key, child) in part {
                node.extend_from_slice(key);
                node.extend_from_slice(&child.to_le_bytes());
            }
            let next = children.get((number + 1) * CHILDREN).map_or(&end, |(key, _)| key);
            node.extend_from_slice(next);
            node.resize(node_bytes, 0);
            output.bytes.extend_from_slice(&node);
            parents.push((part[0].0.clone(), address(number)));
        }
        if let [(_, root)] = parents[..] {
            return Ok(root);
        }
        children = parents;
    }
    Err(Error::TooLarge("a dataset has too many chunks".to_owned()))
}

/// The size of a chunk, the filters it was stored without, and its position, with one more
/// dimension for the bytes of an element.
fn key(first_row: u64, bytes: u32, rank: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + 8 * (rank + 1));
    key.extend_from_slice(&bytes.to_le_bytes());
    key.extend_from_slice(&[0; 4]);
    key.extend_from_slice(&first_row.to_le_bytes());
    key.resize(8 + 8 * (rank + 1), 0);
    key
}
