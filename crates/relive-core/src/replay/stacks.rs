//! Stacked observations: the last few planes of a stream, of which only the newest is new.

use std::collections::HashMap;

use super::interleave;

/// Where the planes of a stack are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackAxis {
    /// The first axis: a stack is its planes, one after the other.
    First,
    /// The last axis: a stack has the elements of all planes side by side.
    Last,
}

/// Splits stacks into planes, and finds those that the stack before had.
#[derive(Debug)]
pub struct Stacks {
    axis: StackAxis,
    depth: usize,
    item_bytes: usize,
    plane_bytes: usize,
    streams: HashMap<u64, Stack>,
}

/// The last stack of a stream.
#[derive(Debug, Default)]
struct Stack {
    /// The stack as it was given.
    bytes: Vec<u8>,
    /// Its planes, one after the other. Only the last of them if the stack moved on by one.
    planes: Vec<u8>,
    numbers: Vec<u64>,
}

impl Stacks {
    /// Splits stacks of `depth` planes, each of `plane_bytes` bytes in elements of `item_bytes`.
    pub fn new(axis: StackAxis, depth: usize, item_bytes: usize, plane_bytes: usize) -> Self {
        Self { axis, depth, item_bytes, plane_bytes, streams: HashMap::new() }
    }

    /// Returns the bytes of a stack.
    pub fn bytes(&self) -> usize {
        self.depth * self.plane_bytes
    }

    /// Returns the numbers of the planes of a stack. `store` stores a plane that the stack before
    /// it in the same stream does not have, and returns its number.
    pub fn split<E>(
        &mut self,
        stream: u64,
        bytes: &[u8],
        mut store: impl FnMut(&[u8]) -> Result<u64, E>,
    ) -> Result<&[u64], E> {
        let (depth, size) = (self.depth, self.plane_bytes);
        debug_assert_eq!(bytes.len(), depth * size);
        let last = self.streams.entry(stream).or_default();
        let mut numbers: Vec<u64> = Vec::with_capacity(depth);
        let newest = if last.numbers.len() == depth {
            newest_plane(self.axis, (depth, self.item_bytes), &last.bytes, bytes)
        } else {
            None
        };
        if let Some(newest) = newest {
            // The stack moved on by one plane, which is new, or the same as before.
            numbers.extend_from_slice(&last.numbers[1..]);
            let before = &last.planes[last.planes.len() - size..];
            let known = (newest == before).then(|| last.numbers[depth - 1]);
            numbers.push(match known {
                Some(number) => number,
                None => store(&newest)?,
            });
            last.planes = newest;
        } else {
            let mut planes = vec![0; bytes.len()];
            match self.axis {
                StackAxis::First => planes.copy_from_slice(bytes),
                StackAxis::Last => separate(bytes, depth, self.item_bytes, &mut planes),
            }
            let mut before = vec![0; last.bytes.len()];
            match self.axis {
                StackAxis::First => before.copy_from_slice(&last.bytes),
                StackAxis::Last => separate(&last.bytes, depth, self.item_bytes, &mut before),
            }
            for (place, plane) in planes.chunks_exact(size.max(1)).enumerate() {
                let same_as = |of: &[u8], numbers: &[u64], place: usize| {
                    let found = of.get(place * size..(place + 1) * size)?;
                    (found == plane).then(|| numbers.get(place).copied()).flatten()
                };
                // The plane moved on, did not move, or repeats the one before it.
                let known = same_as(&before, &last.numbers, place + 1)
                    .or_else(|| same_as(&before, &last.numbers, place))
                    .or_else(|| same_as(&planes, &numbers, place.checked_sub(1)?));
                numbers.push(match known {
                    Some(number) => number,
                    None => store(plane)?,
                });
            }
            last.planes = planes;
        }
        last.bytes.clear();
        last.bytes.extend_from_slice(bytes);
        last.numbers = numbers;
        Ok(&last.numbers)
    }
}

/// Returns the newest plane of a stack that moved on by one plane since `before`, in the one pass
/// over its bytes that this takes; None if it did not, or is not one of the usual stacks.
fn newest_plane(
    axis: StackAxis,
    (depth, item_bytes): (usize, usize),
    before: &[u8],
    bytes: &[u8],
) -> Option<Vec<u8>> {
    let size = bytes.len() / depth.max(1);
    if axis == StackAxis::First {
        return (before[size..] == bytes[..bytes.len() - size])
            .then(|| bytes[bytes.len() - size..].to_vec());
    }
    if (depth, item_bytes) != (4, 1) {
        return None;
    }
    let ((items, _), (old, _)) = (bytes.as_chunks::<4>(), before.as_chunks::<4>());
    let mut different = 0;
    for (item, old) in items.iter().zip(old) {
        let (item, old) = (u32::from_le_bytes(*item), u32::from_le_bytes(*old));
        different |= (item & 0x00ff_ffff) ^ (old >> 8);
    }
    (different == 0).then(|| items.iter().map(|item| item[3]).collect())
}

/// Copies each plane of elements that are side by side to a place of its own.
pub fn separate(bytes: &[u8], depth: usize, item_bytes: usize, planes: &mut [u8]) {
    let plane_bytes = bytes.len() / depth.max(1);
    if (depth, item_bytes) == (4, 1) {
        // The usual stack: four planes of bytes.
        let (first, rest) = planes.split_at_mut(plane_bytes);
        let (second, rest) = rest.split_at_mut(plane_bytes);
        let (third, fourth) = rest.split_at_mut(plane_bytes);
        let (items, _) = bytes.as_chunks::<4>();
        let outs = first.iter_mut().zip(second).zip(third).zip(fourth);
        for ((((a, b), c), d), item) in outs.zip(items) {
            [*a, *b, *c, *d] = *item;
        }
        return;
    }
    for (place, plane) in planes.chunks_exact_mut(plane_bytes.max(1)).enumerate() {
        let items = bytes.chunks_exact(depth * item_bytes);
        if item_bytes == 1 {
            for (out, item) in plane.iter_mut().zip(items) {
                *out = item[place];
            }
        } else {
            for (out, item) in plane.chunks_exact_mut(item_bytes).zip(items) {
                out.copy_from_slice(&item[place * item_bytes..(place + 1) * item_bytes]);
            }
        }
    }
}

/// Makes a stack of planes. With `past_caches`, other threads may see it only after
/// [`interleave::fence`].
pub(super) fn join(
    axis: StackAxis,
    planes: &[&[u8]],
    item_bytes: usize,
    past_caches: bool,
    out: &mut [u8],
) {
    if axis == StackAxis::First {
        for (plane, out) in planes.iter().zip(out.chunks_exact_mut(planes[0].len().max(1))) {
            out.copy_from_slice(plane);
        }
        return;
    }
    if let ([a, b, c, d], 1) = (planes, item_bytes) {
        return interleave::four([a, b, c, d], past_caches, out);
    }
    for (place, plane) in planes.iter().enumerate() {
        scatter(plane, (place, planes.len()), item_bytes, out);
    }
}

/// Writes the elements of one plane to their places in a stack, whose planes are side by side.
pub(super) fn scatter(
    plane: &[u8],
    (place, depth): (usize, usize),
    item_bytes: usize,
    out: &mut [u8],
) {
    // With a constant size an element is moved in a register, without a call.
    match item_bytes {
        1 => scatter_sized::<1>(plane, (place, depth), out),
        2 => scatter_sized::<2>(plane, (place, depth), out),
        4 => scatter_sized::<4>(plane, (place, depth), out),
        8 => scatter_sized::<8>(plane, (place, depth), out),
        _ => {
            let outs = out.chunks_exact_mut(depth * item_bytes);
            for (out, item) in outs.zip(plane.chunks_exact(item_bytes)) {
                out[place * item_bytes..(place + 1) * item_bytes].copy_from_slice(item);
            }
        }
    }
}

fn scatter_sized<const N: usize>(plane: &[u8], (place, depth): (usize, usize), out: &mut [u8]) {
    let (items, (outs, _)) = (plane.as_chunks::<N>().0, out.as_chunks_mut::<N>());
    let outs = outs.get_mut(place..).unwrap_or_default();
    for (out, item) in outs.iter_mut().step_by(depth).zip(items) {
        *out = *item;
    }
}
