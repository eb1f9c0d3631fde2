"""The rows of the original's table of steps, as runs store them."""

import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

import numpy.typing as npt

from relive.replay.columns import as_leaf
from relive.replay.migrate import blobs
from relive.replay.migrate.blobs import STORED, DamagedError, is_name, is_text, short
from relive.replay.storage.values import MAX_INFO_BYTES
from relive.replay.writing.steps import ACTIONS, FRAMES, OBSERVATIONS

ORIGINAL: Final = "__original__"
"""The key of `info` that has the columns of the source that a run has no place for."""
BLOBS: Final = ("observation", "render_payload")
"""The columns that `drop_blobs` removes."""
REQUIRED: Final = ("episode_id", "step_index", "reward", "terminated", "truncated", "timestamp")
"""The columns that a table must have to be migrated."""
COLUMNS: Final = {OBSERVATIONS: "observation", FRAMES: "render_payload", ACTIONS: "action"}
"""The column of the source that each field of a run comes from."""

_T = TypeVar("_T")
_MAPPED: Final = frozenset({*REQUIRED, *COLUMNS.values(), "agent_id", "run_id", "info"})
_JSON_COLUMNS: Final = ("render_hint", "space_signature", "vector_metadata")
_FRAME_KEYS: Final = ("rgb", "frame", "pixels", "image", "rgb_array", "array")
"""Where the frame is, if `render_payload` is a dict."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class StepKey(NamedTuple):
    """What identifies a step in the source."""

    episode_id: str
    step_index: int
    agent_id: str
    run: str
    """The id of the run; without one, what the id of the episode has before its last `-ep`."""


@dataclass(slots=True)
class StepValues:
    """A row of the source as a run stores it."""

    ts_ns: int
    reward: float | None
    terminated: bool
    truncated: bool
    arrays: dict[str, Any] = field(default_factory=dict)
    """Observation, frame and action by field, as far as they are arrays."""
    documents: dict[str, Any] = field(default_factory=dict)
    """The same as JSON, with everything that is not an array."""
    info: dict[str, Any] = field(default_factory=dict)
    large: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    """The large arrays of `info`, which has them as JSON too."""
    columns: dict[str, Any] = field(default_factory=dict)
    """JSON that a run has no other place for, by the column of the source."""
    nbytes: int = 0


def step_key(episode_id: object, step_index: object, agent_id: object, run_id: object) -> StepKey:
    """Return the key of a row."""
    if not isinstance(episode_id, str) or not episode_id or not is_text(episode_id):
        raise DamagedError(f"`episode_id` must be text, got {short(episode_id)}")
    if not isinstance(step_index, int) or step_index < 0:
        raise DamagedError(f"`step_index` must be an integer from 0, got {short(step_index)}")
    for name, value in (("agent_id", agent_id), ("run_id", run_id)):
        if value is not None and not (isinstance(value, str) and is_text(value)):
            raise DamagedError(f"`{name}` must be text, got {short(value)}")
    run = str(run_id) if run_id else episode_id.rpartition("-ep")[0] or episode_id
    return StepKey(episode_id, step_index, str(agent_id or ""), run)


def step_values(row: Mapping[str, Any]) -> StepValues:
    """Return the values of a row."""
    reward = _read("reward", _number, row["reward"])
    values = StepValues(
        _read("timestamp", as_ts_ns, row["timestamp"]),
        None if reward is None else float(reward),
        bool(_read("terminated", _number, row["terminated"])),
        bool(_read("truncated", _number, row["truncated"])),
    )
    values.nbytes = sum(len(part) for part in row.values() if isinstance(part, bytes | str))
    for name, value in row.items():
        if name not in _MAPPED:
            read = _document if name in _JSON_COLUMNS else as_document
            values.columns[name] = _read(name, read, value)
    _add_arrays(values, OBSERVATIONS, row, _document)
    _add_arrays(values, ACTIONS, row, _action)
    _add_frame(values, row)
    _add_info(values, row)
    return values


def as_document(value: Any) -> Any:
    """Return a value of SQLite as JSON; bytes are JSON, or are marked."""
    if not isinstance(value, bytes):
        return value
    try:
        return blobs.loads(value)
    except DamagedError:
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}


def as_ts_ns(value: object) -> int:
    """Return an ISO time in nanoseconds since 1970; one without a zone is in UTC."""
    try:
        time = datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DamagedError(f"must be an ISO time, got {short(value)}") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    ts_ns = (time - _EPOCH) // _MICROSECOND * 1000
    if ts_ns < 0:
        raise DamagedError(f"must be after 1970, got {short(value)}")
    return ts_ns


def read_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info that was migrated with the values that its markers stand for.

    What has no place in a run stays JSON as in the source.
    """
    return {key: value if key == ORIGINAL else blobs.decoded(value) for key, value in info.items()}


def _read(column: str, read: Callable[[Any], _T], value: Any) -> _T:
    """Return what a function makes of the value of a column; its errors name the column."""
    try:
        return read(value)
    except DamagedError as error:
        raise DamagedError(f"`{column}` {error}") from error


def _add_arrays(
    values: StepValues, name: str, row: Mapping[str, Any], read: Callable[[Any], Any]
) -> None:
    """Add the arrays of a column, and what is left of it if that is not just arrays."""
    column = COLUMNS[name]
    document = _read(column, read, row.get(column))
    parts = _read(column, blobs.split, document)
    if parts.arrays is not None:
        values.arrays[name] = parts.arrays
        values.documents[name] = document
    if not parts.has_only_arrays and parts.rest is not None:
        values.columns[column] = parts.rest


def _add_frame(values: StepValues, row: Mapping[str, Any]) -> None:
    """Add the frame of a `render_payload`, and what else it has."""
    column = COLUMNS[FRAMES]
    document = _read(column, _document, row.get(column))
    frame, rest = _read(column, _frame_of, document)
    if frame is not None:
        values.arrays[FRAMES] = frame
        values.documents[FRAMES] = document
    if rest is not None:
        values.columns[column] = rest


def _frame_of(document: Any) -> tuple[npt.NDArray[Any] | None, Any]:
    """Return the frame of a document, and the document without it."""
    frame = blobs.picture_of(document)
    if frame is not None:
        return frame, None
    if isinstance(document, dict) and not isinstance(document.get("__type__"), str):
        for key in _FRAME_KEYS:
            frame = blobs.picture_of(document.get(key))
            if frame is not None:
                return frame, {**document, key: STORED}
    return None, document


def _add_info(values: StepValues, row: Mapping[str, Any]) -> None:
    info = _read("info", _document, row.get("info"))
    if isinstance(info, dict) and ORIGINAL not in info and "" not in info:
        values.info = info
        values.large = _read("info", _large_arrays, info)
    elif info is not None:
        values.columns["info"] = info


def _large_arrays(info: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an info that are too large for the database."""
    large = {}
    for key, value in info.items():
        if isinstance(value, dict) and value.get("__type__") == "ndarray" and is_name(key):
            array = blobs.array_of(value)
            if array is not None and array.nbytes > MAX_INFO_BYTES:
                large[key] = as_leaf(key, array)
    return large


def _document(value: Any) -> Any:
    """Return a value that is JSON."""
    return blobs.loads(value) if isinstance(value, bytes | str) else value


def _action(value: Any) -> Any:
    """Return an action; text that is not a list or a dict stays text."""
    if not isinstance(value, str):
        return _document(value)
    with contextlib.suppress(DamagedError):
        document = blobs.loads(value)
        return document if isinstance(document, list | dict) else value
    return value


def _number(value: Any) -> int | float | None:
    if value is not None and not isinstance(value, int | float):
        raise DamagedError(f"must be a number, got {short(value)}")
    return value
