"""The one runner: `python -m benches [NAMES] [FLAGS]`; `--help` lists both."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

from benches.options import parse
from benches.plot import write_plot
from benches.report import note, show, write_json


def main() -> None:
    """Run what was asked for; print each report, and leave it as JSON and as a plot."""
    options = parse()
    # Servers and children end with the bench, also when it is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path("build/bench")
    for name in options.names:
        report = importlib.import_module(f"benches.{name}").run(options)
        written = options.json or folder / f"{name}.json"
        write_json(report, written)
        if options.limited:
            continue
        write_plot(report, options.plot or written.with_suffix(".png"))
        note(f"written: {written}")
        show(report)


if __name__ == "__main__":
    main()
