"""Credentials in forked and spawned processes, and pickles without secrets."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relive import errors
from relive.store.remote.file import RemoteFile
from relive.store.remote.hidden import hidden_address, hidden_options
from relive.store.roots import Root, open_root
from tests.servers import CredentialService, Nginx, SeaweedFS, SigningProxy

pytestmark = pytest.mark.needs("seaweedfs", "obstore")

METHODS = ("fork", "spawn", "forkserver")
KEY_S = float(os.environ.get("RELIVE_KEY_S", "3"))


def read_for(root: Root, seconds: float) -> int:
    """Read until the end of the time; return how often."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        assert root.read_ranges([("a", 1, 3)]) == [b"yt"]
        count += 1
        time.sleep(0.02)
    return count


def _read_for(root: Root, seconds: float, pipe: Any) -> None:
    try:
        pipe.send(read_for(root, seconds))
    except BaseException as error:  # noqa: BLE001 - any error is returned
        pipe.send(error)


def read_in_workers(address: str, seconds: float) -> list[Any]:
    """Read here and in processes of every kind, after this one has read."""
    root = open_root(address)
    read_for(root, 0.01)
    pipes, workers = [], []
    for method in METHODS:
        context: Any = multiprocessing.get_context(method)
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_read_for, args=(root, seconds, theirs))
        worker.start()
        pipes.append(ours)
        workers.append(worker)
    found: list[Any] = [read_for(root, seconds)]
    for pipe, worker in zip(pipes, workers, strict=True):
        found.append(pipe.recv() if pipe.poll(60) else "no result")
        worker.join()
    return found


def test_keys_of_a_few_seconds_are_renewed_in_workers(
    container: CredentialService, signing: SigningProxy, seaweed: SeaweedFS, bucket: str
) -> None:
    open_root(bucket, **seaweed.options()).put("a", b"bytes")
    container.lifetime_s = KEY_S
    seconds = KEY_S + 2.0
    done = threading.Event()

    def expire_early() -> None:
        while not done.wait(2.0):
            container.expire_all()

    thread = threading.Thread(target=expire_early)
    thread.start()
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = pool.submit(read_in_workers, bucket, seconds).result(timeout=60 + 2 * seconds)
    finally:
        done.set()
        thread.join()
    assert len(found) == 4
    assert all(isinstance(each, int) and each > 10 for each in found), found
    # Each of the four processes has asked for its own keys, again and again.
    assert len(container.issued) >= 8
    # Whenever all had expired early, each noticed it.
    assert {*signing.refused} == {"ExpiredToken"}
    assert len(signing.refused) >= 4


def change_environment(address: str, key: tuple[str, str, str]) -> list[bytes]:
    """Read in a forked process, with the environment's keys before and after they change."""
    root = open_root(address)
    root.get("a")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(_change_environment, (root, key)).get(timeout=60)


def _change_environment(root: Root, key: tuple[str, str, str]) -> list[bytes]:
    first = root.get("a").data
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    os.environ.update(zip(names, key, strict=True))
    return [first, root.get("a").data]


def issue(service: CredentialService) -> tuple[str, str, str]:
    """Return a new temporary key."""
    service._issue()
    name, key = [*service.issued.items()][-1]
    return name, key.secret, key.token


def test_environment_that_changes_in_a_forked_process(
    service: CredentialService,
    signing: SigningProxy,
    seaweed: SeaweedFS,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_root(bucket, **seaweed.options()).put("a", b"bytes")
    keys = [issue(service), issue(service)]
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, keys[0], strict=True):
        monkeypatch.setenv(name, value)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(change_environment, bucket, keys[1]).result(timeout=60)
    assert found == [b"bytes"] * 2
    assert [key.uses for key in service.issued.values()] == [2, 1]
    assert not signing.refused


def get_a(root: Root) -> bytes:
    return root.get("a").data


@pytest.mark.usefixtures("no_credentials")
def test_pickle_of_a_root_has_no_secret(seaweed: SeaweedFS, bucket: str, tmp_path: Path) -> None:
    options = {**seaweed.options(), "retry_config": {"max_retries": 1}}
    root = open_root(bucket, **options)
    root.put("a", b"bytes")
    dumped = pickle.dumps(root)
    assert b"secret" not in dumped.replace(b"secret_access_key", b"")
    assert b"us-east-1" in dumped
    copy: Root = pickle.loads(dumped)  # noqa: S301 - our own data
    assert copy.get("a").data == b"bytes"
    # Processes of `multiprocessing` get the options through a pipe of their own.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(get_a, root).result(timeout=60) == b"bytes"
        assert pool.submit(load_and_get, dumped).result(timeout=60) == b"bytes"
    # Other processes do not.
    path = tmp_path / "root.pickle"
    path.write_bytes(dumped)
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')).get('a')"
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "AuthenticationError: cannot read" in done.stderr
    assert "credentials that are passed as options are not pickled" in done.stderr
    assert "hint: name a profile with profile=" in done.stderr
    assert "secret" not in done.stderr


def load_and_get(dumped: bytes) -> bytes:
    return get_a(pickle.loads(dumped))  # noqa: S301 - our own data


@pytest.mark.needs("nginx")
def test_pickle_of_a_file_has_no_password(nginx: Nginx) -> None:
    (nginx.files / "file").write_bytes(bytes(100))
    url = nginx.url.replace("http://", "http://me:pass@") + "/secret/file"
    file = RemoteFile.open(url)
    dumped = pickle.dumps(file)
    assert b"pass" not in dumped
    copy: RemoteFile = pickle.loads(dumped)  # noqa: S301 - our own data
    assert copy.read_ranges([(0, 3)]) == [bytes(3)]


@pytest.mark.parametrize(
    "options",
    [
        {"secret_access_key": "hidden", "region": "here"},
        {"AWS_SESSION_TOKEN": "hidden", "region": "here"},
        {"config": {"aws_secret_access_key": "hidden"}, "region": "here"},
        {"account_key": "hidden", "region": "here"},
        {"sas_key": "hidden", "region": "here"},
        {"bearer_token": "hidden", "region": "here"},
        {"client_secret": "hidden", "region": "here"},
        {"service_account_key": "hidden", "region": "here"},
        {"client_options": {"default_headers": {"x": "hidden"}}, "region": "here"},
        {"client_options": {"proxy_url": "http://u:hidden@proxy"}, "region": "here"},
    ],
)
def test_secret_options_are_hidden(options: dict[str, Any]) -> None:
    hidden = hidden_options(options)
    dumped = pickle.dumps(hidden)
    assert b"hidden" not in dumped.replace(b"remote.hidden", b"")
    assert b"here" in dumped
    assert "'hidden'" not in repr(hidden)
    assert pickle.loads(dumped) == options  # noqa: S301 - our own data


def test_other_options_are_as_they_are() -> None:
    options = {
        "profile": "mine",
        "region": "here",
        "web_identity_token_file": "/file",
        "container_credentials_full_uri": "http://127.0.0.1",
        "client_options": {"timeout": "1s"},
    }
    assert hidden_options(options) == options
    assert hidden_address("s3://bucket/a?b@c") == "s3://bucket/a?b@c"
    assert hidden_address("https://host/a") == "https://host/a"
    dumped = pickle.dumps(hidden_address("https://host/a?signature=hidden&x"))
    assert b"signature" not in dumped


def test_error_of_a_forked_process_has_no_secret(container: CredentialService, bucket: str) -> None:
    container.lifetime_s, container.declared_s = -1.0, 3600.0
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(fail_in_a_fork, bucket).result(timeout=60)
    assert type(error) is errors.AuthenticationError
    assert "the credentials have expired" in str(error)
    assert "hidden" not in f"{error!r} {error.__dict__} {error.__cause__} {error.__context__}"


def fail_in_a_fork(address: str) -> Any:
    root = open_root(address)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(_error_of, (root,)).get(timeout=60)


def _error_of(root: Root) -> Exception | None:
    try:
        root.get("a")
    except errors.ReliveError as error:
        return error
    return None
