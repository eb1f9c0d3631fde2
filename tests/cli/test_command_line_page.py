"""The examples on the command line page run and print what the page shows.

The fenced blocks, in order, form one session in an empty directory: Python blocks are executed,
and so is every line after a `$`, whose output must match the page. `…` on the page matches any
text.
"""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Relive

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "operate" / "command-line.md"
FENCE = re.compile(r"^```(?P<info>python|console)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def lines_and_output(body: str) -> list[tuple[str, str]]:
    """Return the commands of a block, each with its expected output."""
    found: list[tuple[str, str]] = []
    for line in body.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line)
    return found


@pytest.mark.needs("av", "duckdb", "matplotlib", "minari")
def test_examples_on_the_page_run(
    relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIVE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path / "cache"))
    commands = 0
    for fence in FENCE.finditer(PAGE.read_text()):
        if fence["info"] == "python":
            exec(compile(fence["body"], str(PAGE), "exec"), {})  # noqa: S102 - our own page
            continue
        for line, output in lines_and_output(fence["body"]):
            program, *args = shlex.split(line)
            assert program == "relive"
            done = relive(*args)
            pattern = ".*".join(map(re.escape, output.split("…")))
            assert re.fullmatch(pattern, done.out + done.err), f"$ {line}\n{done.out}{done.err}"
            assert done.status == 0 or done.err, line
            commands += 1
    assert commands
