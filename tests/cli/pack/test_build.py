"""`relive pack build`: packing files, and its errors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relive.cli.pack import build as pack_build
from relive.cli.progress import Progress
from relive.store.pack import PackReader
from tests.cli.conftest import Relive
from tests.cli.samples import game, write_files


def left_over(directory: Path) -> list[str]:
    """Return the names of the files in a directory."""
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def test_runs_are_packed_by_path_with_their_names(pack: Path) -> None:
    with PackReader.open(pack) as reader:
        assert [reader.name(i) for i in range(3)] == ["a/one.a2run2", "a/two.a2run2", "b.a2run2"]
        assert [reader.kind(i) for i in range(3)] == ["v2", "v2", "v1"]
        assert list(reader) == [game(3), game(5), game(4, engine="foot")]


def test_entries_are_in_byte_order_of_their_names(relive: Relive, tmp_path: Path) -> None:
    names = ["a.a2run2", "B.a2run2", "a/z.a2run2", "a-b.a2run2", "ä.a2run2", "10.a2run2"]
    write_files(tmp_path / "in", dict.fromkeys(names, game().to_bytes()))
    out = tmp_path / "x.a2pack"
    assert relive("pack", "build", "--input", tmp_path / "in", "--output", out).status == 0
    with PackReader.open(out) as reader:
        found = [reader.name(i) for i in range(len(reader))]
    assert found == sorted(names, key=os.fsencode)


def test_result_is_printed(relive: Relive, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.a2pack"
    args = ("pack", "build", "--input", runs, "--output", out, "--align", 1)
    done = relive(*args)
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{out}: 3 entries, {out.stat().st_size} bytes\n"
    result = relive(*args, "--overwrite", "--json").json
    assert result == {
        "path": str(out),
        "entries": 3,
        "kinds": {"v1": 1, "v2": 2},
        "skipped": 0,
        "file_bytes": out.stat().st_size,
        "payload_bytes": sum(path.stat().st_size for path in runs.rglob("*.a2run2")),
        "stored_bytes": result["payload_bytes"],
        "padding_bytes": 0,
    }


def test_large_padding_is_warned_about(relive: Relive, runs: Path, tmp_path: Path) -> None:
    done = relive("pack", "build", "--input", runs, "--output", tmp_path / "x.a2pack")
    assert done.status == 0
    assert done.err.startswith("warning: ")
    assert "% of the pack is padding; pass a smaller --align" in done.err


@pytest.mark.parametrize("codec", ["raw", "none", "zstd", "lz4", "deflate", "flate"])
def test_every_codec(relive: Relive, tmp_path: Path, codec: str) -> None:
    # Repetitive enough that every codec compresses it.
    source = write_files(tmp_path / "in", {"a.bin": b"abc" * 1000, "b.bin": b""})
    out = tmp_path / "x.a2pack"
    done = relive(
        "pack", "build", "--input", source, "--output", out, "--compress", codec, "--glob", "*.bin"
    )
    assert done.status == 0
    with PackReader.open(out) as reader:
        assert list(reader) == [b"abc" * 1000, b""]
        assert (reader.stats.stored_bytes == 3000) == (codec in {"raw", "none"})


def test_level_and_dictionary(relive: Relive, tmp_path: Path) -> None:
    files = {f"{i:03}.a2run2": game(3 + i % 3, f"engine {i}").to_bytes() for i in range(64)}
    source = write_files(tmp_path / "in", files)
    plain, trained = tmp_path / "plain.a2pack", tmp_path / "trained.a2pack"
    args = ("pack", "build", "--input", source, "--compress", "zstd", "--level", 19, "--output")
    assert relive(*args, plain).status == 0
    assert relive(*args, trained, "--dictionary", "--workers", 1).status == 0
    with PackReader.open(plain) as before, PackReader.open(trained) as after:
        assert list(before) == list(after)
        assert after.stats.stored_bytes < before.stats.stored_bytes
    shown = relive("pack", "inspect", trained, "--json").json
    assert "DICT" in [section["tag"] for section in shown["files"][0]["sections"]]


def test_too_few_files_for_a_dictionary(relive: Relive, runs: Path, tmp_path: Path) -> None:
    done = relive(
        "pack", "build", "--input", runs, "--output", tmp_path / "x.a2pack",
        "--compress", "zstd", "--dictionary",
    )  # fmt: skip
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert left_over(tmp_path) == []


def test_step_table(relive: Relive, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.a2pack"
    assert relive("pack", "build", "--input", runs, "--output", out, "--steps").status == 0
    shown = relive("pack", "inspect", out, "--json").json
    assert "STEP" in [section["tag"] for section in shown["files"][0]["sections"]]
    with PackReader.open(out) as reader:
        assert np.asarray(reader.steps().gather([0, 11])["move"]).tolist() == [2, 0]


def test_other_files_have_the_kind_bytes(relive: Relive, runs: Path, tmp_path: Path) -> None:
    write_files(runs, {"a/note.txt": b"hello", "c.bin": b"\0\1"})
    out = tmp_path / "x.a2pack"
    args = ("pack", "build", "--input", runs, "--output", out, "--overwrite")
    assert relive(*args, "--glob", "*.txt").status == 0
    with PackReader.open(out) as reader:
        assert [(reader.name(0), reader.kind(0), reader[0])] == [("a/note.txt", "bytes", b"hello")]
        assert len(reader) == 1
    assert relive(*args, "--glob", "*.a2run2", "--glob", "*.bin").status == 0
    with PackReader.open(out) as reader:
        assert [reader.kind(i) for i in range(4)] == ["v2", "v2", "v1", "bytes"]


def test_pack_does_not_contain_itself(relive: Relive, runs: Path) -> None:
    args = ("pack", "build", "--input", runs, "--output", runs / "x.a2pack", "--overwrite")
    for _ in range(2):
        assert relive(*args, "--glob", "*").status == 0
    with PackReader.open(runs / "x.a2pack") as reader:
        assert len(reader) == 3


def test_file_that_is_not_a_run_stops_the_build(relive: Relive, runs: Path, tmp_path: Path) -> None:
    write_files(runs, {"a/torn.a2run2": game().to_bytes()[:-3]})
    done = relive("pack", "build", "--input", runs, "--output", tmp_path / "x.a2pack")
    assert done.status == 1
    assert not done.out
    assert done.err.startswith("error: cannot pack `a/torn.a2run2`: ")
    assert "hint: pass --errors skip to leave such files out" in done.err
    assert left_over(tmp_path) == []


def test_files_that_are_not_runs_can_be_skipped(relive: Relive, runs: Path, tmp_path: Path) -> None:
    write_files(
        runs,
        {
            "a/torn.a2run2": game().to_bytes()[:-3],
            "zz.a2run2": b"",
            "a/moved.a2run2": game().to_bytes().replace(b"hand", b"han"),
        },
    )
    (runs / "gone.a2run2").symlink_to(runs / "gone")  # not a file, so it is ignored
    out = tmp_path / "x.a2pack"
    done = relive(
        "pack", "build", "--input", runs, "--output", out, "--errors", "skip", "--align", 8
    )
    assert done.status == 3
    assert done.out.startswith(f"{out}: 3 entries, ")
    skipped = [line for line in done.err.splitlines() if line.startswith("skipped: ")]
    assert [line.split("`")[1] for line in skipped] == [
        "a/moved.a2run2",
        "a/torn.a2run2",
        "zz.a2run2",
    ]
    assert "warning: 3 files left out" in done.err
    with PackReader.open(out) as reader:
        assert list(reader) == [game(3), game(5), game(4, engine="foot")]


def test_file_name_that_is_not_utf8_fails(relive: Relive, runs: Path, tmp_path: Path) -> None:
    path = os.fsencode(runs) + b"/\xff.a2run2"
    Path(os.fsdecode(path)).write_bytes(game().to_bytes())
    args = ("pack", "build", "--input", runs, "--output", tmp_path / "x.a2pack")
    done = relive(*args)
    assert done.status == 1
    assert "cannot be encoded as UTF-8" in done.err
    assert relive(*args, "--errors", "skip").status == 3


def test_directory_without_runs_fails(relive: Relive, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = relive("pack", "build", "--input", tmp_path / "empty", "--output", tmp_path / "x.a2pack")
    assert done.status == 1
    assert done.err.splitlines() == [
        f"error: no file in `{tmp_path / 'empty'}` matches `*.a2run2`",
        "hint: pass --glob PATTERN to pack other files",
    ]


def test_input_that_is_not_a_directory_fails(relive: Relive, runs: Path, tmp_path: Path) -> None:
    for path, args in (
        (tmp_path / "no", "does not exist"),
        (runs / "b.a2run2", "not a directory"),
    ):
        done = relive("pack", "build", "--input", path, "--output", tmp_path / "x.a2pack")
        assert done.status == 1
        assert args in done.err


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", ""])
def test_pattern_stays_within_the_directory(
    relive: Relive, runs: Path, tmp_path: Path, pattern: str
) -> None:
    out = tmp_path / "x.a2pack"
    done = relive("pack", "build", "--input", runs, "--output", out, "--glob", pattern)
    assert done.status == 1
    assert "must be a relative path" in done.err


def test_existing_pack_is_kept_without_overwrite(relive: Relive, runs: Path, pack: Path) -> None:
    before = pack.read_bytes()
    args = ("pack", "build", "--input", runs, "--output", pack)
    done = relive(*args)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert pack.read_bytes() == before
    assert relive(*args, "--overwrite").status == 0
    assert pack.read_bytes() != before


@pytest.mark.parametrize("option", [("--align", "3"), ("--align", "0"), ("--level", "99")])
def test_invalid_value_fails_and_leaves_nothing(
    relive: Relive, runs: Path, tmp_path: Path, option: tuple[str, str]
) -> None:
    out = tmp_path / "x.a2pack"
    done = relive("pack", "build", "--input", runs, "--output", out, "--compress", "zstd", *option)
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert left_over(tmp_path) == []


def test_unwritable_output_fails(relive: Relive, runs: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "no" / "x.a2pack", runs / "b.a2run2" / "x.a2pack"):
        done = relive("pack", "build", "--input", runs, "--output", out)
        assert done.status == 1
        assert done.err.startswith("error: ")


def test_many_files_are_packed_in_batches(
    relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_build, "_BATCH_FILES", 16)
    monkeypatch.setattr(pack_build, "_BATCH_BYTES", 1000)
    files = {f"{i:03}.a2run2": game(i % 6).to_bytes() for i in range(100)}
    source = write_files(tmp_path / "in", files | {"040.a2run2": b"torn"})
    out = tmp_path / "x.a2pack"
    done = relive(
        "pack", "build", "--input", source, "--output", out, "--align", 1, "--errors", "skip"
    )
    assert done.status == 3
    kept = [i for i in range(100) if i != 40]
    with PackReader.open(out) as reader:
        assert [reader.name(i) for i in range(len(reader))] == [f"{i:03}.a2run2" for i in kept]
        assert [len(run) for run in reader] == [i % 6 for i in kept]


def test_interrupt_leaves_nothing(
    relive: Relive, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "__call__", interrupt)
    done = relive("pack", "build", "--input", runs, "--output", tmp_path / "x.a2pack")
    assert (done.status, done.out, done.err) == (130, "", "")
    assert left_over(tmp_path) == []


def test_full_disk_leaves_nothing(runs: Path, tmp_path: Path) -> None:
    # The file size limit is smaller than the pack.
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))"
    line = ["pack", "build", "--input", str(runs), "--output", str(tmp_path / "x.a2pack")]
    code = f"{limited}\nimport sys\nfrom relive.cli import main\nsys.exit(main({line!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert left_over(tmp_path) == []
