//! Recovery from any journal returns a complete pack or an error, and never panics.
//!
//! The first byte selects whether the input is the journal itself, or a list of records, each
//! after its length in one byte, from which a journal with valid checksums is written.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use relive_core::journal::Journal;
use relive_core::pack::{Level, recover, validate};
use relive_core::storage::PreadFile;

fuzz_target!(|input: &[u8]| {
    let [whole, data_bytes, rest @ ..] = input else { return };
    let folder = Folder::new();
    let unfinished = folder.0.join("x.a2pack.unfinished-0123abcd");
    let journal = folder.0.join("x.a2pack.unfinished-0123abcd.journal");
    let output = folder.0.join("x.a2pack");
    let (data, rest) = rest.split_at(usize::from(*data_bytes).min(rest.len()));
    fs::write(&unfinished, data).expect("the folder takes files");
    if whole % 2 == 0 {
        write_records(&journal, rest);
    } else {
        fs::write(&journal, rest).expect("the folder takes files");
    }
    if recover(&unfinished, &output, false).is_ok() {
        let storage = Box::new(PreadFile::open(&output).expect("it was just written"));
        let report = validate(storage, Level::Full, 1 << 16, 1, &|_, _| Ok(()));
        let report = report.expect("the disk works");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    } else {
        assert!(!output.exists());
    }
});

fn write_records(path: &Path, mut rest: &[u8]) {
    let mut journal = Journal::create(path).expect("nothing is there");
    while let [length, tail @ ..] = rest {
        let (record, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        journal.append(record).expect("it is short");
        rest = tail;
    }
    journal.flush().expect("the folder takes files");
}

/// Returns a directory of this process in memory, empty for every input.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let root = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let path = Path::new(root).join(format!("relive-fuzz-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir(&path).expect("there is room");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
