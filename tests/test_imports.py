"""`import relive` is light: the standard library, numpy and relive itself, and quick."""

import re
import subprocess
import sys

LIMIT_MS = 150

NEW_MODULES = """
import sys
before = set(sys.modules)
import relive
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def import_ms() -> float:
    """How long `import relive` takes where numpy is imported already."""
    # Lines are `import time: self [us] | cumulative | name`; what is imported by another
    # module is indented, so this finds the statement itself.
    lines = python("-X", "importtime", "-c", "import numpy\nimport relive").stderr
    found = re.search(r"^import time: +\d+ \| +(\d+) \| relive$", lines, re.MULTILINE)
    assert found, lines
    return int(found[1]) / 1000


def test_only_the_standard_library_and_numpy_come_along() -> None:
    # `__mp_main__` is multiprocessing's second name for the main script.
    allowed = sys.stdlib_module_names | {"numpy", "relive", "__mp_main__"}
    modules = python("-c", NEW_MODULES).stdout.split()
    assert "relive" in modules
    assert not [name for name in modules if name.partition(".")[0] not in allowed]


def test_importing_takes_little_beyond_numpy() -> None:
    assert min(import_ms() for _ in range(5)) < LIMIT_MS
