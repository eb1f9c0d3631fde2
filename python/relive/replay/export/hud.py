"""Writes text below a picture, with letters of three by five dots."""

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from relive.replay.export.pictures import Rgb

COLUMNS: Final = 40
"""How many letters a line has at least."""

_WIDTH: Final = 3
_HEIGHT: Final = 5
_GAP: Final = 1
_TEXT: Final = 255

# Five rows from the top, each an octal digit whose bits are three dots.
_LETTERS: Final = {
    " ": 0o00000, "!": 0o22202, '"': 0o55000, "#": 0o57575, "%": 0o51245, "'": 0o22000,
    "(": 0o12221, ")": 0o42224, "*": 0o05250, "+": 0o02720, ",": 0o00024, "-": 0o00700,
    ".": 0o00002, "/": 0o11244, ":": 0o02020, ";": 0o02024, "<": 0o12421, "=": 0o07070,
    ">": 0o42124, "?": 0o71202, "@": 0o75743, "[": 0o64446, "\\": 0o44211, "]": 0o31113,
    "_": 0o00007, "{": 0o32623, "|": 0o22222, "}": 0o62326, "~": 0o03600,
    "0": 0o75557, "1": 0o26227, "2": 0o71747, "3": 0o71317, "4": 0o55711, "5": 0o74717,
    "6": 0o74757, "7": 0o71122, "8": 0o75757, "9": 0o75717,
    "A": 0o25755, "B": 0o65656, "C": 0o34443, "D": 0o65556, "E": 0o74647, "F": 0o74644,
    "G": 0o34553, "H": 0o55755, "I": 0o72227, "J": 0o11152, "K": 0o55655, "L": 0o44447,
    "M": 0o57755, "N": 0o65555, "O": 0o25552, "P": 0o65644, "Q": 0o25573, "R": 0o65655,
    "S": 0o34216, "T": 0o72222, "U": 0o55557, "V": 0o55552, "W": 0o55775, "X": 0o55255,
    "Y": 0o55222, "Z": 0o71247,
}  # fmt: skip
_UNKNOWN: Final = "?"


def with_text(picture: Rgb, lines: Sequence[str]) -> Rgb:
    """Return a picture with lines of text below it, each cut to its width.

    A picture that is narrower than `COLUMNS` letters gets black margins.
    """
    height, width = picture.shape[:2]
    cell = _WIDTH + _GAP
    size = max(1, width // (COLUMNS * cell))
    whole = max(width, COLUMNS * cell * size)
    line_height = (_HEIGHT + _GAP) * size
    drawn = np.zeros((height + line_height * len(lines) + size, whole, 3), np.uint8)
    left = (whole - width) // 2
    drawn[:height, left : left + width] = picture
    for number, line in enumerate(lines):
        top = height + size + number * line_height
        dots = _dots(line[: whole // (cell * size)], size)
        drawn[top : top + dots.shape[0], : dots.shape[1]][dots] = _TEXT
    return drawn


def enlarged(picture: Rgb, factor: int) -> Rgb:
    """Return a picture with every pixel as a square of `factor` by `factor` pixels."""
    return picture if factor == 1 else picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _dots(line: str, size: int) -> npt.NDArray[np.bool_]:
    letters = [_letter(letter, size) for letter in line.upper()]
    return np.concatenate(letters, axis=1) if letters else np.zeros((0, 0), np.bool_)


@cache
def _letter(letter: str, size: int) -> npt.NDArray[np.bool_]:
    """Return the dots of a letter, and of the gap after it."""
    bits = _LETTERS.get(letter, _LETTERS[_UNKNOWN])
    rows = [bits >> (3 * (_HEIGHT - 1 - row)) & 7 for row in range(_HEIGHT)]
    dots = np.array(
        [[row >> (_WIDTH - 1 - column) & 1 for column in range(_WIDTH)] for row in rows]
    )
    with_gap = np.pad(dots.astype(np.bool_), ((0, 0), (0, _GAP)))
    return with_gap.repeat(size, axis=0).repeat(size, axis=1)
