//! Entries of packs into another pack, as they are stored.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use super::layout::{FIRST_USER_KIND, HAS_DICTIONARY, Tag};
use super::reader::PackReader;
use super::seal::map_each;
use super::writer::PackWriter;
use crate::{Error, Result};

/// Entries are looked at in pieces of about so many stored bytes, or so many entries.
const PIECE_BYTES: u64 = 16 << 20;
const PIECE_ENTRIES: usize = 1024;

/// The dictionary that entries of these packs need, if any does; packs whose dictionaries
/// differ are `Unsupported`.
pub fn common_dictionary(packs: &[Arc<PackReader>]) -> Result<Option<Vec<u8>>> {
    let mut common: Option<(&str, Vec<u8>)> = None;
    for pack in packs {
        let Some(bytes) = pack.section(Tag::DICT)? else { continue };
        let name = pack.storage().name();
        match &common {
            Some((first, known)) if *known != *bytes => {
                return Err(Error::Unsupported(format!(
                    "`{first}` and `{name}` are compressed with different dictionaries, and a \
                     pack has one: write the payloads anew instead"
                )));
            }
            Some(_) => {}
            None => common = Some((name, bytes.into_owned())),
        }
    }
    Ok(common.map(|(_, bytes)| bytes))
}

/// Appends entries of packs (position of the pack, position of the entry) to `writer`: stored
/// bytes as they are, kinds with them, and names if they are to be kept.
///
/// Kinds that users named keep their names and get the writer's numbers. Entries that need a
/// dictionary are `Unsupported` unless the writer has the same. `progress` is told how many
/// are done, and may stop the work with an error.
pub fn copy_entries(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    writer: &mut PackWriter,
    keep_names: bool,
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    check_dictionaries(packs, rows, writer)?;
    let mut kinds = HashMap::new();
    let mut done = 0;
    while done < rows.len() {
        let piece = next_piece(packs, &rows[done..])?;
        for &(pack, row) in piece {
            let kind = pack_of(packs, pack)?.entry(row)?.kind;
            if kind >= FIRST_USER_KIND && !kinds.contains_key(&(pack, kind)) {
                let name = pack_of(packs, pack)?.kind_name(row)?;
                kinds.insert((pack, kind), writer.kind_id(&name)?);
            }
        }
        let looked = map_each(piece.len(), writer.options().threads, |at| {
            let (number, row) = piece[at];
            let pack = pack_of(packs, number)?;
            let entry = pack.entry(row)?;
            let kind = kinds.get(&(number, entry.kind)).copied().unwrap_or(entry.kind);
            let names = if keep_names { pack.names()? } else { None };
            let name = names.and_then(|names| names.get(row));
            writer
                .look_at_stored(pack.stored(row)?, &entry, kind, name)
                .map_err(|error| at_entry(pack, row, error))
        });
        for (item, &(number, row)) in looked.into_iter().zip(piece) {
            writer
                .put_stored(&item?)
                .map_err(|error| at_entry(&packs[number as usize], row, error))?;
        }
        done += piece.len();
        progress(done as u64)?;
    }
    Ok(())
}

fn pack_of(packs: &[Arc<PackReader>], number: u32) -> Result<&PackReader> {
    packs.get(number as usize).map(Arc::as_ref).ok_or_else(|| {
        Error::OutOfRange(format!("pack {number} is outside of the {} packs", packs.len()))
    })
}

fn next_piece<'a>(packs: &[Arc<PackReader>], rows: &'a [(u32, u64)]) -> Result<&'a [(u32, u64)]> {
    let mut bytes = 0;
    for (at, &(pack, row)) in rows.iter().enumerate().take(PIECE_ENTRIES) {
        bytes += u64::from(pack_of(packs, pack)?.entry(row)?.length);
        if bytes >= PIECE_BYTES {
            return Ok(&rows[..=at]);
        }
    }
    Ok(&rows[..rows.len().min(PIECE_ENTRIES)])
}

fn check_dictionaries(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    writer: &PackWriter,
) -> Result<()> {
    let mut same: Vec<Option<bool>> = vec![None; packs.len()];
    let ours = writer.options().dictionary.as_ref().map(|dictionary| dictionary.bytes());
    for &(number, row) in rows {
        let pack = pack_of(packs, number)?;
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
                "`{}`: entry {row} is compressed with another dictionary than this pack has, \
                 and a pack has one: write the payload anew instead",
                pack.storage().name()
            )));
        }
    }
    Ok(())
}

fn at_entry(pack: &PackReader, row: u64, error: Error) -> Error {
    error.about(format_args!("`{}`: entry {row}", pack.storage().name()))
}
