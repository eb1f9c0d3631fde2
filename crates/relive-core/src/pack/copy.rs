//! Copies entries to another pack without recompressing them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use super::index::groups;
use super::layout::{FIRST_USER_KIND, HAS_DICTIONARY, Tag};
use super::reader::{PackReader, pack_at};
use super::writer::PackWriter;
use crate::{Error, Result, pool};

/// The most stored bytes and entries that are checked at a time.
const GROUP_BYTES: u64 = 16 << 20;
const GROUP_ENTRIES: usize = 1024;

/// Returns the dictionary of these packs, if any has one; different dictionaries are
/// `Unsupported`.
pub fn common_dictionary(packs: &[Arc<PackReader>]) -> Result<Option<Vec<u8>>> {
    let mut common: Option<(&str, Vec<u8>)> = None;
    for pack in packs {
        let Some(bytes) = pack.section(Tag::DICT)? else { continue };
        let name = pack.storage().name();
        match &common {
            Some((first, known)) if *known != *bytes => {
                return Err(Error::Unsupported(format!(
                    "`{first}` and `{name}` are compressed with different dictionaries, but a pack \
                     can have only one dictionary: decompress the payloads and append them"
                )));
            }
            Some(_) => {}
            None => common = Some((name, bytes.into_owned())),
        }
    }
    Ok(common.map(|(_, bytes)| bytes))
}

/// Appends entries (position of the pack, position of the entry) to `writer`: their stored bytes,
/// kinds, and with `keep_names` their names.
///
/// User-defined kinds keep their names and get the writer's numbers. Entries that need a
/// dictionary are `Unsupported` unless the writer has the same one. `progress` is called with the
/// number of copied entries; an error stops the copy.
pub fn copy_entries(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    writer: &mut PackWriter,
    keep_names: bool,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    check_dictionaries(packs, rows, writer)?;
    let mut kinds = HashMap::new();
    let stored_bytes = |at: usize| {
        let (pack, row) = rows[at];
        Ok(u64::from(pack_at(packs, pack)?.entry(row)?.length))
    };
    for range in groups(rows.len(), stored_bytes, GROUP_BYTES, GROUP_ENTRIES)? {
        let group = &rows[range.clone()];
        for &(pack, row) in group {
            let kind = pack_at(packs, pack)?.entry(row)?.kind;
            if kind >= FIRST_USER_KIND && !kinds.contains_key(&(pack, kind)) {
                let name = pack_at(packs, pack)?.kind_name(row)?;
                kinds.insert((pack, kind), writer.kind_id(&name)?);
            }
        }
        let checked = pool::map(group, writer.options().threads, |&(number, row)| {
            let pack = pack_at(packs, number)?;
            let entry = pack.entry(row)?;
            let kind = kinds.get(&(number, entry.kind)).copied().unwrap_or(entry.kind);
            let names = if keep_names { pack.names()? } else { None };
            let name = names.and_then(|names| names.get(row));
            writer
                .check_stored(pack.stored(row)?, &entry, kind, name)
                .map_err(|error| at_entry(pack, row, error))
        });
        for (item, &(number, row)) in checked.into_iter().zip(group) {
            writer
                .put_stored(&item?)
                .map_err(|error| at_entry(&packs[number as usize], row, error))?;
        }
        progress(range.end as u64)?;
    }
    Ok(())
}

fn check_dictionaries(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    writer: &PackWriter,
) -> Result<()> {
    let mut same: Vec<Option<bool>> = vec![None; packs.len()];
    let ours = writer.options().dictionary.as_ref().map(|dictionary| dictionary.bytes());
    for &(number, row) in rows {
        let pack = pack_at(packs, number)?;
        if pack.entry(row)?.flags & HAS_DICTIONARY == 0 {
            continue;
        }
        let known = &mut same[number as usize];
        let is_same = match *known {
            Some(is_same) => is_same,
            None => pack.section(Tag::DICT)?.as_deref() == ours,
        };
        *known = Some(is_same);
        if !is_same {
            return Err(Error::Unsupported(format!(
                "`{}`: entry {row} is compressed with a different dictionary than the target pack, \
                 which can have only one: decompress the payload and append it",
                pack.storage().name()
            )));
        }
    }
    Ok(())
}

fn at_entry(pack: &PackReader, row: u64, error: Error) -> Error {
    error.about(format_args!("`{}`: entry {row}", pack.storage().name()))
}
