"""Hugging Face datasets, in memory and saved to disk, are converted to record stores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.bridge import convert
from relive.errors import CorruptError, NotFoundError, UnsupportedError
from relive.model.schema import Field
from tests.bridge.sample_files import contents

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")

FIELDS = {
    "number": Field(np.int64),
    "text": Field("str"),
    "tokens": Field(np.int64, ragged=True),
    "matrix": Field(np.float32, (2, 3)),
    "label": Field(np.int64),
    "image": Field("bytes"),
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """Return a dataset whose images are files."""
    paths = []
    for number in range(4):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (number + 1, 2)).save(path)
        paths.append(str(path))
    features = datasets.Features(
        {
            "number": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "tokens": datasets.List(datasets.Value("int64")),
            "matrix": datasets.Array2D((2, 3), "float32"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "image": datasets.Image(),
        }
    )
    columns = {
        "number": [0, 1, None, 3],
        "text": ["a", None, "c", "d"],
        "tokens": [[1], [], [2, 3], [4]],
        "matrix": [np.full((2, 3), number, np.float32) for number in range(4)],
        "label": [0, 1, 1, 0],
        "image": paths,
    }
    return datasets.Dataset.from_dict(columns, features=features)


def expected(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        {
            "number": [0, 1, None, 3][number],
            "text": ["a", None, "c", "d"][number],
            "tokens": [[1], [], [2, 3], [4]][number],
            "matrix": [[number] * 3] * 2,
            "label": [0, 1, 1, 0][number],
            "image": (tmp_path / f"{number}.png").read_bytes(),
        }
        for number in range(4)
    ]


def test_dataset(tmp_path: Path, dataset: Any) -> None:
    made = convert(dataset, tmp_path / "store", batch=3)
    assert made.fields == FIELDS
    assert contents(made.path) == expected(tmp_path)


def test_selection_keeps_its_order(tmp_path: Path, dataset: Any) -> None:
    made = convert(dataset.select([3, 0, 3]), tmp_path / "store")
    rows = expected(tmp_path)
    assert contents(made.path) == [rows[3], rows[0], rows[3]]


def test_saved_dataset(tmp_path: Path, dataset: Any) -> None:
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    made = convert(tmp_path / "saved", tmp_path / "store")
    assert made.fields == FIELDS
    assert contents(made.path) == expected(tmp_path)


def test_dataset_dict_raises(tmp_path: Path, dataset: Any) -> None:
    several = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(UnsupportedError, match="several") as caught:
        convert(several, tmp_path / "store")
    assert caught.value.hint == "convert one of its datasets: 'train', 'test'"
    several.save_to_disk(tmp_path / "saved")
    with pytest.raises(UnsupportedError, match="several") as caught:
        convert(tmp_path / "saved", tmp_path / "store")
    assert str(tmp_path / "saved" / "train") in str(caught.value.hint)
    assert convert(tmp_path / "saved" / "test", tmp_path / "store").rows == 4
    with pytest.raises(UnsupportedError, match="IterableDataset: it has no random access"):
        convert(dataset.to_iterable_dataset(), tmp_path / "other")


def test_damaged_saved_dataset_raises(tmp_path: Path, dataset: Any) -> None:
    saved = tmp_path / "saved"
    dataset.save_to_disk(saved)
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text("{")
    with pytest.raises(CorruptError, match=r"state\.json` is not valid JSON"):
        convert(saved, tmp_path / "store")
    (saved / "state.json").write_text("[]")
    with pytest.raises(CorruptError, match="must contain a JSON object, got"):
        convert(saved, tmp_path / "store")
    outside = {**state, "_data_files": [{"filename": "../secret.arrow"}]}
    (saved / "state.json").write_text(json.dumps(outside))
    with pytest.raises(CorruptError, match="has no valid list of files in `_data_files`"):
        convert(saved, tmp_path / "store")
    (saved / "state.json").write_text(json.dumps({**state, "_indices_files": [{}]}))
    with pytest.raises(UnsupportedError, match="a selection of the rows"):
        convert(saved, tmp_path / "store")
    (saved / "state.json").write_text(json.dumps(state))
    (saved / state["_data_files"][0]["filename"]).unlink()
    with pytest.raises(NotFoundError):
        convert(saved, tmp_path / "store")


def test_missing_image_file_is_named(tmp_path: Path, dataset: Any) -> None:
    (tmp_path / "2.png").unlink()
    with pytest.raises(NotFoundError, match=r"row 2: field 'image': .*2\.png"):
        convert(dataset, tmp_path / "store")
