"""`open_root`: which root an address names."""

import os
import sys
from pathlib import Path

import pytest

from relive import errors
from relive.store.roots import open_root


def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for address, path in (
        (tmp_path / "a", tmp_path / "a"),
        (str(tmp_path / "a"), tmp_path / "a"),
        (f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        ("a", tmp_path / "a"),
        ("~/a", tmp_path / "home" / "a"),
    ):
        root = open_root(address)
        assert root.path == path
        assert root.name == str(path)
        assert not root.is_read_only
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.InvalidError, match="is a file, expected a directory"):
        open_root(tmp_path / "file")


def test_memory_is_shared_by_name() -> None:
    open_root("memory://one").put("a", b"1")
    assert open_root("memory://one").get("a").data == b"1"
    assert open_root("memory://two").exists(["a"]) == [False]
    assert open_root("memory://one").path is None


def test_a_root_is_returned_as_it_is() -> None:
    root = open_root("memory://one")
    assert open_root(root) is root


@pytest.mark.parametrize("address", ["memory://one", "somewhere"])
def test_options_need_an_object_store(address: str) -> None:
    with pytest.raises(errors.InvalidError, match="takes no options, got `region`"):
        open_root(address, region="x")
    with pytest.raises(errors.InvalidError, match="takes no options"):
        open_root(open_root(address), region="x")


def test_addresses_that_name_no_root() -> None:
    with pytest.raises(errors.UnsupportedError, match="names a dataset, not a root"):
        open_root("relive://ws/name")
    with pytest.raises(errors.UnsupportedError, match="unsupported scheme 'ftp'"):
        open_root("ftp://me:hidden@host/x")
    with pytest.raises(errors.InvalidTypeError, match="must be a path or an address, got 7"):
        open_root(7)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidError, match="must not have a query") as caught:
        open_root("https://host/x?signature=hidden")
    assert "hidden" not in str(caught.value)


@pytest.mark.needs("obstore")
def test_object_stores_make_no_request() -> None:
    root = open_root("s3://bucket/a/b/", access_key_id="a", secret_access_key="hidden")  # noqa: S106 - not a secret
    assert (root.name, root.path, root.is_read_only) == ("s3://bucket/a/b", None, False)
    assert root.uri("c") == "s3://bucket/a/b/c"
    assert "hidden" not in repr(root)
    root = open_root("https://me:hidden@host/x")
    assert (root.name, root.is_read_only) == ("https://host/x", True)
    assert open_root("gs://bucket", skip_signature=True).name == "gs://bucket"
    azure = open_root("az://box/a", account_name="me", account_key="aGlkZGVu")
    assert azure.name == "az://box/a"


@pytest.mark.needs("obstore")
def test_unknown_options_raise() -> None:
    with pytest.raises(errors.InvalidError, match="cannot connect to `s3://bucket`"):
        open_root("s3://bucket/x", nonsense=1)
    with pytest.raises(errors.InvalidError, match="does not take `credential_provider`"):
        open_root("s3://bucket/x", credential_provider=dict)
    with pytest.raises(errors.InvalidError, match="`retry_config` is not valid"):
        open_root("s3://bucket/x", retry_config={"retry_timeout": "soon"})


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(errors.MissingExtraError) as caught:
        open_root("s3://bucket/x")
    assert caught.value.hint == "pip install 'relive[remote]'"


def test_directories_need_no_extra(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from relive.store.roots import open_root\n"
        "from relive.store.blobs import Blobs\n"
        "root = open_root(sys.argv[1]); root.put('a', b'1'); print(root.get('a').data)\n"
    )
    command = [sys.executable, "-c", code, os.fspath(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "b'1'"
