"""Does a fixed part of the life of a record store, and says what must survive; killed by its tests.

`python records_script.py ACT FOLDER`, with ACT one of `ACTS`: each goes on where the one before
it ended; with a third word N, behind the first N operations. `op K` says that K operations were
done since the store was made, `safe K` that they survive the end of the process, `synced K` that
they survive a power cut, `failed` that an error was raised as it should, and again by the next
call.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import relive
from tests.faults.records.programs.model import Model, Op, State, apply, create, fields, states

STORE: Final = "store"
# A step is an operation, or something that changes nothing that is seen.
Step = Op | str


def _append(*keys: int, version: int = 1) -> list[Step]:
    return [Op("append", keys=((key, version),)) for key in keys]


def _extend(first: int, count: int, version: int = 1) -> Op:
    return Op("extend", keys=tuple((first + place, version) for place in range(count)))


def _replace(row: int, key: int, version: int) -> Op:
    return Op("replace", (row,), ((key, version),))


def _change(row: int, field: str, key: int, version: int) -> Op:
    return Op("change", (row,), ((key, version),), field)


STEPS: Final[dict[str, list[Step]]] = {
    "write": [
        *_append(1, 2, 3),
        "flush",
        _extend(10, 20),
        _change(4, "image", 13, 2),
        "flush",
        "flush",
        _replace(2, 3, 2),
        Op("delete", (1,)),
        *_append(40),
        "sync",
        Op("delete", (0, 5, 9)),
        # More than a chunk holds, and enough for several threads.
        _extend(100, 60),
        _change(30, "blob", 900, 3),
        "flush",
        *_append(60, 61),
        _change(3, "points", 901, 4),
        "sync",
        "sync",
        _extend(200, 12),
        Op("delete", (20,)),
        "close",
    ],
    "reopen": [
        *_append(300, 301),
        Op("delete", (7, 8)),
        "flush",
        _replace(0, 302, 5),
        _extend(310, 30),
        "sync",
        _change(70, "label", 903, 2),
        _change(71, "key", 904, 2),
        "flush",
        Op("delete", (3,)),
        "close",
    ],
    "rebalance": [
        *_append(400),
        "rebalance",
        *_append(401, 402),
        Op("delete", (11, 12, 13)),
        "flush",
        _change(5, "cube", 905, 2),
        "rebalance",
        _extend(410, 5),
        "close",
    ],
    "fields": [
        *_append(500),
        Op("add", field="late_dense"),
        *_append(501, version=2),
        "flush",
        Op("delete", (2,)),
        "train",
        _extend(510, 25),
        "sync",
        Op("drop", field="label"),
        *_append(540),
        Op("add", field="late_text"),
        _change(9, "late_text", 541, 2),
        Op("drop", field="image"),
        "close",
    ],
}
ACTS: Final = tuple(STEPS)


def ops_of(*acts: str) -> list[Op]:
    """Give the operations of some acts."""
    return [step for act in acts for step in STEPS[act] if isinstance(step, Op)]


def before(act: str) -> tuple[str, ...]:
    """Give the acts that come before one."""
    return ACTS[: ACTS.index(act)]


def all_states() -> list[State]:
    """Give the states of the whole life, by the number of operations done."""
    return states(Model([*fields()]), ops_of(*ACTS))


def _again(act: str, done: int) -> list[Step]:
    """Give the steps of an act behind the first `done` operations, with other values."""
    left = done - len(ops_of(*before(act)))
    steps: list[Step] = []
    for step in STEPS[act]:
        if isinstance(step, Op):
            left -= 1
        if left < 0:
            steps.append(_shifted(step) if isinstance(step, Op) else step)
    return steps or ["close"]


def _shifted(op: Op) -> Op:
    # What is left out of a record stays so, and all journal records keep their lengths.
    return op._replace(keys=tuple((key + 6_000_000, version) for key, version in op.keys))


def states_again(act: str, done: int) -> list[State]:
    """Give the states of a life in which `act` was cut off behind `done` operations."""
    first = ops_of(*before(act), act)[:done]
    again = [step for step in _again(act, done) if isinstance(step, Op)]
    return states(Model([*fields()]), [*first, *again])


def main(act: str, folder: Path, there: int | None = None) -> None:
    """Do it; `there` are the operations that a store has of an act that was cut off."""
    done = len(ops_of(*before(act))) if there is None else there
    steps = STEPS[act] if there is None else _again(act, there)
    path = folder / STORE
    store = None
    at: list[str] = []
    try:
        store = (
            create(path) if act == "write" and there is None else relive.RecordStore.open(path, "a")
        )
        _do(store, steps, done, at)
    except relive.errors.StorageError:
        if store is not None:
            must_stick(store, at[-1])
        _say("failed")
    else:
        _say("done")


def _do(store: relive.RecordStore, steps: Iterable[Step], done: int, at: list[str]) -> None:
    _say("begin")
    for step in steps:
        at.append(step if isinstance(step, str) else step.what)
        if isinstance(step, Op):
            apply(store, step)
            done += 1
            _say(f"op {done}")
            continue
        if step == "train":
            store.train_dictionary("blob")
            continue
        getattr(store, step)()
        _say(f"safe {done}")
        if step in {"sync", "close", "rebalance"}:
            _say(f"synced {done}")


def must_stick(store: relive.RecordStore, at: str) -> None:
    """See that a store that failed says so again, whatever is asked of it."""
    for call in ("flush", "sync", "close"):
        try:
            getattr(store, call)()
        except (relive.errors.StorageError, relive.errors.ClosedError):
            continue
        # A copy that failed is not the store, and a failed close has let go of it.
        assert "close" in {call, at} or at == "rebalance", f"{call} does as if nothing had happened"


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
