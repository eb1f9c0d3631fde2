"""A child process: exports a pack as JSON lines and prints the most memory it took, in MiB.

Pages of a mapped file are the page cache's, and the kernel takes them back when it
likes; they are not counted: what is, is anonymous memory.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

_PAUSE_S = 0.002


def main() -> None:
    """Read the pack, the output and the kind of input from the command line."""
    pack, out, io = sys.argv[1:]
    from benches.peers.payload_relive import open_pack

    peak = _anonymous_mib()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_PAUSE_S):
            peak = max(peak, _anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with open_pack(Path(pack), io=io) as reader:
        reader.to_jsonl(out, overwrite=True)
    done.set()
    watcher.join()
    sys.stdout.write(f"{max(peak, _anonymous_mib())}\n")


def _anonymous_mib() -> float:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        found = next(line for line in lines if line.startswith("RssAnon:"))
    return int(found.split()[1]) / 1024


if __name__ == "__main__":
    main()
