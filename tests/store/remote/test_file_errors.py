"""Errors of remote files: each has its class, and no message contains a secret."""

import os
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.store.remote.file import TAIL_BYTES, RemoteFile
from tests.servers import Gate, Nginx, serving

pytest.importorskip("obstore")

DATA = np.random.default_rng(7).bytes(3_000_000)
MIDDLE = (1_000_000, 1_000_100)
QUICK: dict[str, Any] = {"retry_config": {"max_retries": 1}}


@pytest.fixture
def served(nginx: Nginx) -> Nginx:
    (nginx.files / "file").write_bytes(DATA)
    return nginx


@pytest.mark.parametrize("status", [200, 400, 416, 500, 501])
def test_server_without_suffix_ranges(status: int) -> None:
    with serving(DATA, suffix=status) as (server, url):
        file = RemoteFile.open(url)
        assert file.read_ranges([(len(DATA) - 9, len(DATA)), MIDDLE]) == [
            DATA[-9:],
            DATA[slice(*MIDDLE)],
        ]
        tail = f"bytes={len(DATA) - TAIL_BYTES}-{len(DATA) - 1}"
        assert [request.range for request in server.log].count(tail) == 1
        assert len(server.log) == 4


@pytest.mark.parametrize("which", ["nginx", "faulty"])
def test_server_without_ranges_raises_without_a_download(which: str, served: Nginx) -> None:
    refused = pytest.raises(errors.UnsupportedError, match="does not support range requests")
    with serving(bytes(64 << 20), ranges=False) as (_, url), refused as caught:
        RemoteFile.open(f"{served.url}/whole/file" if which == "nginx" else url)
    assert caught.value.hint is not None
    assert "nginx" in caught.value.hint


def test_server_that_sends_another_range_raises() -> None:
    with (
        serving(DATA, shifted=True) as (_, url),
        pytest.raises(errors.StorageError, match="range"),
    ):
        RemoteFile.open(url)


def test_redirects_are_followed() -> None:
    with serving(DATA, redirect=True) as (_, url):
        assert RemoteFile.open(url).read_ranges([MIDDLE]) == [DATA[slice(*MIDDLE)]]


def test_missing_file_raises_not_found(served: Nginx) -> None:
    with pytest.raises(FileNotFoundError, match=f"`{served.url}/no-file` does not exist") as caught:
        RemoteFile.open(f"{served.url}/no-file")
    assert isinstance(caught.value, errors.NotFoundError)


@pytest.mark.parametrize(("name", "status"), [("secret", 401), ("forbidden", 403)])
def test_denied_access_raises(served: Nginx, name: str, status: int) -> None:
    with pytest.raises(PermissionError, match=f"HTTP status {status}") as caught:
        RemoteFile.open(f"{served.url}/{name}/file")
    assert isinstance(caught.value, errors.AccessDeniedError)
    assert caught.value.hint


def test_user_and_password_are_sent_but_not_shown(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url.replace('//', '//me:pass@')}/secret/file?token=hidden#x")
    assert file.read_ranges([MIDDLE]) == [DATA[slice(*MIDDLE)]]
    assert file.name == f"{served.url}/secret/file"
    assert "pass" not in repr(file)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 503])
def test_no_secret_is_in_any_message(status: int) -> None:
    with serving(DATA, failures=[status] * 9) as (_, url):
        secret = f"{url.replace('//', '//me:hidden@')}?signature=hidden"
        with pytest.raises(errors.ReliveError) as caught:
            RemoteFile.open(secret, **QUICK)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hidden" not in f"{error} {error!r}"
        assert "secret" not in str(error)  # the server's message may contain one, too
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_busy_server_is_retried() -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url)
        server.faults.failures = [503, 500]
        assert file.read_ranges([MIDDLE]) == [DATA[slice(*MIDDLE)]]
        assert [request.status for request in server.log[2:]] == [503, 500, 206]


def test_server_that_stays_busy_raises() -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url, **QUICK)
        server.faults.failures = [503] * 9
        with pytest.raises(OSError, match="HTTP status 503") as caught:
            file.read_ranges([MIDDLE])
    assert isinstance(caught.value, errors.StorageError)


@pytest.mark.parametrize("fault", ["broken", "short"])
@pytest.mark.parametrize("etag", ['"one"', None])
def test_truncated_response_is_retried(fault: str, etag: str | None) -> None:
    with serving(DATA, etag=etag) as (server, url):
        file = RemoteFile.open(url)
        setattr(server.faults, fault, 1)
        assert file.read_ranges([MIDDLE]) == [DATA[slice(*MIDDLE)]]


@pytest.mark.parametrize(("fault", "why"), [("broken", "was cut off"), ("short", "fewer bytes")])
def test_responses_that_are_always_truncated_raise(fault: str, why: str) -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url, **QUICK)
        setattr(server.faults, fault, 100)
        with pytest.raises(errors.StorageError, match=why):
            file.read_ranges([MIDDLE])


def test_one_failed_request_of_many_raises() -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url, retry_config={"max_retries": 0})
        server.faults.failures = [404]
        with pytest.raises(errors.NotFoundError):
            file.read_ranges([(start, start + 5) for start in range(500_000, 2_500_000, 400_000)])


def test_slow_server_is_awaited_and_a_dead_one_times_out() -> None:
    with serving(DATA, wait_s=0.4) as (_, url):
        assert RemoteFile.open(url).size == len(DATA)
        with pytest.raises(errors.StorageError, match="did not respond in time"):
            RemoteFile.open(
                url, client_options={"timeout": "100ms"}, retry_config={"max_retries": 0}
            )
    with pytest.raises(errors.StorageError, match="refused"):
        RemoteFile.open(url, **QUICK)


def test_unknown_host_raises() -> None:
    with pytest.raises(errors.StorageError, match="host name is unknown"):
        RemoteFile.open("http://nobody.invalid/file", **QUICK)


@pytest.mark.parametrize(
    "options", [{"nonsense": 1}, {"client_options": {"nonsense": 1}}, {"region": "x"}]
)
def test_unknown_options_raise(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidError, match="cannot connect to `http://nobody/file`"):
        RemoteFile.open("http://nobody/file", **options)


@pytest.mark.parametrize("etag", ['"one"', None])
@pytest.mark.parametrize("size", [2_000_000, 500_000, 3_000_001])
def test_file_that_changes_its_size_is_corrupt(size: int, etag: str | None) -> None:
    with serving(DATA, etag=etag) as (server, url):
        file = RemoteFile.open(url)
        server.files["file"] = (DATA + b"more")[:size]
        with pytest.raises(errors.CorruptError, match=f"`{url}` changed while it was being read"):
            file.read_ranges([MIDDLE])


def test_another_file_of_the_same_size_is_corrupt() -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url)
        server.faults.etag = 'W/"one"'
        assert file.read_ranges([MIDDLE]) == [DATA[slice(*MIDDLE)]]
        server.faults.etag = '"two"'
        with pytest.raises(errors.CorruptError, match="changed while it was being read"):
            file.read_ranges([MIDDLE])


def test_changed_file_on_a_real_server_is_corrupt(served: Nginx) -> None:
    for later, name in enumerate(("file", "unnamed/file"), 1):
        file = RemoteFile.open(f"{served.url}/{name}")
        path = served.files / "file"
        path.write_bytes(DATA[::-1])
        changed = path.stat().st_mtime + 10 * later
        os.utime(path, (changed, changed))
        with pytest.raises(errors.CorruptError, match="changed while it was being read"):
            file.read_ranges([MIDDLE])


def test_head_and_tail_of_different_files_are_corrupt() -> None:
    with serving(DATA) as (server, url):
        server.gate = Gate()
        real, tags = server._part, iter(['"one"', '"two"'])

        def part(data: bytes, asked: str) -> Any:
            server.faults.etag = next(tags)
            return real(data, asked)

        server._part = part  # type: ignore[method-assign]
        with pytest.raises(errors.CorruptError, match="changed"):
            RemoteFile.open(url)
