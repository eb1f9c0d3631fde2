"""A writer that is killed, or whose disk fails, at any system call leaves nothing broken.

The name is as it was, or has the whole pack; whatever was flushed is recovered. Every call that
changes a file is tried with `RELIVE_KILLS=all` (`make faults`), and else every few of them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import relive
from relive.store.pack import recover
from tests.faults.pack.programs.script import ENTRIES, PACK

pytestmark = pytest.mark.needs("strace")

SCRIPT = Path(__file__).with_name("programs") / "script.py"
OLD = b"what was there before"

KILLED = [
    *("write", "pwrite64", "writev", "pwritev", "copy_file_range", "sendfile"),
    *("ftruncate", "fallocate", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat"),
]
# What the script says, and removing what is no longer needed, does not count as the disk.
FAILED = [call for call in KILLED if call not in {"write", "unlink", "unlinkat"}]


# The background thread may make a call that the writer made when the calls were listed.
TRIES = 4

RECOVERED = {"recover": 4096, "recover-moved": 64}
ACTS = ["write", "replace", *RECOVERED]


class Call(NamedTuple):
    """One system call of the script: the how manieth of its name it is."""

    name: str
    number: int


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("act", ACTS)
def test_killed_at_any_call(act: str, tmp_path: Path) -> None:
    template = _template(act, tmp_path)
    calls = _calls(act, template, tmp_path / "all")
    assert len(calls) >= 10
    chosen = [calls[place] for place in _chosen(len(calls), every=6)]
    killed = 0
    for call in chosen:
        for _ in range(TRIES):
            folder = shutil.copytree(template, tmp_path / "killed")
            done = _trace(act, folder, f"inject={call.name}:signal=KILL:when={call.number}")
            assert done.returncode in {-9, 0}, (call, done)
            _check(folder, done.stdout, act)
            shutil.rmtree(folder)
            if done.returncode == -9:
                killed += 1
                break
    assert killed >= 0.8 * len(chosen)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("act", ACTS)
def test_disk_that_fails_at_any_call(act: str, tmp_path: Path) -> None:
    template = _template(act, tmp_path)
    calls = _calls(act, template, tmp_path / "all")
    disk = [call for call in calls if call.name in FAILED]
    assert len(disk) >= 5
    chosen = [disk[place] for place in _chosen(len(disk), every=8)]
    failed = 0
    for call in chosen:
        for _ in range(TRIES):
            folder = shutil.copytree(template, tmp_path / "failed")
            log = tmp_path / "failed.log"
            done = _trace(act, folder, f"inject={call.name}:error=ENOSPC:when={call.number}", log)
            assert done.returncode == 0, (call, done)
            happened = "(INJECTED)" in log.read_text()
            assert done.stdout.split()[-1] == ("failed" if happened else "done"), (call, done)
            _check(folder, done.stdout, act)
            shutil.rmtree(folder)
            if happened:
                failed += 1
                break
    assert failed >= 0.8 * len(chosen)


def _chosen(count: int, *, every: int) -> Iterator[int]:
    """Give the first, the last, and every so manieth of them, or all."""
    step = 1 if os.environ.get("RELIVE_KILLS") == "all" else every
    return iter(sorted({*range(0, count, step), count - 1}))


def _template(act: str, tmp_path: Path) -> Path:
    """Make the folder that the script begins with."""
    folder = tmp_path / "template"
    folder.mkdir()
    if act == "replace":
        (folder / PACK).write_bytes(OLD)
    elif act in RECOVERED:
        # Entries have to be moved where they are aligned so closely that the index has no room.
        writer = relive.PackWriter(folder / PACK, capacity=4, align=RECOVERED[act])
        for entry in ENTRIES:
            writer.append(entry.payload, entry.kind, name=entry.name, codec=entry.codec)
        writer.leave()
    return folder


def _calls(act: str, template: Path, folder: Path) -> list[Call]:
    """Let the script come to its end, and give the calls that it made in its own right."""
    shutil.copytree(template, folder)
    log = folder.with_suffix(".log")
    done = _trace(act, folder, "signal=none", log)
    assert done.returncode == 0, done
    _check(folder, done.stdout, act)
    assert [path.name for path in folder.iterdir()] == [PACK]
    seen: Counter[str] = Counter()
    calls = []
    begun = False
    lines = log.read_text().splitlines()
    writer = next(line for line in lines if r'"begin\n"' in line).split()[0]
    for line in lines:
        call = re.match(r"(\d+) +(\w+)\(", line)
        # A background thread may write too, at any time; strace counts its calls separately.
        if call is None or call[1] != writer:
            continue
        name = call[2]
        seen[name] += 1
        if begun:
            calls.append(Call(name, seen[name]))
        begun = begun or r'"begin\n"' in line
    return calls


def _trace(
    act: str, folder: Path, expression: str, log: Path | str = os.devnull
) -> subprocess.CompletedProcess[str]:
    known = ",".join(f"?{call}" for call in KILLED)
    command = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={known}"]
    return subprocess.run(
        [*command, "-e", expression, sys.executable, str(SCRIPT), act, str(folder)],
        capture_output=True,
        text=True,
        # No bytecode is written, so that every run makes the same calls.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _check(folder: Path, said: str, act: str) -> None:
    """See that nothing is broken and nothing lost of what the script said is safe."""
    path = folder / PACK
    safe = max((int(count) for count in re.findall(r"safe (\d+)", said)), default=0)
    if act in RECOVERED:
        safe = len(ENTRIES)
    is_old = path.exists() and path.read_bytes() == OLD
    if path.exists() and not is_old:
        assert _entries(path) == len(ENTRIES)
    else:
        assert "done" not in said
        assert is_old == (act == "replace")
    names = sorted(each.name for each in folder.iterdir())
    left = [name for name in names if re.fullmatch(r".*\.unfinished-[0-9a-f]{8}", name)]
    if left:
        output = folder / "recovered.a2pack"
        found = recover(folder / left[0], output)
        assert found.entries == _entries(output) >= safe
        assert len(left) == 1
        if found.entries == len(ENTRIES):
            assert (found.lost, found.rest) == (0, None), found
    else:
        assert safe == 0 or _entries(path) == len(ENTRIES)
    # What may stay is a journal to nothing, and bytes of an entry without a journal record.
    rest = {each.name for each in folder.iterdir()} - {PACK, "recovered.a2pack"}
    assert all(name.endswith((".journal", ".rest")) for name in rest), rest


def _entries(path: Path) -> int:
    """Count the entries of a pack, which must be whole and the first ones written."""
    with relive.PackReader.open(path) as reader:
        assert reader.validate("full").ok
        for position, wanted in enumerate(ENTRIES[: len(reader)]):
            assert bytes(reader.payload(position)) == wanted.payload
            assert reader.kind(position) == wanted.kind
            assert reader.name(position) == wanted.name
        return len(reader)
