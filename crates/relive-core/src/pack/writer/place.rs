//! Names in the filesystem: of a pack, and of an unfinished one.

use std::path::{Path, PathBuf};

use super::super::unfinished::{DIGITS, MARK, journal_of, moved_of};
use crate::durable;
use crate::{Error, Result};

/// Refuses a name that cannot become a pack.
pub(in crate::pack) fn check_target(target: &Path, overwrite: bool) -> Result<()> {
    if target.file_name().is_none() || target.is_dir() {
        let name = target.display();
        return Err(Error::Invalid(format!("`{name}` is a folder, and a pack is a file")));
    }
    if !overwrite && durable::is_taken(target) {
        return Err(durable::exists_already(target));
    }
    let folder = durable::folder_of(target);
    if !folder.is_dir() {
        let text = format!("the folder `{}` does not exist", folder.display());
        return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::NotFound, text)));
    }
    Ok(())
}

/// The name of one try at a pack.
pub(super) fn unfinished_name(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    // 32 bits are enough: a name that is taken is noticed.
    name.push(format!("{MARK}{:0DIGITS$x}", durable::any_number() as u32));
    name.into()
}

/// The error for an unfinished pack that somebody holds.
pub(in crate::pack) fn being_written(path: &Path) -> Error {
    Error::Closed(format!("`{}` is being written by another process", path.display()))
}

/// Removes an unfinished pack.
pub(super) fn remove_unfinished(path: &Path) -> Result<()> {
    // A journal alone is nothing; entries without their journal would look like loss.
    durable::remove(path)?;
    durable::remove(&moved_of(path))?;
    durable::remove(&journal_of(path))
}
