"""Episodes in memory with every kind of signal that can be drawn."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive.model.episode import EpisodeView
from relive.model.signal import ArraySignal

START = 1_760_000_000_000_000_000


def times(count: int, hertz: float, start_s: float = 0.0) -> np.ndarray[Any, Any]:
    """Return the times of `count` records at a rate."""
    return START + int(start_s * 1e9) + (np.arange(count) * (1e9 / hertz)).astype(np.int64)


def signal(values: Any, hertz: float = 10.0, **options: Any) -> ArraySignal:
    """Return a signal of values at a rate."""
    array = np.asarray(values)
    return ArraySignal(array, times(len(array), hertz), **options)


def episode(signals: Mapping[str, ArraySignal], **statics: Any) -> EpisodeView:
    """Return an episode of signals."""
    meta = {"uid": "ab" * 16, "created_ts_ns": START, "outcome": {"ended": "interrupted"}}
    return EpisodeView(dict(signals), statics, meta)


def frames(count: int, height: int = 48, width: int = 64) -> np.ndarray[Any, Any]:
    """Return frames of one colour each, of increasing brightness."""
    shades = np.linspace(0, 250, count).astype(np.uint8)
    return np.broadcast_to(shades[:, None, None, None], (count, height, width, 3)).copy()


def everything() -> EpisodeView:
    """Return an episode with a signal of every kind, including unusual ones."""
    numbers = np.sin(np.arange(400) / 20)
    numbers[100:150] = np.nan
    numbers[7] = np.inf
    kept = np.r_[0:600, 900:2000]
    joints = np.sin(np.arange(2000)[:, None] / 200 * np.arange(1, 8)).astype(np.float32)
    phases = np.array(["reach", "grasp $x_1$", "<lift> & \x1b[31m"], object)
    signals = {
        "cam.wrist": signal(frames(100), kind="image"),
        "cam.stops": signal(frames(40), kind="image"),
        "cam.tiny": signal(frames(100, 7, 9), kind="image"),
        "cam.wide": signal(frames(10, 4, 400), kind="image"),
        "depth": signal(frames(30)[..., 0].astype(np.uint16) * 40, 3),
        "q": signal(joints, 200, attrs={"names": [f"joint {k}" for k in range(7)], "unit": "rad"}),
        "torque": ArraySignal(joints[kept][:, :3], times(2000, 200)[kept]),
        "lidar": signal(np.random.default_rng(0).random((100, 360))),
        "matrix": signal(np.random.default_rng(0).random((100, 4, 4))),
        "phase": ArraySignal(phases, times(3, 0.3)),
        "closed": signal(np.arange(300) // 60 % 2 == 1, 30),
        "contacts": signal(np.arange(900).reshape(300, 3) // 60 % 2 == 1, 30),
        "many flags": signal(np.arange(20_000) // 2000 % 2 == 1, 2000),
        "step": signal(np.arange(20) // 3, 2),
        "force": signal(numbers, 40),
        "never finite": signal(np.full(10, np.nan)),
        "one": signal([3.5]),
        "none": signal(np.zeros((0, 3))),
        "no items": signal(np.zeros((5, 0, 3))),
        "same": signal(np.zeros(100)),
        "huge": signal(np.where(np.arange(100) % 2, 1.7e308, -1.7e308)),
        "名前 $_^{ \ud800": signal(np.arange(5, dtype=np.uint64)),
    }
    return episode(signals, task="pick the <red> cube", blob=b"\0\1", gains=[1, 2])
