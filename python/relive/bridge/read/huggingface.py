"""Hugging Face datasets, in memory and saved on disk."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relive._arguments import type_name
from relive.bridge.options import ReadOptions, single_path
from relive.bridge.read.arrow import ArrowFiles
from relive.bridge.read.tables import FIRST_ROWS, TableStream
from relive.bridge.stream import Stream, rows_per_batch
from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.model.schema import Field
from relive.store.atomic import storage_error

_FIRST_ROWS = 256


def open_dataset(dataset: Any, options: ReadOptions) -> Stream:
    """Return the rows of an object of the library `datasets`."""
    name = type(dataset).__name__
    if name == "DatasetDict":
        raise UnsupportedError(
            "cannot convert a DatasetDict: it contains several datasets",
            hint=f"convert one of its datasets: {', '.join(map(repr, dataset))}",
        )
    if name != "Dataset":
        raise UnsupportedError(
            f"cannot convert a datasets.{name}: it has no random access to its rows",
            hint="load it without streaming=True",
        )
    return _Dataset(dataset, options)


class _Dataset(TableStream):
    """The rows of a `datasets.Dataset`, in its order."""

    def __init__(self, dataset: Any, options: ReadOptions) -> None:
        self._dataset = dataset.with_format("arrow")
        self.total: int = len(dataset)
        kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
        first = self._dataset[: min(FIRST_ROWS, self.total)]
        super().__init__(first, options, media=_media(kinds))

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The fingerprint that the library itself keeps."""
        return {"huggingface": self._dataset._fingerprint, "rows": self.total}  # noqa: SLF001

    def tables(self, start: int) -> Iterator[Any]:
        """Yield the rows from `start` on."""
        rows = _FIRST_ROWS
        while start < self.total:
            table = self._dataset[start : start + rows]
            start += table.num_rows
            rows = rows_per_batch(table.nbytes / max(1, table.num_rows))
            yield table


def open_huggingface(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of a folder that `save_to_disk` of a `datasets.Dataset` wrote.

    It is read without that library.
    """
    root = Path(single_path(paths, "saved datasets"))
    if (root / "dataset_dict.json").exists():
        splits = _json(root / "dataset_dict.json").get("splits") or []
        named = " or ".join(f"`{root / str(name)}`" for name in splits)
        raise UnsupportedError(
            f"cannot convert `{root}`: it contains several datasets", hint=f"convert {named}"
        )
    state, info = _json(root / "state.json"), _json(root / "dataset_info.json")
    if state.get("_indices_files"):
        raise UnsupportedError(
            f"cannot convert `{root}`: it stores a selection of the rows of a dataset",
            hint="load it with datasets.load_from_disk(), and convert the result",
        )
    files = [file.get("filename") for file in state.get("_data_files") or []]
    if not files or not all(isinstance(name, str) and name == Path(name).name for name in files):
        raise CorruptError(f"`{root / 'state.json'}` has no valid list of files in `_data_files`")
    features = info.get("features")
    known = features.items() if isinstance(features, dict) else ()
    described = {name: feature for name, feature in known if isinstance(feature, dict)}
    return ArrowFiles(
        [str(root / name) for name in files],
        options,
        media=_media({name: feature.get("_type") for name, feature in described.items()}),
        known={name: field for name, value in described.items() if (field := _tensor(value))},
    )


def _media(kinds: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns of images and sounds, which are structs of bytes and a path."""
    return frozenset(name for name, kind in kinds.items() if kind in {"Image", "Audio"})


def _tensor(feature: Mapping[str, Any]) -> Field | None:
    """Return the field of an Array2D, Array3D, … whose shape is not in the Arrow schema."""
    shape = feature.get("shape")
    if not str(feature.get("_type")).startswith("Array") or not isinstance(shape, list):
        return None
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    try:
        return Field(str(feature.get("dtype")), shape)
    except ReliveError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except ValueError as error:
        raise CorruptError(f"`{path}` is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"`{path}` must contain a JSON object, got {type_name(type(found))}")
    return found
