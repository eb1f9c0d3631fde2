"""relive: `relive.replay`, at its defaults, with all lanes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.replay_peer import ROWS_SQL, RUN_ID, Reader, ReplayPeer, Writer, episode_id

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.scenes import Step

# A recorder whose live lane cannot be created warns and goes on; here all lanes are measured.
warnings.filterwarnings("error", message=".* are not shown live")


class ReliveRun(ReplayPeer):
    """`ReplayRecorder` and `ReplayRun`."""

    name = "relive"
    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "pyarrow")

    def writer(self, root: Path, steps: int) -> ReliveWriter:
        """`ReplayRecorder(root, run_id)`."""
        del steps
        return ReliveWriter(root)

    def reader(self, root: Path) -> Reader:
        """`ReplayRun(root, run_id)`."""
        return _Reader(root)


class ReliveWriter(Writer):
    """`recorder.step(…)`, which publishes the frame in the live lane as well."""

    def __init__(self, root: Path) -> None:
        self._recorder = module("relive.replay").ReplayRecorder(root, RUN_ID, live="first")

    def step(self, step: Step) -> None:
        """Record a step in all lanes."""
        self._recorder.step(
            step.observation, step.action, step.reward, step.terminated, frame=step.frame
        )

    def flush(self) -> None:
        """Wait until all steps so far are committed."""
        self._recorder.flush()

    def close(self) -> None:
        """Complete the run."""
        self._recorder.close()


class _Reader(Reader):
    def __init__(self, root: Path) -> None:
        replay = module("relive.replay")
        self._run = replay.ReplayRun(root, RUN_ID)
        self._store = replay.TelemetryStore(root, read_only=True)

    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        del first, count
        found = self._run.episodes[episode].arrays("frames", "observations")
        return found["frames"], found["observations"]

    def rows(self, episode: int) -> Any:
        return self._store.query(ROWS_SQL, (RUN_ID, episode_id(episode)))

    def rewards(self, rows: Any) -> list[float]:
        found: list[float] = rows["reward"].to_pylist()
        return found

    def close(self) -> None:
        self._store.close()
