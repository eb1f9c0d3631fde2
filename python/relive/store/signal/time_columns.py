"""Which columns of a signal's Parquet file are times, whoever wrote it."""

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["find_times"]

_CLOCK: Final = "clock."
_TIMELINE: Final = "ts."
_MAIN: Final = "ts.recorded"


def find_times(names: Sequence[str], usual: str) -> tuple[str | None, Mapping[str, str]]:
    """Give the column of timestamps, and those of further clocks by the clocks' names.

    The first is called `usual`. positronic writes a column `ts.NAME` for each timeline instead:
    that of `recorded` tells the time, or else the first, and the others are clocks.
    """
    clocks = {name.removeprefix(_CLOCK): name for name in names if name.startswith(_CLOCK)}
    if usual in names:
        return usual, clocks
    timelines = [name for name in names if name.startswith(_TIMELINE)]
    if not timelines:
        return None, clocks
    main = _MAIN if _MAIN in timelines else timelines[0]
    others = {name.removeprefix(_TIMELINE): name for name in timelines if name != main}
    return main, others | clocks
