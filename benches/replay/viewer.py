"""A child process: reads a live lane at a fixed rate; prints how many frames it got."""

from __future__ import annotations

import sys
import time

from benches.peers import module


def main() -> None:
    """Read the name of the lane and the rate in Hz from the command line."""
    name, hertz = sys.argv[1:]
    lane = module("relive.replay").LiveLane.attach(name)
    sys.stdout.write("attached\n")
    sys.stdout.flush()
    seen = set()
    while lane.is_live:
        found = lane.latest()
        if found is not None:
            seen.add(found[2])
        time.sleep(1 / float(hertz))
    sys.stdout.write(f"{len(seen)}\n")


if __name__ == "__main__":
    main()
