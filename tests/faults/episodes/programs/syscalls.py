"""The acts on episodes, stopped at one of their calls; see `attached`."""

import re
from typing import Final

from tests.faults.attached import Done, Program
from tests.faults.episodes.programs import script as episodes_script

__all__ = ["Done", "places_of", "run"]

_NEVER: Final = re.compile(r"\.unfinished\.\d+$")
_PROGRAM: Final = Program(
    episodes_script.play,
    [
        "tests.faults.episodes.programs.script",
        "av",
        "pyarrow.parquet",
        "relive.store.video",
        "relive.episodes.read.video_signal",
    ],
    path_of=lambda path, pid: _NEVER.sub(f".unfinished.{pid}", path),
)
places_of = _PROGRAM.places_of
run = _PROGRAM.run
