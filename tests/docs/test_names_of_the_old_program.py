"""What the guide says to write instead of the calls of the old program runs, row by row."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.test_snippets import ROOT, snippets

PAGE = ROOT / "docs" / "guide" / "migrate" / "from-json-databases.md"
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """Return the rows of the table of calls."""
    table = PAGE.read_text().partition("| the old program | relive |")[2].splitlines()[2:]
    return [line.strip("|").split(" | ") for line in table if line.startswith("|")]


def test_every_row_of_the_table_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"np": np}
    (setup,) = (each for each in snippets(PAGE.read_text()) if "replay_dir" in "".join(each.code))
    exec("\n".join(setup.code), names)  # noqa: S102 - our own page
    found = rows()
    assert len(found) > 25
    for old, new, *_ in found:
        calls = CODE.findall(new)
        assert calls, old
        for call in calls:
            try:
                exec(f"_ = {call}" if " = " not in call else call, names)  # noqa: S102
            except Exception as error:
                error.add_note(f"`{call}`, for {old}")
                raise
    # The last calls read what the first ones wrote.
    assert names["_"]["length"] == 1
    assert names["_"]["steps"][0]["frame"].shape == (32, 32, 3)
    assert len(names["reader"]) == 1
    names["store"].close()
