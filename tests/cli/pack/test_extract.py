"""`relive pack extract`, `merge` and `subset`, and `relive recover`."""

from pathlib import Path

import pytest

from relive.store.pack import PackReader, PackWriter, register_kind
from tests.cli.conftest import Relive
from tests.cli.samples import game


def names_below(root: Path) -> list[str]:
    """Return the names of the files below a directory."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def write_named(path: Path, **named: bytes) -> Path:
    """Write a pack of named payloads."""
    with PackWriter(path) as writer:
        for name, payload in named.items():
            writer.append(payload, name=name)
    return path


def test_runs_are_extracted_by_position(
    relive: Relive, pack: Path, runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = relive("pack", "extract", pack, "--output", out)
    assert (done.status, done.out, done.err) == (0, f"{out}: 3 files\n", "")
    assert names_below(out) == [f"run-{i:06}.a2run2" for i in range(3)]
    assert (out / "run-000002.a2run2").read_bytes() == (runs / "b.a2run2").read_bytes()


def test_build_and_extract_round_trip(
    relive: Relive, pack: Path, runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert relive("pack", "extract", pack, "--output", out, "--keep-names").status == 0
    assert names_below(out) == names_below(runs)
    for name in names_below(runs):
        assert (out / name).read_bytes() == (runs / name).read_bytes()


@pytest.mark.parametrize(
    ("indices", "found"), [("0", [0]), ("2,0", [0, 2]), ("1-2", [1, 2]), ("0-1, 1-2,1", [0, 1, 2])]
)
def test_extract_selected_positions(
    relive: Relive, pack: Path, tmp_path: Path, indices: str, found: list[int]
) -> None:
    done = relive(
        "pack", "extract", pack, "--output", tmp_path / "out", "--indices", indices, "--json"
    )
    assert done.json == {"path": str(tmp_path / "out"), "files": len(found), "skipped": 0}
    assert names_below(tmp_path / "out") == [f"run-{i:06}.a2run2" for i in found]


@pytest.mark.parametrize("indices", ["3", "0,99", "0-18446744073709551"])
def test_positions_out_of_range_fail(
    relive: Relive, pack: Path, tmp_path: Path, indices: str
) -> None:
    done = relive("pack", "extract", pack, "--output", tmp_path / "out", "--indices", indices)
    assert done.status == 1
    assert done.err.endswith("there are only 3 entries\n")
    assert not (tmp_path / "out").exists()


def test_extract_by_name(relive: Relive, pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ("pack", "extract", pack, "--output", out)
    assert relive(*args, "--names", "b.a2run2,a/one.a2run2").status == 0
    assert names_below(out) == ["a/one.a2run2", "b.a2run2"]
    assert relive(*args, "--name", "a/two.a2run2").status == 0
    done = relive(*args, "--names", "b.a2run2,nobody", "--overwrite")
    assert done.status == 1
    assert "nobody" in done.err


def test_other_entries_are_named_by_name_or_position(relive: Relive, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "x.a2pack") as writer:
        writer.append(b"zero")
        writer.append(b"one", name="deep/er/one, or 1.txt")
        writer.append(game(), "auto")
    out = tmp_path / "out"
    assert relive("pack", "extract", tmp_path / "x.a2pack", "--output", out).status == 0
    assert names_below(out) == ["deep/er/one, or 1.txt", "entry-000000.bin", "run-000002.a2run2"]
    assert (out / "deep/er/one, or 1.txt").read_bytes() == b"one"


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "a//b", ".", "a/.."])  # noqa: S108
def test_nothing_is_written_outside_the_output(relive: Relive, tmp_path: Path, name: str) -> None:
    pack = write_named(tmp_path / "x.a2pack", **{"good": b"good", name: b"evil"})
    done = relive("pack", "extract", pack, "--output", tmp_path / "deep" / "out", "--overwrite")
    assert done.status == 1
    assert repr(name) in done.err
    assert names_below(tmp_path) == ["x.a2pack"]


def test_links_do_not_lead_outside_the_output(relive: Relive, tmp_path: Path) -> None:
    pack = write_named(tmp_path / "x.a2pack", **{"link/evil": b"evil"})
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    done = relive("pack", "extract", pack, "--output", tmp_path / "out", "--overwrite")
    assert done.status == 1
    assert "symbolic link" in done.err
    assert names_below(tmp_path / "elsewhere") == []


def test_existing_files_are_kept_without_overwrite(
    relive: Relive, pack: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run-000001.a2run2").write_text("mine")
    done = relive("pack", "extract", pack, "--output", out)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert names_below(out) == ["run-000001.a2run2"]
    assert relive("pack", "extract", pack, "--output", out, "--overwrite").status == 0
    assert (out / "run-000001.a2run2").read_bytes() == game(5).to_bytes()


def test_output_that_is_not_a_directory_fails(relive: Relive, pack: Path) -> None:
    done = relive("pack", "extract", pack, "--output", pack)
    assert done.status == 1
    assert done.err.startswith("error: ")


def test_damaged_entry_can_be_skipped(relive: Relive, pack: Path, tmp_path: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[relive("pack", "inspect", pack, "--index", 1, "--json").json["offset"]] ^= 1
    pack.write_bytes(data)
    out = tmp_path / "out"
    done = relive("pack", "extract", pack, "--output", out)
    assert done.status == 1
    assert "entry 1" in done.err
    done = relive("pack", "extract", pack, "--output", out, "--errors", "skip", "--overwrite")
    assert done.status == 3
    assert done.err.endswith("warning: 1 entry left out\n")
    assert names_below(out) == ["run-000000.a2run2", "run-000002.a2run2"]


def test_merge(relive: Relive, pack: Path, tmp_path: Path) -> None:
    more = write_named(tmp_path / "more.a2pack", note=b"hello")
    out = tmp_path / "all.a2pack"
    done = relive("pack", "merge", pack, more, "--output", out, "--align", 64)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{out}: 4 entries, ")
    with PackReader.open(out) as reader:
        assert [*reader] == [game(3), game(5), game(4, engine="foot"), b"hello"]
        assert reader.find("note") == 3
    args = ("pack", "merge", "--packfile", more, "--output", out, "--json")
    assert relive(*args).status == 1
    assert relive(*args, "--overwrite").json["entries"] == 1


def test_merge_errors(relive: Relive, pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.a2pack"
    done = relive("pack", "merge", pack, pack, "--output", out)
    assert done.status == 1
    assert "a/one.a2run2" in done.err
    assert not out.exists()
    done = relive("pack", "merge", pack, tmp_path / "no.a2pack", "--output", out)
    assert done.status == 1
    assert "no.a2pack" in done.err


@pytest.mark.parametrize(
    ("args", "steps"),
    [
        (("--indices", "2,0"), [4, 3]),
        (("--names", "a/two.a2run2"), [5]),
        (("--where", "steps=4:"), [5, 4]),
        (("--where", "steps=:5", "engine=hand"), [3]),
        (("--where", "engine=hand", "engine=foot"), [3, 5, 4]),
        (("--where", "steps=4"), [4]),
        (("--where", "highest_tile=8:16"), [5]),
        (("--where", "max_score=1000:"), []),
    ],
)
def test_subset(
    relive: Relive, pack: Path, tmp_path: Path, args: tuple[str, ...], steps: list[int]
) -> None:
    out = tmp_path / "some.a2pack"
    done = relive("pack", "subset", pack, "--output", out, *args, "--json")
    assert (done.status, done.json["entries"]) == (0, len(steps))
    with PackReader.open(out) as reader:
        assert [len(run) for run in reader] == steps


def test_subset_of_missing_entries_fails(relive: Relive, pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.a2pack"
    assert relive("pack", "subset", pack, "--output", out, "--indices", "3").status == 1
    assert relive("pack", "subset", pack, "--output", out, "--names", "nobody").status == 1
    done = relive("pack", "subset", pack, "--output", out, "--where", "steps=1:", "steps=2:")
    assert done.status == 2
    assert not out.exists()


def test_recover(relive: Relive, tmp_path: Path) -> None:
    path = tmp_path / "x.a2pack"
    writer = PackWriter(path)
    writer.extend([b"one", b"two"])
    writer.flush()
    writer.leave()  # as if its process had died
    done = relive("recover", path)
    assert (done.status, done.out, done.err) == (0, f"{path}: 2 entries\n", "")
    with PackReader.open(path) as reader:
        assert [*reader] == [b"one", b"two"]


def test_recover_to_another_path(relive: Relive, pack: Path, tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "x.a2pack")
    writer.append(b"one")
    writer.flush()
    writer.leave()
    (left,) = tmp_path.glob("x.a2pack.unfinished-????????")
    done = relive("recover", left, "--output", pack)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    found = relive("recover", left, "--output", pack, "--overwrite", "--json").json
    assert (found["path"], found["entries"]) == (str(pack), 1)
    with PackReader.open(pack) as reader:
        assert [*reader] == [b"one"]


def test_unrecoverable_entries_are_reported(relive: Relive, tmp_path: Path) -> None:
    path = tmp_path / "x.a2pack"
    writer = PackWriter(path)
    writer.extend([b"one" * 2000, b"two" * 2000])
    writer.flush()
    writer.leave()
    (left,) = tmp_path.glob("x.a2pack.unfinished-????????")
    with left.open("r+b") as file:
        file.truncate(left.stat().st_size - 1000)
    done = relive("recover", path, "--json")
    assert done.status == 3
    assert (done.json["entries"], done.json["lost"]) == (1, 1)
    assert done.err.startswith("warning: 1 entry lost: ")
    assert done.err.splitlines()[1] == f"the bytes that were not recovered are in `{left}.rest`"
    assert done.json["rest"] == f"{left}.rest"
    with PackReader.open(path) as reader:
        assert [*reader] == [b"one" * 2000]


def test_nothing_to_recover(relive: Relive, tmp_path: Path) -> None:
    done = relive("recover", tmp_path / "x.a2pack")
    assert done.status == 1
    assert "x.a2pack" in done.err


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
