"""Steps whose arrays say which step they are, and a program that records until it is killed."""

import os
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.replay import ReplayConfig, ReplayRecorder

SIDE: Final = 24
STACK: Final = 4
EPISODE: Final = 37
NO_FRAME: Final = 3
"""Steps have no frame if their number modulo 7 is this."""
FOREVER: Final = 1_000_000
_IDLE_S: Final = 3600.0

Numbers = npt.NDArray[np.int64]


def frames_of(env: int, numbers: Numbers) -> npt.NDArray[np.uint8]:
    """Return the frames of steps of a sub-environment: each byte depends on the step."""
    words = (numbers[:, None] * 0x9E3779B1 + env * 0x85EBCA77).astype(np.uint32)
    cells = np.arange(SIDE * SIDE * 3, dtype=np.uint32) * np.uint32(0xC2B2AE3D)
    mixed = (words ^ words >> np.uint32(15)) * np.uint32(0x27D4EB2F) + cells
    frames = (mixed * np.uint32(0x165667B1) >> np.uint32(30)).astype(np.uint8)
    _sign(frames, env, numbers)
    return frames.reshape(-1, SIDE, SIDE, 3)


def has_frame(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Check which steps have a frame."""
    return np.not_equal(numbers % 7, NO_FRAME)


def frame_of(env: int, number: int) -> npt.NDArray[np.uint8] | None:
    """Return the frame of step `number` of a sub-environment; every seventh step has none."""
    return frames_of(env, np.array([number]))[0] if number % 7 != NO_FRAME else None


def images_of(env: int, numbers: Numbers) -> npt.NDArray[np.uint8]:
    """Return the stacks of planes that are observed; those of an episode repeat its first plane."""
    first = np.maximum(0, numbers - (numbers + _shift(env)) % EPISODE)
    planes = [_planes(env, np.maximum(first, numbers - back)) for back in range(STACK - 1, -1, -1)]
    return np.stack(planes, axis=-1)


def poses_of(env: int, numbers: Numbers) -> npt.NDArray[np.int32]:
    """Return the other array that is observed."""
    return np.stack([np.full_like(numbers, env), numbers], axis=-1).astype(np.int32)


def observation_of(env: int, number: int) -> dict[str, Any]:
    """Return the observation of a step."""
    numbers = np.array([number])
    return {"image": images_of(env, numbers)[0], "pose": (poses_of(env, numbers)[0],)}


def action_of(env: int, number: int) -> int:
    """Return the action of a step."""
    return (env * 31 + number) % 18


def info_of(number: int) -> dict[str, Any] | None:
    """Return the info of a step; every second one has none."""
    return {"number": number} if number % 2 else None


def ends(env: int, number: int) -> bool:
    """Check whether an episode ends with a step."""
    return (number + _shift(env)) % EPISODE == EPISODE - 1


def record(recorder: ReplayRecorder, env: int, number: int) -> None:
    """Record a step of a sub-environment."""
    is_last = ends(env, number)
    recorder.step(
        observation_of(env, number),
        action_of(env, number),
        number / 8,
        is_last,
        frame=frame_of(env, number),
        info=info_of(number),
        next_observation=observation_of(env, number + 1) if is_last else None,
        extras={"logp": np.float32(-number)},
        env=env,
    )


def record_round(recorder: ReplayRecorder, envs: int, number: int) -> None:
    """Record a step of every sub-environment: of several in one call."""
    if envs == 1:
        record(recorder, 0, number)
        return
    every = range(envs)
    frames = [frames_of(env, np.array([number]))[0] for env in every]
    now, after = ([observation_of(env, n) for env in every] for n in (number, number + 1))
    recorder.steps(
        list(every),
        _stacked(now),
        np.array([action_of(env, number) for env in every]),
        np.full(envs, number / 8),
        np.array([ends(env, number) for env in every]),
        frame=None if number % 7 == NO_FRAME else np.stack(frames),
        info=[info_of(number)] * envs,
        next_observation=_stacked(after),
        extras={"logp": np.full(envs, -number, np.float32)},
    )


def complete_round(recorder: ReplayRecorder, envs: int) -> int:
    """Record the rest of a round that a kill cut short; return the number of the next round."""
    rounds, recorded = divmod(recorder.stats.steps, envs)
    if recorded:
        for env in range(recorded, envs):
            record(recorder, env, rounds)
        rounds += 1
    return rounds


class Orders(NamedTuple):
    """What a recorder is to do."""

    root: Path
    run_id: str
    envs: int
    chunk_rows: int
    pause_s: float
    """How long it waits after each round."""
    rounds: int
    """How many rounds it records before it closes the run."""


def record_until_killed(orders: Orders, log: Path, pipe: Connection) -> None:
    """Record rounds of steps and close the run; then wait to be killed.

    Sends `ready`, `begun`, `closing` and `closed`. After each round it writes a line: the monotonic
    time in nanoseconds, how many rounds were recorded, and how many steps were committed.
    """
    config = ReplayConfig(chunk_rows=orders.chunk_rows, queue_bytes=1 << 22)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pipe.send("ready")
    with ReplayRecorder(orders.root, orders.run_id, config=config, live=None) as recorder:
        pipe.send("begun")
        start = complete_round(recorder, orders.envs)
        for number in range(start, start + orders.rounds):
            record_round(recorder, orders.envs, number)
            moment, committed = time.monotonic_ns(), recorder.stats.committed
            os.write(lines, f"{moment} {number + 1} {committed}\n".encode())
            time.sleep(orders.pause_s)
        pipe.send("closing")
    pipe.send("closed")
    time.sleep(_IDLE_S)


def record_at_once(orders: Orders, begin: Barrier) -> None:
    """Record a few rounds of steps when all others do."""
    begin.wait()
    with ReplayRecorder(orders.root, orders.run_id, live=None) as recorder:
        for number in range(orders.rounds):
            record_round(recorder, orders.envs, number)


def _planes(env: int, numbers: Numbers) -> npt.NDArray[np.uint8]:
    planes = np.repeat((numbers % 251).astype(np.uint8)[:, None], SIDE * SIDE, axis=1)
    _sign(planes, env, numbers)
    return planes.reshape(-1, SIDE, SIDE)


def _sign(rows: npt.NDArray[np.uint8], env: int, numbers: Numbers) -> None:
    """Begin each row with the sub-environment and the number of its step."""
    rows[:, :8] = np.frombuffer(np.array([env]).tobytes(), np.uint8)
    rows[:, 8:16] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)


def _shift(env: int) -> int:
    """Return how far the episodes of a sub-environment are ahead of those of the first."""
    return 5 * env


def _stacked(observations: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "image": np.stack([each["image"] for each in observations]),
        "pose": (np.stack([each["pose"][0] for each in observations]),),
    }
