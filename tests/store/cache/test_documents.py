"""What is remembered of a root for use without a network, when the root changes."""

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relive import errors
from relive.store.cache import CachedRoot, open_cache
from relive.store.cache.manage import shrink
from relive.store.roots.memory import MemoryRoot
from tests.publish.version.example_versions import RecordedRoot

if TYPE_CHECKING:
    from collections.abc import Callable

POINTER = "manifests/ws/name/latest.json"
MANIFEST = f"manifests/ws/name/{'0' * 64}.json"


class Network:
    """A root that can be unreachable."""

    def __init__(self, name: str, folder: Path) -> None:
        self.server = MemoryRoot(name)
        self.is_down = False
        self.requests = 0
        self.cache = open_cache(folder / "cache", limit=10 << 20, min_free=0)
        self.client = self.connect()

    def connect(self, *, is_local: bool = False) -> CachedRoot:
        """Return a new client with the same cache."""
        return CachedRoot(RecordedRoot(self.server, self._pass), self.cache, is_local=is_local)

    def last_seen(self, key: str) -> bytes | None:
        """Return what a client without a network sees."""
        assert self.cache.flush(30)
        try:
            return self.connect(is_local=True).get(key).data
        except errors.NotCachedError:
            return None

    def _pass(self, _verb: str, _key: str) -> None:
        self.requests += 1
        if self.is_down:
            raise errors.OfflineError("no network")


@pytest.fixture
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Network:
    """Return a server with a pointer and a list."""
    made = Network(request.node.name, tmp_path)
    made.server.put(POINTER, b"one")
    made.server.put("manifests/ws/index.json", b"list")
    return made


def test_a_server_that_is_back_is_asked_although_nothing_changed(network: Network) -> None:
    client, other = network.client, "manifests/ws/index.json"
    assert client.get(POINTER).data == b"one"
    assert network.last_seen(POINTER) == b"one"
    network.is_down = True
    with pytest.warns(RuntimeWarning, match="last seen"):
        client.get(POINTER)
    assert client.get_many([other]) == [None]  # it was never seen
    network.is_down = False
    assert client.get(POINTER).data == b"one"
    (found,) = client.get_many([other])
    assert found is not None
    assert found.data == b"list"
    network.is_down = True
    with pytest.warns(RuntimeWarning, match="last seen"):  # once each time
        client.get(POINTER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.get(POINTER)
    network.is_down = False
    network.server.delete([POINTER])
    with pytest.raises(errors.NotFoundError):
        client.get(POINTER)
    assert client.get_many([other]) != [None]


@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_deleted_at_the_root_is_not_seen_any_more(
    network: Network, *, is_written: bool
) -> None:
    reads: list[Callable[[str], object]] = [
        network.client.get,
        lambda key: network.client.get_many([key]),
    ]
    for read in reads:
        network.server.put(POINTER, b"one")
        read(POINTER)
        if is_written:
            assert network.last_seen(POINTER) == b"one"
        network.server.delete([POINTER])
        with contextlib.suppress(errors.NotFoundError):
            assert read(POINTER) == [None]
        assert network.last_seen(POINTER) is None


def test_the_last_of_several_changes_is_seen(network: Network) -> None:
    network.client.get(POINTER)
    assert network.last_seen(POINTER) == b"one"
    network.server.put(POINTER, b"two")
    network.client.get(POINTER)
    network.server.put(POINTER, b"one")  # before the cache has written the other
    network.client.get(POINTER)
    assert network.last_seen(POINTER) == b"one"


def test_inlined_objects_that_were_evicted_are_kept_again(network: Network) -> None:
    objects = {"a" * 64: b"footer", "b" * 64: b"leaves"}
    for _ in range(2):
        network.client.remember_inlined(MANIFEST, b"manifest", objects)
        assert network.last_seen(MANIFEST) == b"manifest"
        assert all(network.cache.disk.has_whole(digest) for digest in objects)
        shrink(network.cache.disk, 0)
        assert not any(network.cache.disk.has_whole(digest) for digest in objects)


def test_nothing_is_written_for_what_never_was(tmp_path: Path) -> None:
    network = Network("never-was", tmp_path)
    with pytest.raises(errors.NotFoundError):
        network.client.get(POINTER)
    assert network.client.get_many([POINTER]) == [None]
    assert network.cache.flush(30)
    assert not (tmp_path / "cache").exists()
