"""`relive pack stats`, `inspect`, `validate`, `to-jsonl` and `to-parquet`."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from relive.store.pack import PackWriter
from tests.cli.conftest import Relive
from tests.cli.samples import BOARDS, MOVES, game

READERS = (
    ("stats",),
    ("inspect",),
    ("to-jsonl", "--output", "out"),
    ("to-parquet", "--output", "out"),
    ("extract", "--output", "out"),
    ("subset", "--indices", "0", "--output", "out"),
)


def flip(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the temporary directory of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a pack of two runs with another entry between them."""
    path = tmp_path / "mixed.a2pack"
    with PackWriter(path, align=64) as writer:
        writer.append(game(3), "auto")
        writer.append(b"hello", name="note.txt")
        writer.append(game(5), "auto")
    return path


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("args", READERS, ids=lambda args: args[0])
def test_pack_is_positional_or_an_option(relive: Relive, pack: Path, args: tuple[str, ...]) -> None:
    again = ["--overwrite"] * ("--output" in args)
    first = relive("pack", args[0], pack, *args[1:])
    second = relive("pack", *args, *again, "--packfile", pack)
    assert (first.status, first.out) == (0, second.out)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("args", READERS, ids=lambda args: args[0])
@pytest.mark.parametrize("trouble", ["missing", "text", "empty", "cut", "header"])
def test_file_that_is_not_a_pack_fails_with_one_line(
    relive: Relive, pack: Path, args: tuple[str, ...], trouble: str
) -> None:
    whole = pack.read_bytes()
    broken = {"text": b"hello " * 50, "empty": b"", "cut": whole[:-40], "header": whole[:8]}
    path = pack.with_name("broken.a2pack")
    if trouble != "missing":
        path.write_bytes(broken[trouble])
    done = relive("pack", args[0], path, *args[1:])
    assert done.status == 1
    assert not done.out
    assert done.err.startswith("error: ")
    assert "broken.a2pack" in done.err.splitlines()[0]
    assert "Traceback" not in done.err
    assert not pack.with_name("out").exists()


def test_stats(relive: Relive, pack: Path) -> None:
    lines = relive("pack", "stats", pack).out.splitlines()
    shown = {line[:13].strip(): line[13:].strip() for line in lines}
    assert shown["entries"] == "3"
    assert shown["kinds"] == "v1: 1, v2: 2"
    assert shown["steps"] == "12"
    assert shown["steps per run"] == "3 to 5, mean 4.0"
    assert shown["engine"] == "foot: 1, hand: 2" or shown["engine"] == "hand: 2, foot: 1"
    found = relive("pack", "stats", pack, "--json").json
    assert (found["count"], found["total_steps"], found["max_len"]) == (3, 12, 5)
    assert found["engine_counts"] == {"hand": 2, "foot": 1}


def test_stats_of_a_pack_without_runs(relive: Relive, tmp_path: Path) -> None:
    PackWriter(tmp_path / "x.a2pack").close()
    done = relive("pack", "stats", tmp_path / "x.a2pack")
    assert done.status == 0
    assert "entries  0" in done.out
    assert "steps" not in done.out


def test_inspect_a_pack(relive: Relive, mixed: Path) -> None:
    done = relive("pack", "inspect", mixed)
    assert done.status == 0
    assert "codecs        raw: 3" in done.out
    assert "flags         data CRC, sections" in done.out
    for tag in ("RUNS", "TEXT", "CKPT", "NAME"):
        assert f"\n{tag}" in done.out
    assert "kinds  bytes: 1, v2: 2" in done.out
    assert done.out.splitlines()[-2].split()[:4] == ["1", "bytes", "note.txt", "5"]
    found = relive("pack", "inspect", mixed, "--json").json
    assert found["entries"] == 3
    assert found["files"][0]["file_bytes"] == mixed.stat().st_size
    assert [line["steps"] for line in found["first"]] == [3, None, 5]


def test_inspect_reports_how_many_entries_are_hidden(relive: Relive, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "x.a2pack") as writer:
        writer.extend([b"x"] * 25)
    assert relive("pack", "inspect", tmp_path / "x.a2pack").out.endswith("\nand 15 more\n")


def test_damage_is_reported_in_the_list_of_entries(relive: Relive, mixed: Path) -> None:
    for index in (1, 2):
        flip(mixed, relive("pack", "inspect", mixed, "--index", index, "--json").json["offset"])
    for args in (("pack", "inspect", mixed), ("head", mixed)):
        done = relive(*args)
        assert (done.status, done.err) == (1, "")
        assert done.out.count("the stored bytes do not match their checksum") == 2
    first = relive("pack", "inspect", mixed, "--json").json["first"]
    assert [bool(line["problem"]) for line in first] == [False, True, True]
    done = relive("pack", "inspect", mixed, "--index", 1)
    assert done.status == 1
    assert done.err.startswith("error: ")


def test_inspect_several_packs_as_one(relive: Relive, mixed: Path, pack: Path) -> None:
    found = relive("pack", "inspect", mixed.parent / "*.a2pack", "--json").json
    assert [Path(file["path"]).name for file in found["files"]] == [mixed.name, pack.name]
    assert found["entries"] == 6
    last = relive("pack", "inspect", mixed.parent / "*.a2pack", "--index", 5, "--json").json
    assert (last["path"], last["kind"], last["steps"]) == (str(pack), "v1", 4)


def test_inspect_a_run(relive: Relive, pack: Path) -> None:
    done = relive("pack", "inspect", pack, "--name", "a/two.a2run2")
    assert done.status == 0
    shown = {line.split(" ", 1)[0]: line.split()[-1] for line in done.out.splitlines() if line}
    assert (shown["index"], shown["kind"], shown["codec"]) == ("1", "v2", "raw")
    assert (shown["steps"], shown["highest_tile"], shown["engine"]) == ("5", "8", "hand")
    assert done.out.splitlines()[-5:] == [
        "first       final",
        "2 2 . .     8 2 . .",
        ". . . .     2 . . .",
        ". . . .     . . 2 .",
        ". . . .     . . . .",
    ]
    found = relive("pack", "inspect", pack, "--index", 1, "--json").json
    assert (found["first_board"], found["final_board"]) == (BOARDS[0], BOARDS[-1])


def test_inspect_bytes(relive: Relive, mixed: Path) -> None:
    found = relive("pack", "inspect", mixed, "--index", 1, "--json").json
    assert found["first_bytes"] == b"hello".hex(" ")
    assert (found["name"], found["payload_bytes"]) == ("note.txt", 5)


@pytest.mark.parametrize("args", [("--index", 3), ("--index", -1), ("--name", "nobody")])
def test_inspect_missing_entries_fails(
    relive: Relive, pack: Path, args: tuple[object, ...]
) -> None:
    done = relive("pack", "inspect", pack, *args)
    assert done.status == 1
    assert str(args[1]) in done.err


def test_names_cannot_send_terminal_codes(relive: Relive, tmp_path: Path) -> None:
    with PackWriter(tmp_path / "x.a2pack") as writer:
        writer.append(b"x", name="\x1b[2J")
    for args in (("pack", "inspect"), ("head",)):
        out = relive(*args, tmp_path / "x.a2pack").out
        assert "\x1b" not in out
        assert r"\x1b[2J" in out


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_undamaged_pack_is_valid(relive: Relive, pack: Path, level: str) -> None:
    done = relive("pack", "validate", pack, "--level", level)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{pack}: ok ({level}, ")
    found = relive("pack", "validate", pack, "--level", level, "--json").json
    assert (found["ok"], found["problems"]) == (True, [])


def test_damage_is_found_and_located(relive: Relive, pack: Path) -> None:
    offset = relive("pack", "inspect", pack, "--index", 1, "--json").json["offset"]
    flip(pack, offset + 3)
    done = relive("pack", "validate", pack, "--level", "full")
    assert done.status == 1
    *problems, last = done.out.splitlines()
    problem = "the stored bytes do not match their checksum"
    assert problems[0] == f"`{pack}`: entry 1 at offset {offset}: {problem}"
    assert last.startswith(f"{pack}: {len(problems)} problem")
    found = relive("pack", "validate", pack, "--level", "full", "--json").json
    assert found["ok"] is False
    assert (1, offset) in [(each["row"], each["offset"]) for each in found["problems"]]
    assert relive("pack", "validate", pack, "--level", "index").status == 0


def test_validate_a_pack_that_cannot_be_opened(relive: Relive, pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:-40])
    done = relive("pack", "validate", pack)
    assert done.status == 1
    assert done.out.startswith(f"`{pack}`: the checksum of the footer does not match")


def test_validate_every_pack_of_a_pattern(relive: Relive, pack: Path, mixed: Path) -> None:
    flip(mixed, mixed.stat().st_size - 1)
    done = relive("pack", "validate", pack.parent / "*.a2pack")
    assert done.status == 1
    assert f"\n{pack}: ok" in done.out
    assert f"\n{mixed}: 1 problem" in done.out


def test_validate_missing_files_fails(relive: Relive, tmp_path: Path) -> None:
    for path in (tmp_path / "no.a2pack", tmp_path / "no*.a2pack"):
        done = relive("pack", "validate", path)
        assert done.status == 1
        assert "error: " in done.err


def test_jsonl_of_runs(relive: Relive, pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = relive("pack", "to-jsonl", pack, "--output", out)
    assert (done.status, done.out, done.err) == (
        0,
        f"{out}: 3 runs, {out.stat().st_size} bytes\n",
        "",
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["run_idx"] for line in lines] == [0, 1, 2]
    assert lines[1]["states"] == list(BOARDS[:-1]) or lines[1]["states"] == list(BOARDS)
    assert lines[1]["moves"] == list(MOVES)
    args = ("pack", "to-jsonl", pack, "--output", out, "--overwrite", "--json")
    assert relive(*args).json == {
        "path": str(out), "runs": 3, "skipped": 0, "file_bytes": out.stat().st_size
    }  # fmt: skip
    assert relive("pack", "to-jsonl", pack, "--output", "-", "--json").status == 2
    for how in (("--workers", 2), ("--no-parallel",), ("--parallel",)):
        again = relive("pack", "to-jsonl", pack, "--output", "-", *how)
        assert (again.status, again.out) == (0, out.read_text())


def test_jsonl_options(relive: Relive, pack: Path) -> None:
    args = ("pack", "to-jsonl", pack, "--output", "-")
    steps = [json.loads(line) for line in relive(*args, "--steps").out.splitlines()]
    assert relive(*args, "--granularity", "steps").out == relive(*args, "--steps").out
    assert len(steps) == 12
    assert (steps[3]["run_idx"], steps[3]["step_idx"], steps[3]["pre_board"]) == (1, 0, BOARDS[0])
    short = [json.loads(line) for line in relive(*args, "--runs-only").out.splitlines()]
    assert len(short) == 3
    assert "states" not in short[0]
    text = json.loads(relive(*args, "--boards", "hex").out.splitlines()[0])
    assert int(text["final_board"], 16) == BOARDS[3]


def test_jsonl_of_entries_that_are_not_runs(relive: Relive, mixed: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = relive("pack", "to-jsonl", mixed, "--output", out)
    assert done.status == 1
    assert "entry 1" in done.err
    assert not out.exists()
    done = relive("pack", "to-jsonl", mixed, "--output", out, "--errors", "skip")
    assert done.status == 3
    assert done.err == "warning: 1 entry left out\n"
    assert len(out.read_text().splitlines()) == 2


def test_to_parquet(relive: Relive, pack: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.parquet"
    done = relive("pack", "to-parquet", pack, "--output", out)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{out}: ")
    assert pq.read_table(out)["steps"].to_pylist() == [3, 5, 4]
    args = ("pack", "to-parquet", pack, "--output", out, "--granularity", "steps")
    assert relive(*args).status == 1
    assert relive(*args, "--overwrite", "--json").json["runs"] == 3
    assert pq.read_table(out).num_rows == 12


def test_to_parquet_of_entries_that_are_not_runs(
    relive: Relive, mixed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.parquet"
    done = relive("pack", "to-parquet", mixed, "--output", out)
    assert done.status == 1
    assert "entry 1" in done.err
    assert not out.exists()


@pytest.mark.parametrize("command", ["to-jsonl", "to-parquet"])
def test_existing_file_is_kept_without_overwrite(
    relive: Relive, pack: Path, tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    done = relive("pack", command, pack, "--output", out)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert out.read_text() == "mine"
    assert relive("pack", command, pack, "--output", out, "--overwrite").status == 0
    assert relive("pack", command, pack, "--output", tmp_path / "no" / "out").status == 1


def test_damaged_entry_stops_a_conversion(relive: Relive, pack: Path, tmp_path: Path) -> None:
    offset = relive("pack", "inspect", pack, "--index", 1, "--json").json["offset"]
    flip(pack, offset + 3)
    out = tmp_path / "runs.jsonl"
    assert relive("pack", "to-jsonl", pack, "--output", out).status == 1
    assert not out.exists()
    done = relive("pack", "to-jsonl", pack, "--output", out, "--errors", "skip")
    assert done.status == 3
    assert [json.loads(line)["run_idx"] for line in out.read_text().splitlines()] == [0, 2]
    table = tmp_path / "runs.parquet"
    done = relive("pack", "to-parquet", pack, "--output", table, "--errors", "skip")
    assert (done.status, done.err) == (3, "warning: 1 entry left out\n")
    assert pq.read_table(table)["run_idx"].to_pylist() == [0, 2]


def test_closed_stdout_ends_the_command_quietly(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "x.a2pack") as writer:
        writer.extend([game()] * 2000, "v2")  # larger than the buffer of a pipe
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "relive",
            "pack",
            "to-jsonl",
            tmp_path / "x.a2pack",
            "--output",
            "-",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["run_idx"] == 0
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
