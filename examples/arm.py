"""A simulated arm of seven joints and the images of two cameras, drawn with NumPy alone."""

import itertools
from typing import Final

import numpy as np

JOINTS: Final = ("base", "shoulder", "twist", "elbow", "roll", "wrist", "hand")
HOME: Final = np.array([0.0, -0.6, 0.0, 1.9, 0.0, 0.7, 0.0])
HEIGHT, WIDTH = 120, 160

_LINKS: Final = np.array([0.28, 0.18, 0.22, 0.16, 0.18, 0.08, 0.10])
_AXES: Final = "zyzyzyz"
FASTEST: Final = 1.4
"""Radians per second."""
_GAIN: Final = 3.0
_COLOURS: Final = np.array(
    2 * [[64, 78, 92], [84, 104, 122]] + [[64, 78, 92]] + 2 * [[209, 100, 42]], dtype=np.float32
)


def command(joints: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return the joint speeds that move the arm to a goal, limited by the motors."""
    speeds: np.ndarray = np.clip(_GAIN * (goal - joints), -FASTEST, FASTEST)
    return speeds


def points(joints: np.ndarray) -> np.ndarray:
    """Return the positions of the joints and the hand in metres, the base first."""
    position, rotation, found = np.zeros(3), np.eye(3), [np.zeros(3)]
    for angle, length, axis in zip(joints, _LINKS, _AXES, strict=True):
        rotation = rotation @ _rotation(float(angle), axis)
        position = position + rotation[:, 2] * length
        found.append(position)
    return np.array(found)


def render(joints: np.ndarray, goal: np.ndarray, *, above: bool) -> np.ndarray:
    """Return an image of the arm and of the goal of the hand, from the side or from above."""
    image = (_TABLE if above else _WALL).copy()
    target = _pixels(points(goal)[-1:], above=above)[0]
    _stroke(image, target, target, 7.5, np.array([58, 143, 75]))
    corners = _pixels(points(joints), above=above)
    for number, (start, end) in enumerate(itertools.pairwise(corners)):
        _stroke(image, start, end, 6.0 - 0.5 * number, _COLOURS[number])
    return image.astype(np.uint8)


def _rotation(angle: float, axis: str) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    if axis == "z":
        return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def _pixels(positions: np.ndarray, *, above: bool) -> np.ndarray:
    """Return the image columns and rows of positions."""
    if above:
        return np.stack([45 + 110 * positions[:, 0], 60 - 110 * positions[:, 1]], axis=1)
    return np.stack([55 + 110 * positions[:, 0], 112 - 110 * positions[:, 2]], axis=1)


def _stroke(
    image: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float, colour: np.ndarray
) -> None:
    """Draw a line with round ends; only the pixels of its bounding box are computed."""
    low = np.maximum(np.floor(np.minimum(start, end) - radius), 0).astype(int)
    high = np.ceil(np.maximum(start, end) + radius).astype(int) + 1
    box = (slice(low[1], high[1]), slice(low[0], high[0]))
    off = _GRID[(slice(None), *box)] - start[:, None, None]
    along = (end - start)[:, None, None]
    share = (off * along).sum(axis=0) / max(float((along**2).sum()), 1e-6)
    cover = np.clip(radius - np.hypot(*(off - np.clip(share, 0, 1) * along)), 0, 1)
    image[box] += cover[:, :, None] * (colour - image[box])


_GRID: Final = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))).astype(np.float32)
_SQUARES: Final = (_GRID // 20).sum(axis=0) % 2
_WOOD: Final = 8 * np.sin(_GRID[1] / 3 + 3 * np.sin(_GRID[0] / 40))
_TABLE: Final = (
    np.array([214, 196, 170], np.float32) + (_WOOD + 10 * _SQUARES)[:, :, None]
).astype(np.float32)
_WALL: Final = np.where(
    (_GRID[1] > 111)[:, :, None],  # noqa: PLR2004 - the top of the table
    np.array([190, 170, 145], np.float32),
    np.array([232, 236, 240], np.float32) - (0.25 * _GRID[1])[:, :, None],
).astype(np.float32)
