"""Episodes: a robot recorded and read back, against positronic, LeRobot and h5py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benches.options import Options
    from benches.report import Report


def run(options: Options) -> Report:
    """The parts that were asked for, one after the other."""
    # Peers import the robot, also where nothing else of the bench is needed.
    from benches.episodes.parts import run_parts

    return run_parts(options)
