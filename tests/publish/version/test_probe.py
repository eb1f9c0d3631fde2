"""Conditional puts are tested before a publisher relies on them."""

import json
import threading
import time

import pytest

from relive.errors import AccessDeniedError, LockedError, ReadOnlyError, UnsupportedError
from relive.publish.version import lock_object, probe
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import Reference, lock_key
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.publish.version.example_versions import (
    ID,
    CarelessRoot,
    RecordedRoot,
    make,
    publish,
    upload,
)
from tests.servers import Nginx, Proxy, SeaweedFS


def test_every_root_obeys_conditions(root: Root) -> None:
    assert not probe.were_verified(root)
    assert probe.find_problem(root) is None
    assert list(root.list()) == []
    probe.verify(root)
    assert probe.were_verified(root)
    tree = json.loads(root.get("relive.json").data)
    assert tree["format"] == 1
    assert tree["conditional_puts"]["verified"] is True


def test_a_root_is_probed_once(memory: Root) -> None:
    publish(memory, make([1]))
    root = RecordedRoot(memory)
    publish(root, make([2]))
    assert not [key for _, key in root.requests if key.startswith("probes/")]


def test_a_store_that_ignores_conditions_is_refused(memory: Root) -> None:
    root = CarelessRoot(memory)
    with pytest.raises(UnsupportedError, match="replaces an object that may only be") as caught:
        Catalog(root).check_conditional_puts()
    assert "lock=True" in (caught.value.hint or "")
    made = make([1])
    with pytest.raises(UnsupportedError):
        Catalog(root).commit(ID, made.manifest, made.footers, expected=None)
    assert list(memory.list()) == []


@pytest.mark.needs("seaweedfs", "obstore")
def test_who_may_not_write_gets_that_error(bucket: str, seaweed: SeaweedFS) -> None:
    root = open_root(bucket, **seaweed.options(user="reader"))
    with pytest.raises(AccessDeniedError, match=r"cannot write .* access is denied"):
        probe.find_problem(root)


class Stale(RecordedRoot):
    """A store that refuses to create twice, but replaces whatever the tag."""

    def replace(self, key: str, data: bytes, tag: str) -> str:
        self.put(key, data)
        return self.inner.get(key).tag


class Untagged(RecordedRoot):
    """A store whose tags never change."""

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        super().create(key, data, immutable=immutable)
        return "tag"

    def replace(self, key: str, data: bytes, tag: str) -> str:
        self.put(key, data)
        return "tag"


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Stale, "replaces an object that has changed"), (Untagged, "does not change the tag")],
)
def test_other_ways_to_ignore_conditions(
    kind: type[RecordedRoot], message: str, memory: Root
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        probe.verify(kind(memory))
    assert list(memory.list()) == []


@pytest.mark.needs("obstore", "seaweedfs")
def test_a_server_behind_which_conditions_are_lost_is_refused(
    seaweed: SeaweedFS, proxy: Proxy
) -> None:
    seaweed.put("public/x", b"")
    address = f"s3://public/probe-{time.time_ns()}"
    options = {"endpoint": proxy.url, "region": "us-east-1", "skip_signature": True}
    root = open_root(address, **options)
    assert probe.find_problem(root) is None
    proxy.troubles.drop = ("if-none-match", "if-match")
    made = make([1])
    with pytest.raises(UnsupportedError, match="may only be created"):
        Catalog(root).commit(ID, made.manifest, made.footers, expected=None)
    proxy.troubles.drop = ("if-match",)
    with pytest.raises(UnsupportedError, match="that has changed meanwhile"):
        Catalog(root).commit(ID, made.manifest, made.footers, expected=None)
    assert list(root.list()) == []


@pytest.mark.needs("obstore", "nginx")
def test_a_web_server_is_read_only(nginx: Nginx) -> None:
    with pytest.raises(ReadOnlyError, match="is read-only"):
        Catalog(open_root(nginx.url)).check_conditional_puts()


def test_a_lock_object_replaces_conditions(memory: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_object, "PAUSE_S", 0.01)
    root = CarelessRoot(memory)
    catalog = Catalog(root, lock=True)
    one, two = make([1]), make([2])
    for made in (one, two):
        upload(root, made)
        catalog.commit(
            ID, made.manifest, made.footers, expected=catalog.pointer(ID), tag="v1", force_tag=True
        )
    assert catalog.resolve(Reference(ID, None)).manifest == two.manifest
    assert catalog.tags(ID) == {"v1": two.manifest.digest}
    assert [each.digest for each in catalog.versions(ID)] == [
        one.manifest.digest,
        two.manifest.digest,
    ]
    assert catalog.rollback(ID) == one.manifest.digest
    assert memory.exists([lock_key(ID), "relive.json"]) == [False, False]


def test_a_lock_object_is_not_used_without_need(memory: Root) -> None:
    root = RecordedRoot(memory)
    made = make([1])
    Catalog(root, lock=True).commit(ID, made.manifest, {}, expected=None)
    assert lock_key(ID) not in {key for _, key in root.requests}


def test_one_holder_at_a_time(memory: Root) -> None:
    key = lock_key(ID)
    with lock_object.lock_object(memory, key, pause_s=0):
        with (
            pytest.raises(LockedError, match="is held by another publisher") as caught,
            lock_object.lock_object(memory, key, pause_s=0),
        ):
            pass
        assert "300 seconds" in (caught.value.hint or "")
    with lock_object.lock_object(memory, key, pause_s=0):
        pass
    for left in (b'{"expires":1,"format":1}', b"not JSON", b"[]"):
        memory.put(key, left)
        with lock_object.lock_object(memory, key, pause_s=0):
            pass


def test_of_two_that_take_a_lock_at_once_one_has_it(memory: Root) -> None:
    barrier = threading.Barrier(4)
    has: list[bool] = []

    def meet(verb: str, key: str) -> None:
        if verb == "put":
            barrier.wait(5)  # all have seen that it is free

    def take() -> None:
        try:
            with lock_object.lock_object(RecordedRoot(memory, meet), lock_key(ID), pause_s=0.2):
                has.append(True)
                time.sleep(0.2)
        except LockedError:
            has.append(False)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(has) == [False, False, False, True]
