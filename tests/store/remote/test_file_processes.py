"""Remote files in other processes and in an object store."""

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.store.remote import fork_proxy
from relive.store.remote.file import RemoteFile
from tests.servers import Nginx, SeaweedFS, serving

pytest.importorskip("obstore")

DATA = np.random.default_rng(7).bytes(3_000_000)
MIDDLE = DATA[1_000_000:1_000_100]
KEY = "runs/deep/a b%20é.bin"
QUICK: dict[str, Any] = {"retry_config": {"max_retries": 1}}


def read_middle(file: RemoteFile) -> bytes:
    return file.read_ranges([(1_000_000, 1_000_100)])[0]


def test_file_pickles_as_its_uri() -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url, **QUICK)
        dumped = pickle.dumps(file)
        assert len(dumped) < 300
        assert read_middle(pickle.loads(dumped)) == MIDDLE  # noqa: S301 - our own data
        server.faults.etag = '"two"'
        with pytest.raises(errors.CorruptError, match="changed since it was opened"):
            pickle.loads(dumped)  # noqa: S301 - our own data


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_files_work_in_other_processes(
    method: str, nginx: Nginx, spawned_pool: ProcessPoolExecutor
) -> None:
    (nginx.files / "file").write_bytes(DATA)
    found = spawned_pool.submit(read_in_workers, f"{nginx.url}/file", method).result(timeout=60)
    assert found == [MIDDLE] * 4


def read_in_workers(uri: str, method: str) -> list[bytes]:
    file = RemoteFile.open(uri)
    read_middle(file)  # obstore's threads are running when the process is forked
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map_async(read_middle, [file] * 4).get(timeout=40)


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return the result, or the error, of `work()` in a forked process."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            writer.send(work())
        except BaseException as error:  # noqa: BLE001 - any error is returned
            writer.send(error)
        os._exit(0)
    writer.close()
    try:
        if not reader.poll(30):
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError("the forked process hangs")
        return reader.recv()
    finally:
        os.waitpid(pid, 0)


def fork_and_read(uri: str) -> Any:
    file = RemoteFile.open(uri, **QUICK)

    def work() -> list[object]:
        found: list[object] = [read_middle(file), RemoteFile.open(uri).size]
        for wrong in (f"{uri}-not", "ftp://there/file"):
            try:
                RemoteFile.open(wrong)
            except errors.ReliveError as error:
                found.append(error.kind)
        with ThreadPoolExecutor(4) as pool:
            found.append({*pool.map(read_middle, [file] * 8)})
        return [*found, in_a_fork(lambda: read_middle(file))]

    return [in_a_fork(work), read_middle(file)]


def test_forked_process_reads_the_same_bytes(spawned_pool: ProcessPoolExecutor) -> None:
    with serving(DATA) as (_, url):
        found, after = spawned_pool.submit(fork_and_read, url).result(timeout=90)
    assert found == [MIDDLE, len(DATA), "not-found", "unsupported", {MIDDLE}, MIDDLE]
    assert after == MIDDLE


def fork_and_kill_the_proxy(uri: str) -> Any:
    file = RemoteFile.open(uri)

    def work() -> list[object]:
        found: list[object] = [read_middle(file)]
        assert fork_proxy._helper is not None
        process = fork_proxy._helper._process
        process.kill()
        process.wait()
        found.append(read_middle(file))
        return [*found, fork_proxy._helper._process.pid]

    return in_a_fork(work)


def test_fork_proxy_is_replaced_when_it_dies_and_ends_with_its_owner(
    spawned_pool: ProcessPoolExecutor,
) -> None:
    with serving(DATA) as (_, url):
        *found, pid = spawned_pool.submit(fork_and_kill_the_proxy, url).result(timeout=60)
    assert found == [MIDDLE] * 2
    deadline = time.monotonic() + 20
    while running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.needs("seaweedfs")
def test_object_store_configured_by_environment(s3: SeaweedFS) -> None:
    s3.put(KEY, DATA)
    file = RemoteFile.open(f"s3://{KEY}")
    assert file.name == f"s3://{KEY}"
    ranges = [(0, len(DATA)), (len(DATA) - 5, len(DATA))]
    assert file.read_ranges(ranges) == [DATA[start:stop] for start, stop in ranges]
    copy: RemoteFile = pickle.loads(pickle.dumps(file))  # noqa: S301 - our own data
    assert read_middle(copy) == MIDDLE


@pytest.mark.needs("seaweedfs")
def test_object_store_configured_by_options(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    seaweed.put(KEY, DATA)
    for name in seaweed.environment:
        monkeypatch.delenv(name, raising=False)
    options = {"endpoint": seaweed.url, "access_key_id": "key", "secret_access_key": "secret"}
    file = RemoteFile.open(f"s3://{KEY}", **options)
    assert read_middle(file) == MIDDLE
    with pytest.raises(errors.AccessDeniedError, match="403") as caught:
        RemoteFile.open(f"s3://{KEY}", **(options | {"secret_access_key": "wrong"}))
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    assert "wrong" not in str(caught.value)


@pytest.mark.needs("seaweedfs")
def test_missing_object_raises_not_found(s3: SeaweedFS) -> None:
    s3.put("runs/one", b"1")
    with pytest.raises(errors.NotFoundError, match="`s3://runs/no-run` does not exist"):
        RemoteFile.open("s3://runs/no-run")
    with pytest.raises(errors.InvalidError, match="is not a valid object name"):
        RemoteFile.open("s3://runs/../no-run")
    with pytest.raises(errors.NotFoundError, match="the bucket does not exist"):
        RemoteFile.open("s3://no-such-bucket/run")
