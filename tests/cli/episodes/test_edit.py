"""`relive episodes edit`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from relive.cli.episodes.arguments import Moment, parse_end, parse_time
from relive.episodes.read.local_dataset import LocalDataset
from tests.cli.conftest import Relive
from tests.cli.recordings import MS, START, record, uids

pytestmark = pytest.mark.needs("av")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of two episodes."""
    return record(tmp_path / "kitchen", 2)


def test_set_static(relive: Relive, kitchen: Path) -> None:
    uid = uids(kitchen)[0]
    args = ("set-static", "grade=4", 'note="a=b"', "tags=[1, null]")
    done = relive("episodes", "edit", kitchen, 0, *args)
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{uid}: set grade, note, tags\n"
    statics = LocalDataset(kitchen)[0].statics
    assert (statics["grade"], statics["note"], statics["tags"]) == (4, "a=b", [1, None])
    done = relive("episodes", "edit", kitchen, 0, "set-static", "q=1")
    assert done.status == 1
    assert "signal" in done.err


def test_drop_and_undrop(relive: Relive, kitchen: Path) -> None:
    first, second = uids(kitchen)
    assert relive("episodes", "edit", kitchen, 0, "drop").out == f"{first}: dropped\n"
    assert uids(kitchen) == (second,)
    done = relive("episodes", "edit", kitchen, first[:8], "undrop", "--json")
    assert done.json == {"uid": first, "action": "undrop", "done": "restored"}
    assert uids(kitchen) == (first, second)


def test_trim_by_nanoseconds_and_from_the_first_record(relive: Relive, kitchen: Path) -> None:
    uid = uids(kitchen)[0]
    done = relive("episodes", "edit", kitchen, 0, "trim", "+0.1s", str(START + 300 * MS))
    span = f"{START + 100 * MS} to {START + 300 * MS}"
    assert done.out == f"{uid}: keeps the records from {span}\n"
    assert len(LocalDataset(kitchen)[0]["q"]) == 20
    # Counted from the first remaining record.
    found = relive("episodes", "edit", kitchen, 0, "trim", "+100ms", "-", "--json").json
    assert (found["start_ts"], found["stop_ts"]) == (START + 200 * MS, None)
    done = relive("episodes", "edit", kitchen, 0, "trim", "-", "-")
    assert done.out == f"{uid}: keeps all records\n"
    assert len(LocalDataset(kitchen)[0]["q"]) == 40
    done = relive("episodes", "edit", kitchen, 0, "trim", "+1h", "-")
    assert done.status == 1
    assert "no record" in done.err


def test_cut(relive: Relive, kitchen: Path) -> None:
    first, second = uids(kitchen)
    found = relive("episodes", "edit", kitchen, 0, "cut", "+150ms", "--json").json
    assert found["uids"] == [f"{first}#0", f"{first}#1"]
    assert found["ts"] == START + 150 * MS
    assert uids(kitchen) == (*found["uids"], second)
    assert f"into {second}#0 and {second}#1" in relive(
        "episodes", "edit", kitchen, second, "cut", "+1150ms"
    ).out  # fmt: skip


def test_history(relive: Relive, kitchen: Path) -> None:
    assert relive("episodes", "edit", kitchen, 0, "history").out == "no edits\n"
    relive("episodes", "edit", kitchen, 0, "set-static", "grade=4")
    relive("episodes", "edit", kitchen, 0, "cut", "+150ms")
    uid = uids(kitchen)[0]
    lines = relive("episodes", "edit", kitchen, uid, "history").out.splitlines()
    assert len(lines) == 3
    assert lines[1].endswith('set-static  name="grade" value=4')
    found = relive("episodes", "edit", kitchen, uid, "history", "--json").json
    assert [edit["op"] for edit in found["edits"]] == ["set_static", "cut"]


@pytest.mark.parametrize(
    "args",
    [
        ["fly"],
        ["drop", "now"],
        ["cut"],
        ["cut", "soon"],
        ["cut", "1.5s"],
        ["cut", "+1.5"],
        ["cut", "+1 day"],
        ["cut", "-"],
        ["trim", "+1s"],
        ["set-static"],
        ["set-static", "grade"],
        ["set-static", "=4"],
        ["set-static", "task=pick"],
    ],
    ids=" ".join,
)
def test_invalid_arguments_fail(relive: Relive, kitchen: Path, args: Sequence[str]) -> None:
    done = relive("episodes", "edit", kitchen, 0, *args)
    assert (done.status, done.out) == (2, "")
    assert "error: " in done.err
    assert not (kitchen / "edits.jsonl").exists()


def test_missing_episode_or_root_fails(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    assert relive("episodes", "edit", kitchen, 7, "drop").status == 1
    assert relive("episodes", "edit", tmp_path / "no", 0, "drop").status == 1


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", (0, False)),
        ("-5", (-5, False)),
        ("1760000000000000000", (START, False)),
        ("+1.5s", (1_500_000_000, True)),
        ("+0.000000001s", (1, True)),
        ("+7ns", (7, True)),
        ("+2us", (2000, True)),
        ("+2µs", (2000, True)),
        ("+3ms", (3 * MS, True)),
        ("+2m", (120_000 * MS, True)),
        ("+1h", (3_600_000 * MS, True)),
    ],
)
def test_times(text: str, moment: tuple[int, bool]) -> None:
    assert parse_time(text) == Moment(*moment)
    assert parse_end(text) == Moment(*moment)
    assert parse_end("-") is None


def test_edit_without_an_action_lists_the_actions(relive: Relive, tmp_path: Path) -> None:
    done = relive("episodes", "edit", tmp_path, "0")
    assert done.status == 2
    assert "{set-static,drop,undrop,trim,cut,history}" in done.err
    assert "VALUE" not in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "meant"), [("0.1s", "+0.1s"), ("20ms", "+20ms"), ("1.5", "+1.5s"), ("x", "+1.5s")]
)
def test_time_without_a_sign_is_explained(
    relive: Relive, tmp_path: Path, text: str, meant: str
) -> None:
    done = relive("episodes", "edit", tmp_path, "0", "cut", text)
    assert done.status == 2
    assert (
        f"`{text}` is not a valid time: use nanoseconds, or {meant} for a time relative to"
        in done.err
    )
