"""How a run is recorded: codecs, chunks, the queue, and how often steps are committed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final, TypeAlias

from relive._arguments import as_int, as_text, check_choice
from relive.errors import InvalidError, InvalidTypeError
from relive.store.queue import OVERLOADS, Overload

_DESCRIBED: Final = ("chunk_rows", "flush_s", "flush_steps", "sync_episodes")
_MAX_FLUSH_S: Final = 86_400.0
_LEVELS: Final = {"zstd": range(-7, 23), "deflate": range(10)}
_CODECS: Final = ("raw", "deflate", "zstd", "lz4")

Codec: TypeAlias = tuple[str, int | None]
"""The name of a codec, and its level."""

_DEFAULT: Final[Codec] = ("zstd", 1)
_FIELDS: Final = ("frames", "observations", "actions", "extras", "info")
"""What `fields` may name; of the last two also a part, as in `extras.log_prob`."""
_NAMED: Final = ("extras", "info")
_ARGUMENTS: Final = {"frame": "frames", "observation": "observations", "action": "actions"}
"""The fields of arguments that have another name."""


@dataclass(frozen=True)
class ReplayConfig:
    """The settings of a recorder.

    Args:
        codec: The codec of arrays, `"zstd"` or `"zstd:3"` with a level. Or a mapping from the names
            of fields to codecs, as in `{"observations": "raw"}`; a name also stands for the leaves
            below it, and `"*"` for all others.
        fields: The array fields to record, of `frames`, `observations`, `actions`, `extras` (or
            one of them, `extras.NAME`) and `info` (its arrays over 4 KiB, or `info.KEY`); None
            records all. Arrays of other fields are left out; numbers of steps are always recorded,
            and so are actions of at most 32 numbers, in the database.
        chunk_rows: Rows of a chunk; None chooses about 2 MiB.
        queue_bytes: How many bytes of steps may wait to be written.
        overload: What a step does when the queue is full: wait, drop the step, or raise an
            `OverloadError`.
        flush_s: Steps are committed at least this often, in seconds.
        flush_steps: Steps are committed at least after this many.
        sync_episodes: Whether the end of an episode is synced to the disk.
        workers: Threads that encode.

    Example:
        >>> from relive.replay import ReplayConfig
        >>> config = ReplayConfig(codec={"frames": "zstd:6", "observations": "raw"}, flush_s=0.5)
        >>> config.codec_of("observations.image"), config.codec_of("actions")
        (('raw', None), ('zstd', 1))
    """

    codec: str | Mapping[str, str] = "zstd:1"
    chunk_rows: int | None = None
    queue_bytes: int = 256 << 20
    overload: Overload = "block"
    flush_s: float = 1.0
    flush_steps: int = 1000
    sync_episodes: bool = True
    workers: int = 2
    fields: Collection[str] | None = None
    _codecs: dict[str, Codec] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codecs = {"*": _DEFAULT, **parse_codecs(self.codec)}
        object.__setattr__(self, "_codecs", codecs)
        if self.chunk_rows is not None:
            as_int("chunk_rows", self.chunk_rows, at_least=1, at_most=1 << 24)
        as_int("queue_bytes", self.queue_bytes, at_least=1)
        as_int("flush_steps", self.flush_steps, at_least=1)
        as_int("workers", self.workers, at_least=1, at_most=256)
        check_choice("overload", self.overload, OVERLOADS)
        if not isinstance(self.flush_s, Real) or isinstance(self.flush_s, bool):
            raise InvalidTypeError(f"`flush_s` must be a number of seconds, got {self.flush_s!r}")
        object.__setattr__(self, "flush_s", float(self.flush_s))
        if not 0.0 < self.flush_s <= _MAX_FLUSH_S:
            raise InvalidError(
                f"`flush_s` must be above 0 and at most a day, in seconds, got {self.flush_s!r}"
            )
        if self.fields is not None:
            object.__setattr__(self, "fields", _checked_fields(self.fields))

    def codec_of(self, name: str) -> Codec:
        """Return the codec and level of a column, by the longest name that is set for it."""
        return find_codec(self._codecs, name) or _DEFAULT

    def described(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        codec = self.codec if isinstance(self.codec, str) else dict(self.codec)
        settings = {name: getattr(self, name) for name in _DESCRIBED}
        fields = {} if self.fields is None else {"fields": sorted(self.fields)}
        return {"codec": codec, **settings, **fields}


def parse_codecs(codec: str | Mapping[str, str]) -> dict[str, Codec]:
    """Return the codecs of fields by name, as `ReplayConfig` takes them; `*` is all others."""
    if not isinstance(codec, str | Mapping):
        raise InvalidTypeError(
            f"`codec` must be a string, or a dict from names of fields to strings, got {codec!r}"
        )
    given = {"*": codec} if isinstance(codec, str) else codec
    return {_checked_name("codec", name): _parse_codec(name, text) for name, text in given.items()}


def find_codec(codecs: Mapping[str, Codec], name: str) -> Codec | None:
    """Return the codec of a column, by the longest name that is set for it; None without any.

    What was seen last in an episode has the codec of what was seen before, unless it has its own.
    """
    for found in (name, name.removeprefix("final.")):
        while found:
            if found in codecs:
                return codecs[found]
            found = found.rpartition(".")[0]  # noqa: PLW2901 - the name of the group
    return codecs.get("*")


def _checked_name(what: str, name: object) -> str:
    """Return the name of a field; the name of an argument of a step is refused."""
    text = as_text(f"a field in `{what}`", name)
    top = text.partition(".")[0]
    if top in _ARGUMENTS:
        raise InvalidError(
            f"`{what}` has the unknown field {text!r}",
            hint=f"the field of `{top}` is named {_ARGUMENTS[top]!r}",
        )
    return text


def _checked_fields(fields: object) -> frozenset[str]:
    if isinstance(fields, str | Mapping) or not isinstance(fields, Collection):
        raise InvalidTypeError(f"`fields` must be a list of names of fields, got {fields!r}")
    checked = frozenset(_checked_name("fields", name) for name in fields)
    if not checked:
        raise InvalidError("`fields` must not be empty", hint="pass arrays=False for no arrays")
    for name in checked:
        top, dot, rest = name.partition(".")
        if top not in _FIELDS or (dot and (top not in _NAMED or not rest)):
            raise InvalidError(
                f"`fields` has the unknown field {name!r}",
                hint=f"the fields are {', '.join(_FIELDS)}, extras.NAME and info.KEY",
            )
    return checked


def _parse_codec(name: str, text: str) -> Codec:
    what = "codec" if name == "*" else f"codec of {name!r}"
    codec, colon, level = as_text(f"the {what}", text).partition(":")
    codec = "deflate" if codec == "gzip" else codec  # as HDF5 calls it
    check_choice(what, codec, _CODECS)
    if not colon:
        return codec, None
    levels = _LEVELS.get(codec, range(0))
    if not level.removeprefix("-").isdecimal() or int(level) not in levels:
        wanted = f"{levels[0]} to {levels[-1]}" if levels else "left out"
        raise InvalidError(f"the level of {codec} must be {wanted}, got {text!r}")
    return codec, int(level)
