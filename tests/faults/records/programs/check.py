"""Whether a store that something happened to holds what it must, and can be gone on with."""

import re
from pathlib import Path

import relive
from tests.faults.records.programs.model import Op, State, apply, create, record, state_of


def said(lines: str, word: str, otherwise: int) -> int:
    """Give the last number that a script said behind a word."""
    found = re.findall(rf"^{word} (\d+)$", lines, re.MULTILINE)
    return max((int(number) for number in found), default=otherwise)


def survived(path: Path, states: list[State], least: int, most: int) -> int:
    """Give k such that the store is as after k operations, which must be from `least` to `most`.

    Opening it to read changes nothing.
    """
    files = _files(path)
    with relive.RecordStore.open(path) as store:
        found = state_of(store)
    assert _files(path) == files, "a reader changed something"
    fitting = [k for k in range(least, min(most, len(states) - 1) + 1) if states[k] == found]
    elsewhere = [k for k, state in enumerate(states) if state == found]
    assert fitting, f"no state of {least} to {most}; it is that of {elsewhere or 'none'}"
    return fitting[-1]


def _files(path: Path) -> dict[str, tuple[int, int]]:
    found = {each: each.stat() for each in path.rglob("*") if each.is_file()}
    return {str(each): (stat.st_size, stat.st_mtime_ns) for each, stat in found.items()}


def goes_on(path: Path, state: State, *, rebalances: bool = False) -> None:
    """See that a store in a known state can be opened, changed, closed and read.

    With `rebalances` it is rebalanced first, which goes on with a rebalance that was cut off.
    """
    extra = Op("append", keys=((777_777, 1),))
    with relive.RecordStore.open(path, "a") as store:
        if rebalances:
            store.rebalance()
        assert state_of(store) == state
        count = len(store)
        apply(store, extra)
        store.flush()
        assert store["key"][count] == 777_777
    with relive.RecordStore.open(path) as store:
        names, records = state_of(store)
        assert (names, records[:count], len(records)) == (state[0], state[1], count + 1)
        wanted = record(777_777, 1, names)
        assert store["key"][count] == 777_777
        assert [bool(store.missing(name, [count])[0]) for name in names] == [
            name not in wanted for name in names
        ]
        report = store.validate("full")
        assert report.ok, report


def can_be_made(path: Path) -> None:
    """See that a store whose making did not come to its end can be made after all."""
    with create(path) as store:
        apply(store, Op("append", keys=((1, 1),)))
    with relive.RecordStore.open(path) as store:
        assert len(store) == 1
