"""Boards of 2048 as text."""

from collections.abc import Iterator, Mapping
from typing import Final

_SIDE: Final = 4
_GAP: Final = "     "


def draw_boards(boards: Mapping[str, int]) -> Iterator[str]:
    """Give the lines of boards side by side, each below its title; an empty cell is a dot."""
    drawn = {title: _rows(board) for title, board in boards.items()}
    width = max(len(row) for rows in drawn.values() for row in rows)
    yield _GAP.join(title.ljust(width) for title in drawn).rstrip()
    for number in range(_SIDE):
        yield _GAP.join(rows[number].ljust(width) for rows in drawn.values()).rstrip()


def _rows(board: int) -> list[str]:
    exponents = [board >> shift & 15 for shift in range(60, -1, -4)]
    tiles = [str(1 << exponent) if exponent else "." for exponent in exponents]
    width = max(map(len, tiles))
    cells = [tile.rjust(width) for tile in tiles]
    return [" ".join(cells[first : first + _SIDE]) for first in range(0, len(cells), _SIDE)]
