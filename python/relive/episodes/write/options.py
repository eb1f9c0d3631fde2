"""The options of an episode: how cameras are encoded, and what an exception does."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from relive._arguments import check_choice
from relive.episodes.layout import check_name
from relive.errors import InvalidTypeError
from relive.store.queue import Overload, check_queue
from relive.store.video.profiles import VideoSpec

ARRAY: Final = "array"
"""Instead of the name of a profile: record frames as plain arrays, not as video."""

SpecLike: TypeAlias = VideoSpec | str
"""A spec, the name of a profile, or `"array"`."""


@dataclass(frozen=True, slots=True)
class Options:
    """How frames are recorded, and what an exception in the `with` block does."""

    video: VideoSpec | None = field(default_factory=VideoSpec)
    """For cameras that `signals` does not name; None records arrays."""
    signals: Mapping[str, VideoSpec | None] = field(default_factory=dict)
    overload: Overload = "block"
    queue: int | None = None
    on_error: Literal["keep", "commit", "abort"] = "keep"


def as_options(**given: Any) -> Options:
    """Check the options that are not None, and return all, with their defaults."""
    given = {key: value for key, value in given.items() if value is not None}
    if "video" in given:
        given["video"] = _spec("video", given["video"])
    signals = given.get("signals", {})
    if not isinstance(signals, Mapping):
        raise InvalidTypeError(
            f"`signals` must be a dict from signal names to VideoSpecs, got {signals!r}"
        )
    given["signals"] = {
        check_name(name): _spec(f"signals[{name!r}]", spec) for name, spec in signals.items()
    }
    options = replace(Options(), **given)
    check_queue(options.overload, options.queue)
    check_choice("on_error", options.on_error, ("keep", "commit", "abort"))
    return options


def _spec(name: str, spec: Any) -> VideoSpec | None:
    if isinstance(spec, VideoSpec):
        return spec
    if isinstance(spec, str):
        return None if spec == ARRAY else VideoSpec(profile=spec)
    raise InvalidTypeError(
        f"`{name}` must be a VideoSpec, the name of a video profile or {ARRAY!r}, got {spec!r}"
    )
