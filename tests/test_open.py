"""`relive.open` returns the right reader for a path or URI, or raises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnsupportedError,
)
from relive.load import Concat
from relive.replay import ReplayRecorder
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from relive.store.pack import PackReader, PackWriter
from tests.servers import FaultyServer


def write_pack(path: Path, *payloads: bytes) -> Path:
    with PackWriter(path) as writer:
        writer.extend(payloads)
    return path


def test_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    source = relive.open(tmp_path / "a.npy")
    assert isinstance(source, relive.ArraySource)
    assert np.asarray(source.gather([4, 0])["data"]).tolist() == [4, 0]


def test_pack_by_path_and_uri(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "p.a2pack", b"one", b"two")
    for uri in (path, str(path), path.as_uri()):
        source = relive.open(uri)
        assert isinstance(source, PackReader)
        assert list(source) == [b"one", b"two"]


def test_first_bytes_take_precedence_over_the_name(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "p.a2pack", b"one").rename(tmp_path / "p.npy")
    assert isinstance(relive.open(path), PackReader)


def test_options_are_passed_to_the_reader(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "p.a2pack", b"one")
    found: list[object] = list(relive.open(path, verify="always", io="pread"))
    assert found == [b"one"]
    with pytest.raises(ValueError, match="verify"):
        relive.open(path, verify="sometimes")


def test_pattern_joins_files_in_order_of_name(tmp_path: Path) -> None:
    for n in (2, 1, 10):
        np.save(tmp_path / f"a{n}.npy", np.full(2, n))
        write_pack(tmp_path / f"p{n}.a2pack", b"%d" % n)
    arrays = relive.open(tmp_path / "a*.npy")
    assert isinstance(arrays, Concat)
    assert np.asarray(arrays.gather(range(6))["data"]).tolist() == [1, 1, 10, 10, 2, 2]
    packs = relive.open(str(tmp_path / "p*.a2pack"))
    assert isinstance(packs, PackReader)
    assert list(packs) == [b"1", b"10", b"2"]


def test_existing_file_name_is_not_a_pattern(tmp_path: Path) -> None:
    np.save(tmp_path / "a[1].npy", np.arange(3))
    assert len(relive.open(tmp_path / "a[1].npy")) == 3


def test_pattern_that_matches_two_formats_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "x1.npy", np.arange(3))
    write_pack(tmp_path / "x2.a2pack")
    with pytest.raises(UnsupportedError, match=r"both an array .* and a pack") as caught:
        relive.open(tmp_path / "x*")
    assert caught.value.hint == "use a pattern that matches files of one format"


def test_missing_path_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no\.npy"):
        relive.open(tmp_path / "no.npy")
    with pytest.raises(NotFoundError, match="no file matches"):
        relive.open(tmp_path / "*.npy")


def test_file_without_permission_raises_access_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.npy").touch()
    monkeypatch.setattr("relive._open.open_reader", refuse)
    with pytest.raises(AccessDeniedError, match=r"a\.npy"):
        relive.open(tmp_path / "a.npy")


def test_unrecognized_file_error_lists_the_formats(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UnsupportedError, match=r"a pack \(`.a2pack`\), an array .* and runs"):
        relive.open(tmp_path / "a.txt")
    with pytest.raises(UnsupportedError, match="cannot open the directory") as caught:
        relive.open(tmp_path)
    assert "relive pack build" in str(caught.value.hint)


def test_unfinished_pack_error_has_a_recover_hint(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "p.a2pack")
    writer.append(b"one")
    writer.flush()
    (left,) = tmp_path.glob("p.a2pack.unfinished-????????")
    with pytest.raises(UnsupportedError) as caught:
        relive.open(left)
    assert str(caught.value.hint) == f"`relive recover {left}` makes a pack of it"
    writer.abort()


def test_damage_is_reported_by_the_reader(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "p.a2pack", b"one")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"p\.a2pack"):
        relive.open(path)
    (tmp_path / "e.a2pack").touch()
    with pytest.raises(CorruptError, match=r"e\.a2pack"):
        relive.open(tmp_path / "e.a2pack")


def test_only_packs_are_opened_over_the_network() -> None:
    with pytest.raises(UnsupportedError, match="over the network relive can open only a pack"):
        relive.open("https://example.invalid/a.npy")


@pytest.mark.needs("obstore")
def test_remote_pack_may_have_any_name(tmp_path: Path) -> None:
    data = write_pack(tmp_path / "p.a2pack", b"one", b"two").read_bytes()
    with FaultyServer({"p.a2pack": data, "p": data, "text": b"hello"}) as server:
        for name in ("p.a2pack", "p.a2pack?version=1", "p"):
            source = relive.open(f"{server.url}/{name}")
            assert isinstance(source, PackReader)
            assert list(source) == [b"one", b"two"]
        with pytest.raises(UnsupportedError, match="unrecognized format"):
            relive.open(f"{server.url}/text")
        with pytest.raises(NotFoundError):
            relive.open(f"{server.url}/no.a2pack")


@pytest.mark.parametrize("path", [None, 3, b"a"])
def test_path_of_another_type_raises(path: Any) -> None:
    with pytest.raises(InvalidTypeError, match="a path or URI must be a string or a Path"):
        relive.open(path)


def test_several_runs_are_not_opened_as_one(tmp_path: Path) -> None:
    for root, run_id in (("a", "one"), ("a", "two"), ("b", "three")):
        with ReplayRecorder(tmp_path / root, run_id, live=None) as recorder:
            recorder.step([0.5])
    assert list(relive.open(tmp_path / "a")) == ["one", "two"]
    assert relive.open(tmp_path / "a/replay/two.h5").run_id == "two"
    assert relive.open(f"{tmp_path}/a/replay/t*.h5").run_id == "two"
    for pattern in ("a/replay/*.h5", "?"):
        with pytest.raises(UnsupportedError, match="cannot be opened as one"):
            relive.open(f"{tmp_path}/{pattern}")


def test_damaged_runs_are_left_out_on_request(tmp_path: Path) -> None:
    for run_id in ("one", "two"):
        with ReplayRecorder(tmp_path, run_id, live=None) as recorder:
            recorder.step([0.5])
    with Database.create(database_path(tmp_path)) as database:
        database.rows("UPDATE episodes SET seed = 9 WHERE run_id = 'one'")
    with pytest.raises(CorruptError, match="'one'"):
        relive.open(tmp_path)["one"]
    runs = relive.open(tmp_path, errors="skip")
    assert list(runs) == ["two"]
    (damaged,) = runs.damaged
    assert damaged.path == arrays_path(tmp_path, "one")
    assert "'one'" in damaged.reason
    with pytest.raises(InvalidError, match="errors"):
        relive.open(tmp_path, errors="ignore")


def test_reference_that_is_also_a_path_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    write_pack(tmp_path / "a" / "b", b"one")
    with pytest.raises(InvalidError, match="`a/b` is a path, and it could be") as caught:
        relive.open("a/b")
    assert caught.value.hint == "write `./a/b` for the path, or `relive://a/b` for the dataset"
    for path in ("./a/b", Path("a/b"), tmp_path / "a" / "b"):
        assert list(relive.open(path)) == [b"one"]


@pytest.mark.parametrize("text", ["a/b.npy", "A/b", "a/b/c", "a", "a/b@v/1", "./a/b"])
def test_other_texts_are_paths(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=r"does not exist|No such file"):
        relive.open(text)
