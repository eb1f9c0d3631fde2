"""The robot of the episodes bench: an arm with seven joints and two cameras, drawn once.

Everything follows from the seed. The cameras see what makes video hard: textured things
that turn and cross one another before a textured wall, a camera that moves, and noise that
is different in every picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Picture: TypeAlias = NDArray[np.uint8]
    Times: TypeAlias = NDArray[np.int64]
    Reals: TypeAlias = NDArray[np.float64]

WIDTH, HEIGHT = 640, 480
JOINTS = 7
STATE_HZ, CAMERA_HZ = 200, 30
CAMERAS = ("cam.scene", "cam.wrist")
STATE = "state"
START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
NOISE = 1.5
"""Standard deviation of the noise of a picture, in steps of 255."""

_MARGIN = 96
"""How far a camera may look beyond the middle of its wall, in pixels."""
_FINEST_COLOUR = 32
"""The size in pixels below which detail is light and dark alone."""
_ONE = 256
"""A whole pixel, where places are between two."""


@dataclass(frozen=True)
class Robot:
    """`seconds` of one recording, whose pictures are in a file in `folder`."""

    folder: Path
    seconds: float = 60.0
    seed: int = 0

    @property
    def frames_path(self) -> Path:
        """The pictures of both cameras, as one array of a `.npy` file."""
        return self.folder / f"robot-{self.seconds:g}s-{self.seed}.npy"

    @property
    def frame_count(self) -> int:
        """Pictures of each camera."""
        return round(self.seconds * CAMERA_HZ)

    @cached_property
    def state_times(self) -> Times:
        """When each state was taken, in nanoseconds; no clock ticks evenly."""
        return self._times(round(self.seconds * STATE_HZ), STATE_HZ, 1)

    @cached_property
    def states(self) -> NDArray[np.float32]:
        """The joints, as float32 rows of seven."""
        return joints((self.state_times - START_NS) / SECOND_NS, self.seed).astype(np.float32)

    def frame_times(self, camera: int) -> Times:
        """When each picture of `camera` was taken, in nanoseconds."""
        return self._times(self.frame_count, CAMERA_HZ, 2 + camera)

    def frames(self, camera: int) -> NDArray[np.uint8]:
        """All pictures of `camera`, mapped: (pictures, height, width, 3)."""
        mapped: NDArray[np.uint8] = np.load(self.frames_path, mmap_mode="r")[camera]
        return mapped

    def make(self) -> None:
        """Draw the pictures, unless they are there."""
        if self.frames_path.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.frames_path.with_suffix(".part")
        shape = (len(CAMERAS), self.frame_count, HEIGHT, WIDTH, 3)
        drawn: Any = np.lib.format.open_memmap(part, "w+", np.uint8, shape)
        for camera in range(len(CAMERAS)):
            for place, picture in enumerate(self._draw(camera)):
                drawn[camera, place] = picture
        drawn.flush()
        part.rename(self.frames_path)

    def _draw(self, camera: int) -> Iterator[Picture]:
        seconds = (self.frame_times(camera) - START_NS) / SECOND_NS
        scene = _Scene(camera, self.seed)
        for time_s, angles in zip(seconds.tolist(), joints(seconds, self.seed), strict=True):
            yield scene.picture(time_s, angles)

    def _times(self, count: int, rate: int, stream: int) -> Times:
        period = SECOND_NS // rate
        jitter = np.random.default_rng((self.seed, stream)).integers(0, period // 20, count)
        found: Times = START_NS + np.arange(count, dtype=np.int64) * SECOND_NS // rate + jitter
        return found


def joints(seconds: Reals, seed: int = 0) -> Reals:
    """The angles of the joints at each of `seconds`, in radians."""
    generator = np.random.default_rng((seed, 100))
    swing = generator.uniform(0.3, 1.2, JOINTS)
    hertz = generator.uniform(0.05, 0.35, (2, JOINTS))
    phase = generator.uniform(0, 2 * np.pi, (2, JOINTS))
    turns = 2 * np.pi * seconds[:, None]
    slow = np.sin(turns * hertz[0] + phase[0])
    found: Reals = swing * (slow + 0.25 * np.sin(turns * 3 * hertz[1] + phase[1]))
    return found


class _Scene:
    """What one camera looks at: a wall, loose things that drift, and an arm of three links."""

    def __init__(self, camera: int, seed: int) -> None:
        generator = np.random.default_rng((seed, 200 + camera))
        self._pan = 12.0 if camera == 0 else 70.0
        self._phase = generator.uniform(0, 2 * np.pi, 12)
        self._wall = _wall(generator, HEIGHT + 2 * _MARGIN, WIDTH + 2 * _MARGIN)
        self._links = [_texture(generator, wide, long, 0.9) for wide, long in _LINKS]
        self._things = [_texture(generator, size, size, 0.8) for size in (110, 84, 64, 48)]
        # One plane of noise, looked at from a place that changes: it never repeats in step.
        plane = generator.normal(0, NOISE, (HEIGHT + 256, WIDTH + 256, 3))
        self._noise = np.rint(plane).astype(np.int16)
        self._places = generator

    def picture(self, time_s: float, angles: Reals) -> Picture:
        """What the camera sees at `time_s`, with the arm at `angles`."""
        view = self._look(time_s)
        for number, thing in enumerate(self._things):
            phase = self._phase[2 * number : 2 * number + 2]
            speed = 0.5 + 0.25 * number
            x = WIDTH * (0.5 + 0.4 * np.sin(speed * time_s + phase[0]))
            y = HEIGHT * (0.5 + 0.35 * np.cos(0.8 * speed * time_s + phase[1]))
            _paste(view, thing, (x, y), 0.6 * speed * time_s, round_edge=True)
        joint, heading = np.array([WIDTH * 0.5, HEIGHT * 0.92]), -np.pi / 2
        for angle, link in zip(angles[:3], self._links, strict=True):
            heading += float(angle)
            along = np.array([np.cos(heading), np.sin(heading)])
            length = link.shape[1]
            _paste(view, link, tuple(joint + along * length / 2), heading, round_edge=False)
            joint = joint + along * length * 0.92
        row, column = self._places.integers(0, 256, 2).tolist()
        view += self._noise[row : row + HEIGHT, column : column + WIDTH]
        np.clip(view, 0, 255, out=view)
        return view.astype(np.uint8)

    def _look(self, time_s: float) -> NDArray[np.int16]:
        """The part of the wall the camera points at, between pixels too."""
        reach = self._pan
        shake = 0.6 * np.sin(17 * time_s + self._phase[8])
        x = _MARGIN + reach * np.sin(0.7 * time_s + self._phase[9]) + shake
        y = _MARGIN + 0.6 * reach * np.sin(0.9 * time_s + self._phase[10]) + 0.7 * shake
        left, top = int(x), int(y)
        right, down = round((x - left) * _ONE), round((y - top) * _ONE)
        wall = self._wall[top : top + HEIGHT + 1, left : left + WIDTH + 1]
        across = wall[:, :-1] * (_ONE - right) + wall[:, 1:] * right >> 8
        found: NDArray[np.int16] = across[:-1] * (_ONE - down) + across[1:] * down >> 8
        return found.astype(np.int16)


_LINKS = ((44, 190), (36, 150), (28, 110))
"""Width and length of each link of the arm, in pixels."""


def _wall(generator: np.random.Generator, height: int, width: int) -> NDArray[np.int32]:
    """What is behind everything: texture, with boxes before it that have edges and shades."""
    found = _texture(generator, height, width, 0.6)
    for _ in range(40):
        tall, wide = generator.integers(20, 160, 2).tolist()
        top, left = (
            int(generator.integers(0, height - tall)),
            int(generator.integers(0, width - wide)),
        )
        box = found[top : top + tall, left : left + wide]
        box *= generator.integers(55, 160, 1, dtype=np.int32) + generator.integers(
            -12, 13, 3, dtype=np.int32
        )
        box //= 100
        np.clip(box, 8, 247, out=box)
    return found


def _texture(
    generator: np.random.Generator, height: int, width: int, strength: float
) -> NDArray[np.int32]:
    """A picture with detail of every size, as things have: fine in light, coarse in colour."""
    found = np.zeros((height, width, 3))
    size, weight = 128, 1.0
    while size >= 1:
        coarse = generator.uniform(-1, 1, (height // size + 2, width // size + 2, 3))
        shade = coarse[:, :, :1]
        coarse = shade + (0.3 * coarse if size >= _FINEST_COLOUR else np.zeros(3))
        found += weight * _grown(coarse, size)[:height, :width]
        size //= 2
        weight *= 0.8
    found *= strength * 160 / np.abs(found).max()
    tint = generator.uniform(96, 160) + generator.uniform(-24, 24, 3)
    return np.clip(found + tint, 8, 247).astype(np.int32)


def _grown(coarse: Reals, size: int) -> Reals:
    """`coarse` at `size` times its size, with straight slopes between its points."""
    if size == 1:
        return coarse
    part = np.arange(size)[:, None, None] / size
    down = coarse[:-1, None] * (1 - part) + coarse[1:, None] * part
    down = down.reshape(-1, *coarse.shape[1:])
    part = part[:, 0]
    across = down[:, :-1, None] * (1 - part) + down[:, 1:, None] * part
    return across.reshape(down.shape[0], -1, 3)


def _paste(
    view: NDArray[np.int16],
    thing: NDArray[np.int32],
    middle: tuple[float, ...],
    angle: float,
    *,
    round_edge: bool,
) -> None:
    """Draw `thing` over `view`, turned by `angle` about its middle, which is at `middle`."""
    height, width = thing.shape[:2]
    x, y = middle
    reach = int(np.hypot(height, width) / 2) + 1
    left, right = max(0, int(x) - reach), min(WIDTH, int(x) + reach)
    top, down = max(0, int(y) - reach), min(HEIGHT, int(y) + reach)
    if left >= right or top >= down:
        return
    dx = np.arange(left, right, dtype=np.float32) - np.float32(x)
    dy = (np.arange(top, down, dtype=np.float32) - np.float32(y))[:, None]
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u = dx * cos + dy * sin
    v = dy * cos - dx * sin
    if round_edge:
        inside = u * u + v * v < (min(height, width) / 2) ** 2
    else:
        inside = (np.abs(u) < width / 2 - 1) & (np.abs(v) < height / 2 - 1)
    rows, columns = np.nonzero(inside)
    across = ((u[rows, columns] + width / 2) * _ONE).astype(np.int32)
    along = ((v[rows, columns] + height / 2) * _ONE).astype(np.int32)
    view[top + rows, left + columns] = _between(thing, across, along)


def _between(thing: NDArray[np.int32], x: Any, y: Any) -> NDArray[np.int16]:
    """The colours of `thing` at places between its pixels, in 256ths of one."""
    left, right = x >> 8, (x & 255)[:, None]
    top, down = y >> 8, (y & 255)[:, None]
    under, beside = np.minimum(top + 1, len(thing) - 1), np.minimum(left + 1, thing.shape[1] - 1)
    upper = thing[top, left] * (_ONE - right) + thing[top, beside] * right
    lower = thing[under, left] * (_ONE - right) + thing[under, beside] * right
    found: NDArray[np.int16] = (upper * (_ONE - down) + lower * down >> 16).astype(np.int16)
    return found
