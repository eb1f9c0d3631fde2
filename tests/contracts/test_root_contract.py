"""Every kind of root keeps the contract: a directory, memory, S3; for reading, a web server."""

import multiprocessing
import secrets
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relive import errors
from relive.store.roots import Root, open_root
from tests.contracts import root_contract as contract

WRITABLE = (
    "directory",
    "memory",
    pytest.param("s3", marks=pytest.mark.needs("seaweedfs", "obstore")),
)
READABLE = (*WRITABLE, pytest.param("http", marks=pytest.mark.needs("nginx", "obstore")))


def open_kind(kind: str, request: pytest.FixtureRequest) -> Root:
    """Return an empty root."""
    if kind == "directory":
        return open_root(request.getfixturevalue("tmp_path") / "root")
    if kind == "memory":
        return open_root(f"memory://{secrets.token_hex(8)}")
    seaweed = request.getfixturevalue("seaweed")
    return open_root(request.getfixturevalue("bucket"), **seaweed.options())


@pytest.fixture
def writable(request: pytest.FixtureRequest) -> Root:
    """Return an empty root that can be written."""
    return open_kind(request.param, request)


@pytest.fixture
def readable(request: pytest.FixtureRequest) -> Root:
    """Return a root with objects, which may be read-only."""
    if request.param == "http":
        nginx = request.getfixturevalue("nginx")
        contract.fill(open_root(nginx.files / "some root"))
        return open_root(f"{nginx.url}/some root")
    root = open_kind(request.param, request)
    contract.fill(root)
    return root


@pytest.mark.parametrize("readable", READABLE, indirect=True)
def test_reading(readable: Root) -> None:
    for check in contract.READ:
        check(readable)
    contract.check_read_copy(readable)


@pytest.mark.parametrize("check", contract.WRITE)
@pytest.mark.parametrize("writable", WRITABLE, indirect=True)
def test_writing(writable: Root, check: Callable[[Root], None]) -> None:
    check(writable)


@pytest.mark.parametrize("writable", WRITABLE, indirect=True)
def test_put(writable: Root, tmp_path: Path) -> None:
    contract.check_put(writable, tmp_path)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("writable", WRITABLE, indirect=True)
def test_put_file(
    writable: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_parts: bool
) -> None:
    if in_parts:
        monkeypatch.setattr("relive.store.remote.root_client._PART_FROM_BYTES", 1 << 20)
        monkeypatch.setattr("relive.store.remote.root_client._PART_BYTES", 5 << 20)
    contract.check_put_file(writable, tmp_path)


def read_in_forks(root: Root) -> list[Any]:
    """Read and write in forked processes, after this process has used the root."""
    root.get("a/small")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(use, [root] * 4).get(timeout=60)


def use(root: Root) -> object:
    for check in contract.READ:
        check(root)
    if root.is_read_only:
        return "read"
    key = f"forked/{secrets.token_hex(8)}"
    tag = root.create(key, b"one")
    root.replace(key, b"two", tag)
    try:
        root.replace(key, b"three", tag)
    except errors.ConflictError as error:
        return error.kind, root.get(key).data, [entry.size for entry in root.list("a/b")]
    return None


@pytest.mark.parametrize("readable", [kind for kind in READABLE if kind != "memory"], indirect=True)
def test_forked_processes(readable: Root, spawned_pool: ProcessPoolExecutor) -> None:
    found = spawned_pool.submit(read_in_forks, readable).result(timeout=90)
    assert found == [("conflict", b"two", [6]) if not readable.is_read_only else "read"] * 4
