"""LeRobot: every record holds all cameras and the state at one rate, 30 a second here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.episodes.robot import CAMERA_HZ, CAMERAS, HEIGHT, JOINTS, WIDTH
from benches.peers import module
from benches.peers.episode_peer import Camera, EpisodePeer, Recorder, by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from benches.peers.episode_peer import Picture, Ways

REPOSITORY = "benches/robot"
STATE = "observation.state"
KEYS = tuple(f"observation.images.{name.partition('.')[2]}" for name in CAMERAS)
TOLERANCE_S = 1e-4
WAITING = 20
"""Pictures of a camera that wait for the encoder before the recorder waits, too."""


class LeRobotEpisode(EpisodePeer):
    """AV1 with a key frame in every second picture, encoded as pictures come.

    A state is kept with each picture, so the state has a seventh of the others' rows.
    Pictures are read with torchcodec, its default, or with pyav where that does not load;
    they are float32 tensors, which is how it gives them.
    """

    name = "LeRobot"
    family: ClassVar[str] = "lerobot"
    packages: ClassVar[tuple[str, ...]] = ("lerobot",)
    python: ClassVar[Path | None] = Path(".venv-lerobot/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-lerobot; "
        ".venv-lerobot/bin/pip install -r benches/episodes/lerobot.txt"
    )

    def environment(self, folder: Path) -> dict[str, str]:
        """torchcodec wants FFmpeg's libraries by their plain names; PyAV has them under others."""
        assert self.python is not None
        folder.mkdir(parents=True, exist_ok=True)
        packages = self.python.absolute().parents[1] / "lib"
        libraries = [*packages.glob("python3*/site-packages/av.libs/lib[as][vw]*.so.*")]
        for library in libraries:
            stem, _, version = library.name.partition(".so.")
            link = folder / f"{stem.partition('-')[0]}.so.{version.partition('.')[0]}"
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        places = [str(folder.absolute()), *{str(library.parent) for library in libraries}]
        return {"LD_LIBRARY_PATH": ":".join(places)}

    def recorder(self, root: Path) -> Recorder:
        """`LeRobotDataset.create(…, streaming_encoding=True)`."""
        return _Recorder(root)

    def camera(self, root: Path, camera: int) -> Camera:
        """`decode_video_frames` on the film of that camera alone."""
        dataset = _opened(root)
        film = dataset.root / dataset.meta.get_video_file_path(0, KEYS[camera])
        return _Camera(film, _backend())

    def open_episode(self, root: Path) -> Any:
        """`LeRobotDataset(…)`, its length and the times of its first and last record."""
        dataset = _opened(root)
        table = dataset.hf_dataset
        return len(dataset), table[0]["timestamp"], table[len(dataset) - 1]["timestamp"]

    def sizes(self, root: Path) -> dict[str, int]:
        """The film of each camera; the state is in one table with indices and times."""
        films = dict(zip(KEYS, CAMERAS, strict=True))

        def name(path: Path) -> str:
            film = next((films[part] for part in path.parts if part in films), None)
            return film or ("state" if "data" in path.relative_to(root).parts else "rest")

        return by_name(root, name)


class _Recorder(Recorder):
    whole_ticks = True

    def __init__(self, root: Path) -> None:
        _quiet()
        picture = {
            "dtype": "video",
            "shape": (HEIGHT, WIDTH, 3),
            "names": ["height", "width", "channels"],
        }
        state = {"dtype": "float32", "shape": (JOINTS,), "names": None}
        self._dataset = module("lerobot.datasets.lerobot_dataset").LeRobotDataset.create(
            REPOSITORY,
            CAMERA_HZ,
            {STATE: state, **dict.fromkeys(KEYS, picture)},
            root=root,
            streaming_encoding=True,
        )
        self._state = np.zeros(JOINTS, np.float32)
        self._pictures: dict[str, Picture] = {}

    def state(self, ts_ns: int, row: NDArray[np.float32]) -> None:
        del ts_ns
        self._state = row

    def frame(self, camera: int, ts_ns: int, picture: Picture) -> None:
        """Whichever camera comes last completes a record; times are its own, at an even pace."""
        del ts_ns
        self._pictures[KEYS[camera]] = picture
        if len(self._pictures) < len(KEYS):
            return
        self._dataset.add_frame({STATE: self._state, **self._pictures, "task": "robot"})
        self._pictures.clear()
        # It drops pictures when its queue is full; whoever is faster than the encoder waits.
        queues = self._dataset._streaming_encoder._frame_queues.values()  # noqa: SLF001
        while any(queue.qsize() > WAITING for queue in queues):
            time.sleep(0.001)

    def close(self) -> None:
        self._dataset.save_episode()
        self._dataset.finalize()


class _Camera(Camera):
    def __init__(self, film: Path, backend: str) -> None:
        self._decode = module("lerobot.datasets.video_utils").decode_video_frames
        self._film = film
        self._backend = backend

    def frame(self, row: int) -> Any:
        return self._read([row])[0]

    def batches(self) -> Ways:
        return {"one by one": self._singly, "at once": self._read}

    def windows(self) -> Ways:
        return {"at once": self._read}

    def scan(self, count: int) -> Iterator[Any]:
        part = 32
        for start in range(0, count, part):
            yield from self._read(range(start, min(start + part, count)))

    def picture(self, given: Any) -> Picture:
        found: Picture = (given.permute(1, 2, 0) * 255).round().byte().numpy()
        return found

    def _read(self, rows: Sequence[int]) -> Any:
        times = [row / CAMERA_HZ for row in rows]
        return self._decode(self._film, times, TOLERANCE_S, self._backend)

    def _singly(self, rows: Sequence[int]) -> Any:
        return module("torch").stack([self._read([row])[0] for row in rows])


def _opened(root: Path) -> Any:
    _quiet()
    kind = module("lerobot.datasets.lerobot_dataset").LeRobotDataset
    return kind(REPOSITORY, root=root, video_backend=_backend())


def _backend() -> str:
    try:
        module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError):
        return "pyav"
    return "torchcodec"


def _quiet() -> None:
    """Keep its encoder from writing pages about itself, and everyone off the network."""
    os.environ.setdefault("SVT_LOG", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
