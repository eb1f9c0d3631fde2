"""The files of a pack writer in a folder."""

from pathlib import Path

import relive


def payloads(path: Path) -> list[bytes]:
    """Return all payloads of a pack, which must be whole."""
    with relive.PackReader.open(path) as reader:
        assert reader.validate("full").ok
        return [bytes(reader.payload(position)) for position in range(len(reader))]


def names_in(folder: Path) -> list[str]:
    """Return the names of all files, sorted."""
    return sorted(path.name for path in folder.iterdir())


def unfinished(path: Path) -> list[Path]:
    """Return the unfinished packs with the target `path`."""
    return sorted(path.parent.glob(f"{path.name}.unfinished-????????"))
