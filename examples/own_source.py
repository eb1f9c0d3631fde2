"""Write your own source: a folder of text files that are read on access."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import relive
from relive.model import Batch, Indices, as_indices, check_out, pick_fields


class Lengths(relive.Source):
    """The size and the first byte of every file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.iterdir())
        self._fields = {"size": relive.Field(np.int64), "first": relive.Field(np.uint8)}

    @property
    def fields(self) -> Mapping[str, relive.Field]:
        """The fields of a row."""
        return self._fields

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the files at `indices`."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self._fields, fields)
        given = check_out(out, picked, rows.shape)
        arrays = {
            name: given.get(name, np.empty(rows.shape, field.array_dtype))
            for name, field in picked.items()
        }
        for position, row in np.ndenumerate(rows):
            data = self._files[row].read_bytes()
            values = {"size": len(data), "first": data[0]}
            for name, array in arrays.items():
                array[position] = values[name]
        return {**arrays}


def main() -> None:
    """Write some files, and load them in batches."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(20):
            (Path(folder) / f"{number:02}.txt").write_text(chr(65 + number) * (number + 1))
        source = Lengths(Path(folder))
        print(source)
        print(source[3], source[-1])
        for batch in relive.DataLoader(source, batch_size=8, epochs=1, tail="keep"):
            print(batch["size"], batch["first"])


if __name__ == "__main__":
    main()
