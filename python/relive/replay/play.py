"""Shows pictures in a terminal, with two pixels in each character."""

import contextlib
import math
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Self, TextIO

import numpy as np

from relive.errors import InvalidError
from relive.replay.export.pictures import Rgb, as_rgb, not_pictures, picture_problem
from relive.replay.live import LiveLane

UPPER_HALF: Final = "\N{UPPER HALF BLOCK}"
"""The upper pixel of a character has its color, the lower one that of its background."""

_HUD_ROWS: Final = 1
_RESET: Final = "\x1b[0m"
_BEGIN: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"  # another screen, no cursor, empty
_END: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"

_ORDER: Final = ("env", "episode", "step", "reward", "rolling_return")
"""What is known about a live frame is shown in this order; then everything else, and the rate."""
_RATE: Final = "step_rate"
_NAMES: Final = {"rolling_return": "return", _RATE: "steps/s"}
"""How a number is called below a picture, if the lane has another name."""

Shown = tuple[Rgb, str] | None
"""A picture and the line below it; None if there is no new one yet."""


class Screen:
    """A terminal that shows pictures, on a screen of its own that the `with` block ends.

    Args:
        stream: The terminal. Anything else is an `InvalidError`.
        size: Returns its columns and rows; by default those that the terminal reports.
    """

    def __init__(self, stream: TextIO, size: Callable[[], tuple[int, int]] | None = None) -> None:
        if not stream.isatty() or os.environ.get("TERM") == "dumb":
            raise InvalidError(
                "pictures can be shown only in a terminal, but the output is not one",
                hint="write a video instead: `relive replay play --output FILE`",
            )
        try:
            UPPER_HALF.encode(stream.encoding or "ascii")
        except (LookupError, UnicodeEncodeError):
            raise InvalidError(
                f"the terminal has the encoding {stream.encoding!r}, which has no character for "
                "two pixels",
                hint="use UTF-8, or write a video instead",
            ) from None
        self._stream = stream
        self._size = size or shutil.get_terminal_size

    def __enter__(self) -> Self:
        self._write(_BEGIN)
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._write(_END)

    def show(self, picture: Rgb, line: str) -> None:
        """Show a picture, and a line below it."""
        columns, rows = self._size()
        drawn = draw(picture, columns, max(1, rows - _HUD_ROWS))
        text = "".join(letter if letter.isprintable() else "?" for letter in line)[:columns]
        encoding = self._stream.encoding or "ascii"
        text = text.encode(encoding, "replace").decode(encoding)
        body = f"{_CLEAR_LINE}\r\n".join([*drawn, text])
        self._write(f"{_HOME}{body}{_CLEAR_LINE}{_CLEAR_BELOW}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Keys:
    """The keys that are pressed in a terminal while the `with` block runs; none elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._handle = -1
        self._before: Any = None
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                self._handle = stream.fileno()

    def __enter__(self) -> Self:
        if self._handle >= 0:
            import termios
            import tty

            try:
                self._before = termios.tcgetattr(self._handle)
                tty.setcbreak(self._handle)
            except termios.error:
                self._handle = -1
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(self._handle, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float | None) -> str:
        """Return the next key, or an empty string after this many seconds."""
        if self._handle < 0:
            time.sleep(max(0.0, seconds or 0.0))
            return ""
        ready, _, _ = select.select([self._handle], [], [], seconds)
        if not ready:
            return ""
        pressed = os.read(self._handle, 1)
        if not pressed:  # the end of the input
            self._handle = -1
        return pressed.decode("ascii", "replace")


def play(
    shown: Iterable[Shown], fps: float, *, stream: TextIO | None = None, keys: TextIO | None = None
) -> int:
    """Show pictures one after the other, and return how many were shown.

    The space key pauses, and `q` ends it.

    Args:
        shown: Pictures, each with the line below it. None shows the last one longer.
        fps: Pictures per second.
        stream: The terminal to show them in; stdout by default.
        keys: The terminal whose keys count; stdin by default.
    """
    if not 0.0 < fps < math.inf:
        raise InvalidError(f"`fps` must be a positive number, got {fps!r}")
    count = 0
    with Screen(stream or sys.stdout) as screen, Keys(keys or sys.stdin) as pressed:
        due = time.monotonic()
        for new in shown:
            if new is not None:
                screen.show(*new)
                count += 1
            due = max(due + 1.0 / fps, time.monotonic())
            if not _wait(pressed, due):
                break
    return count


def live_pictures(name: str) -> Iterator[Shown]:
    """Iterate over the frames that a process publishes to a live lane, until it ends.

    Args:
        name: The name of the lane: the id of the run.
    """
    last = -1
    with LiveLane.attach(name) as lane:
        while True:
            is_live = lane.is_live  # before the frame, so that the last one is shown
            found = lane.latest()
            if found is not None and found[2] != last:
                frame, scalars, last = found
                yield _as_picture(frame), _live_line(last, scalars)
            elif is_live:
                yield None
            else:
                return


def _live_line(number: int, scalars: Mapping[str, float]) -> str:
    """Return the line below a live frame, in the order of the line below a recorded one."""
    order = {name: place for place, name in enumerate(_ORDER)} | {_RATE: math.inf}
    texts = [f"frame {number}"]
    for name in sorted(scalars, key=lambda name: order.get(name, len(_ORDER))):
        value = scalars[name]
        text = f"{value:.0f}" if name == _RATE else f"{value:.6g}"
        texts.append(f"{_NAMES.get(name, name)} {'-' if math.isnan(value) else text}")
    return "  ".join(texts)


def draw(picture: Rgb, columns: int, rows: int) -> list[str]:
    """Return a picture as lines of characters, as large as fits into `columns` by `rows`."""
    fitted = _fitted(picture, columns, 2 * rows)
    if len(fitted) % 2:
        fitted = np.concatenate((fitted, np.zeros_like(fitted[:1])))
    lines = []
    for upper, lower in zip(fitted[::2].tolist(), fitted[1::2].tolist(), strict=True):
        parts = []
        before: tuple[list[int], list[int]] | None = None
        for pixels in zip(upper, lower, strict=True):
            if pixels != before:
                (r, g, b), (r2, g2, b2) = pixels
                parts.append(f"\x1b[38;2;{r};{g};{b}m\x1b[48;2;{r2};{g2};{b2}m")
                before = pixels
            parts.append(UPPER_HALF)
        lines.append("".join(parts) + _RESET)
    return lines


def _wait(pressed: Keys, due: float) -> bool:
    """Wait until a time, or longer while it is paused; return False to end."""
    is_paused = False
    while is_paused or time.monotonic() < due:
        key = pressed.wait(None if is_paused else due - time.monotonic())
        if key == "q":
            return False
        if key == " ":
            is_paused = not is_paused
        elif not key and is_paused:
            return True  # no more keys can be pressed
    return True


def _fitted(picture: Rgb, width: int, height: int) -> Rgb:
    """Return a picture with as many pixels as fit: each the mean of pixels, or many times one."""
    high, wide = picture.shape[:2]
    factor = min(width // wide, height // high)
    if factor >= 1:
        return picture.repeat(factor, axis=0).repeat(factor, axis=1)
    share = min(width / wide, height / high)
    size = max(1, int(high * share)), max(1, int(wide * share))
    total = picture.astype(np.uint32)
    counts = []
    for axis, (old, new) in enumerate(zip((high, wide), size, strict=True)):
        starts = np.arange(new) * old // new
        total = np.add.reduceat(total, starts, axis=axis)
        counts.append(np.diff(np.append(starts, old)))
    pixels = np.multiply.outer(counts[0], counts[1])[..., np.newaxis]
    mean: Rgb = (total // pixels).astype(np.uint8)
    return mean


def _as_picture(frame: np.ndarray[Any, Any]) -> Rgb:
    problem = picture_problem(frame.dtype, frame.shape)
    if problem is not None:
        raise not_pictures("frame", problem)
    rgb: Rgb = as_rgb(frame[np.newaxis])[0]
    return rgb
