"""The catalog of a root: versions, pointers, lists, and how many requests they cost."""

import dataclasses
import hashlib
import pickle
import subprocess
from pathlib import Path

import pytest

from relive.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    DatasetNotFoundError,
    InvalidError,
    ManifestCorruptedError,
    NotFoundError,
    ReliveError,
    UnsupportedError,
    VersionWithdrawnError,
)
from relive.publish.version import listing, names
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import DatasetId, Reference, parse_reference
from relive.publish.version.pointers import INLINE_BYTES
from relive.store.blobs import blob_key
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.publish.version.example_versions import (
    ID,
    Made,
    RecordedRoot,
    make,
    many_shards,
    publish,
    upload,
)
from tests.servers import Nginx

LATEST = Reference(ID, None)
FOLDER = "manifests/lab/numbers/"


def stored(root: Root) -> dict[str, bytes]:
    return {entry.key: root.get(entry.key).data for entry in root.list()}


def test_a_version_is_published_and_found(root: Root) -> None:
    one, two = make([1, 2], [3], readme="# One"), make([1, 2], [4, 5])
    first = publish(root, one, tag="v1", message="the first", author="me")
    second = publish(root, two, parent=first)
    catalog = Catalog(root)
    assert (first, second) == (one.manifest.digest, two.manifest.digest)
    found = catalog.resolve(LATEST)
    assert (found.digest, found.manifest) == (second, two.manifest)
    assert found.pinned == f"lab/numbers@{second}"
    assert found.meta.parent == first
    for version in ("v1", first, first[:8], first[:20].upper()):
        found = catalog.resolve(parse_reference(f"lab/numbers@{version}"))
        assert (found.digest, found.manifest) == (first, one.manifest)
    assert found.meta.message == "the first"
    assert found.meta.author == "me"
    assert found.meta.time is not None
    listed = catalog.versions(ID)
    assert [(each.sequence, each.digest) for each in listed] == [(1, first), (2, second)]
    assert [each.tags for each in listed] == [("v1",), ()]
    assert [each.is_latest for each in listed] == [False, True]
    assert [each.message for each in listed] == ["the first", None]
    assert [each.parent for each in listed] == [None, first]
    assert catalog.tags(ID) == {"v1": first}
    assert catalog.list("lab") == catalog.list() == [ID]
    assert catalog.list("other") == []
    assert pickle.loads(pickle.dumps(Catalog(open_root("/tmp")))).root.path  # noqa: S301, S108


def test_objects_are_where_the_format_says(tmp_path: Path) -> None:
    root = open_root(tmp_path)
    made = make([1, 2], [3])
    digest = publish(root, made, tag="v1")
    wanted = {
        "relive.json",
        "manifests/lab/index.json",
        *(FOLDER + name for name in (f"{digest}.json", f"{digest}.meta.json")),
        *(FOLDER + name for name in ("latest.json", "log.json", "tags/v1.json")),
        *(f"blobs/{each[:2]}/{each[2:4]}/{each}" for each in made.blobs),
    }
    assert set(stored(root)) == wanted
    done = subprocess.run(
        ["sha256sum", tmp_path / FOLDER / f"{digest}.json"], capture_output=True, text=True
    )
    assert done.stdout.split()[0] == digest


def test_latest_is_resolved_with_one_request(memory: Root) -> None:
    made = make([1, 2], [3])
    publish(memory, made, tag="v1")
    for reference in (LATEST, Reference(ID, "v1"), Reference(ID, made.manifest.digest)):
        root = RecordedRoot(memory)
        found = Catalog(root).resolve(reference)
        assert len(root.requests) == 1
        if reference.version != made.manifest.digest:
            for shard in made.manifest.tables["main"].shards:
                assert found.footer(shard) == made.footers[shard.footer.digest]


def test_publishing_the_same_again_writes_nothing(root: Root) -> None:
    large = make([1, 2], [3], readme="x" * INLINE_BYTES)
    for made in (make([1, 2], [3]), large):
        publish(root, made, tag="v1", force_tag=True)
        recorded = RecordedRoot(root)
        catalog = Catalog(recorded)
        before = stored(root)
        expected = catalog.pointer(ID)
        for tag in (None, "v1"):
            catalog.commit(ID, made.manifest, made.footers, expected=expected, tag=tag)
        assert recorded.writes == []
        assert len(recorded.requests) <= 1 + 3 + 3  # the pointer, and two commits
        assert stored(root) == before


def test_the_first_publish_needs_few_requests(memory: Root) -> None:
    publish(memory, make([1]))
    root = RecordedRoot(memory)
    publish(root, make([2]))
    wanted = ["get", "put", "get", "create", "create", "replace", "head", "get", "get"]
    assert [verb for verb, _ in root.requests[: len(wanted)]] == wanted
    assert len(root.requests) <= 13


def test_who_loses_a_race_is_told(root: Root) -> None:
    base = publish(root, make([0]))
    catalog = Catalog(root)
    expected = catalog.pointer(ID)
    winner = publish(root, make([1]))
    late = make([2])
    upload(root, late)
    with pytest.raises(ConflictError, match="is published, but `latest` names") as caught:
        catalog.commit(ID, late.manifest, late.footers, expected=expected, tag="late")
    assert (caught.value.digest, caught.value.current) == (late.manifest.digest, winner)
    assert catalog.resolve(LATEST).digest == winner
    assert catalog.resolve(Reference(ID, late.manifest.digest)).manifest == late.manifest
    assert catalog.tags(ID) == {}
    assert {each.digest for each in catalog.versions(ID)} == {base, winner, late.manifest.digest}
    catalog.commit(ID, late.manifest, late.footers, expected=expected, on_conflict="move")
    pointer = catalog.pointer(ID)
    assert pointer is not None
    assert (pointer.digest, pointer.previous, pointer.sequence) == (late.manifest.digest, winner, 3)


def test_two_first_publishers(memory: Root) -> None:
    one, two = make([1]), make([2])
    publish(memory, one)
    upload(memory, two)
    with pytest.raises(ConflictError):
        Catalog(memory).commit(ID, two.manifest, two.footers, expected=None)
    # The same version is no conflict.
    Catalog(memory).commit(ID, one.manifest, one.footers, expected=None)


def test_on_conflict_is_checked(memory: Root) -> None:
    made = make([1])
    with pytest.raises(InvalidError, match="`on_conflict` must be one of"):
        Catalog(memory).commit(ID, made.manifest, {}, expected=None, on_conflict="merge")


def test_a_version_need_not_be_latest(root: Root) -> None:
    catalog = Catalog(root)
    digest = publish(root, make([1]), set_latest=False)
    assert catalog.pointer(ID) is None
    with pytest.raises(DatasetNotFoundError, match="has no `latest`") as caught:
        catalog.resolve(LATEST)
    assert digest[:12] in (caught.value.hint or "")
    assert catalog.resolve(Reference(ID, digest[:9])).digest == digest
    assert [each.digest for each in catalog.versions(ID)] == [digest]


def test_tags_are_created_once_unless_forced(root: Root) -> None:
    catalog = Catalog(root)
    one, two = publish(root, make([1]), tag="v1"), make([2])
    with pytest.raises(AlreadyExistsError, match="the tag `v1` of `lab/numbers` already exists"):
        publish(root, two, tag="v1")
    assert catalog.resolve(LATEST).digest == one  # it was refused before anything was written
    second = publish(root, two, tag="v1", force_tag=True)
    assert catalog.tags(ID) == {"v1": second}
    assert catalog.tag(Reference(ID, one[:12]), "old") == one
    assert catalog.tag(Reference(ID, one), "old") == one
    with pytest.raises(AlreadyExistsError):
        catalog.tag(LATEST, "old")
    assert catalog.tag(LATEST, "old", force=True) == second
    assert [each.tags for each in catalog.versions(ID)] == [(), ("old", "v1")]
    catalog.untag(ID, "old")
    assert catalog.tags(ID) == {"v1": second}
    with pytest.raises(DatasetNotFoundError, match="has no tag `old`") as caught:
        catalog.untag(ID, "old")
    assert "`@v1`" in (caught.value.hint or "")
    found = catalog.resolve(Reference(ID, "v1"))
    assert found.parts == two.footers


def test_rollback(root: Root) -> None:
    catalog = Catalog(root)
    versions = [publish(root, make([n])) for n in range(3)]
    assert catalog.rollback(ID) == versions[1]
    pointer = catalog.pointer(ID)
    assert pointer is not None
    assert (pointer.sequence, pointer.previous) == (4, versions[2])
    assert pointer.parts == make([1]).footers
    assert catalog.rollback(ID, versions[0][:8]) == versions[0]
    assert catalog.resolve(LATEST).manifest == make([0]).manifest
    assert [each.digest for each in catalog.versions(ID)] == versions


def test_rollback_of_the_only_version(memory: Root) -> None:
    publish(memory, make([1]))
    with pytest.raises(InvalidError, match="has no version before"):
        Catalog(memory).rollback(ID)
    with pytest.raises(DatasetNotFoundError, match="has no dataset `lab/other`"):
        Catalog(memory).rollback(DatasetId("lab", "other"))


def test_a_clone_copies_no_blob(root: Root) -> None:
    made = make([1, 2], [3])
    digest = publish(root, made)
    recorded = RecordedRoot(root)
    other = DatasetId("lab", "copy")
    assert Catalog(recorded).clone(LATEST, other, tag="v1") == digest
    assert not [key for _, key in recorded.writes if key.startswith("blobs/")]
    assert Catalog(root).resolve(Reference(other, "v1")).parts == made.footers
    assert Catalog(root).list("lab") == [other, ID]


def test_withdrawn_versions(root: Root) -> None:
    catalog = Catalog(root)
    one = make([1])
    first, second = publish(root, one), publish(root, make([2]))
    with pytest.raises(InvalidError, match="`latest` of `lab/numbers` names"):
        catalog.withdraw(Reference(ID, second), "wrong")
    with pytest.raises(InvalidError, match="is a pointer"):
        catalog.withdraw(LATEST, "wrong")
    catalog.tag(Reference(ID, first), "v1")
    with pytest.raises(InvalidError, match="the tag `v1` of `lab/numbers` names"):
        catalog.withdraw(Reference(ID, first), "wrong")
    catalog.untag(ID, "v1")
    assert catalog.withdraw(Reference(ID, first[:8]), "has a wrong label") == first
    for text in (first, first[:8]):
        with pytest.raises(VersionWithdrawnError, match="has a wrong label"):
            catalog.resolve(Reference(ID, text))
    assert [each.withdrawn for each in catalog.versions(ID)] == ["has a wrong label", None]
    with pytest.raises(VersionWithdrawnError):
        catalog.rollback(ID)
    with pytest.raises(VersionWithdrawnError):
        catalog.withdraw(Reference(ID, first), "again")
    assert publish(root, one) == first
    assert catalog.resolve(LATEST).digest == first
    assert catalog.resolve(Reference(ID, first)).manifest == one.manifest
    assert [each.withdrawn for each in catalog.versions(ID)] == [None, None]
    assert publish(root, make([3])) != first
    assert catalog.resolve(Reference(ID, first)).manifest == one.manifest


def test_versions_are_withdrawn_by_rule(memory: Root) -> None:
    catalog = Catalog(memory)
    versions = [publish(memory, make([n])) for n in range(6)]
    catalog.tag(Reference(ID, versions[1]), "v1")
    catalog.rollback(ID, versions[2])
    with pytest.raises(InvalidError, match="pass `keep_last` or"):
        catalog.withdraw_old(ID, "old")
    assert catalog.withdraw_old(ID, "old", older_than_s=3600) == []
    assert catalog.withdraw_old(ID, "old", dry_run=True, keep_last=2) == [versions[0], versions[3]]
    assert all(each.withdrawn is None for each in catalog.versions(ID))
    assert catalog.withdraw_old(ID, "old", keep_last=2) == [versions[0], versions[3]]
    there = [each.digest for each in catalog.versions(ID) if each.withdrawn is None]
    assert there == [versions[1], versions[2], *versions[4:]]
    assert catalog.withdraw_old(ID, "old", keep_last=2) == []


def test_a_withdrawal_that_was_killed_is_completed_by_rule(
    memory: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(memory)
    versions = [publish(memory, make([number])) for number in range(3)]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "_change_log", killed)
        with pytest.raises(KeyboardInterrupt):
            catalog.withdraw(Reference(ID, versions[0]), "wrong labels")
    assert [each.withdrawn for each in catalog.versions(ID)] == [None, None, None]
    assert catalog.withdraw_old(ID, "old", keep_last=1) == versions[:2]
    assert [each.withdrawn for each in catalog.versions(ID)] == ["wrong labels", "old", None]


def test_old_versions_are_withdrawn_by_time(memory: Root) -> None:
    catalog = Catalog(memory)
    versions = [publish(memory, make([n])) for n in range(3)]
    known = listing.parse_log(memory.get(FOLDER + "log.json").data, "it")
    times = ["2020-01-01T00:00:00Z", None]
    old = [dataclasses.replace(each, time=time) for each, time in zip(known, times, strict=False)]
    memory.put(FOLDER + "log.json", listing.log_to_bytes([*old, known[-1]]))
    assert catalog.withdraw_old(ID, "old", older_than_s=30 * 86400) == [versions[0]]


def test_lists_that_a_kill_left_out_are_completed(root: Root) -> None:
    made = make([1])
    digest = publish(root, made, message="hello")
    root.delete([FOLDER + "log.json", "manifests/lab/index.json"])
    catalog = Catalog(root)
    listed = catalog.versions(ID)
    assert [(each.digest, each.message) for each in listed] == [(digest, "hello")]
    publish(root, made)  # the same again
    assert catalog.list("lab") == [ID]
    assert root.exists([FOLDER + "log.json"]) == [True]
    root.delete([FOLDER + "log.json"])
    publish(root, make([2]))
    assert [each.message for each in catalog.versions(ID)] == ["hello", None]


def test_reindex(root: Root) -> None:
    catalog = Catalog(root)
    versions = [publish(root, make([n]), message=f"{n}", tag=f"v{n}") for n in range(3)]
    hidden = publish(root, make([9]), set_latest=False)
    catalog.untag(ID, "v0")
    catalog.withdraw(Reference(ID, versions[0]), "wrong")
    publish(root, make([5]), DatasetId("other", "thing"))
    before = catalog.versions(ID)
    log, index = FOLDER + "log.json", "manifests/lab/index.json"
    root.put(log, b"{", immutable=False)
    root.delete([index])
    with pytest.raises(ManifestCorruptedError, match=r"log\.json: not JSON"):
        catalog.versions(ID)
    assert catalog.reindex("lab") == [ID]
    # Times have whole seconds: versions of one second may change places.
    assert {replace_sequence(each) for each in catalog.versions(ID)} == {
        replace_sequence(each) for each in before
    }
    assert hidden in {each.digest for each in catalog.versions(ID)}
    assert catalog.list("lab") == [ID]
    root.delete([log])
    assert catalog.reindex(ID) == [ID]
    assert len(catalog.versions(ID)) == 4
    assert catalog.reindex(DatasetId("no", "such")) == []
    assert len(catalog.reindex()) == 2


def replace_sequence(version: listing.VersionInfo) -> listing.VersionInfo:
    return dataclasses.replace(version, sequence=1)


def test_a_publish_repairs_a_damaged_log(memory: Root) -> None:
    first = publish(memory, make([1]))
    memory.put(FOLDER + "log.json", b"{}", immutable=False)
    memory.put("manifests/lab/index.json", b"[]", immutable=False)
    second = publish(memory, make([2]))
    assert {each.digest for each in Catalog(memory).versions(ID)} == {first, second}
    assert Catalog(memory).list("lab") == [ID]


def test_a_publish_repairs_a_damaged_manifest(memory: Root) -> None:
    one = make([1])
    first = publish(memory, one)
    publish(memory, make([2]))
    key = names.manifest_key(ID, first)
    memory.put(key, memory.get(key).data + b" ")
    with pytest.raises(ManifestCorruptedError, match="has the digest"):
        Catalog(memory).resolve(Reference(ID, first))
    publish(memory, one)
    assert Catalog(memory).resolve(Reference(ID, first)).manifest == one.manifest


def test_damaged_pointers_are_written_again(memory: Root) -> None:
    catalog = Catalog(memory)
    first, second = publish(memory, make([1]), tag="v1"), publish(memory, make([2]))
    for key in ("latest.json", "tags/v1.json"):
        memory.put(FOLDER + key, memory.get(FOLDER + key).data[:-40], immutable=False)
    for reference in (LATEST, Reference(ID, "v1")):
        with pytest.raises(ManifestCorruptedError) as caught:
            catalog.resolve(reference)
        assert "relive rollback" in (caught.value.hint or "")
    for version in (None, "v1"):
        with pytest.raises(ManifestCorruptedError):
            catalog.rollback(ID, version)
    assert catalog.rollback(ID, second[:8]) == second
    assert catalog.resolve(LATEST).digest == second
    with pytest.raises(ManifestCorruptedError):
        catalog.tag(Reference(ID, first), "v1")
    assert catalog.tag(Reference(ID, first), "v1", force=True) == first
    assert [each.tags for each in catalog.versions(ID)] == [("v1",), ()]


def test_what_is_not_there(root: Root) -> None:
    catalog = Catalog(root)
    for version in (None, "v1", "a" * 64, "a" * 8):
        with pytest.raises(DatasetNotFoundError) as caught:
            catalog.resolve(Reference(ID, version))
        assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(DatasetNotFoundError, match="has no dataset `lab/numbers`"):
        catalog.versions(ID)
    with pytest.raises(NotFoundError):
        catalog.untag(ID, "v1")
    publish(root, make([1]))
    with pytest.raises(DatasetNotFoundError, match="has no version `aaaaaaaa`"):
        catalog.resolve(Reference(ID, "a" * 8))
    with pytest.raises(InvalidError, match="is not the name of a workspace"):
        catalog.list("../lab")


def test_a_prefix_must_be_unique(memory: Root) -> None:
    publish(memory, make([1]))
    known = listing.parse_log(memory.get(FOLDER + "log.json").data, "it")
    twins = [
        dataclasses.replace(known[0], sequence=n, digest=f"{'ab' * 4}{n}" + "0" * 55)
        for n in (1, 2)
    ]
    memory.put(FOLDER + "log.json", listing.log_to_bytes(twins))
    with pytest.raises(InvalidError, match="several versions of `lab/numbers` begin"):
        Catalog(memory).resolve(Reference(ID, "ab" * 4))


def test_many_shards(root: Root) -> None:
    made = Made(many_shards(1500), {}, {})
    digest = publish(root, made)
    for reference in (LATEST, Reference(ID, digest)):
        found = Catalog(root).resolve(reference)
        assert found.manifest.tables == made.manifest.tables
        assert found.digest == digest
    segment = next(iter(made.manifest.new_segments()))
    key = blob_key(segment.digest)
    data = bytearray(root.get(key).data)
    data[100] ^= 1
    root.put(key, bytes(data))
    with pytest.raises(CorruptError, match="does not have its digest"):
        Catalog(root).resolve(LATEST)
    root.delete([key])
    with pytest.raises(NotFoundError, match=segment.digest):
        Catalog(root).resolve(LATEST)


@pytest.mark.needs("obstore", "nginx")
def test_a_web_server_lists_by_log_and_index(nginx: Nginx) -> None:
    here = open_root(nginx.files)
    first, second = publish(here, make([1]), tag="v1"), publish(here, make([2]))
    catalog = Catalog(open_root(nginx.url))
    assert catalog.list("lab") == [ID]
    assert [each.digest for each in catalog.versions(ID)] == [first, second]
    assert catalog.tags(ID) == {"v1": first}
    assert catalog.resolve(Reference(ID, first[:8])).digest == first
    Catalog(here).untag(ID, "v1")
    assert catalog.tags(ID) == {}
    with pytest.raises(UnsupportedError) as caught:
        catalog.list()
    assert "name a workspace" in (caught.value.hint or "")
    with pytest.raises(DatasetNotFoundError):
        catalog.resolve(Reference(ID, "a" * 8))
    with pytest.raises(ReliveError, match="read-only"):
        publish(open_root(nginx.url), make([3]))


def test_a_changed_byte_of_a_manifest_is_always_detected(memory: Root) -> None:
    digest = publish(memory, make([1]))
    key = names.manifest_key(ID, digest)
    data = memory.get(key).data
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        memory.put(key, bytes(changed))
        with pytest.raises(ManifestCorruptedError):
            Catalog(memory).resolve(Reference(ID, digest))
    assert hashlib.sha256(data).hexdigest() == digest
