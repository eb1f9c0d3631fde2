//! Writes HDF5 files whose chunks are appended by other code.
//!
//! The library of HDF5 ends the process by a signal when a write fails, and holds one lock for the
//! whole process. So the chunks of a file are appended with `pwrite`, and this module makes the
//! metadata around them: all of it at once, to be appended after the chunks, and a superblock that
//! refers to it. The file is a valid HDF5 file after each superblock, and earlier metadata is
//! unused space. `docs/format/replay.md` says which part of HDF5 is used.

mod btree;
mod checksum;
mod datatype;
mod filters;
mod messages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::datatype::Datatype;
pub use self::filters::{Filters, MAX_CHUNK_BYTES};
use self::messages::{GlobalHeap, Header};
use crate::crc::Crc32c;
use crate::{Error, Result};

/// Bytes of the superblock, which is at the start of the file.
pub const SUPERBLOCK_BYTES: usize = 48;

/// Bytes of the trailer, with which metadata ends. HDF5 does not use it.
const TRAILER_BYTES: usize = 16;

/// The last bytes of the trailer.
const TRAILER_MAGIC: &[u8] = b"RPLY";

/// The first bytes of every HDF5 file.
const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

/// An address that refers to nothing.
const UNDEFINED: u64 = u64::MAX;

/// The most dimensions of a dataset.
const MAX_RANK: usize = 32;

/// The most names of a path; groups are written by recursion.
const MAX_DEPTH: usize = 512;

/// Where metadata begins at the latest. No file system has files of this size.
const MAX_OFFSET: u64 = 1 << 62;

/// A chunk in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its first row, a multiple of the rows of a chunk.
    pub first_row: u64,
    /// Where its bytes are.
    pub offset: u64,
    /// How many bytes it has, after all filters.
    pub bytes: u32,
}

/// Where the values of a dataset are.
#[derive(Debug, Clone)]
pub enum Values {
    /// In chunks of this many rows, in the order of their rows; a row without a chunk is zero.
    Chunks {
        /// Rows of a chunk.
        rows: u64,
        /// What was done to the bytes of a chunk.
        filters: Filters,
        /// The chunks.
        chunks: Vec<Chunk>,
    },
    /// Here. They become part of the metadata.
    Bytes(Vec<u8>),
}

/// A dataset.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Its type.
    pub datatype: Datatype,
    /// Its shape; the first dimension counts rows.
    pub shape: Vec<u64>,
    /// Its values.
    pub values: Values,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An attribute of a group or dataset.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A string of any length.
    Text(String),
    /// An integer.
    Int(i64),
}

/// Attributes by name.
pub type Attributes = BTreeMap<String, Attribute>;

/// A group: datasets and further groups by name.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// Its members.
    pub members: BTreeMap<String, Member>,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A member of a group.
#[derive(Debug, Clone)]
pub enum Member {
    /// A group.
    Group(Group),
    /// A dataset.
    Dataset(Dataset),
}

impl Group {
    /// Adds a dataset at a path such as `episodes/starts`. A path that a dataset or group has
    /// already is an error.
    pub fn insert(&mut self, path: &str, dataset: Dataset) -> Result<()> {
        let depth = path.split('/').count();
        if depth > MAX_DEPTH {
            return Err(Error::over_limit(depth, MAX_DEPTH, "a path", "names"));
        }
        self.insert_below(path, dataset)
    }

    fn insert_below(&mut self, path: &str, dataset: Dataset) -> Result<()> {
        let taken = || Error::Invalid(format!("{path:?} is both a dataset and a group"));
        match path.split_once('/') {
            Some((first, rest)) => {
                let member = self.members.entry(first.to_owned());
                match member.or_insert_with(|| Member::Group(Self::default())) {
                    Member::Group(group) => group.insert_below(rest, dataset),
                    Member::Dataset(_) => Err(taken()),
                }
            }
            None if path.is_empty() => Err(Error::Invalid("a name must not be empty".to_owned())),
            None => match self.members.insert(path.to_owned(), Member::Dataset(dataset)) {
                None => Ok(()),
                Some(_) => Err(taken()),
            },
        }
    }
}

/// The metadata of a file. Its trailer has the offset at which it was made and a checksum of
/// everything before the checksum and of the superblock.
#[derive(Debug)]
pub struct Metadata {
    /// Bytes for the offset at which it was made.
    pub bytes: Vec<u8>,
    /// Bytes for the start of the file, written after the others are there.
    pub superblock: [u8; SUPERBLOCK_BYTES],
}

/// Makes the metadata of a file, to be written at the offset `at`, after all chunks.
pub fn metadata(root: &Group, at: u64) -> Result<Metadata> {
    if at > MAX_OFFSET {
        return Err(Error::over_limit(at, MAX_OFFSET, "a file", "bytes"));
    }
    let mut output = Output { at, bytes: Vec::new() };
    let root = group(&mut output, root)?;
    let end = output.append(&at.to_le_bytes()) + TRAILER_BYTES as u64;
    let mut superblock = Vec::with_capacity(SUPERBLOCK_BYTES);
    superblock.extend_from_slice(SIGNATURE);
    superblock.extend_from_slice(&[3, 8, 8, 0]);
    for address in [0, UNDEFINED, end, root] {
        superblock.extend_from_slice(&address.to_le_bytes());
    }
    superblock.extend_from_slice(&checksum::lookup3(&superblock).to_le_bytes());
    let superblock: [u8; SUPERBLOCK_BYTES] =
        superblock.try_into().map_err(|_| Error::Invalid("superblock".to_owned()))?;
    // In another order than in `MetadataRecord`: bytes that are followed by their own CRC have the
    // same CRC whatever they are.
    let mut crc = Crc32c::default();
    crc.update(&output.bytes);
    crc.update(&superblock);
    output.bytes.extend_from_slice(&crc.value().to_le_bytes());
    output.bytes.extend_from_slice(TRAILER_MAGIC);
    Ok(Metadata { bytes: output.bytes, superblock })
}

/// Returns the end of the file that a superblock of this module describes; None if it is not one.
pub fn described_end(superblock: &[u8; SUPERBLOCK_BYTES]) -> Option<u64> {
    let (described, checksum) = superblock.split_at(SUPERBLOCK_BYTES - 4);
    let is_valid =
        described.starts_with(SIGNATURE) && checksum == checksum::lookup3(described).to_le_bytes();
    let end = described.get(28..36)?.try_into().ok().map(u64::from_le_bytes)?;
    is_valid.then_some(end)
}

/// Bytes that begin at an offset of the file.
struct Output {
    at: u64,
    bytes: Vec<u8>,
}

impl Output {
    fn position(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// Appends bytes at an address that is a multiple of 8, and returns it.
    fn append(&mut self, bytes: &[u8]) -> u64 {
        let gap = self.position().next_multiple_of(8) - self.position();
        self.bytes.extend_from_slice(&[0; 8][..gap as usize]);
        let address = self.position();
        self.bytes.extend_from_slice(bytes);
        address
    }
}

fn group(output: &mut Output, group: &Group) -> Result<u64> {
    let mut links = Vec::with_capacity(group.members.len());
    for (name, member) in &group.members {
        let address = match member {
            Member::Group(inner) => self::group(output, inner)?,
            Member::Dataset(inner) => dataset(output, inner).map_err(|e| e.about(name))?,
        };
        links.push((name, address));
    }
    let mut header = Header::default();
    header.link_info();
    for (name, address) in links {
        header.link(name, address)?;
    }
    attributes(output, &mut header, &group.attributes)?;
    Ok(output.append(&header.finish()?))
}

fn dataset(output: &mut Output, dataset: &Dataset) -> Result<u64> {
    let rank = dataset.shape.len();
    if rank == 0 || rank > MAX_RANK - 1 {
        let text = format!("a dataset must have 1 to {} dimensions, got {rank}", MAX_RANK - 1);
        return Err(Error::Invalid(text));
    }
    let mut header = Header::default();
    header.datatype(&dataset.datatype);
    header.fill_value();
    match &dataset.values {
        Values::Bytes(bytes) => {
            header.dataspace(&dataset.shape, false);
            let address = if bytes.is_empty() { UNDEFINED } else { output.append(bytes) };
            header.contiguous_layout(address, bytes.len() as u64);
        }
        Values::Chunks { rows, filters, chunks } => {
            header.dataspace(&dataset.shape, true);
            let mut shape = Vec::with_capacity(rank);
            for size in [rows].into_iter().chain(&dataset.shape[1..]) {
                // A dimension without elements needs a chunk of one, which is never written.
                let size = u32::try_from((*size).max(1));
                shape.push(size.map_err(|_| Error::TooLarge("a chunk is too large".to_owned()))?);
            }
            let tree = btree::write(output, chunks, rank, *rows)?;
            header.chunked_layout(tree, &shape, dataset.datatype.size());
            filters.describe(&mut header, dataset.datatype.size());
        }
    }
    attributes(output, &mut header, &dataset.attributes)?;
    Ok(output.append(&header.finish()?))
}

fn attributes(output: &mut Output, header: &mut Header, attributes: &Attributes) -> Result<()> {
    let mut heap = GlobalHeap::default();
    let texts = attributes.values().filter_map(|value| match value {
        Attribute::Text(text) => Some(text),
        Attribute::Int(_) => None,
    });
    for text in texts {
        heap.push(text.as_bytes())?;
    }
    let address = heap.finish().map(|bytes| output.append(&bytes)).unwrap_or(UNDEFINED);
    let mut texts = 0;
    for (name, value) in attributes {
        match value {
            Attribute::Int(value) => header.int_attribute(name, *value)?,
            Attribute::Text(text) => {
                texts += 1;
                header.text_attribute(name, text.len(), address, texts)?;
            }
        }
    }
    Ok(())
}
