"""Folders of images are converted to record stores."""

from pathlib import Path

import numpy as np
import pytest

from relive import _extras
from relive.bridge import convert
from relive.errors import CorruptError, InvalidError, MissingExtraError, NotFoundError
from relive.model.schema import Field
from relive.store.records import RecordStore
from tests.bridge.sample_files import contents

Image = pytest.importorskip("PIL.Image")


def write(root: Path, name: str, height: int = 3, width: int = 4) -> Path:
    """Write an image whose pixels encode its size."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (height, width, 7)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write five images in two classes, and other files."""
    root = tmp_path / "images"
    for name in ("dog/b.png", "dog/a.png", "cat/deep/c.PNG", "cat/d.bmp", "dog/.hidden.png"):
        write(root, name)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / ".cache").mkdir()
    (root / "empty").mkdir()
    write(root, ".cache/x.png")
    return root


def test_images_are_kept_encoded_by_default(tmp_path: Path, folder: Path) -> None:
    made = convert(folder, tmp_path / "store")
    assert made.fields == {
        "image": Field("bytes"),
        "path": Field("str"),
        "label": Field(np.int64),
    }
    paths = ["cat/d.bmp", "cat/deep/c.PNG", "dog/a.png", "dog/b.png"]
    assert contents(made.path) == [
        {"image": (folder / path).read_bytes(), "path": path, "label": label}
        for path, label in zip(paths, (0, 0, 1, 1), strict=True)
    ]


def test_images_of_one_size_are_fixed_and_others_ragged(tmp_path: Path, folder: Path) -> None:
    made = convert(folder, tmp_path / "fixed", decode=True)
    assert made.fields["image"] == Field(np.uint8, (3, 4, 3))
    with RecordStore.open(made.path) as store:
        assert (np.asarray(store.gather(range(4))["image"]) == (3, 4, 7)).all()
    write(folder, "dog/z.png", 5, 6)
    made = convert(folder, tmp_path / "ragged", decode="image", workers=3)
    assert made.fields["image"] == Field(np.uint8, (3,), ragged=2)
    with RecordStore.open(made.path) as store:
        assert [store[row]["image"].shape for row in (0, 4)] == [(3, 4, 3), (5, 6, 3)]
        assert (store[4]["image"] == (5, 6, 7)).all()
    made = convert(folder, tmp_path / "resized", size=(16, 8), codec="zstd")
    assert made.fields["image"] == Field(np.uint8, (16, 8, 3), codec="zstd")
    assert made.fields["label"].codec == "raw"


def test_without_class_folders_there_is_no_label(tmp_path: Path) -> None:
    write(tmp_path / "images", "a.png")
    write(tmp_path / "images", "b/c.png")
    made = convert(tmp_path / "images", tmp_path / "store")
    assert [*made.fields] == ["image", "path"]


def test_decode_function(tmp_path: Path, folder: Path) -> None:
    made = convert(folder, tmp_path / "store", decode=len)
    assert made.fields["image"] == Field(np.int64)


def test_file_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    root = tmp_path / "images"
    write(root, "a.png").rename(root / b"\xff.png".decode(errors="surrogateescape"))
    made = convert(root, tmp_path / "store")
    assert contents(made.path)[0]["path"] == r"\xff.png"


def test_damaged_images_are_named(tmp_path: Path, folder: Path) -> None:
    whole = (folder / "dog" / "a.png").read_bytes()
    for cut in (0, 10, len(whole) // 2):
        (folder / "dog" / "a.png").write_bytes(whole[:cut])
        with pytest.raises(CorruptError, match=r"cannot decode `.*dog/a\.png`"):
            convert(folder, tmp_path / "store", decode=True)
    assert convert(folder, tmp_path / "store").rows == 4


def test_folders_without_images_and_invalid_sizes_raise(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(NotFoundError, match="contains no images"):
        convert(tmp_path / "nothing", tmp_path / "store")
    for size in (0, (3,), (1, -1)):
        with pytest.raises(InvalidError, match="`size` must be a positive integer"):
            convert(folder, tmp_path / "store", size=size)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"`decode` must be one of .*, got 'example'"):
        convert(folder, tmp_path / "store", decode="example")


def test_without_pillow_the_error_names_the_extra(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(_extras, "import_module", absent)
    with pytest.raises(MissingExtraError) as caught:
        convert(folder, tmp_path / "store", decode=True)
    assert caught.value.hint == "pip install 'relive[convert]'"
    assert not (tmp_path / "store.converting").exists()
