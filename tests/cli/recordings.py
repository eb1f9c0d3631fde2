"""Small datasets of episodes for the tests of the command line."""

import contextlib
from pathlib import Path

import numpy as np

from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write.dataset_writer import LocalDatasetWriter

START = 1_760_000_000_000_000_000
MS = 1_000_000
STEPS = 40


def record(root: Path, episodes: int = 3) -> Path:
    """Record episodes of 400 ms: two joints, a flag, text, and a camera with its own clock."""
    writer = LocalDatasetWriter(root, video="fast")
    for number in range(episodes):
        with writer.new_episode() as episode:
            episode.set_static("task", "pick" if number < 2 else "place")
            episode.set_static("success", number != 1)
            episode.set_static("blob", b"\x00\xff")
            episode.describe("q", names=["shoulder", "elbow"], unit="rad")
            for step in range(STEPS):
                now = START + (1000 * number + 10 * step) * MS
                episode.append("q", np.array([step / 10, 1.0], np.float32), now)
                episode.append("closed", step >= STEPS // 2, now)
                if step % 8 == 0:
                    image = np.full((32, 48, 3), 4 * step, np.uint8)
                    episode.append("cam", image, now, clocks={"sensor": now - 3 * MS})
            episode.append("phase", "reach", START)
    return root


def leave_unfinished(root: Path, rows: int = 7) -> Path:
    """Leave an episode unfinished, as an exception does, and return its directory."""
    with (
        contextlib.suppress(ZeroDivisionError),
        LocalDatasetWriter(root).new_episode() as episode,
    ):
        episode.set_static("task", "none")
        for step in range(rows):
            episode.append("q", float(step), START + step)
        raise ZeroDivisionError
    return Path(episode.path)


def uids(root: Path) -> tuple[str, ...]:
    """Return the uids of the episodes after edits."""
    return LocalDataset(root).uids
