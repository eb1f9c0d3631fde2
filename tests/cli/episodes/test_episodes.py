"""`relive episodes ls` and `show`, and the ways to name an episode."""

import shutil
from pathlib import Path

import pytest

from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from tests.cli.conftest import Relive
from tests.cli.recordings import MS, START, STEPS, leave_unfinished, record, uids

pytestmark = pytest.mark.needs("av")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of three episodes."""
    return record(tmp_path / "kitchen")


def test_ls(relive: Relive, kitchen: Path) -> None:
    done = relive("episodes", "ls", kitchen, "--static", "task,success", "--static", "nothing")
    assert (done.status, done.err) == (0, "no episode has a static value named 'nothing'\n")
    head, *lines = done.out.splitlines()
    assert head.split() == [
        *("id", "uid", "created", "duration", "signals", "rows", "state"),
        *("task", "success", "nothing"),
    ]
    assert [line.split()[1] for line in lines] == list(uids(kitchen))
    assert lines[1].split()[5:] == [
        *("1.39", "s", "4", str(2 * STEPS + 6), "committed", "pick", "False", "-")
    ]  # fmt: skip


def test_ls_as_json(relive: Relive, kitchen: Path) -> None:
    found = relive("episodes", "ls", kitchen, "--json").json
    assert (found["unfinished"], found["dropped"]) == ([], [])
    third = found["episodes"][2]
    assert (third["id"], third["uid"]) == (2, uids(kitchen)[2])
    assert third["duration_ns"] == 390 * MS + 2000 * MS  # the text has the first record
    assert third["statics"] == {"task": "place", "success": True, "blob": "00ff"}
    assert third["problem"] is None
    assert Path(third["path"]).is_dir()


def test_ls_of_an_empty_dataset(relive: Relive, tmp_path: Path) -> None:
    LocalDatasetWriter(tmp_path / "x")
    done = relive("episodes", "ls", tmp_path / "x")
    assert (done.status, done.out, done.err) == (0, "no episodes\n", "")
    done = relive("episodes", "ls", tmp_path / "no")
    assert done.status == 1
    assert done.err.startswith("error: ")


def test_ls_marks_unfinished_episodes(relive: Relive, kitchen: Path) -> None:
    folder = leave_unfinished(kitchen)
    with LocalDatasetWriter(kitchen).new_episode() as going:
        going.append("q", 1.0)
        done = relive("episodes", "ls", kitchen)
        assert done.status == 0
        assert [line.split()[-1] for line in done.out.splitlines()[-2:]] == [
            "unfinished",
            "recorded",
        ]
        assert done.err == f"1 episode unfinished; run `relive recover {kitchen}` to finish\n"
        found = relive("episodes", "ls", kitchen, "--json").json["unfinished"]
        assert [each["state"] for each in found] == ["unfinished", "being recorded"]
        assert found[0]["path"] == str(folder)
        assert found[1]["uid"] == going.uid


def test_ls_applies_edits_unless_raw(relive: Relive, kitchen: Path) -> None:
    first, second, third = uids(kitchen)
    edits = LocalDataset(kitchen).edits
    edits.set_static(first, "task", "sing")
    edits.drop(second)
    edits.cut(third, START + 2100 * MS)
    done = relive("episodes", "ls", kitchen, "--static", "task")
    lines = [line.split() for line in done.out.splitlines()[1:]]
    assert [line[1] for line in lines] == [first, f"{third}#0", f"{third}#1"]
    assert lines[0][-3:] == ["committed,", "edited", "sing"]
    assert done.err == "1 episode dropped; --raw shows all\n"
    assert relive("episodes", "ls", kitchen, "--json").json["dropped"] == [second]
    raw = relive("episodes", "ls", kitchen, "--raw", "--static", "task")
    assert [line.split()[1] for line in raw.out.splitlines()[1:]] == [first, second, third]
    assert "sing" not in raw.out
    assert raw.err == ""


def test_ls_reports_damage_and_continues(relive: Relive, kitchen: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    (folder / "q.parquet").write_bytes(b"no columns")
    done = relive("episodes", "ls", kitchen)
    assert done.status == 1
    lines = done.out.splitlines()
    assert len(lines) == 4
    assert "q.parquet" in lines[2]
    assert "damaged" in lines[2]
    assert relive("episodes", "ls", kitchen, "--json").json["episodes"][1]["problem"]


def test_show(relive: Relive, kitchen: Path) -> None:
    done = relive("episodes", "show", kitchen, 1)
    assert (done.status, done.err) == (0, "")
    pairs, signals, attrs, statics = done.out.split("\n\n")
    shown = dict(line.split(maxsplit=1) for line in pairs.splitlines())
    assert shown["uid"] == uids(kitchen)[1]
    assert (shown["id"], shown["ended"]) == ("1", "committed")
    table = {line.split()[0]: line.split()[1:] for line in signals.splitlines()[1:]}
    assert table["q"] == ["vector", "float32", "2", "40", "100", "0", "10", "ms", "-"]
    assert table["cam"] == [
        *("image", "uint8", "32", "x", "48", "x", "3", "5", "12.5", "0", "80", "ms", "sensor")
    ]  # fmt: skip
    assert table["phase"] == ["text", "str", "-", "1", "-", "0", "-", "-"]
    assert "q       unit       rad" in attrs
    assert 'q       names      ["shoulder", "elbow"]' in attrs
    assert "success  false" in statics


def test_show_as_json(relive: Relive, kitchen: Path) -> None:
    found = relive("episodes", "show", kitchen, 0, "--json").json
    assert found["id"] == 0
    assert found["duration_ns"] == 390 * MS
    assert found["signals"]["q"] == {
        "kind": "vector", "dtype": "float32", "shape": [2], "rows": STEPS, "start_ts": START,
        "last_ts": START + 390 * MS, "rate_hz": 100.0, "gaps": 0, "longest_step_ns": 10 * MS,
        "clocks": [], "attrs": {"names": ["shoulder", "elbow"], "unit": "rad"}, "problem": None,
        "dropped": 0,
    }  # fmt: skip
    assert found["signals"]["cam"]["clocks"] == ["sensor"]
    assert found["meta"]["outcome"]["ended"] == "committed"
    assert found["statics"]["blob"] == "00ff"


def test_episode_can_be_named_in_many_ways(relive: Relive, kitchen: Path) -> None:
    uid = uids(kitchen)[1]
    folder = kitchen / "000000000000" / "000000000001"
    args = ([kitchen, uid], [kitchen, uid[:8]], [kitchen, 1], [kitchen, "000000000001"], [folder])
    shown = {relive("episodes", "show", *each, "--json").json["uid"] for each in args}
    assert shown == {uid}


@pytest.mark.parametrize(
    ("which", "args"),
    [
        (["9"], "no episode in"),
        (["zzzz"], "no episode in"),
        (["ab"], "no episode in"),
        ([], "is the root directory of a dataset"),
    ],
    ids=["number", "uid", "too short", "none"],
)
def test_unknown_episodes_fail(relive: Relive, kitchen: Path, which: list[str], args: str) -> None:
    done = relive("episodes", "show", kitchen, *which)
    assert (done.status, done.out) == (1, "")
    first, hint = done.err.splitlines()
    assert args in first
    assert f"`relive episodes ls {kitchen}` lists them" in hint


def test_ambiguous_episode_fails(relive: Relive, kitchen: Path) -> None:
    uid = uids(kitchen)[0]
    LocalDataset(kitchen).edits.cut(uid, START + 100 * MS)
    for which in (0, uid, uid[:6]):
        done = relive("episodes", "show", kitchen, which)
        assert done.status == 1
        assert f"{uid}#0, {uid}#1" in done.err
    found = relive("episodes", "show", kitchen, f"{uid}#1", "--json").json
    assert found["first_ts"] == START + 100 * MS
    assert found["edited"] is True
    assert relive("episodes", "show", kitchen, uid, "--raw", "--json").json["edited"] is False


def test_episode_folder_is_not_a_root(relive: Relive, kitchen: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    done = relive("episodes", "ls", folder)
    assert done.status == 1
    assert f"hint: the dataset of the episode is {kitchen}" in done.err


def test_show_of_an_unfinished_episode_has_a_hint(relive: Relive, kitchen: Path) -> None:
    folder = leave_unfinished(kitchen)
    done = relive("episodes", "show", folder)
    assert done.status == 1
    assert done.err.splitlines()[1] == f"hint: run `relive recover {folder}` to finish it"


def test_show_reports_damage(relive: Relive, kitchen: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    (folder / "q.parquet").write_bytes(b"no columns")
    done = relive("episodes", "show", folder)
    assert done.status == 1
    assert "problem" in done.out
    assert "q.parquet" in done.out
    assert relive("episodes", "show", folder, "--json").json["signals"]["cam"]["rows"] == 5


def test_names_cannot_send_terminal_codes(relive: Relive, tmp_path: Path) -> None:
    with LocalDatasetWriter(tmp_path / "x").new_episode() as episode:
        episode.set_static("\x1b[2J", "\x1b[3J")
        episode.append("\x1b[4J", 1.0)
        episode.describe("\x1b[4J", unit="\x1b[5J")
    folder = tmp_path / "x" / "000000000000" / "000000000000"
    for args in (
        ["episodes", "ls", tmp_path / "x", "--static", "\x1b[2J"],
        ["episodes", "show", folder],
        ["info", folder],
        ["head", folder],
        ["stats", folder],
        ["stats", tmp_path / "x"],
    ):
        done = relive(*args)
        assert done.status == 0, done.err
        assert "\x1b" not in done.out


def test_generic_commands_accept_a_dataset(relive: Relive, kitchen: Path) -> None:
    found = relive("info", kitchen, "--json").json
    files = [path for path in kitchen.rglob("*") if path.is_file()]
    assert (found["kind"], found["episodes"], found["unfinished"]) == ("dataset", 3, 0)
    assert (found["files"], found["file_bytes"]) == (
        len(files),
        sum(path.stat().st_size for path in files),
    )
    assert relive("info", kitchen).out.splitlines()[-2:] == ["episodes    3", "unfinished  0"]
    assert len(relive("head", kitchen, "-n", 2).out.splitlines()) == 3
    assert [each["id"] for each in relive("head", kitchen, "--json").json] == [0, 1, 2]
    found = relive("stats", kitchen, "--json").json
    assert found["episodes"] == 3
    assert found["signals"]["q"] == {"episodes": 3, "rows": 3 * STEPS}
    assert found["duration_ns"]["min"] == 390 * MS
    assert relive("stats", kitchen).out.startswith("episodes  3\nduration  ")


def test_generic_commands_accept_an_episode(relive: Relive, kitchen: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    found = relive("info", folder, "--json").json
    assert (found["kind"], found["statics"]) == ("episode", ["blob", "success", "task"])
    assert found["signals"]["cam"] == {
        "kind": "image", "dtype": "uint8", "shape": [32, 48, 3], "rows": 5
    }  # fmt: skip
    assert "signal q       float32 (2,), 40 records" in relive("info", folder).out.splitlines()
    lines = relive("head", folder, "-n", 2).out.splitlines()
    assert lines[0].split() == ["signal", "row", "ts_ns", "value"]
    assert lines[1].split()[3:] == ["uint8[32,", "48,", "3]"]
    found = relive("head", folder, "-n", 2, "--json").json
    assert found[0]["value"] == "uint8[32, 48, 3]"
    assert [each["value"] for each in found if each["signal"] == "q"] == [
        [0.0, 1.0],
        [pytest.approx(0.1), 1.0],
    ]
    found = relive("stats", folder, "--json").json["signals"]
    assert (found["q"]["rows"], found["q"]["max"]) == (STEPS, pytest.approx(3.9))
    assert found["closed"]["mean"] == 0.5
    assert found["cam"]["items"] is None
    assert relive("stats", folder).out.splitlines()[0].split()[0] == "signal"


def test_episode_without_records(relive: Relive, tmp_path: Path) -> None:
    with LocalDatasetWriter(tmp_path / "x").new_episode():
        pass
    folder = tmp_path / "x" / "000000000000" / "000000000000"
    assert relive("head", folder).out == "no records\n"
    assert relive("episodes", "show", folder).status == 0
    assert relive("stats", folder, "--json").json == {"duration_ns": None, "signals": {}}
    assert relive("stats", tmp_path / "x").status == 0
    assert relive("episodes", "ls", tmp_path / "x").status == 0


def test_pattern_joins_several_roots(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    shutil.copytree(kitchen, tmp_path / "kitchen2")
    found = relive("info", tmp_path / "kitchen*", "--json").json
    assert (found["kind"], found["episodes"]) == ("dataset", 6)
    assert len(relive("head", tmp_path / "kitchen*", "-n", 9).out.splitlines()) == 7


def test_ls_reports_statics_that_no_episode_has(relive: Relive, kitchen: Path) -> None:
    done = relive("episodes", "ls", kitchen, "--static", "nope,task,nope")
    assert (done.status, done.err) == (0, "no episode has a static value named 'nope'\n")
    assert relive("episodes", "ls", kitchen, "--static", "task").err == ""


def test_episodes_are_counted_from_the_end(relive: Relive, kitchen: Path) -> None:
    for which, number in (("-1", 2), ("-3", 0)):
        assert relive("episodes", "show", kitchen, which, "--json").json["id"] == number
    relive("episodes", "edit", kitchen, "-1", "drop")
    assert relive("episodes", "show", kitchen, "-1", "--json").json["id"] == 1
    for which in ("-4", "-0", "-x"):
        assert relive("episodes", "show", kitchen, which).status != 0
