"""`import relive` imports only the standard library, numpy and relive, and takes little time."""

import subprocess
import sys

# The limits leave room for a few more modules, not for another package.
MOST_MODULES = 170
MOST_TIME = 3.0
"""How long `import relive` may take after numpy, in times that of `import numpy`."""

NEW_MODULES = """
import numpy, sys
before = set(sys.modules)
import relive
print(*sorted(set(sys.modules) - before), sep="\\n")
"""

CPU_TIMES = """
import time
start = time.process_time()
import numpy
middle = time.process_time()
import relive
print(middle - start, time.process_time() - middle)
"""


def python(code: str) -> list[str]:
    """Return what a new interpreter prints, split at white space."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_only_the_standard_library_and_numpy_are_imported() -> None:
    # `__mp_main__` is multiprocessing's second name for the main script.
    allowed = sys.stdlib_module_names | {"numpy", "relive", "__mp_main__"}
    modules = python(NEW_MODULES)
    assert "relive" in modules
    assert not [name for name in modules if name.partition(".")[0] not in allowed]


def test_few_modules_are_imported() -> None:
    modules = python(NEW_MODULES)
    assert len(modules) <= MOST_MODULES, modules


def test_import_is_quick_compared_to_numpy() -> None:
    # The minimum CPU time of several runs, so that other processes do not matter.
    times = [tuple(map(float, python(CPU_TIMES))) for _ in range(5)]
    numpy, relive = (min(each) for each in zip(*times, strict=True))
    assert relive < MOST_TIME * numpy


def test_parts_are_imported_when_first_used() -> None:
    code = "import relive; print(relive.episodes.recover.__name__, relive.view.__name__)"
    assert python(code) == ["recover", "relive.view"]


def test_names_of_runs_are_imported_when_first_used() -> None:
    code = """
import sys
import relive
print("relive.replay" in sys.modules, "sqlite3" in sys.modules)
for name in ("FrameRef", "FrameResolver", "LiveLane", "ReplayRecorder", "ReplayRun"):
    print(getattr(relive, name) is getattr(relive.replay, name), name in relive.__all__)
print({"h5py", "gymnasium"} & set(sys.modules))
"""
    assert python(code) == ["False", "False", *["True"] * 10, "set()"]
