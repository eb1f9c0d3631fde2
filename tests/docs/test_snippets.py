"""Every Python snippet of README.md and the guide runs.

The fenced blocks of a page, in order, form one script, which runs in an empty directory with
warnings as errors. A block that must not run is marked, with the reason:

    ```python no-run
    # reason: talks to a robot

A page whose snippets need an optional package contains `<!-- needs: torch -->`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import torchrl_python

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "docs" / "index.md", *ROOT.glob("docs/guide/**/*.md"))
    if path.exists()
)
FENCE = re.compile(r"^(?P<indent>[ \t]*)```(?P<info>.*)$")
NEEDS = re.compile(r"<!--\s*needs:\s*([\w\s,]+?)\s*-->")


@dataclass(frozen=True)
class Snippet:
    """The code of one fenced block; `line` is the number of its first line in the page, from 1."""

    info: str
    line: int
    code: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether the block is executed."""
        return self.info == "python"


def snippets(text: str) -> list[Snippet]:
    """Return the Python blocks of a page, including indented ones."""
    found, lines = [], iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            continue
        indent, info = opening["indent"], opening["info"].strip()
        code = []
        for _, inner in lines:
            if inner.strip() == "```":
                break
            code.append(inner.removeprefix(indent))
        if re.match(r"py", info):
            found.append(Snippet(info, number + 1, tuple(code)))
    return found


def script(page: list[Snippet]) -> str:
    """Return one script of the snippets that run, each at its line numbers in the page."""
    lines: list[str] = []
    for snippet in page:
        if snippet.runs:
            lines += [""] * (snippet.line - 1 - len(lines))
            lines += snippet.code
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(
    path: Path,
    tmp_path: Path,
    needs: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    text = path.read_text()
    page = snippets(text)
    for snippet in page:
        explained = bool(snippet.code) and snippet.code[0].startswith("# reason: ")
        where = f"{path.relative_to(ROOT)}:{snippet.line}"
        assert snippet.runs or snippet.info == "python no-run", f"{where}: `{snippet.info}`"
        assert snippet.runs or explained, f"{where}: a fence that does not run says `# reason: ...`"
    resting = sum(not snippet.runs for snippet in page)
    if resting:
        record_property("note", f"{resting} not run in {path.name}")
    asked = [thing for found in NEEDS.findall(text) for thing in re.split(r"[\s,]+", found)]
    needs(*asked)
    python = torchrl_python() if "torchrl" in asked else sys.executable
    assert python is not None
    code = tmp_path / "page.py"
    code.write_text(script(page))
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [python, "-W", "error", code],
        cwd=work,
        env=os.environ
        | {"RELIVE_ROOT": str(tmp_path / "root"), "RELIVE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    # The line numbers in the traceback are those of the page.
    assert done.returncode == 0, f"{path.relative_to(ROOT)}\n{done.stdout}\n{done.stderr}"


def test_pages_exist() -> None:
    assert PAGES


def test_snippet_keeps_its_line_number_and_loses_its_indent() -> None:
    note = "# Page\n\n!!! note\n    ```python\n    a = 1\n    ```\n"
    first, second = snippets(f"{note}\n```python no-run\n# reason: a robot\n```\n")
    assert (first.line, first.code, first.runs) == (5, ("a = 1",), True)
    assert not second.runs
    assert script([first, second]).splitlines() == ["", "", "", "", "a = 1"]
