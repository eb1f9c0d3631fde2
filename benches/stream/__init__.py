"""Stream: one table on one S3 server with a 20 ms round trip, trained from by everyone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benches.options import Options
    from benches.report import Report


def run(options: Options) -> Report:
    """The parts that were asked for, one after the other."""
    # Peers import the table, also where the packages of the other parts are not installed.
    from benches.stream.parts import run_parts

    return run_parts(options)
