"""Folders that appear when they are complete."""

import os
from pathlib import Path

import pytest

from relive.errors import AlreadyExistsError, InvalidError, StorageError
from relive.store import atomic
from relive.store.atomic import whole_folder


def write(target: Path, text: str, *, overwrite: bool = False) -> None:
    with whole_folder(target, overwrite=overwrite) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text(text)


def contents(target: Path) -> str:
    return (target / "inner" / "file").read_text()


def test_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "above" / "folder"
    with whole_folder(target) as folder:
        (folder / "file").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["file"]
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "other"):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["above"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_folder_is_replaced_or_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    target = tmp_path / "folder"
    target.mkdir()
    write(target, "one")  # an empty folder may be used
    with pytest.raises(AlreadyExistsError):
        write(target, "two")
    write(target, "two", overwrite=True)
    assert contents(target) == "two"
    link = tmp_path / "link"
    link.symlink_to(target)
    write(link, "three", overwrite=True)
    assert contents(target) == "three"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


def test_what_may_not_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(AlreadyExistsError):
        write(file, "one")
    with pytest.raises(InvalidError, match="is a file"):
        write(file, "one", overwrite=True)
    with pytest.raises(InvalidError, match="not a valid path"):
        write(Path("/"), "one")

    def refuse(folder: Path) -> None:
        raise InvalidError(f"{folder.name} must stay")

    write(tmp_path / "kept", "one")
    with (
        pytest.raises(InvalidError, match="kept must stay"),
        whole_folder(tmp_path / "kept", overwrite=True, may_replace=refuse),
    ):
        pass
    assert contents(tmp_path / "kept") == "one"


def test_another_process_was_faster(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with pytest.raises(AlreadyExistsError), whole_folder(target):
        write(target, "theirs")
    assert contents(target) == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_error_of_the_disk_names_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match=r"cannot write .*folder.*No space"):
            write(tmp_path / "folder", "one")
    assert not any(tmp_path.iterdir())
