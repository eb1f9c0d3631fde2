"""What a writer leaves in the folder of an episode that is in no file of it."""

import re
from pathlib import Path
from typing import Final

from relive.errors import CorruptError
from relive.store.atomic import storage_error
from relive.store.signal.tape import open_tape

__all__ = ["strays", "sweep"]

_TAPE: Final = ".tape"
_STRAY: Final = re.compile(r"\..+\.(?:tape|part)", re.DOTALL)


def strays(folder: Path) -> list[Path]:
    """Give the tapes and the parts of files in a folder; a finished episode has none."""
    try:
        found = [each for each in folder.iterdir() if _STRAY.fullmatch(each.name)]
    except OSError as error:
        raise storage_error(error, folder, "read") from error
    return sorted(found)


def sweep(folder: Path) -> None:
    """Remove them where all signals are finished; a tape with records is a `CorruptError`."""
    for stray in strays(folder):
        if stray.suffix == _TAPE:
            opened = open_tape(stray)
            if opened is not None and opened[0].rows:
                raise CorruptError(f"`{stray}` has records that are in no file")
        try:
            stray.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, stray, "removed") from error
