"""Errors of object stores: a class and a message for each cause, and no secret in any."""

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relive import errors
from relive.store.remote.failures import BucketNotFoundError, translate
from relive.store.roots import Root, open_root
from tests.servers import Nginx, Proxy, SeaweedFS, free_ports

pytestmark = pytest.mark.needs("seaweedfs", "obstore")

SECRETS = ("hidden", "secret-of-the-server")


@pytest.fixture
def root(bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> Root:
    """Return a root whose server gives the answers in `proxy.troubles.canned`."""
    return open_root(bucket, **seaweed.options(proxy.url))


def body(code: str) -> bytes:
    """Return the body of an error response."""
    text = f"<Error><Code>{code}</Code><Message>secret-of-the-server</Message></Error>"
    return f'<?xml version="1.0"?>\n{text}'.encode()


def calls(root: Root, *, heads: bool = False) -> list[Callable[[], object]]:
    return [
        *([lambda: root.exists(["a"])] if heads else []),
        lambda: root.get("a"),
        lambda: root.get_many(["a"]),
        lambda: root.read_ranges([("a", 0, 5)]),
        lambda: root.put("a", b"1"),
        lambda: root.create("a", b"1"),
        lambda: root.replace("a", b"1", '"x"'),
        lambda: [*root.list()],
        lambda: root.delete(["a"]),
    ]


def check_no_secret(error: BaseException | None) -> None:
    """Fail if an error, or one that it was raised from, contains a secret."""
    while error is not None:
        text = f"{error} {error!r} {error.__dict__}"
        assert not [secret for secret in SECRETS if secret in text]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


CAUSES = [
    (403, "InvalidAccessKeyId", errors.AuthenticationError, "credentials were rejected"),
    (403, "SignatureDoesNotMatch", errors.AuthenticationError, "credentials were rejected"),
    (403, "InvalidToken", errors.AuthenticationError, "credentials were rejected"),
    (401, "Whatever", errors.AuthenticationError, "credentials were rejected"),
    (400, "ExpiredToken", errors.AuthenticationError, "credentials have expired"),
    (403, "RequestExpired", errors.AuthenticationError, "credentials have expired"),
    (403, "RequestTimeTooSkewed", errors.AuthenticationError, "clock of this machine"),
    (403, "AccessDenied", errors.AccessDeniedError, "access is denied"),
    (404, "NoSuchBucket", BucketNotFoundError, "the bucket does not exist"),
    (400, "InvalidArgument", errors.StorageError, "HTTP status 400"),
]


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_are_distinct(
    root: Root, proxy: Proxy, cause: tuple[int, str, type[errors.ReliveError], str]
) -> None:
    status, code, cls, message = cause
    for call in calls(root):
        proxy.troubles.canned = [(status, body(code))]
        with pytest.raises(cls, match=message) as caught:
            call()
        assert type(caught.value) is cls
        check_no_secret(caught.value)
        assert code not in str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own data
        assert str(again) == str(caught.value)


def test_a_head_request_has_no_code_and_is_repeated(root: Root, proxy: Proxy) -> None:
    proxy.troubles.canned = [(403, b""), (403, body("SignatureDoesNotMatch"))]
    with pytest.raises(errors.AuthenticationError, match="rejected"):
        root.exists(["a"])
    assert proxy.methods() == ["HEAD", "GET"]
    assert proxy.log[1].range == "bytes=0-0"


def test_wrong_credentials_of_a_real_server(bucket: str, seaweed: SeaweedFS) -> None:
    for name in ("access_key_id", "secret_access_key"):
        root = open_root(bucket, **(seaweed.options() | {name: "hidden"}))
        for call in calls(root, heads=True):
            with pytest.raises(errors.AuthenticationError, match="credentials were rejected") as e:
                call()
            check_no_secret(e.value)
            assert e.value.hint is not None
            assert "AWS_ACCESS_KEY_ID" in e.value.hint


def test_user_that_may_only_read(bucket: str, seaweed: SeaweedFS) -> None:
    open_root(bucket, **seaweed.options()).put("a", b"bytes")
    root = open_root(bucket, **seaweed.options(user="reader"))
    assert root.get("a").data == b"bytes"
    assert [entry.key for entry in root.list()] == ["a"]
    refused: list[Callable[[], object]] = [*calls(root)[3:6], partial(root.delete, ["a", "b"])]
    for call in refused:
        with pytest.raises(
            errors.AccessDeniedError, match=r"cannot (write|delete) .* access is denied"
        ) as e:
            call()
        assert not isinstance(e.value, errors.AuthenticationError)
    assert root.get("a").data == b"bytes"


def test_objects_that_were_not_deleted(root: Root, proxy: Proxy) -> None:
    prefix = root.name.partition("://")[2].partition("/")[2]

    def failed(code: str) -> tuple[int, bytes]:
        one = f"<Key>{prefix}/a</Key><Code>{code}</Code><Message>secret-of-the-server</Message>"
        return 200, f"<DeleteResult><Error>{one}</Error></DeleteResult>".encode()

    root.put("a", b"1")
    proxy.troubles.canned = [failed("SlowDown"), failed("InternalError")]
    root.delete(["a"])
    assert not proxy.troubles.canned
    assert list(root.list()) == []
    for code, cls in (
        ("AccessDenied", errors.AccessDeniedError),
        ("ExpiredToken", errors.AuthenticationError),
        ("Whatever", errors.StorageError),
    ):
        proxy.troubles.canned = [failed(code)] * 2
        with pytest.raises(cls) as caught:
            root.delete(["a"])
        assert type(caught.value) is cls
        check_no_secret(caught.value)
        proxy.troubles.canned = []


def test_anonymous_user(bucket: str, seaweed: SeaweedFS) -> None:
    open_root(bucket, **seaweed.options()).put("a", b"bytes")
    private = open_root(bucket, endpoint=seaweed.url, skip_signature=True)
    with pytest.raises(errors.AccessDeniedError, match="access is denied"):
        private.get("a")
    seaweed.put("public/made", b"")
    root = open_root("s3://public/root", endpoint=seaweed.url, skip_signature=True)
    root.put("a", b"public bytes")
    assert root.get("a").data == b"public bytes"


def test_missing_bucket(seaweed: SeaweedFS) -> None:
    root = open_root("s3://no-such-bucket/x", **seaweed.options())
    for call in (
        lambda: root.get("a"),
        lambda: root.get_many(["a"]),
        lambda: root.read_ranges([("a", 0, 1)]),
        lambda: [*root.list()],
    ):
        with pytest.raises(BucketNotFoundError, match="the bucket does not exist"):
            call()


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all credentials from the environment."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Never that of the machine on which the tests run.
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.mark.usefixtures("no_credentials")
def test_no_credentials(bucket: str, seaweed: SeaweedFS) -> None:
    # The metadata service of a cloud, which does not exist here, is asked for them.
    root = open_root(bucket, endpoint=seaweed.url)
    with pytest.raises(errors.AuthenticationError, match="no credentials were found") as caught:
        root.get("a")
    assert "AWS_PROFILE" in str(caught.value)


@pytest.mark.needs("boto3")
@pytest.mark.usefixtures("no_credentials")
def test_profiles(
    bucket: str, seaweed: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws").mkdir()
    lines = ["[default]", "aws_access_key_id = hidden", "aws_secret_access_key = hidden"]
    lines += ["[mine]", "aws_access_key_id = key", "aws_secret_access_key = secret"]
    (tmp_path / ".aws" / "credentials").write_text("\n".join(lines))
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.url)
    root = open_root(bucket, profile="mine")
    root.put("a", b"bytes")
    assert pickle.loads(pickle.dumps(root)).get("a").data == b"bytes"  # noqa: S301 - our own data
    with pytest.raises(errors.AuthenticationError, match="rejected"):
        open_root(bucket).get("a")  # the default profile
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert open_root(bucket).get("a").data == b"bytes"
    with pytest.raises(errors.AuthenticationError, match="no AWS profile 'other'") as caught:
        open_root(bucket, profile="other")
    check_no_secret(caught.value)
    (tmp_path / ".aws" / "config").write_text("[profile empty]\nregion = here\n")
    with pytest.raises(errors.AuthenticationError, match="'empty' has no credentials"):
        open_root(bucket, profile="empty")
    (tmp_path / ".aws" / "config").write_text("nonsense hidden")
    with pytest.raises(errors.AuthenticationError, match="'mine' is not valid") as caught:
        open_root(bucket, profile="mine")
    check_no_secret(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UnauthorizedSSOTokenError: hidden", "the credentials have expired"),
        ("TokenRetrievalError: hidden", "the credentials have expired"),
        ("CredentialRetrievalError: hidden", "the credentials could not be obtained"),
    ],
)
def test_profile_whose_login_has_expired(text: str, message: str) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    found = translate(exceptions.UnauthenticatedError(text), "s3://a/b", "s3://a", "read")
    assert type(found) is errors.AuthenticationError
    assert message in str(found)
    check_no_secret(found)


@pytest.fixture
def deaf() -> Iterator[str]:
    """Return the URL of a server that accepts connections and never responds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("where", ["refused", "unknown", "deaf"])
def test_offline(where: str, bucket: str, seaweed: SeaweedFS, deaf: str) -> None:
    (port,) = free_ports(1)
    url = {"refused": f"http://127.0.0.1:{port}", "unknown": "http://nobody.invalid", "deaf": deaf}
    client = {"client_options": {"timeout": "300ms"}}
    root = open_root(bucket, **seaweed.options(url[where]), **client)
    with pytest.raises(errors.OfflineError, match="cannot read") as caught:
        root.get("a", retry_s=0)
    assert isinstance(caught.value, ConnectionError)
    check_no_secret(caught.value)
    quick = open_root(
        bucket, **seaweed.options(url[where]), **client, retry_config={"max_retries": 1}
    )
    for call in calls(quick, heads=True):
        with pytest.raises(errors.OfflineError):
            call()


def test_web_servers(nginx: Nginx) -> None:
    root = open_root(f"{nginx.url.replace('//', '//me:pass@')}/secret")
    (nginx.files / "file").write_bytes(b"bytes")
    assert root.get("file").data == b"bytes"
    assert "pass" not in f"{root.name} {root!r}"
    writes: list[Callable[[], Any]] = [
        lambda: root.put("a", b""),
        lambda: root.create("a", b""),
        lambda: root.replace("a", b"", "x"),
        lambda: root.delete(["a"]),
    ]
    for write in writes:
        with pytest.raises(errors.ReadOnlyError, match="a web server is read-only"):
            write()
    with pytest.raises(errors.UnsupportedError, match="web servers do not list"):
        root.list()
    with pytest.raises(errors.AuthenticationError, match="rejected") as caught:
        open_root(f"{nginx.url.replace('//', '//me:hidden@')}/secret").get("file")
    check_no_secret(caught.value)
    with pytest.raises(errors.AccessDeniedError, match="access is denied"):
        open_root(f"{nginx.url}/forbidden").get("file")
    unnamed = open_root(f"{nginx.url}/unnamed")  # without ETags
    found = unnamed.get("file")
    assert unnamed.get("file", if_changed=found.tag) is None
    (nginx.files / "file").write_bytes(b"other bytes")
    changed = unnamed.get("file", if_changed=found.tag)
    assert changed is not None
    assert changed.data == b"other bytes"
    with pytest.raises(errors.UnsupportedError, match="does not support range requests"):
        open_root(f"{nginx.url}/whole").read_ranges([("file", 1, 3)])
