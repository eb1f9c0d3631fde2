"""Times on the command line: nanoseconds, or from the first record of an episode on."""

import argparse
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from relive.errors import InvalidError

if TYPE_CHECKING:
    from relive.model.episode import Episode

HELP: Final = "nanoseconds, or +1.5s: from the first record on (ns, us, ms, s, m, h)"

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_RELATIVE: Final = re.compile(r"\+(\d{1,15}(?:\.\d{1,15})?)([a-zµ]{1,2})")
_ABSOLUTE: Final = re.compile(r"-?\d{1,19}")


class Moment(NamedTuple):
    """A time as it was given; `relative` counts from the first record of the episode."""

    nanoseconds: int
    relative: bool

    def in_episode(self, episode: "Episode") -> int:
        """Give the time on the clock of the episode."""
        if not self.relative:
            return self.nanoseconds
        if not any(len(signal) for signal in episode.signals.values()):
            raise InvalidError(f"the episode {episode.uid!r} has no records to count time from")
        return episode.first_ts + self.nanoseconds


def parse_time(text: str) -> Moment:
    """Read a time as in `1760000000000000000` or `+1.5s`."""
    if _ABSOLUTE.fullmatch(text):
        return Moment(int(text), relative=False)
    found = _RELATIVE.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        # The sign is what tells a time of the clock from one that counts from the first record.
        meant = _RELATIVE.fullmatch(f"+{text}") or _RELATIVE.fullmatch(f"+{text}s")
        told = meant is not None and meant[2] in _UNITS
        usual = f"+{meant[1]}{meant[2]}" if meant is not None and told else "+1.5s"
        raise argparse.ArgumentTypeError(
            f"`{text}` is no time; write nanoseconds, or {usual} from the first record on"
        )
    return Moment(round(Fraction(found[1]) * _UNITS[found[2]]), relative=True)


def parse_end(text: str) -> Moment | None:
    """Read a time, or `-` for an open end."""
    return None if text == "-" else parse_time(text)
