"""How the signals of an episode are recorded, where the values alone do not say it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from relive.episodes.layout import check_name
from relive.errors import InvalidError, InvalidTypeError
from relive.store.queue import OVERLOADS, Overload, check_queue
from relive.store.video.profiles import VideoSpec

__all__ = ["ARRAY", "Options", "SpecLike", "as_options"]

ARRAY: Final = "array"
"""Said instead of a profile: record pictures as plain arrays, not as video."""

SpecLike: TypeAlias = VideoSpec | str
"""A spec, the name of a profile, or `"array"`."""

Ends: TypeAlias = Literal["keep", "commit", "abort"]
_ENDS: Final = ("keep", "commit", "abort")


@dataclass(frozen=True, slots=True)
class Options:
    """How pictures are recorded, and what happens to an episode whose block raises.

    `video` holds for all cameras that `signals` does not name; None records arrays.
    """

    video: VideoSpec | None
    signals: Mapping[str, VideoSpec | None]
    overload: Overload
    queue: int | None
    on_error: Ends

    def spec_of(self, name: str) -> VideoSpec | None:
        """Give how a picture of that name is encoded; None where it is an array."""
        return self.signals.get(name, self.video)

    def with_changes(self, **changes: Any) -> "Options":
        """Give the options with what is not None in `changes`; `signals` are added to these."""
        given = {key: value for key, value in changes.items() if value is not None}
        if "signals" in given:
            given["signals"] = {**self.signals, **_specs(given["signals"])}
        if "video" in given:
            given["video"] = _spec("video", given["video"])
        made = replace(self, **given)
        return _checked(made)


def as_options(**given: Any) -> Options:
    """Give the options that are meant where some are said: a profile by name, nothing by None."""
    usual = Options(VideoSpec(), {}, "block", None, "keep")
    return usual.with_changes(**given)


def _checked(options: Options) -> Options:
    if options.overload not in OVERLOADS:
        raise InvalidError(
            f"overload is one of {', '.join(map(repr, OVERLOADS))}, not {options.overload!r}"
        )
    if options.on_error not in _ENDS:
        raise InvalidError(
            f"on_error is one of {', '.join(map(repr, _ENDS))}, not {options.on_error!r}"
        )
    check_queue(options.queue)
    return options


def _specs(signals: Any) -> dict[str, VideoSpec | None]:
    if not isinstance(signals, Mapping):
        raise InvalidTypeError(f"signals map names to specs, unlike {signals!r}")
    return {check_name(name): _spec(name, spec) for name, spec in signals.items()}


def _spec(name: str, spec: Any) -> VideoSpec | None:
    if isinstance(spec, VideoSpec):
        return spec
    if isinstance(spec, str):
        return None if spec == ARRAY else VideoSpec(profile=spec)
    raise InvalidTypeError(
        f"{name!r} is recorded by a VideoSpec, by the name of a profile or as {ARRAY!r}, "
        f"not by {spec!r}"
    )
