"""A short game of 2048 and directories of run files."""

from collections.abc import Mapping
from pathlib import Path

from relive.store.runs import Run

# Each group of four digits is a row of the board, each digit an exponent.
BOARDS = (
    0x1100_0000_0000_0000,
    0x2000_1000_0000_0000,
    0x1002_0001_0000_0000,
    0x1200_1000_0000_0001,
    0x2201_0100_0000_0000,
    0x3100_1000_0010_0000,
)
MOVES = (2, 3, 2, 0, 2)


def game(steps: int = 5, engine: str | None = "hand") -> Run:
    """Return the first steps of the game."""
    return Run(
        BOARDS[: steps + 1], MOVES[:steps], start_unix_s=1_700_000_000 + steps, engine=engine
    )


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below `root`, and return it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_runs(root: Path) -> Path:
    """Write three runs below `root`, the last in version 1, and return it."""
    return write_files(
        root,
        {
            "a/one.a2run2": game(3).to_bytes(),
            "a/two.a2run2": game(5).to_bytes(),
            "b.a2run2": game(4, engine="foot").to_bytes(1),
        },
    )
