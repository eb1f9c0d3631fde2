"""Pictures of recorded episodes."""

from relive.view.plot import FORMATS, plot
from relive.view.svg import draw_svg
from relive.view.timing import Timing, measure_timing

__all__ = ["FORMATS", "Timing", "draw_svg", "measure_timing", "plot"]
