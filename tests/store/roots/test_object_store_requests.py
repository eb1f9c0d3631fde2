"""Requests of object stores: how many, over which connections, and what is done when they fail."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.store.remote import root_client
from relive.store.remote.ranges import MAX_REQUEST_BYTES
from relive.store.roots import Root, open_root
from tests.servers import Gate, Proxy, SeaweedFS

pytestmark = pytest.mark.needs("seaweedfs", "obstore")

DATA = np.random.default_rng(2).bytes(2 * MAX_REQUEST_BYTES + 1000)
QUICK: dict[str, Any] = {
    "retry_config": {
        "backoff": {
            "init_backoff": timedelta(milliseconds=10),
            "max_backoff": timedelta(milliseconds=50),
        }
    }
}


@pytest.fixture
def root(bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> Root:
    return open_root(bucket, **seaweed.options(proxy.url), **QUICK)


def test_each_call_is_one_round_trip(root: Root, proxy: Proxy) -> None:
    root.put("big", DATA)
    keys = [f"many/{each}" for each in range(20)]
    for key in keys:
        root.put(key, key.encode())
    proxy.gate = Gate()
    root.get_many(keys)
    root.exists(keys)
    root.read_ranges([(key, 0, 3) for key in keys] + [("big", 0, len(DATA))])
    assert proxy.gate.waves == [20, 20, 22]
    proxy.clear()
    root.delete(keys)
    assert proxy.methods() == ["POST"]


def test_large_ranges_are_put_together(root: Root, proxy: Proxy) -> None:
    root.put("big", DATA)
    proxy.clear()
    ranges = [("big", 5, len(DATA)), ("big", 0, 9), ("big", MAX_REQUEST_BYTES - 3, len(DATA) - 7)]
    found = root.read_ranges(ranges)
    assert [bytes(each) for each in found] == [DATA[start:stop] for _, start, stop in ranges]
    assert isinstance(found[0], memoryview)
    assert found[0].readonly
    # Cut where the third range begins; the rest of 1,000 bytes is no request of its own.
    sizes = [MAX_REQUEST_BYTES - 3, len(DATA) - MAX_REQUEST_BYTES + 3]
    assert sorted(each.sent for each in proxy.log) == sizes


def test_roots_share_their_connections(bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> None:
    options = seaweed.options(proxy.url)
    first, second = open_root(bucket, **options), open_root(f"{bucket}/below", **dict(options))
    first.put("below/a", b"1")
    assert second.get("a").data == b"1"
    store = first._connected()._store  # type: ignore[attr-defined]
    assert second._connected()._store is store  # type: ignore[attr-defined]
    other = open_root(bucket, **seaweed.options(proxy.url, user="reader"))
    assert other._connected()._store is not store  # type: ignore[attr-defined]


def test_changed_environment_is_another_client(
    bucket: str, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    open_root(bucket).put("a", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(errors.AuthenticationError):
        open_root(bucket).get("a")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_busy_server_is_retried(root: Root, proxy: Proxy, status: int) -> None:
    root.put("a", b"bytes")
    busy = [(status, b"<Error><Code>SlowDown</Code></Error>")] * 2
    calls: list[tuple[Any, Any]] = [
        (lambda: root.get("a").data, b"bytes"),
        (lambda: root.read_ranges([("a", 1, 3)]), [b"yt"]),
        (lambda: root.exists(["a"]), [True]),
        (lambda: root.put("b", b"1"), None),
        (lambda: [entry.key for entry in root.list()], ["a", "b"]),
        (lambda: root.delete(["b"]), None),
    ]
    for call, result in calls:
        proxy.troubles.canned = [*busy]
        proxy.clear()
        assert call() == result
        assert [each.status for each in proxy.log][:2] == [status] * 2
        assert proxy.count == 3


def test_pauses_grow() -> None:
    backoff = root_client._Backoff()
    for attempt, most in enumerate((0.1, 0.2, 0.4, 0.8)):
        assert 0.5 * most <= backoff.pause_s(attempt) <= most
    assert backoff.pause_s(5000) <= 15


def test_time_of_retries(
    bucket: str, seaweed: SeaweedFS, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = open_root(bucket, **seaweed.options(proxy.url), **QUICK)
    root.put("a", b"bytes")
    proxy.troubles.busy = 1.0
    for retry_s, seconds in ((0.0, 0.0), (0.5, 0.5)):
        proxy.clear()
        start = time.monotonic()
        with pytest.raises(errors.StorageError, match="HTTP status 503"):
            root.get("a", retry_s=retry_s)
        assert seconds * 0.8 - 0.1 <= time.monotonic() - start < seconds + 0.5
        assert (proxy.count == 1) == (retry_s == 0)
    monkeypatch.setenv("RELIVE_RETRY_S", "0.3")
    start = time.monotonic()
    with pytest.raises(errors.StorageError, match="HTTP status 503"):
        root.read_ranges([("a", 0, 1)])
    assert 0.15 <= time.monotonic() - start < 1
    proxy.clear()
    once = open_root(bucket, **seaweed.options(proxy.url), retry_config={"max_retries": 2} | {})
    with pytest.raises(errors.StorageError, match="HTTP status 503"):
        once.get("a")
    assert proxy.count == 3


def test_server_that_comes_back(root: Root, proxy: Proxy) -> None:
    root.put("a", b"bytes")
    proxy.troubles.reset = 1.0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(root.read_ranges, [("a", 0, 5)])
        time.sleep(0.3)
        assert not waiting.done()
        proxy.troubles.reset = 0.0
        assert waiting.result(timeout=20) == [b"bytes"]


@pytest.mark.parametrize("answered", [False, True])
def test_lost_response_to_a_conditional_put(root: Root, proxy: Proxy, *, answered: bool) -> None:
    proxy.kill_at(1, None, answered=answered)
    tag = root.create("p", b"first")
    assert proxy.methods() == (["PUT", "PUT", "GET"] if answered else ["PUT", "PUT"])
    assert root.get("p") == (b"first", tag)
    proxy.clear()
    proxy.kill_at(1, None, answered=answered)
    new = root.replace("p", b"second!", tag)
    assert root.get("p") == (b"second!", new)
    proxy.clear()
    proxy.kill_at(1, None, answered=answered)
    with pytest.raises(errors.ConflictError):
        root.replace("p", b"third", tag)
    proxy.clear()
    proxy.kill_at(1, None, answered=answered)
    with pytest.raises(errors.AlreadyExistsError):
        root.create("p", b"fourth")
    assert root.get("p").data == b"second!"


def test_cache_control(root: Root) -> None:
    root.put("blob", b"1")
    root.put("other", b"1", immutable=False)
    root.replace("pointer", b"22", root.create("pointer", b"1"))
    root.create("manifest", b"1", immutable=True)
    client = root._connected()  # type: ignore[attr-defined]
    found = {
        key: client._obstore.get(client._store, client._path(key)).attributes["Cache-Control"]
        for key in ("blob", "other", "pointer", "manifest")
    }
    forever = "public, max-age=31536000, immutable"
    assert found == {
        "blob": forever,
        "other": "no-cache",
        "pointer": "no-cache",
        "manifest": forever,
    }


def test_large_files_are_uploaded_in_parts(
    root: Root, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_client, "_PART_FROM_BYTES", 6 << 20)
    monkeypatch.setattr(root_client, "_PART_BYTES", 5 << 20)
    path = tmp_path / "file"
    path.write_bytes(DATA)
    # One part fails once, and is repeated.
    proxy.clear()
    proxy.kill_at(3, None)
    root.put("big", path)
    assert bytes(root.read_ranges([("big", 0, len(DATA))])[0]) == DATA
    assert sum("partNumber=" in each.path for each in proxy.log) == 5
    proxy.clear()
    root.put("small", path.parent / "file", immutable=True)
    assert [entry.size for entry in root.list()] == [len(DATA)] * 2


def test_many_objects_are_listed(root: Root, proxy: Proxy) -> None:
    keys = {f"{each % 7}/{each}" for each in range(1100)}
    with ThreadPoolExecutor(16) as pool:
        [*pool.map(lambda key: root.put(key, b""), keys)]
    proxy.clear()
    proxy.kill_at(2, None)  # the second page is requested again
    listed = [entry.key for entry in root.list()]
    assert len(listed) == len(keys)
    assert {*listed} == keys
    assert [each.status for each in proxy.log] == [200, 0, 200]
    root.delete([*keys])
    assert [*root.list()] == []


def fork_and_read(root: Root, ranges: list[tuple[str, int, int]]) -> tuple[int, list[bytes], str]:
    """Read in a forked process; return how many bytes differ from those read here."""
    import multiprocessing

    root.get("small")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(_read, (root, ranges)).get(timeout=60)


def _read(root: Root, ranges: list[tuple[str, int, int]]) -> tuple[int, list[bytes], str]:
    seen = []
    found = root.read_ranges(ranges, lambda _, __, data: seen.append(len(data)))
    try:
        root.get("none")
    except errors.NotFoundError as error:
        return sum(seen), [bytes(each) for each in found], str(error)
    return 0, [], f"{os.getpid()}"


def test_forked_process_sends_all_ranges_at_once(
    root: Root, proxy: Proxy, spawned_pool: ProcessPoolExecutor
) -> None:
    root.put("big", DATA)
    root.put("small", b"small")
    proxy.clear()
    proxy.gate = Gate()
    ranges = [("big", 7, len(DATA)), ("small", 1, 4)]
    total, found, message = spawned_pool.submit(fork_and_read, root, ranges).result(timeout=90)
    assert found == [DATA[7:], b"mal"]
    assert total == len(DATA) - 7 + 3
    assert "does not exist" in message
    assert proxy.gate.waves == [1, 3, 1]


_WRITER = """
import sys
from relive.store.roots import open_root
sys.stdin.readline()
options = dict(each.split("=", 1) for each in sys.argv[2:])
root = open_root(sys.argv[1], **options)
for each in range(5):
    root.put(f"{each}", b"whole")
"""


@pytest.mark.parametrize(("answered", "written"), [(False, ["0"]), (True, ["0", "1"])])
def test_client_killed_at_a_request(
    bucket: str, seaweed: SeaweedFS, proxy: Proxy, written: list[str], *, answered: bool
) -> None:
    options = [f"{name}={value}" for name, value in seaweed.options(proxy.url).items()]
    command = [sys.executable, "-c", _WRITER, bucket, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    proxy.kill_at(2, process.pid, answered=answered)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    root = open_root(bucket, **seaweed.options())
    assert sorted(entry.key for entry in root.list()) == written
    assert {root.get(key).data for key in written} == {b"whole"}
