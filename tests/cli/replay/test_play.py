"""`relive replay play`: in a terminal, as a video, and live."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relive.cli import main
from relive.errors import InvalidError, UnsupportedError
from relive.replay.live import LiveLane
from relive.replay.play import UPPER_HALF, Screen, draw, live_pictures, play
from tests.cli.conftest import Relive
from tests.replay.toy_run import record


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Return a function that makes stdout a terminal of 80 by 24 characters."""
    return lambda: make_terminal(monkeypatch)


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stdout a terminal of 80 by 24 characters, and return it."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


def lines_of(screen: str) -> list[str]:
    """Return the lines of a screen without their colors."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    return plain.split("\r\n")


def test_frames_are_shown_with_a_line_about_the_step(
    root: Path, as_terminal: Callable[[], Terminal]
) -> None:
    terminal = as_terminal()
    status = main(["replay", "play", str(root), "toy-1", "--episode", "0", "--fps", "1000"])
    assert status == 0
    begin, *screens, last = terminal.getvalue().split("\x1b[H")
    assert begin.endswith("\x1b[2J")
    shown = [lines_of(screen)[-1] for screen in (*screens, last.partition("\x1b[J")[0])]
    assert shown == [
        "episode 0  step 0  reward 0  return 0  action 0",
        "episode 0  step 2  reward 1  return 1.5  action 2",
        "episode 0  step 3  reward 1.5  return 3  action 3",
        "episode 0  step 5  reward 2.5  return 5.5  action 1",
        "episode 0  step 6  reward 3  return 8.5  action 2",
    ]
    picture = lines_of(screens[0])[:-1]
    assert len(picture) == 18  # 12 rows of pixels, three times enlarged, two per character
    assert {len(line) for line in picture} == {48}
    assert "\x1b[38;2;255;0;0m" in screens[0]
    assert last.endswith("\x1b[0m\x1b[?25h\x1b[?1049ltoy-1: 5 frames\n")


def test_all_episodes_are_shown_by_default(root: Path, as_terminal: Callable[[], Terminal]) -> None:
    terminal = as_terminal()
    assert main(["replay", "play", str(root), "toy-1", "--fps", "1000"]) == 0
    assert terminal.getvalue().endswith("toy-1: 14 frames\n")


def test_output_that_is_not_a_terminal(relive: Relive, root: Path) -> None:
    done = relive("replay", "play", root, "toy-1")
    assert (done.status, done.out) == (1, "")
    assert "only in a terminal" in done.err
    assert "--output" in done.err


def test_terminal_without_the_character_or_colors(
    root: Path, as_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = as_terminal()
    terminal.encoding = "ascii"
    assert main(["replay", "play", str(root), "toy-1"]) == 1
    terminal.encoding = "utf-8"
    monkeypatch.setenv("TERM", "dumb")
    assert main(["replay", "play", str(root), "toy-1"]) == 1
    assert terminal.getvalue() == ""


@pytest.mark.needs("av")
def test_video(relive: Relive, root: Path, tmp_path: Path) -> None:
    import av

    out = tmp_path / "toy.mp4"
    args = ("replay", "play", root, "toy-1", "--output", out)
    done = relive(*args, "--episode", -1, "--json")
    assert (done.status, done.json["frames"]) == (0, 5)
    with av.open(str(out)) as movie:
        stream = movie.streams.video[0]
        assert (stream.width, stream.height) == (160, 32)  # with the HUD below, made even
    done = relive(*args)
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert relive(*args, "--overwrite").out.startswith(f"{out}: 14 frames, ")


@pytest.mark.parametrize(
    "more",
    [
        ["--json"],
        ["--overwrite"],
        ["--live", "--output", "x.mp4"],
        ["--live", "--episode", "0"],
        ["--live", "--field", "frames"],
        ["--fps", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage(relive: Relive, root: Path, more: list[str]) -> None:
    done = relive("replay", "play", root, "toy-1", *more)
    assert (done.status, done.out) == (2, "")


def test_large_pictures_are_averaged_and_keep_their_shape() -> None:
    picture = np.zeros((40, 30, 3), np.uint8)
    picture[:, ::2] = 200
    lines = draw(picture, 15, 99)
    assert len(lines) == 10
    assert all(line.count(UPPER_HALF) == 15 for line in lines)
    assert lines[0].startswith("\x1b[38;2;100;100;100m\x1b[48;2;100;100;100m")
    assert lines[0].count("\x1b[38") == 1  # a color is sent only when it changes
    assert len(draw(picture, 99, 5)) == 5
    assert len(draw(np.ones((3, 1, 3), np.uint8), 1, 1)) == 1  # smaller than one pixel wide
    odd = draw(np.full((3, 2, 3), 7, np.uint8), 2, 2)
    assert odd[1].startswith("\x1b[38;2;7;7;7m\x1b[48;2;0;0;0m")


def test_text_is_cut_and_cannot_send_codes(as_terminal: Callable[[], Terminal]) -> None:
    terminal = as_terminal()
    with Screen(terminal, lambda: (6, 3)) as screen:
        screen.show(np.zeros((4, 4, 3), np.uint8), "ab\x1b[2Jcdefgh")
    assert "\r\nab?[2J\x1b[K" in terminal.getvalue()


def test_rate_must_be_positive(as_terminal: Callable[[], Terminal]) -> None:
    terminal = as_terminal()
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidError, match="fps"):
            play([], rate, stream=terminal, keys=io.StringIO())


def test_rate_is_kept(as_terminal: Callable[[], Terminal]) -> None:
    terminal = as_terminal()
    picture = np.zeros((2, 2, 3), np.uint8)
    began = time.monotonic()
    assert play([(picture, "")] * 5, 50.0, stream=terminal, keys=io.StringIO()) == 5
    assert time.monotonic() - began >= 0.1


def in_terminal(send: bytes | signal.Signals, *args: object) -> tuple[int, bytes]:
    """Run a command in a real terminal; send it a key or a signal when it shows a frame."""
    parent, child = pty.openpty()
    # Background processes ignore SIGINT, and the command would inherit that.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from relive.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=child,
        stdout=child,
        stderr=child,
        env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    )
    os.close(child)
    out = b""
    is_sent = False
    try:
        while select.select([parent], [], [], 60)[0]:
            try:
                out += os.read(parent, 1 << 16)
            except OSError:
                break  # the command has ended
            if b"step 0" in out and not is_sent:
                is_sent = True
                if isinstance(send, bytes):
                    os.write(parent, send)
                else:
                    process.send_signal(send)
        return process.wait(10), out
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_keys_pause_and_end_it(root: Path) -> None:
    status, out = in_terminal(b" q", "replay", "play", root, "toy-1", "--fps", 0.1)
    assert (status, out[-16:]) == (0, b"toy-1: 1 frame\r\n")
    assert out.count(b"step") == 1


def test_interrupt_restores_the_terminal(root: Path) -> None:
    status, out = in_terminal(signal.SIGINT, "replay", "play", root, "toy-1", "--fps", 0.1)
    assert status == 130
    assert out.endswith(b"\x1b[0m\x1b[?25h\x1b[?1049l")


@pytest.fixture
def lane_name() -> str:
    """Return a name that no other test uses."""
    return f"test.{uuid.uuid4().hex}"


def test_live_frames_are_shown_until_the_writer_ends(lane_name: str) -> None:
    lane = LiveLane.create(lane_name, (4, 4))
    shown = live_pictures(lane_name)
    assert next(shown) is None
    about = {"loss": 0.25, "reward": 0.5, "rolling_return": 7.5, "step": 3, "episode": 2}
    lane.publish(np.full((4, 4), 7, np.uint8), **about)
    found = next(shown)
    assert found is not None
    picture, line = found
    assert (picture.shape, picture[0, 0].tolist()) == ((4, 4, 3), [7, 7, 7])
    # As below a recorded frame; then what else is known, and the rate.
    assert line == "frame 0  episode 2  step 3  reward 0.5  return 7.5  loss 0.25  steps/s 0"
    assert next(shown) is None
    lane.publish(np.full((4, 4), 8, np.uint8), reward=float("nan"))
    lane.close()
    last = next(shown)
    assert last is not None
    assert last[0][0, 0, 0] == 8
    assert last[1].startswith("frame 1  reward -  steps/s ")
    assert list(shown) == []


def test_live_frames_that_are_not_pictures(lane_name: str) -> None:
    with LiveLane.create(lane_name, (4,), "float64") as lane:
        lane.publish(np.zeros(4))
        with pytest.raises(UnsupportedError, match="its shape is"):
            next(live_pictures(lane_name))


def test_live_run_is_shown_before_its_first_commit(
    tmp_path: Path, as_terminal: Callable[[], Terminal], lane_name: str
) -> None:
    terminal = as_terminal()
    program = (
        "import sys, time\n"
        "import numpy as np\n"
        "from relive.replay import LiveLane\n"
        "with LiveLane.create(sys.argv[1], (4, 4, 3)) as lane:\n"
        "    lane.publish(np.full((4, 4, 3), 9, np.uint8), reward=1.0)\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    time.sleep(0.3)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, lane_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert main(["replay", "play", str(tmp_path), lane_name, "--live"]) == 0
    writer.communicate(timeout=30)
    assert "frame 0  reward 1" in terminal.getvalue()
    assert terminal.getvalue().endswith(f"{lane_name}: 1 frame\n")


def test_run_that_is_not_live(root: Path, as_terminal: Callable[[], Terminal]) -> None:
    terminal = as_terminal()
    record(root, "short", 1)
    for run_id in ("toy-1", "short", "unknown"):
        assert main(["replay", "play", str(root), run_id, "--live"]) == 1
    assert main(["replay", "play", str(root), "--live"]) == 1
    assert terminal.getvalue().count("frame") == 0


def test_no_picture_is_shown_of_a_run_without_frames(
    root: Path, as_terminal: Callable[[], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    as_terminal()
    assert main(["replay", "play", str(root), "toy-1", "--field", "observations.pose"]) == 1
    assert "cannot be shown as pictures" in capsys.readouterr().err
