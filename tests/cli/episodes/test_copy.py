"""`relive episodes copy` and `merge`."""

from pathlib import Path

import pytest

from relive.episodes.read.local_dataset import LocalDataset
from tests.cli.conftest import Relive
from tests.cli.recordings import MS, START, record, uids

pytestmark = pytest.mark.needs("av")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of three episodes."""
    return record(tmp_path / "kitchen")


def test_copy_all(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    done = relive("episodes", "copy", kitchen, target)
    assert (done.status, done.out, done.err) == (0, f"{target}: 3 episodes copied\n", "")
    assert uids(target) == uids(kitchen)
    again = relive("episodes", "copy", kitchen, target)
    assert again.out == f"{target}: 0 episodes copied, 3 already there\n"
    found = relive("episodes", "copy", kitchen, target, "--json").json
    assert found == {
        "path": str(target),
        "copied": [],
        "skipped": list(uids(kitchen)),
        "damaged": [],
        "removed": [],
        "encoded_frames": 0,
    }


@pytest.mark.parametrize(
    ("args", "positions"),
    [
        (["--uids", "2,0"], [2, 0]),
        (["--where", 'task="pick"'], [0, 1]),
        (["--where", 'task="pick"', "success=true"], [0]),
        (["--where", "nothing=null"], []),
        (["--uids", "1,2", "--where", "success=true"], [2]),
    ],
    ids=["numbers", "one static", "two statics", "none", "both"],
)
def test_copy_some(
    relive: Relive, kitchen: Path, tmp_path: Path, args: list[str], positions: list[int]
) -> None:
    target = tmp_path / "copy"
    done = relive("episodes", "copy", kitchen, target, *args)
    assert done.status == 0, done.err
    assert uids(target) == tuple(uids(kitchen)[position] for position in positions)


def test_copy_applies_edits_unless_raw(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    edits = LocalDataset(kitchen).edits
    first, second, _ = uids(kitchen)
    edits.trim(first, START + 100 * MS, START + 200 * MS)
    edits.drop(second)
    assert relive("episodes", "copy", kitchen, tmp_path / "a").status == 0
    copied = LocalDataset(tmp_path / "a")
    assert [len(episode["q"]) for episode in copied] == [10, 40]
    assert relive("episodes", "copy", kitchen, tmp_path / "b", "--raw").status == 0
    assert len(LocalDataset(tmp_path / "b")) == 3
    assert relive("validate", tmp_path / "a", "--level", "full").status == 0


def test_copy_one_episode_from_its_folder(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    folder = kitchen / "000000000000" / "000000000001"
    assert relive("episodes", "copy", folder, tmp_path / "a").status == 0
    assert uids(tmp_path / "a") == uids(kitchen)[1:2]


def test_merge(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other", 1)
    target = tmp_path / "all"
    done = relive("episodes", "merge", kitchen, other, target)
    assert (done.status, done.out, done.err) == (0, f"{target}: 4 episodes copied\n", "")
    assert uids(target) == (*uids(kitchen), *uids(other))
    found = relive("episodes", "merge", kitchen, target, "--json").json
    assert (found["copied"], found["skipped"]) == ([], list(uids(kitchen)))


def test_different_episode_with_the_same_uid_is_not_replaced(
    relive: Relive, kitchen: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    assert relive("episodes", "copy", kitchen, target).status == 0
    LocalDataset(kitchen).edits.set_static(uids(kitchen)[0], "task", "sing")
    done = relive("episodes", "copy", kitchen, target)
    assert done.status == 1
    assert uids(kitchen)[0] in done.err
    assert "--replace" in done.err
    assert LocalDataset(target)[0]["task"] == "pick"


def test_edited_episodes_are_replaced(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    assert relive("episodes", "copy", kitchen, target).status == 0
    first, second, third = uids(kitchen)
    edits = LocalDataset(kitchen).edits
    parts = edits.cut(first, START + 100 * MS)
    edits.drop(second)
    for command in ("copy", "merge"):
        done = relive("episodes", command, kitchen, target)
        assert (done.status, done.out) == (1, "")
        assert uids(target) == (first, second, third)
    found = relive("episodes", "copy", kitchen, target, "--replace", "--json").json
    assert (found["copied"], found["skipped"]) == (list(parts), [third])
    assert found["removed"] == [first, second]
    assert uids(target) == (third, *parts)
    edits.trim(third, START + 2100 * MS)
    done = relive("episodes", "merge", kitchen, target, "--replace")
    assert done.out == f"{target}: 1 episode copied, 2 already there, 1 removed\n"
    assert relive("episodes", "copy", kitchen, target).status == 0


def test_frames_that_were_encoded_again_are_counted(
    relive: Relive, kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.episodes.copy_video.plan_copy", lambda _: None)
    done = relive("episodes", "copy", kitchen, tmp_path / "a")
    assert done.out == f"{tmp_path / 'a'}: 3 episodes copied, 15 frames encoded again\n"
    done = relive("episodes", "merge", kitchen, tmp_path / "b", "--json")
    assert done.json["encoded_frames"] == 15


def test_copy_errors(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    assert relive("episodes", "copy", tmp_path / "no", target).status == 1
    assert relive("episodes", "copy", kitchen, target, "--uids", "9").status == 1
    assert relive("episodes", "copy", kitchen, target, "--where", "task=pick").status == 2
    assert relive("episodes", "merge", kitchen).status == 2
    assert not target.exists()
