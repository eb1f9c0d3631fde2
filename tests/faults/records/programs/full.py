"""Fills the disk under a record store, and sees that the store says so and loses nothing.

`python records_full.py HOW ACT STORE ROOM`: with HOW `mount` a store is copied to a small disk in
memory that has so many bytes left, which takes the right to mount one; with `limit` no file may be
longer than that. Then ACT is done over and over until it is refused. The store has done the act
`write` of `records_script` before.
"""

import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import relive
from relive.errors import StorageError
from tests.faults.records.programs.check import goes_on, survived
from tests.faults.records.programs.model import Model, Op, apply, fields, states
from tests.faults.records.programs.script import must_stick, ops_of

ACTS: Final = ("append", "extend", "flush", "sync", "close", "rebalance", "add")
MOST: Final = 20_000


class Life:
    """What is done to the store, and what of it must be there."""

    def __init__(self, act: str) -> None:
        self.act = act
        self.ops = ops_of("write")
        self.safe = len(self.ops)
        self.at = "open"

    def go(self, path: Path) -> None:
        """Write until it is refused."""
        store = relive.RecordStore.open(path, "a")
        try:
            for number in range(MOST):
                self._op(store, number)
                if self.act in {"append", "extend", "add"}:
                    continue
                self.at = self.act
                getattr(store, self.act)()
                self.safe = len(self.ops)
                if self.act == "close":
                    self.at = "open"
                    store = relive.RecordStore.open(path, "a")
        except StorageError:
            must_stick(store, self.at)
            return
        raise AssertionError("it was never full")

    def _op(self, store: relive.RecordStore, number: int) -> None:
        count = 30 if self.act == "extend" else 1
        keys = tuple((5000 + number * count + each, 1) for each in range(count))
        op = Op("extend" if count > 1 else "append", keys=keys)
        if self.act == "add" and number % 2:
            late = "late_dense"
            # Fields come and go; a value for each record is written.
            op = Op("drop", field=late) if late in store.fields else Op("add", field=late)
        self.at = op.what
        self.ops.append(op)
        apply(store, op)


def main(how: str, act: str, store: Path, room: int) -> None:
    """Do it; says where the disk was full."""
    ballast = None
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how == "mount":
        folder = store.with_name("disk")
        folder.mkdir()
        tmpfs = ["mount", "-t", "tmpfs", "-o", f"size={64 << 20}", "none", str(folder)]
        subprocess.run(tmpfs, check=True)
        store = shutil.copytree(store, folder / "store")
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(folder).free - room))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))
    life = Life(act)
    life.go(store)
    wanted = states(Model([*fields()]), life.ops)
    # It can be read while the disk is full, and written when there is room again.
    found = survived(store, wanted, life.safe, len(life.ops))
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    if ballast is not None:
        ballast.unlink()
    goes_on(store, wanted[found])
    sys.stdout.write(f"{life.at} {len(life.ops) - life.safe}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
