//! Object headers, the messages in them, and heaps of strings.

use super::UNDEFINED;
use super::checksum::lookup3;
use super::datatype::Datatype;
use crate::{Error, Result};

const DATASPACE: u8 = 0x01;
const LINK_INFO: u8 = 0x02;
const DATATYPE: u8 = 0x03;
const FILL_VALUE: u8 = 0x05;
const LINK: u8 = 0x06;
const LAYOUT: u8 = 0x08;
const GROUP_INFO: u8 = 0x0a;
const FILTERS: u8 = 0x0b;
const ATTRIBUTE: u8 = 0x0c;

/// An object header of version 2, with all of its messages in one block.
#[derive(Default)]
pub(super) struct Header {
    messages: Vec<u8>,
    is_too_large: bool,
}

impl Header {
    fn push(&mut self, kind: u8, content: &[u8]) {
        let Ok(length) = u16::try_from(content.len()) else {
            self.is_too_large = true;
            return;
        };
        self.messages.push(kind);
        self.messages.extend_from_slice(&length.to_le_bytes());
        self.messages.push(0);
        self.messages.extend_from_slice(content);
    }

    /// Returns the bytes of the header.
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        let length = u32::try_from(self.messages.len()).ok().filter(|_| !self.is_too_large);
        let length = length.ok_or_else(|| Error::TooLarge("an HDF5 header is full".to_owned()))?;
        let mut bytes = b"OHDR\x02\x02".to_vec();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.messages);
        bytes.extend_from_slice(&lookup3(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Makes this the header of a group, whose links are in the header.
    pub(super) fn link_info(&mut self) {
        let mut content = vec![0, 0];
        content.extend_from_slice(&UNDEFINED.to_le_bytes());
        content.extend_from_slice(&UNDEFINED.to_le_bytes());
        self.push(LINK_INFO, &content);
        self.push(GROUP_INFO, &[0, 0]);
    }

    pub(super) fn link(&mut self, name: &str, address: u64) -> Result<()> {
        let length = u16::try_from(name.len());
        let length =
            length.map_err(|_| Error::over_limit(name.len(), u16::MAX, "a name", "bytes"))?;
        // The name has a length of two bytes, and is UTF-8.
        let mut content = vec![1, 0x11, 1];
        content.extend_from_slice(&length.to_le_bytes());
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(&address.to_le_bytes());
        self.push(LINK, &content);
        Ok(())
    }

    /// Adds the shape of a dataset; one that `grows` has an unlimited number of rows.
    pub(super) fn dataspace(&mut self, shape: &[u64], grows: bool) {
        self.push(DATASPACE, &dataspace(shape, grows));
    }

    pub(super) fn datatype(&mut self, datatype: &Datatype) {
        self.push(DATATYPE, &datatype.message());
    }

    /// Adds the fill value, which is zero.
    pub(super) fn fill_value(&mut self) {
        // Space is allocated chunk by chunk, and the value is written only if it was set.
        self.push(FILL_VALUE, &[3, 0x0b]);
    }

    pub(super) fn contiguous_layout(&mut self, address: u64, bytes: u64) {
        let mut content = vec![3, 1];
        content.extend_from_slice(&address.to_le_bytes());
        content.extend_from_slice(&bytes.to_le_bytes());
        self.push(LAYOUT, &content);
    }

    /// Adds the layout of a dataset in chunks of this shape, which a B-tree finds.
    pub(super) fn chunked_layout(&mut self, tree: u64, shape: &[u32], item_bytes: u32) {
        let mut content = vec![3, 2, shape.len() as u8 + 1];
        content.extend_from_slice(&tree.to_le_bytes());
        for size in shape.iter().chain([&item_bytes]) {
            content.extend_from_slice(&size.to_le_bytes());
        }
        self.push(LAYOUT, &content);
    }

    /// Adds the filters of a dataset, in the order in which a writer applies them.
    pub(super) fn filters(&mut self, filters: &[Filter]) {
        let mut content = vec![2, filters.len() as u8];
        for filter in filters {
            content.extend_from_slice(&filter.id.to_le_bytes());
            let name = [filter.name.as_bytes(), b"\0"].concat();
            if filter.id >= 256 {
                content.extend_from_slice(&(name.len() as u16).to_le_bytes());
            }
            content.extend_from_slice(&[1, 0]); // a chunk may be stored without it
            content.extend_from_slice(&(filter.values.len() as u16).to_le_bytes());
            if filter.id >= 256 {
                content.extend_from_slice(&name);
            }
            for value in &filter.values {
                content.extend_from_slice(&value.to_le_bytes());
            }
        }
        self.push(FILTERS, &content);
    }

    pub(super) fn int_attribute(&mut self, name: &str, value: i64) -> Result<()> {
        self.attribute(name, &Datatype::Int(8).message(), &value.to_le_bytes())
    }

    /// Adds a string of `length` bytes, the object `index` of the heap at `heap`.
    pub(super) fn text_attribute(
        &mut self,
        name: &str,
        length: usize,
        heap: u64,
        index: u32,
    ) -> Result<()> {
        // A string of any length, UTF-8, of unsigned bytes.
        let mut datatype = vec![0x19, 1, 1, 0, 16, 0, 0, 0];
        datatype.extend_from_slice(&Datatype::Uint(1).message());
        let mut value = (length as u32).to_le_bytes().to_vec();
        value.extend_from_slice(&heap.to_le_bytes());
        value.extend_from_slice(&index.to_le_bytes());
        self.attribute(name, &datatype, &value)
    }

    fn attribute(&mut self, name: &str, datatype: &[u8], value: &[u8]) -> Result<()> {
        let name = [name.as_bytes(), b"\0"].concat();
        let length = u16::try_from(name.len());
        let length =
            length.map_err(|_| Error::over_limit(name.len(), u16::MAX, "a name", "bytes"))?;
        let space = dataspace(&[], false);
        let mut content = vec![3, 0];
        for length in [length, datatype.len() as u16, space.len() as u16] {
            content.extend_from_slice(&length.to_le_bytes());
        }
        content.push(1); // the name is UTF-8
        for part in [&name, datatype, &space, value] {
            content.extend_from_slice(part);
        }
        self.push(ATTRIBUTE, &content);
        Ok(())
    }
}

fn dataspace(shape: &[u64], grows: bool) -> Vec<u8> {
    let mut content = vec![2, shape.len() as u8, u8::from(grows), u8::from(!shape.is_empty())];
    for size in shape {
        content.extend_from_slice(&size.to_le_bytes());
    }
    if grows {
        for (dimension, size) in shape.iter().enumerate() {
            let most = if dimension == 0 { UNDEFINED } else { *size };
            content.extend_from_slice(&most.to_le_bytes());
        }
    }
    content
}

/// A filter of HDF5 with its parameters.
pub(super) struct Filter {
    pub(super) id: u16,
    pub(super) name: &'static str,
    pub(super) values: Vec<u32>,
}

/// Strings that attributes refer to, numbered from 1 on.
#[derive(Default)]
pub(super) struct GlobalHeap {
    objects: Vec<u8>,
    count: u16,
}

impl GlobalHeap {
    const MIN_BYTES: usize = 4096;
    const HEAD_BYTES: usize = 16;

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let count = self.count.checked_add(1).filter(|_| u32::try_from(bytes.len()).is_ok());
        self.count = count.ok_or_else(|| Error::TooLarge("an HDF5 heap is full".to_owned()))?;
        self.object(self.count, 1, bytes.len());
        self.objects.extend_from_slice(bytes);
        self.objects.resize(self.objects.len().next_multiple_of(8), 0);
        Ok(())
    }

    /// Returns the bytes of the heap; None if it has no string.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        if self.count == 0 {
            return None;
        }
        // The rest of the heap is an object too, number 0. Its size counts its own head.
        let used = Self::HEAD_BYTES + self.objects.len();
        let bytes = (used + Self::HEAD_BYTES).max(Self::MIN_BYTES);
        self.object(0, 0, bytes - used);
        let mut heap = b"GCOL\x01\0\0\0".to_vec();
        heap.extend_from_slice(&(bytes as u64).to_le_bytes());
        heap.extend_from_slice(&self.objects);
        heap.resize(bytes, 0);
        Some(heap)
    }

    fn object(&mut self, index: u16, references: u16, bytes: usize) {
        self.objects.extend_from_slice(&index.to_le_bytes());
        self.objects.extend_from_slice(&references.to_le_bytes());
        self.objects.extend_from_slice(&[0; 4]);
        self.objects.extend_from_slice(&(bytes as u64).to_le_bytes());
    }
}
