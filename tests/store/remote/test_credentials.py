"""Where credentials come from, and that they are renewed: ahead of time, and when refused."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relive import errors
from relive.store.remote import root_client
from relive.store.remote.credentials import Credentials, RenewedCredentials
from relive.store.remote.failures import CredentialsError, TemporaryCredentialsError
from relive.store.remote.file import RemoteFile
from relive.store.roots import Root, open_root
from tests.servers import CredentialService, SeaweedFS, SigningProxy

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("seaweedfs", "obstore")


def check_no_secret(error: BaseException | None) -> None:
    """Fail if an error, or one that it was raised from, contains a secret."""
    while error is not None:
        text = f"{error} {error!r} {error.__dict__}"
        assert "hidden" not in text
        assert "TEMPORARY" not in text
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def use(root: Root) -> None:
    """Make every kind of request."""
    root.put("a", b"bytes")
    assert root.get("a").data == b"bytes"
    assert root.exists(["a", "b"]) == [True, False]
    assert root.read_ranges([("a", 1, 3)]) == [b"yt"]
    assert [entry.key for entry in root.list()] == ["a"]
    tag = root.create("c", b"1")
    root.replace("c", b"2", tag)
    root.delete(["a", "c"])


def test_container(container: CredentialService, signing: SigningProxy, bucket: str) -> None:
    use(open_root(bucket))
    assert container.log == ["GET /container"]
    assert not signing.refused


@pytest.mark.parametrize("kind", ["token", "file"])
def test_container_with_a_token(
    kind: str,
    container: CredentialService,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container.authorization = "hidden-authorization"
    with pytest.raises(errors.AuthenticationError, match="returned HTTP status 401") as caught:
        open_root(bucket).put("a", b"")
    check_no_secret(caught.value)
    if kind == "file":
        (tmp_path / "token").write_text("hidden-authorization\n")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", f"{tmp_path / 'token'}")
    else:
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden-authorization")
    use(open_root(bucket))


@pytest.mark.usefixtures("signing")
@pytest.mark.parametrize("url", ["http://example.com/x", "http://10.0.0.1/x", "ftp://127.0.0.1/x"])
def test_container_elsewhere_is_refused(
    url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    with pytest.raises(errors.AuthenticationError, match="neither https:// nor local"):
        open_root(bucket).get("a")


@pytest.mark.usefixtures("signing")
def test_instance_role(
    service: CredentialService, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    use(open_root(bucket))
    roles = "/latest/meta-data/iam/security-credentials/"
    assert service.log == ["PUT /latest/api/token", f"GET {roles}", f"GET {roles}a-role"]
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(errors.AuthenticationError, match="no credentials were found"):
        open_root(bucket).get("a")


@pytest.mark.usefixtures("signing")
def test_web_identity(
    service: CredentialService, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "identity"
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "a-role")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{service.url}/sts")
    root = open_root(bucket)
    token.write_text("hidden-wrong")
    with pytest.raises(errors.AuthenticationError, match="service returned HTTP status 403") as e:
        root.get("a")
    check_no_secret(e.value)
    token.write_text("identity\n")
    use(root)
    service.identity = "renewed"
    service.expire_all()
    token.write_text("renewed")
    use(root)


@pytest.mark.needs("boto3")
def test_profile_that_runs_a_program(
    service: CredentialService, signing: SigningProxy, bucket: str, tmp_path: Path
) -> None:
    # The program is a source that botocore renews, as it renews roles and SSO.
    (tmp_path / ".aws").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys, urllib.request\n"
        f"found = json.load(urllib.request.urlopen('{service.url}/container'))\n"
        "found['SessionToken'] = found.pop('Token')\n"
        "print(json.dumps({'Version': 1, **found}))\n"
    )
    config = f"[profile mine]\nregion = eu-north-1\ncredential_process = python3 {program}\n"
    (tmp_path / ".aws" / "config").write_text(config)
    root = open_root(bucket, profile="mine")
    use(root)
    assert len(service.log) == 1
    service.expire_all()
    assert root.exists(["a"]) == [False]
    assert len(service.log) == 2
    assert "ExpiredToken" in signing.refused


@pytest.mark.needs("boto3")
def test_profile_whose_file_is_rewritten(
    service: CredentialService, signing: SigningProxy, bucket: str, tmp_path: Path
) -> None:
    def write() -> None:
        service._issue()
        name, key = [*service.issued.items()][-1]
        lines = [f"aws_access_key_id = {name}", f"aws_secret_access_key = {key.secret}"]
        text = "\n".join(["[default]", *lines, f"aws_session_token = {key.token}"])
        (tmp_path / ".aws" / "credentials").write_text(text)

    (tmp_path / ".aws").mkdir()
    write()
    root = open_root(bucket)
    root.put("a", b"1")
    service.expire_all()
    with pytest.raises(errors.AuthenticationError, match="the credentials have expired") as caught:
        root.get("a")
    check_no_secret(caught.value)
    write()
    assert root.get("a").data == b"1"
    assert signing.refused == ["ExpiredToken"] * 2


def test_environment_that_changes(
    service: CredentialService, bucket: str, signing: SigningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_key() -> None:
        service._issue()
        name, key = [*service.issued.items()][-1]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key.secret)
        monkeypatch.setenv("AWS_SESSION_TOKEN", key.token)

    set_key()
    root = open_root(bucket)
    root.put("a", b"1")
    service.expire_all()
    with pytest.raises(errors.AuthenticationError, match="the credentials have expired"):
        root.get("a")
    set_key()
    assert root.get("a").data == b"1"
    assert signing.refused == ["ExpiredToken"] * 2


def test_key_in_options_is_not_renewed(
    container: CredentialService, signing: SigningProxy, bucket: str
) -> None:
    container._issue()
    [(name, key)] = container.issued.items()
    options = {"access_key_id": name, "secret_access_key": key.secret, "token": key.token}
    root = open_root(bucket, **options)
    root.put("a", b"1")
    container.expire_all()
    with pytest.raises(errors.AuthenticationError, match="the credentials have expired") as caught:
        root.get("a")
    check_no_secret(caught.value)
    assert signing.refused == ["ExpiredToken"]
    assert not container.log


def test_no_service_at_all(signing: SigningProxy, bucket: str) -> None:
    with pytest.raises(errors.AuthenticationError, match="no credentials were found"):
        open_root(bucket).get("a")
    assert signing.count == 0


def test_renewed_before_they_expire(
    container: CredentialService, signing: SigningProxy, bucket: str
) -> None:
    container.lifetime_s = 3.0
    root = open_root(bucket)
    root.put("a", b"1")
    end = time.monotonic() + 3.4
    while time.monotonic() < end:
        assert root.get("a").data == b"1"
        time.sleep(0.02)
    assert not signing.refused
    assert 2 <= len(container.issued) <= 6
    assert all(key.uses for key in container.issued.values())


def test_refused_key_is_renewed_for_every_kind_of_request(
    container: CredentialService, signing: SigningProxy, bucket: str
) -> None:
    root = open_root(bucket)
    root.put("a", b"bytes")
    root.put("empty", b"")
    tag = root.create("c", b"1")
    calls: list[Callable[[], object]] = [
        lambda: root.get("a").data == b"bytes",
        lambda: root.get_many(["a", "b"])[1] is None,
        lambda: root.read_ranges([("a", 1, 3), ("a", 4, 5)]) == [b"yt", b"s"],
        lambda: root.exists(["a", "b", "empty"]) == [True, False, True],
        lambda: root.put("a", b"bytes") is None,
        lambda: root.create("d", b"1"),
        lambda: root.replace("c", b"2", tag),
        lambda: len([*root.list()]) == 4,
        lambda: root.delete(["a"]) is None,
    ]
    for number, call in enumerate(calls, 1):
        container.expire_all()
        assert call()
        assert len(container.log) == number + 1
    assert {*signing.refused} == {"ExpiredToken"}


def test_refused_key_is_renewed_once_for_all_threads(
    container: CredentialService, signing: SigningProxy, bucket: str
) -> None:
    root = open_root(bucket)
    root.put("a", b"bytes" * 100_000)
    container.expire_all()
    ranges = [("a", at, at + 1) for at in range(0, 450_000, 50_000)]
    found = root.read_ranges(ranges, gap=0)
    assert found == [b"b"] * len(ranges)
    assert len(container.log) == 2
    assert 1 <= len(signing.refused) <= len(ranges)


def test_new_key_that_is_refused_too_is_an_error(
    container: CredentialService, signing: SigningProxy, bucket: str
) -> None:
    container.lifetime_s, container.declared_s = -1.0, 3600.0
    with pytest.raises(errors.AuthenticationError, match="the credentials have expired") as caught:
        open_root(bucket).get("a")
    check_no_secret(caught.value)
    assert signing.refused == ["ExpiredToken"] * 3


def test_a_key_that_expires_together_with_the_refused_one_is_renewed(
    container: CredentialService, bucket: str
) -> None:
    root = open_root(bucket)
    root.put("a", b"bytes")
    container.expire_all()
    container.lifetimes_s = [-1.0]  # the next key
    assert root.get("a").data == b"bytes"
    file = RemoteFile.open(f"{bucket}/a")
    container.expire_all()
    container.lifetimes_s = [-1.0]
    assert file.read_ranges([(0, 5)]) == [b"bytes"]


def test_file_renews_refused_keys(
    container: CredentialService, signing: SigningProxy, seaweed: SeaweedFS
) -> None:
    data = bytes(1_000_000)
    seaweed.put("runs/file", data)
    file = RemoteFile.open("s3://runs/file")
    container.expire_all()
    assert file.read_ranges([(500_000, 500_010)]) == [bytes(10)]
    container.lifetime_s, container.declared_s = -1.0, 3600.0
    container.expire_all()
    with pytest.raises(errors.AuthenticationError, match="the credentials have expired"):
        file.read_ranges([(500_000, 500_010)])
    assert {*signing.refused} == {"ExpiredToken"}


@pytest.mark.usefixtures("signing")
def test_service_that_fails_for_a_while(container: CredentialService, bucket: str) -> None:
    container.failures = [503, 500]
    root = open_root(bucket)
    root.put("a", b"1")  # repeated at once
    container.expire_all()
    container.failures = [503] * 7
    assert root.get("a").data == b"1"  # repeated after pauses
    assert not container.failures


@pytest.mark.usefixtures("signing")
def test_service_that_fails_while_keys_are_valid(container: CredentialService, bucket: str) -> None:
    container.lifetime_s = 3.0
    root = open_root(bucket)
    root.put("a", b"1")
    container.failures = [503] * 1000
    time.sleep(1.6)
    begin = time.monotonic()
    assert root.get("a").data == b"1"
    assert time.monotonic() - begin < 1.0
    assert len(container.failures) < 1000
    container.failures = []
    time.sleep(1.5)
    assert root.get("a").data == b"1"
    assert len(container.issued) == 2


class Scripted:
    """A source that returns what a test has prepared."""

    def __init__(self, *found: Credentials | CredentialsError) -> None:
        self.found = [*found]
        self.calls = 0

    def fetch(self, *, again: bool) -> Credentials:
        """Return, or raise, the next one."""
        del again
        self.calls += 1
        time.sleep(0.02)
        each = self.found.pop(0)
        if isinstance(each, CredentialsError):
            raise each
        return each


def test_many_threads_fetch_once() -> None:
    source = Scripted(Credentials("a", "b"))
    renewed = RenewedCredentials(source)
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda _: renewed.current(), range(8))}
    assert found == {Credentials("a", "b")}
    assert source.calls == 1


def test_threads_that_wait_for_a_failure_share_it() -> None:
    source = Scripted(*[TemporaryCredentialsError("no")] * 20)
    renewed = RenewedCredentials(source)

    def attempt(_: int) -> bool:
        try:
            renewed.current()
        except TemporaryCredentialsError:
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(attempt, range(8)))
    assert source.calls <= 3


def test_wrong_clock() -> None:
    # By this clock, the credentials expired long ago.
    old = Credentials("a", "b", "c", time.time() - 3600)
    renewed = RenewedCredentials(Scripted(old, old))
    assert renewed.current() is old
    assert renewed.current() is old
    assert not renewed.renew(old)


def test_what_has_worked_is_expected_to_work_again() -> None:
    first = Credentials("a", "b", "c", time.time() + 0.1)
    renewed = RenewedCredentials(Scripted(CredentialsError("none"), first, CredentialsError("x")))
    with pytest.raises(CredentialsError, match="none") as caught:
        renewed.current()
    assert not isinstance(caught.value, TemporaryCredentialsError)
    assert renewed.current() is first
    with pytest.raises(TemporaryCredentialsError, match="x"):
        renewed.renew(first)


def test_no_secret_is_shown() -> None:
    assert "hidden" not in repr(Credentials("hidden", "hidden", "hidden"))


def test_anonymous_in_the_environment(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, service: CredentialService
) -> None:
    seaweed.put("public/made", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.url)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/container")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    root = open_root("s3://public/anonymous")
    root.put("a", b"1")
    assert root.get("a").data == b"1"
    assert not service.log


def test_upload_in_parts_outlives_its_key(
    container: CredentialService,
    signing: SigningProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Parts are requested by obstore, which asks for a key again when it is about to expire.
    monkeypatch.setattr(root_client, "_PART_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(root_client, "_PART_BYTES", 5 << 20)
    container.lifetime_s = 3.0
    path = tmp_path / "large"
    path.write_bytes(bytes(12 << 20))
    root = open_root(bucket)
    signing.troubles.delay_s = 0.8
    root.put("large", path)
    signing.troubles.delay_s = 0.0
    assert [entry.size for entry in root.list()] == [12 << 20]
    assert not signing.refused
    uses = [key.uses for key in container.issued.values()]
    assert len(uses) >= 2
    assert all(uses[:2])
