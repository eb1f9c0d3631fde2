"""What a writer of packs has left in a folder."""

from pathlib import Path

import relive


def payloads(path: Path) -> list[bytes]:
    """Give all payloads of a pack, which must be whole."""
    with relive.PackReader.open(path) as reader:
        assert reader.validate("full").ok
        return [bytes(reader.payload(position)) for position in range(len(reader))]


def names_in(folder: Path) -> list[str]:
    """Give the names of all files, sorted."""
    return sorted(path.name for path in folder.iterdir())


def unfinished(path: Path) -> list[Path]:
    """Give the unfinished packs that were to become the one at `path`."""
    return sorted(path.parent.glob(f"{path.name}.unfinished-????????"))
