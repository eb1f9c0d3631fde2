"""Pixels: what was recorded, drawn for people to look at."""

from relive.view.plot import FORMATS, plot
from relive.view.rhythm import Rhythm, rhythm
from relive.view.svg import draw_svg

__all__ = ["FORMATS", "Rhythm", "draw_svg", "plot", "rhythm"]
