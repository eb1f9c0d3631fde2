"""`--errors skip`: one episode that cannot be read does not block the others."""

from pathlib import Path

import pytest

from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from tests.cli.conftest import Relive


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of three episodes, the second of which cannot be read."""
    writer = LocalDatasetWriter(tmp_path / "kitchen")
    for number in range(3):
        with writer.new_episode(uid=f"e{number}") as episode:
            episode.set_static("number", number)
            for row in range(3):
                episode.append("x", float(number), row)
    folder(writer.path).joinpath("meta.json").write_text("{")
    return writer.path


def folder(root: Path) -> Path:
    """Return the directory of the episode that cannot be read."""
    return root / "000000000000" / "000000000001"


@pytest.mark.parametrize(
    "command",
    [
        ["episodes", "ls", "ROOT"],
        ["episodes", "show", "ROOT", "e2"],
        ["episodes", "plot", "ROOT", "e2", "--output", "OUT.html"],
        ["episodes", "edit", "ROOT", "e2", "drop"],
        ["episodes", "copy", "ROOT", "OUT"],
        ["episodes", "copy", "ROOT", "OUT", "--uids", "e2,e0"],
        ["episodes", "merge", "ROOT", "ROOT", "OUT"],
        ["head", "ROOT"],
        ["stats", "ROOT"],
    ],
    ids=lambda command: "-".join(command[:2] + command[4:5]),
)
def test_damaged_episode_is_left_out(
    relive: Relive, kitchen: Path, tmp_path: Path, command: list[str]
) -> None:
    out = str(tmp_path / "out")
    words = [word.replace("ROOT", str(kitchen)).replace("OUT", out) for word in command]
    stopped = relive(*words)
    assert stopped.status == 1
    assert str(folder(kitchen)) in stopped.out + stopped.err or "damaged" in stopped.out
    assert "--errors skip" in stopped.err or command[0] == "head"
    done = relive(*words, "--errors", "skip")
    assert done.status == 3, done.err
    assert f"warning: `{folder(kitchen)}` was left out" in done.err
    assert str(folder(kitchen)) not in done.out
    if "OUT" in words:
        assert set(LocalDataset(out).uids) <= {"e0", "e2"}


def test_results_without_the_damaged_episode(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    skip = ("--errors", "skip", "--json")
    found = relive("episodes", "ls", kitchen, *skip).json
    assert [line["uid"] for line in found["episodes"]] == ["e0", "e2"]
    assert [each["path"] for each in found["damaged"]] == [str(folder(kitchen))]
    found = relive("stats", kitchen, *skip).json
    assert (found["episodes"], found["signals"]["x"]["rows"]) == (2, 6)
    assert [line["uid"] for line in relive("head", kitchen, *skip).json] == ["e0", "e2"]
    found = relive("episodes", "copy", kitchen, tmp_path / "copy", *skip).json
    assert found["copied"] == ["e0", "e2"]
    assert [each["path"] for each in found["damaged"]] == [str(folder(kitchen))]
    found = relive("stats", f"{kitchen}*", *skip)
    assert (found.status, found.json["episodes"]) == (3, 2)


def test_damage_of_values_is_left_out_of_a_copy(
    relive: Relive, kitchen: Path, tmp_path: Path
) -> None:
    values = kitchen / "000000000000" / "000000000000" / "x.parquet"
    data = bytearray(values.read_bytes())
    data[8] ^= 0xFF
    values.write_bytes(data)
    done = relive("episodes", "copy", kitchen, tmp_path / "copy", "--errors", "skip")
    assert done.status == 3
    assert done.err.count("was left out") == 2
    assert LocalDataset(tmp_path / "copy").uids == ("e2",)


def test_nothing_left_out(relive: Relive, kitchen: Path) -> None:
    assert relive("recover", kitchen, "--set-aside").status == 0
    for command in (["episodes", "ls"], ["head"], ["stats"]):
        done = relive(*command, kitchen, "--errors", "skip")
        assert (done.status, done.err) == (0, "")
    size = relive("info", kitchen, "--json").json["files"]
    assert size == len([path for path in kitchen.rglob("0*/0*/*") if ".set" not in str(path)])


def test_skip_applies_to_datasets_only(relive: Relive, kitchen: Path) -> None:
    done = relive("stats", kitchen / "000000000000" / "000000000000", "--errors", "skip")
    assert done.status == 2
    assert "only to datasets" in done.err
