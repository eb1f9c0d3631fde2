"""Names that clash, and lists with nothing in them."""

from pathlib import Path

import pytest

from relive.store.pack import PackReader, PackWriter, register_kind
from tests.cli.conftest import Relive


@pytest.mark.parametrize("names", [(None, "entry-000000.bin"), ("a", "a/b")])
def test_clashing_file_names_fail_before_writing(
    relive: Relive, tmp_path: Path, names: tuple[str | None, str]
) -> None:
    path = tmp_path / "clash.a2pack"
    with PackWriter(path) as writer:
        for name in names:
            writer.append(b"x", name=name)
    for more in ([], ["--overwrite"]):
        done = relive("pack", "extract", path, "--output", tmp_path / "out", *more)
        assert done.status == 1
        assert "would be" in done.err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["extract", "subset"])
def test_empty_list_of_names_fails(
    relive: Relive, pack: Path, tmp_path: Path, command: str
) -> None:
    done = relive("pack", command, pack, "--names", "", "--output", tmp_path / "out")
    assert done.status == 2
    assert "expected at least one name" in done.err
    assert not (tmp_path / "out").exists()


def test_packs_with_different_kind_numbers_are_merged(relive: Relive, tmp_path: Path) -> None:
    paths = []
    for kind in ("north", "south"):
        register_kind(kind, bytes, bytes)
        paths.append(tmp_path / f"{kind}.a2pack")
        with PackWriter(paths[-1]) as writer:
            writer.append(kind.encode(), kind=kind, name="same")
    out = tmp_path / "both.a2pack"
    assert "--drop-names" in relive("pack", "merge", *paths, "--output", out).err
    assert relive("pack", "merge", *paths, "--output", out, "--drop-names").status == 0
    both = PackReader.open(out)
    assert [both.kind(k) for k in range(2)] == ["north", "south"]
    assert list(both) == [b"north", b"south"]
