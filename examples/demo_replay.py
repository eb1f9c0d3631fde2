"""The demo's chapter on runs: two players of an Atari game, recorded, watched live and compared."""

import contextlib
import multiprocessing
import sqlite3
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np

import relive
from examples.demo_report import Report, curves, pictures
from relive.errors import NotFoundError
from relive.replay import FrameResolver, LiveLane, TelemetryStore, validate
from relive.replay.gym import Record

GAME = "ALE/Breakout-v5"
RANDOM, FOLLOWER = "random", "follows-the-ball"
EPISODES = {RANDOM: 4, FOLLOWER: 1}
FIRE, RIGHT, LEFT = 1, 2, 3
BALL = (200, 72, 72)
"""The color of the ball and of the paddle."""
SHOWN = 8

Policy = Callable[[np.ndarray], int]


def replay_chapter(report: Report, out: Path) -> list[str]:
    """Record two players, watch one of them, query and validate; return what happened."""
    root = out / "runs"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    viewer = context.Process(target=watch, args=(root, theirs))
    viewer.start()
    theirs.close()
    if ours.recv() != "ready":
        raise SystemExit("the viewer did not start")
    started = time.perf_counter()
    random = np.random.default_rng(3)
    _play(root, RANDOM, lambda _: int(random.integers(4)))
    _play(root, FOLLOWER, BallFollower())
    taken = time.perf_counter() - started
    if not ours.poll(60):
        viewer.kill()
        raise SystemExit("the viewer saw no frame: is there shared memory at /dev/shm?")
    played, committed, last = ours.recv()
    viewer.join()

    runs = relive.open(root)
    steps = sum(len(run) for run in runs.values())
    said = [
        (
            f"{GAME}: {steps} steps of two players with frames and observations recorded in "
            f"{taken:.1f} s, the game included"
        ),
        _compare_with_live(runs[FOLLOWER], played, last),
        *(_line(row) for row in _scores(root)),
        *_read(root, runs[FOLLOWER]),
    ]
    checked = validate(root, level="full")
    if not checked.ok:
        raise SystemExit(f"the runs are damaged: {checked.problems}")
    said.append(f"every byte compared with its checksum: {checked.checked['steps']} steps are fine")
    _tell(report, root, played, committed)
    return said


class BallFollower:
    """Moves the paddle to where the ball will arrive."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def __call__(self, screen: np.ndarray) -> int:
        """Choose an action by what the screen shows."""
        is_red = (screen[93:192, 8:152] == BALL).all(axis=-1)
        ball, paddle = np.argwhere(is_red[:95]), np.flatnonzero(is_red[97])
        if not len(ball):
            self._before = None
            return FIRE
        down, across = ball.mean(axis=0)
        wanted = float(across)
        if self._before is not None and down > self._before[0]:
            slope = (across - self._before[1]) / (down - self._before[0])
            wanted = abs(across + slope * (95 - down))
            wanted = 286 - wanted if wanted > 143 else wanted  # noqa: PLR2004 - the right wall
        self._before = (float(down), float(across))
        off = wanted - (paddle.mean() if len(paddle) else 72)
        return 0 if abs(off) <= 4 else RIGHT if off > 0 else LEFT  # noqa: PLR2004 - pixels


def _play(root: Path, run_id: str, policy: Policy) -> None:
    """Play episodes of the game; the one line that records them is that of `Record`."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    game = gymnasium.make(GAME, render_mode="rgb_array", repeat_action_probability=0.0)
    with Record(game, root, run_id) as env:
        for seed in range(EPISODES[run_id]):
            screen, _ = env.reset(seed=seed)
            is_over = False
            while not is_over:
                screen, _, terminated, truncated, _ = env.step(policy(screen))
                is_over = terminated or truncated


def watch(root: Path, pipe: Connection) -> None:
    """Watch a run from another process; send how many steps it saw live and in the database."""
    pipe.send("ready")
    lane = None
    while lane is None:
        time.sleep(0.005)
        with contextlib.suppress(NotFoundError):
            lane = LiveLane.attach(FOLLOWER)
    database = sqlite3.connect(f"file:{root}/telemetry/telemetry.sqlite?mode=ro", uri=True)
    count = "SELECT count(*) FROM steps WHERE run_id = ?"
    played, committed = [(time.monotonic(), 0)], [(time.monotonic(), 0)]
    last: Any = None
    is_live = True
    while is_live:
        is_live = lane.is_live  # before the frame, so that the last one is seen
        last = lane.latest() or last
        if last is not None:
            played.append((time.monotonic(), int(last[1]["step"]) + 1))
        committed.append((time.monotonic(), database.execute(count, [FOLLOWER]).fetchone()[0]))
        time.sleep(1 / 60)
    database.close()
    pipe.send((played, committed, last))


def _compare_with_live(run: Any, played: list[tuple[float, int]], last: Any) -> str:
    """Check that what was seen live is what was recorded."""
    frame, scalars, _ = last
    step = int(scalars["step"])
    if not np.array_equal(frame, run.read("frames", [step])[0]):
        raise SystemExit(f"the frame of step {step} was another one live")
    return (
        f"another process watched live: {len(played)} frames, the last one of step {step} with a "
        f"return of {scalars['rolling_return']:.0f}; it is the frame that was recorded"
    )


def _scores(root: Path) -> list[dict[str, Any]]:
    """Return the scores of the players, by SQL."""
    with TelemetryStore(root, read_only=True) as store:
        table = store.query(
            "SELECT run_id, count(*) AS episodes, avg(total_reward) AS mean_return, "
            "avg(steps) AS mean_length FROM episodes GROUP BY run_id ORDER BY mean_return"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _line(row: dict[str, Any]) -> str:
    return (
        f"SQL over all runs: {row['run_id']!r} has a mean return of {row['mean_return']:.1f} in "
        f"{row['episodes']} episode{'s' * (row['episodes'] != 1)}"
    )


def _read(root: Path, run: Any) -> list[str]:
    """Read an episode as arrays; return what it has, one line each."""
    episode = run.episodes[0]
    started = time.perf_counter()
    arrays = episode.arrays()
    taken = time.perf_counter() - started
    pixels = arrays["frames"].nbytes + arrays["observations"].nbytes
    stored = sum(path.stat().st_size for path in (root / "replay").glob("*.h5"))
    return [
        (
            f"{episode}: {pixels / 1e6:.0f} MB of frames and observations as arrays in "
            f"{1000 * taken:.0f} ms; the arrays of both runs take {stored / 1e6:.1f} MB on the disk"
        )
    ]


def _bricks(root: Path) -> list[tuple[np.ndarray, str]]:
    """Return frames in which the better player hit a brick, found by SQL."""
    with TelemetryStore(root, read_only=True) as store:
        hits = store.query(
            "SELECT frame_ref, step_index, reward FROM steps "
            "WHERE run_id = ? AND reward > 0 ORDER BY row",
            [FOLLOWER],
        ).to_pylist()
    chosen = [hits[place] for place in np.linspace(0, len(hits) - 1, SHOWN).astype(int)]
    with FrameResolver(root / "replay") as resolver:
        frames = resolver.resolve_batch([hit["frame_ref"] for hit in chosen], strict=True)
    return [
        (frame, f"step {hit['step_index']}, reward {hit['reward']:.0f}")
        for frame, hit in zip(frames, chosen, strict=True)
    ]


def _tell(
    report: Report,
    root: Path,
    played: list[tuple[float, int]],
    committed: list[tuple[float, int]],
) -> None:
    report.section("Runs")
    report.say(
        f"Two players of {GAME}, an environment of Gymnasium, were recorded with one line each: "
        "one moves at random, the other moves the paddle to where the ball will arrive. Frames "
        "and observations are stored as HDF5, everything else in SQLite, which was asked for the "
        "scores:"
    )
    rows = [
        [
            row["run_id"],
            str(row["episodes"]),
            f"{row['mean_return']:.1f}",
            f"{row['mean_length']:.0f}",
        ]
        for row in _scores(root)
    ]
    report.table(["run", "episodes", "mean return", "mean steps"], rows)
    report.draw(
        "Steps in which the better player hit a brick: selected by SQL, resolved by reference",
        pictures(_bricks(root)),
    )
    report.say(
        "Another process watched the better player through shared memory, and counted its steps "
        "with a plain SQLite connection. A player never waits for a viewer, and what is in the "
        "database survives a kill."
    )
    report.draw(
        "Steps over seconds: seen live, and committed to the database",
        curves({"live": played, "committed": committed}),
    )
