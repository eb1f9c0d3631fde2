"""`merge` and `subset` copy entries as stored."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import relive
from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnsupportedError,
)
from relive.store.codec import train_dictionary
from relive.store.pack import merge, register_kind, subset
from relive.store.pack.kinds import _REGISTERED
from tests.store.pack.files import names_in, payloads
from tests.store.pack.packs import make_run, make_runs, write_runs


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Register kinds for the duration of a test."""
    before = dict(_REGISTERED)
    yield register_kind
    _REGISTERED.clear()
    _REGISTERED.update(before)


def stored(path: Path) -> list[tuple[bytes, int, int]]:
    """Return the stored bytes, codec and logical length of each entry."""
    data = path.read_bytes()
    pack = relive.PackReader.open(path).files[0].native
    entries = (pack.entry(position) for position in range(len(pack)))
    return [(data[at : at + size], flags & 47, length) for at, size, _, flags, _, length in entries]


def test_merged_pack_has_all_entries(tmp_path: Path) -> None:
    runs = make_runs(12)
    first = write_runs(tmp_path / "a1", runs[:5], codec="zstd")
    second = tmp_path / "a2"
    with relive.PackWriter(second, checksum=False) as writer:
        writer.append(b"other", name="other")
        writer.extend(runs[5:], "v2")
    done: list[tuple[int | None, ...]] = []
    merge(
        [first, str(second)],
        tmp_path / "b",
        steps=True,
        align=8,
        progress=lambda *given: done.append(given),
    )
    assert done[-1] == (13, 13)
    assert stored(tmp_path / "b") == stored(first) + stored(second)
    reader = relive.PackReader.open(tmp_path / "b")
    assert reader.validate("full").ok
    assert [reader.name(position) for position in range(7)] == [
        *(f"run-{number}" for number in range(5)),
        "other",
        None,
    ]
    assert len(reader.steps()) == sum(map(len, runs))
    assert int(reader.steps()[-1]["run"]) == 12
    merge(tmp_path / "a?", tmp_path / "c", steps=True, align=8)
    assert (tmp_path / "c").read_bytes() == (tmp_path / "b").read_bytes()


def test_subset_keeps_the_order_of_the_reader(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "a", make_runs(8), codec="zstd")
    reader = relive.PackReader.open(path)
    subset(reader[[6, 0, 3]], tmp_path / "b")
    everything = stored(path)
    assert stored(tmp_path / "b") == [everything[6], everything[0], everything[3]]
    smaller = relive.PackReader.open(tmp_path / "b")
    assert list(smaller) == [reader[6], reader[0], reader[3]]
    assert smaller.find("run-3") == 2
    subset(reader[:0], tmp_path / "empty")
    assert payloads(tmp_path / "empty") == []


def test_subset_of_several_packs(tmp_path: Path) -> None:
    runs = make_runs(6)
    paths = [write_runs(tmp_path / "a", runs[:3]), tmp_path / "b"]
    with relive.PackWriter(paths[1]) as writer:
        writer.extend(runs[3:], "v2")
    reader = relive.PackReader.open(paths)
    subset(reader[::-1], tmp_path / "c")
    assert list(relive.PackReader.open(tmp_path / "c")) == runs[::-1]


def test_kinds_keep_their_names(tmp_path: Path, registered: Callable[..., None]) -> None:
    registered("x", str.encode, lambda data: f"x {bytes(data).decode()}")
    registered("y", str.encode, lambda data: f"y {bytes(data).decode()}")
    for name, kinds in (("a", "xy"), ("b", "yx")):
        with relive.PackWriter(tmp_path / name) as writer:
            for kind in kinds:
                writer.append(name, kind)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert list(relive.PackReader.open(tmp_path / "c")) == ["x a", "y a", "y b", "x b"]
    merge(tmp_path / "[ab]", tmp_path / "d")
    assert payloads(tmp_path / "d") == payloads(tmp_path / "c")


def test_dictionary_is_copied(tmp_path: Path) -> None:
    runs = [make_run(40 + seed, seed).to_bytes() for seed in range(60)]
    dictionaries = [train_dictionary(runs[:30], 2048), train_dictionary(runs[30:], 2048)]
    for name, dictionary in zip("abc", (*dictionaries, dictionaries[0]), strict=True):
        with relive.PackWriter(tmp_path / name, codec="zstd", dictionary=dictionary) as writer:
            writer.extend(runs, "v2")
    merge([tmp_path / "a", tmp_path / "c"], tmp_path / "both", steps=True)
    assert payloads(tmp_path / "both") == runs * 2
    with pytest.raises(UnsupportedError, match="different dictionaries"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_duplicate_names_raise(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "a", make_runs(3))
    with pytest.raises(InvalidError, match=r"entry 0: another entry already has the name `run-0`"):
        merge([path, path], tmp_path / "b")
    assert names_in(tmp_path) == ["a"]


def test_copying_can_be_stopped(tmp_path: Path) -> None:
    def stop(done: int, _: int | None) -> None:
        raise KeyboardInterrupt(str(done))

    path = write_runs(tmp_path / "a", make_runs(3))
    with pytest.raises(KeyboardInterrupt, match="3"):
        merge(path, tmp_path / "b", progress=stop)
    assert names_in(tmp_path) == ["a"]


def test_pack_may_be_replaced_by_a_subset_of_itself(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "a", make_runs(5))
    wanted = payloads(path)[1::2]
    with pytest.raises(AlreadyExistsError):
        subset(relive.PackReader.open(path)[1::2], path)
    subset(relive.PackReader.open(path)[1::2], path, overwrite=True)
    assert payloads(path) == wanted


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ([], InvalidError),
        ("no such pack", NotFoundError),
        (["no-*-such"], NotFoundError),
        ([7], InvalidTypeError),
    ],
)
def test_inputs_that_are_not_packs_raise(
    inputs: Any, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        merge(inputs, tmp_path / "b")
    with pytest.raises(InvalidTypeError):
        subset(inputs, tmp_path / "b")
    assert names_in(tmp_path) == []
