"""Replay: runs of Atari games recorded and read, against SQLite, h5py, Minari and TorchRL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benches.options import Options
    from benches.report import Report


def run(options: Options) -> Report:
    """The parts that were asked for, one after the other."""
    # Peers import the scenes, also where the packages of the other parts are not installed.
    from benches.replay.parts import run_parts

    return run_parts(options)
