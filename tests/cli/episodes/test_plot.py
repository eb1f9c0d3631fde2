"""`relive episodes plot`."""

import re
from pathlib import Path

import pytest

from relive.episodes.read.local_dataset import LocalDataset
from tests.cli.conftest import Relive
from tests.cli.recordings import MS, START, record, uids

pytestmark = pytest.mark.needs("av", "matplotlib")


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    """Return a dataset of one episode."""
    return record(tmp_path / "kitchen", 1)


def test_page_and_image(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    page, image = tmp_path / "x.html", tmp_path / "x.png"
    done = relive("episodes", "plot", kitchen, 0, "-o", page)
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(rf"{page}: 4 signals, \d+\.\d KiB\n", done.out)
    text = page.read_text()
    assert uids(kitchen)[0] in text
    assert text.count("<image ") == 5  # one per frame
    assert "shoulder" in text
    found = relive("episodes", "plot", kitchen, 0, "--output", image, "--json").json
    assert found == {"path": str(image), "signals": 4, "file_bytes": image.stat().st_size}
    assert image.read_bytes().startswith(b"\x89PNG")


def test_selected_signals_and_times(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    args = ["episodes", "plot", kitchen, 0, "-o", page, "--signals", "q"]
    done = relive(*args, "--from", "+0.1s", "--to", START + 200 * MS)
    assert done.status == 0, done.err
    assert "1 signal," in done.out
    text = page.read_text()
    assert "10 records" in text
    assert "<image" not in text


def test_edits_are_applied_unless_raw(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    LocalDataset(kitchen).edits.trim(uids(kitchen)[0], START + 100 * MS)
    for args, records in (([], "30 records"), (["--raw"], "40 records")):
        page = tmp_path / "x.html"
        assert relive("episodes", "plot", kitchen, 0, "-o", page, "--overwrite", *args).status == 0
        assert records in page.read_text()


def test_plot_errors(relive: Relive, kitchen: Path, tmp_path: Path) -> None:
    page = tmp_path / "x.html"
    page.write_text("mine")
    done = relive("episodes", "plot", kitchen, 0, "-o", page)
    assert done.status == 1
    assert done.err.splitlines()[1] == "hint: pass --overwrite to replace it"
    assert page.read_text() == "mine"
    done = relive("episodes", "plot", kitchen, 0, "-o", tmp_path / "x.gif")
    assert done.status == 1
    assert "the suffix must be .png or .html, got '.gif'" in done.err
    done = relive("episodes", "plot", kitchen, 0, "-o", tmp_path / "y.png", "--signals", "qq")
    assert done.status == 1
    assert "unknown signal 'qq'" in done.err
    assert relive("episodes", "plot", kitchen, 0).status == 2
    assert relive("episodes", "plot", kitchen, 0, "-o", "x.png", "--from", "soon").status == 2
