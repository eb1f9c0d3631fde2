//! Copied entries are what they were, bytes, names and kinds.

use super::*;
use crate::codec::{Codec, Dictionary, train_dictionary};
use crate::durable::Folder;
use crate::pack::Options;
use crate::pack::testing::{create, kind_of, naive, plain_run, small, v2};
use crate::pack::writer::WriterOptions;
use crate::runs::Version;

#[test]
fn entries_are_copied_as_they_are_stored() {
    let folder = Folder::new();
    let open = |name: &str| {
        Arc::new(PackReader::open(&folder.path(name), true, Options::default()).unwrap())
    };
    let mut first = create(&folder.path("first"), WriterOptions { codec: Codec::Zstd, ..small() });
    let frame = first.kind_id("frame").unwrap();
    first.append(&v2(100, Some("a")), 2, Some("one"), None).unwrap();
    first.append(&[5; 500], frame, None, None).unwrap();
    first.finish().unwrap();
    let mut second = create(&folder.path("second"), WriterOptions { checksum: false, ..small() });
    let other = second.kind_id("other").unwrap();
    let frame = second.kind_id("frame").unwrap();
    second.append(b"other", other, Some("two"), None).unwrap();
    second.append(b"frame", frame, None, None).unwrap();
    second.append(&plain_run(9, None).to_bytes(Version::V1).unwrap(), 1, None, None).unwrap();
    second.finish().unwrap();

    let packs = [open("first"), open("second")];
    let rows = [(1, 2), (0, 1), (0, 0), (1, 1), (1, 0), (0, 1)];
    let mut writer = create(&folder.path("both"), WriterOptions { align: 1, ..small() });
    let told = std::cell::Cell::new(0);
    copy_entries(&packs, &rows, &mut writer, true, &|done| {
        told.set(done);
        Ok(())
    })
    .unwrap();
    writer.finish().unwrap();
    assert_eq!(told.get(), 6);
    let (both, pack) = (open("both"), naive(&folder.path("both")));
    for (at, &(from, row)) in rows.iter().enumerate() {
        let source = &packs[from as usize];
        assert_eq!(both.stored(at as u64).unwrap(), source.stored(row).unwrap());
        assert_eq!(both.kind_name(at as u64).unwrap(), source.kind_name(row).unwrap());
        let name = source.names().unwrap().and_then(|names| names.get(row));
        assert_eq!(both.names().unwrap().unwrap().get(at as u64), name);
        assert_eq!(pack.entries[at].logical, source.entry(row).unwrap().logical);
    }
    assert_eq!(both.run_columns().unwrap().steps, [9, 0, 100, 0, 0, 0]);

    // A name cannot be there twice, and work can be stopped.
    let mut writer = create(&folder.path("twice"), small());
    let refused = copy_entries(&packs, &[(0, 0), (0, 0)], &mut writer, true, &|_| Ok(()));
    assert!(
        refused.unwrap_err().to_string().contains("first`: entry 0: another entry already has")
    );
    let stop = |_| Err(Error::Invalid("stop".into()));
    assert_eq!(kind_of(copy_entries(&packs, &[(0, 1)], &mut writer, true, &stop)), "invalid");
    assert_eq!(kind_of(copy_entries(&packs, &[(2, 0)], &mut writer, true, &stop)), "out-of-range");
    assert_eq!(kind_of(copy_entries(&packs, &[(0, 9)], &mut writer, true, &stop)), "out-of-range");
}

#[test]
fn dictionaries_go_along_or_are_refused() {
    let folder = Folder::new();
    let trained = |engine: &str| {
        let samples: Vec<Vec<u8>> = (0..200).map(|k| v2(20 + k, Some(engine))).collect();
        Arc::new(Dictionary::new(train_dictionary(&samples, 2048).unwrap()).unwrap())
    };
    let (one, two) = (trained("expectimax"), trained("another engine with a long name"));
    let pack = |name: &str, dictionary: &Arc<Dictionary>| {
        let dictionary = Some(Arc::clone(dictionary));
        let options = WriterOptions { codec: Codec::Zstd, dictionary, ..small() };
        let mut writer = create(&folder.path(name), options);
        writer.append(&v2(300, Some("expectimax")), 2, None, None).unwrap();
        writer.finish().unwrap();
        Arc::new(PackReader::open(&folder.path(name), true, Options::default()).unwrap())
    };
    let packs = [pack("one", &one), pack("two", &two)];
    let shared = common_dictionary(&packs[..1]).unwrap();
    assert_eq!(shared.as_deref(), Some(one.bytes()));
    assert_eq!(kind_of(common_dictionary(&packs)), "unsupported");
    let options = WriterOptions { dictionary: Some(one), ..small() };
    let mut writer = create(&folder.path("copy"), options);
    let copied = copy_entries(&packs, &[(0, 0), (1, 0)], &mut writer, true, &|_| Ok(()));
    assert_eq!((kind_of(copied), writer.len()), ("unsupported", 0));
    copy_entries(&packs, &[(0, 0)], &mut writer, true, &|_| Ok(())).unwrap();
    writer.finish().unwrap();
    assert_eq!(naive(&folder.path("copy")).payloads, [v2(300, Some("expectimax"))]);
}
