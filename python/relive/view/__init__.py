"""Pixels: what was recorded, drawn for people to look at."""

from relive.view.plot import FORMATS, plot
from relive.view.svg import draw_svg
from relive.view.timing import Rhythm, rhythm

__all__ = ["FORMATS", "Rhythm", "draw_svg", "plot", "rhythm"]
