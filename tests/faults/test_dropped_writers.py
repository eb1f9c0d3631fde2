"""Writers that are dropped without `close()`: everything that was appended is on the disk.

`RELIVE_DROPPED` says how many writers of each kind are dropped in a local variable, in a thread
and in a cycle (`make faults`: 100). A failure prints the seed, and `RELIVE_SEED` begins with it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relive
from relive.errors import NotFoundError, ReliveError
from relive.publish import validate
from tests.contracts.writer_contract import WRITERS
from tests.faults.dropping import DATASET, DROPS, EXIT_CODE, PUBLISHING

DROPPED = int(os.environ.get("RELIVE_DROPPED", "1"))
SEED = int(os.environ.get("RELIVE_SEED", "1"))
ROOT = Path(__file__).parents[2]
OF_A_KIND = 4
"""As many writers of each kind are dropped by one program."""


@pytest.mark.parametrize("where", DROPS)
def test_what_was_appended_is_there(
    where: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    checked: Counter[str] = Counter()
    items = 0
    for number, first in enumerate(range(0, DROPPED, OF_A_KIND)):
        folder = tmp_path / str(number)
        count = min(OF_A_KIND, DROPPED - first)
        for line in dropped(where, folder, SEED + number, count):
            check(line["kind"], Path(line["path"]), line["count"])
            checked[line["kind"]] += 1
            items += line["count"]
        shutil.rmtree(folder)
    assert min(checked[name] for name in (*WRITERS, PUBLISHING)) >= DROPPED
    record_property("figure", f"dropped in a {where}: {dict(checked)}, {items} items, none lost")


def dropped(where: str, folder: Path, seed: int, count: int) -> list[dict[str, Any]]:
    """Run a program that drops writers; return what it appended to each."""
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    program = [sys.executable, "-W", "always::ResourceWarning", "-m", "tests.faults.dropping"]
    done = subprocess.run(
        [*program, where, folder, str(seed), str(count)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in {0, 1, EXIT_CODE}, (seed, done)
    assert "Exception ignored" not in done.stderr, (seed, done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == count * (len(WRITERS) + 1) + 1, (seed, done)
    warned = done.stderr.count("was not closed; use `with`, or call close()")
    assert warned == len(lines) - count, (seed, done.stderr)
    assert done.stderr.count("but not published") == count, (seed, done.stderr)
    assert list(temporary.iterdir()) == [], seed
    return lines


def check(name: str, path: Path, count: int) -> None:
    """Check that exactly the first items are there, unfinished where that is so."""
    if name == PUBLISHING:
        check_published(path, count)
        return
    kind = WRITERS[name]
    if kind.on_error == "unfinished":
        with pytest.raises(ReliveError):
            kind.read(path)
        kind.recover(path)
    assert kind.read(path) == list(range(count)), path


def check_published(path: Path, count: int) -> None:
    """Check that the root has the tables that were published, and no others."""
    if not count:
        with pytest.raises(NotFoundError):
            relive.dataset(DATASET, root=path)
        return
    assert validate(DATASET, "full", root=path).ok, path
    found = relive.dataset(DATASET, root=path).tables
    assert sorted(found) == [f"t{number}" for number in range(count)], path
