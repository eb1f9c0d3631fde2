"""Plots of episodes: their content, and every kind of signal."""

import re
import subprocess
import sys
import tracemalloc
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    TooLargeError,
    UnknownNameError,
    UnsupportedError,
)
from relive.model.clock import INT64_MAX, INT64_MIN
from relive.model.episode import EpisodeView
from relive.model.signal import ArraySignal
from relive.view import draw_svg, plot
from relive.view.page import draw_page
from relive.view.panels import Panel, make_panels
from tests.view.samples import START, episode, everything, frames, signal, times

FIRST_BYTES = {".png": b"\x89PNG", ".html": b"<!doctype html>"}


def panel(drawn: ArraySignal, **others: ArraySignal) -> Panel:
    """Return the panel of one signal of an episode."""
    _, panels = make_panels(episode({"x": drawn, **others}))
    return next(each for each in panels if each.name == "x")


@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_all_signal_kinds_are_drawn(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"all{suffix}"
    plot(everything(), target)
    assert target.read_bytes().startswith(FIRST_BYTES[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("suffix", [".png", ".html"])
@pytest.mark.parametrize(
    "drawn",
    [
        {},
        {"x": signal(np.zeros((0, 3)))},
        {"x": signal([1.0])},
        {"x": signal(frames(1), kind="image")},
        {"x": ArraySignal([1.0, 2.0, 3.0], [INT64_MIN, 0, INT64_MAX])},
        {"x": ArraySignal([1.0, 2.0], [INT64_MAX - 1, INT64_MAX])},
        {f"signal {k}": signal(np.arange(30.0) * k) for k in range(50)},
    ],
    ids=["nothing", "no records", "one record", "one frame", "all of time", "a tick", "fifty"],
)
def test_unusual_episodes_are_drawn(
    tmp_path: Path, suffix: str, drawn: dict[str, ArraySignal]
) -> None:
    plot(episode(drawn), tmp_path / f"x{suffix}")


def test_svg_is_well_formed_and_self_contained() -> None:
    drawing = draw_svg(everything())
    root = ET.fromstring(drawing)  # noqa: S314 - our own
    assert root.tag == "svg"
    assert "http" not in drawing
    assert not re.search(r'(?:href|src)="(?!data:)', drawing)
    assert "<lift>" not in drawing
    assert "&lt;lift&gt; &amp; ·[31m" in drawing


class Tags(HTMLParser):
    """Collects the tags of a page, and the URLs it loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.loads += [value for name, value in attrs if name in {"href", "src"} and value]


def test_page_is_self_contained() -> None:
    page = draw_page(everything())
    tags = Tags(page)
    assert all(each.startswith("data:image/") for each in tags.loads)
    assert not {"link", "iframe", "img"} & set(tags.opened)
    assert "pick the &lt;red&gt; cube" in page
    assert "2 bytes" in page
    assert "interrupted" in page


def test_panels_describe_the_signals() -> None:
    _, panels = make_panels(everything())
    assert [each.name for each in panels[:4]] == ["cam.wrist", "cam.stops", "cam.tiny", "cam.wide"]
    by_name = {each.name: each for each in panels}
    assert by_name["q"].facts == ("7 float32", "2,000 records", "in rad", "200 Hz")
    assert by_name["q"].legend
    assert [curve.label for curve in by_name["q"].curves] == [f"joint {k}" for k in range(7)]
    assert by_name["torque"].facts[-1] == "1 gap"
    assert by_name["force"].facts[-1] == "51 not finite"
    assert by_name["none"].facts == ("3 float64", "0 records")
    assert [curve.label for curve in by_name["matrix"].curves][:2] == ["0,0", "0,1"]
    assert not by_name["matrix"].legend
    assert [curve.label for curve in by_name["lidar"].curves] == ["lowest", "mean", "highest"]


def test_gap_is_shown_and_interrupts_the_line() -> None:
    kept = np.r_[0:40, 60:100]
    found = panel(ArraySignal(np.ones(80), times(100, 10)[kept]))
    (gap,) = found.gaps
    assert gap == pytest.approx((39 / 99, 60 / 99))
    heights = found.curves[0].y
    assert np.isnan(heights).sum() == 1
    assert np.isnan(heights[40])


def test_signal_that_ends_early_has_a_gap_at_the_end() -> None:
    found = panel(signal(np.arange(50)), long=signal(np.zeros(100)))
    (gap,) = found.gaps
    assert gap == pytest.approx((49 / 99, 1.0))
    assert found.curves[0].x.max() == pytest.approx(49 / 99)


def test_boolean_signal_is_a_bar_where_true() -> None:
    (track,) = panel(signal([False, True, True, False, True, False])).tracks
    ends = [end for bar in track.bars for end in (bar.start, bar.end)]
    assert ends == pytest.approx([0.2, 0.6, 0.8, 1.0])
    flags = np.zeros(12_000, np.bool_)
    flags[6000:9000] = True
    flags[3000] = True
    (track,) = panel(signal(flags, 1000)).tracks
    brief, long = track.bars
    assert brief.shade == 0.5
    assert brief.start == pytest.approx(0.25, abs=0.001)
    assert brief.end - brief.start < 0.001
    assert long.shade == 1
    assert (long.start, long.end) == pytest.approx((0.5, 0.75), abs=1e-3)


def test_text_is_a_bar_until_the_next_value() -> None:
    values = np.array(["a", "a", "b", "a"], object)
    found = panel(ArraySignal(values, START + np.array([0, 1, 2, 3]) * 10**9))
    (track,) = found.tracks
    assert [bar.label for bar in track.bars] == ["a", "b", "a"]
    assert [bar.colour for bar in track.bars] == [0, 1, 0]
    assert [bar.start for bar in track.bars] == pytest.approx([0, 2 / 3, 1])
    assert len(track.marks) == 4
    many = np.array([f"line {k // 5000}" for k in range(20_000)], object)
    (track,) = panel(signal(many, 1000)).tracks
    assert [bar.label for bar in track.bars] == ["line 0", "line 1", "line 2", "line 3"]
    assert not track.marks


def test_thumbnails_are_at_the_times_of_their_frames() -> None:
    found = panel(signal(frames(100), kind="image"), long=signal(np.zeros(200)))
    assert found.slots == 8
    assert [thumbnail.slot for thumbnail in found.thumbnails] == [0, 1, 2, 3]
    for thumbnail in found.thumbnails:
        assert thumbnail.x == pytest.approx((thumbnail.slot + 0.5) / 8, abs=0.01)
        row = round((thumbnail.ts_ns - START) / 1e8)
        assert thumbnail.image[0, 0].tolist() == [int(np.linspace(0, 250, 100)[row])] * 3


def test_depth_panels_name_the_range() -> None:
    depths = np.linspace(300, 1200, 30).astype(np.uint16)
    found = panel(signal(np.broadcast_to(depths[:, None, None], (30, 48, 64)).copy()))
    assert found.thumbnails
    assert re.fullmatch(r"black 3\d\d, white 11\d\d", found.facts[-1])


def test_samples_are_drawn_in_order_of_time() -> None:
    drawn = signal([0.0, 1, 2, 3, 4])
    sampled = drawn.time.sample(drawn.timestamps[[4, 0, 2]])
    _, (found,) = make_panels(EpisodeView({"x": sampled}))
    assert found.curves[0].y[::2].tolist() == [0, 2, 4]


def test_rare_values_hold_until_the_next() -> None:
    rare = ArraySignal([1.0, 5.0], START + np.array([0, 4]) * 10**9)
    found = panel(rare, long=signal(np.zeros(101)))
    assert found.curves[0].x.tolist() == pytest.approx([0, 0.4, 0.4, 1])
    assert found.curves[0].y.tolist() == [1, 1, 5, 5]
    assert found.gaps == ()
    often = panel(signal(np.arange(50.0)))
    assert len(often.curves[0].y) == 50


def test_memory_does_not_grow_with_the_number_of_records() -> None:
    class Long(ArraySignal):
        """Zeros that are created when read."""

        def __init__(self, count: int) -> None:
            super().__init__(np.zeros(1), [0])
            self._stamps = np.arange(count, dtype=np.int64)

        @property
        def shape(self) -> tuple[int, ...]:
            return (30,)

        def values_at(self, rows: Any, out: Any = None) -> Any:
            return np.zeros((len(rows), 30))

    drawn = episode({"x": Long(2_000_000)})
    tracemalloc.start()
    make_panels(drawn)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 250 << 20  # the records are 480 MB


def test_selected_signals_keep_the_requested_order() -> None:
    _, panels = make_panels(everything(), ["q", "cam.wrist", "q"])
    assert [each.name for each in panels] == ["q", "cam.wrist"]
    with pytest.raises(UnknownNameError, match="unknown signal 'qq'"):
        make_panels(everything(), ["qq"])


def test_file_is_written_atomically(tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    target.write_text("mine")
    drawn = episode({"x": signal([1.0, 2.0])})
    with pytest.raises(AlreadyExistsError):
        plot(drawn, target)
    with pytest.raises(UnknownNameError):
        plot(drawn, target, signals=["y"], overwrite=True)
    assert target.read_text() == "mine"
    plot(drawn, target, overwrite=True)
    assert target.read_text() != "mine"
    with pytest.raises(UnsupportedError, match=r"must be \.png or \.html, got '\.pdf'"):
        plot(drawn, tmp_path / "x.pdf")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InvalidError, match="folder"):
        plot(drawn, tmp_path / "folder.png")
    (tmp_path / "folder.png").rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_too_many_signals_for_an_image_raise(tmp_path: Path) -> None:
    drawn = episode({f"{k}": signal([1.0]) for k in range(600)})
    with pytest.raises(TooLargeError, match="600 signals") as raised:
        plot(drawn, tmp_path / "x.png")
    assert "HTML" in str(raised.value.hint)
    plot(drawn, tmp_path / "x.html")


def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from relive.view import plot\n"
        "from tests.view.samples import episode, signal\n"
        "try:\n"
        "    plot(episode({'x': signal([1.0])}), sys.argv[1])\n"
        "except ImportError as error:\n"
        "    print(error.hint)\n"
    )
    root = Path(__file__).resolve().parent.parent.parent
    line = [sys.executable, "-c", program, str(tmp_path / "x.png")]
    done = subprocess.run(line, capture_output=True, text=True, cwd=root)
    assert (done.stdout, done.stderr) == ("pip install 'relive[plot]'\n", "")
    assert not list(tmp_path.iterdir())
