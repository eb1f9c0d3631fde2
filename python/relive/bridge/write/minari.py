"""Write runs as a dataset of Minari, with Minari's own storage."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._arguments import as_text
from relive._extras import require
from relive.bridge.read.runs import Part, RunEpisodes, Segment
from relive.bridge.spaces import LeafType, fits, space_of
from relive.errors import InvalidError, InvalidTypeError, StorageError, UnsupportedError
from relive.model.report import Progress
from relive.model.schema import Field
from relive.store.atomic import whole_folder

OPTIONS: Final = (
    "action_space",
    "algorithm_name",
    "author",
    "author_email",
    "code_permalink",
    "dataset_id",
    "description",
    "env",
    "eval_env",
    "observation_space",
    "ref_max_score",
    "ref_min_score",
    "requirements",
)
"""What Minari can be told about a dataset: arguments of `minari.create_dataset_from_buffers`."""
TEXT_OPTIONS: Final = tuple(
    name for name in OPTIONS if not name.endswith("_space") and not name.startswith("ref_")
)
"""Those of them that may be texts."""

_DATA: Final = "data"
_METADATA: Final = "metadata.json"
_ROOT_VARIABLE: Final = "MINARI_DATASETS_PATH"
_SETS: Final = ("author", "author_email")
_LIMIT: Final = "max_episode_steps"
_OF_VECTORS: Final = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers", _LIMIT)
"""Arguments that only `gymnasium.make_vec` takes."""
_MAX_ATTRIBUTE: Final = 32 << 10
"""HDF5 has attributes of at most 64 KiB."""
_KEYS: Final = str.maketrans({"/": "%2F"})
"""HDF5 separates groups by slashes."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the number of steps, those that were left out, and the fields."""

    steps: int
    left_out: int
    fields: dict[str, Field]


def write_minari(
    runs: Sequence[Any],
    target: Path,
    *,
    options: Mapping[str, Any] | None,
    overwrite: bool,
    progress: Progress | None,
) -> Written:
    """Write the episodes of runs as a Minari dataset.

    At most 64 MiB of an episode are in memory. The dataset appears when it is complete.
    """
    minari = require("minari", extra="minari", to="write Minari datasets")
    for name in ("h5py", "PIL"):
        require(name, extra="minari", to="write Minari datasets")
    given = _checked_options(options)
    dataset_id = _dataset_id(target, given.pop("dataset_id", None))
    recorded = [RunEpisodes(run) for run in runs]
    total = sum(map(len, recorded))
    if not total:
        raise InvalidError(
            "there are no steps to write: of no step is known what was observed after it",
            hint="pass `next_observation` to step() at the end of an episode",
        )
    _check_alike(recorded)
    spaces = {name: _space(recorded, name, given) for name in ("observation", "action")}
    env_spec = _env_spec(recorded, given.pop("env", None))
    metadata = _metadata(given, dataset_id, minari.__version__)
    storage_class = import_module("minari.dataset.minari_storage").MinariStorage
    with whole_folder(target, overwrite=overwrite, may_replace=_check_dataset) as folder:
        _check_room(folder, recorded)
        storage = storage_class.new(
            folder.absolute() / _DATA,  # Minari takes the sizes of files only of absolute paths
            observation_space=spaces["observation"],
            action_space=spaces["action"],
            env_spec=env_spec,
            data_format="hdf5",
            jpeg_encoding=False,  # it would change the pixels
        )
        storage.update_metadata(metadata)
        written = _Episodes(recorded, progress, total)
        storage.update_episodes(written.buffers())
        storage.update_episode_metadata(written.attributes())
    _add_namespace(target, dataset_id)
    return Written(total, sum(len(run) for run in runs) - total, _fields(recorded[0]))


class _Episodes:
    """The segments of runs as episodes of Minari, and what is noted about each."""

    def __init__(
        self, recorded: Sequence[RunEpisodes], progress: Progress | None, total: int
    ) -> None:
        self._recorded = recorded
        self._progress = progress
        self._total = total
        self._rewards: list[tuple[float, float, float, float]] = []
        """Sum, sum of squares, maximum and minimum of the rewards of each episode."""

    def buffers(self) -> Iterator[Any]:
        """Return the episodes in parts. Minari joins parts that have the same id."""
        buffer = import_module("minari.data_collector").EpisodeBuffer
        done = 0
        for number, (episodes, segment) in enumerate(self._segments()):
            about = episodes.about(segment)
            sums = np.zeros(2)
            high, low = -np.inf, np.inf
            for part in episodes.parts(segment, about["reset_info"]):
                sums += part.rewards.sum(), np.square(part.rewards).sum()
                high = np.maximum(high, part.rewards.max())  # NaN stays NaN
                low = np.minimum(low, part.rewards.min())
                yield self._buffer(buffer, number, part, about)
                done += len(part.rewards)
                if self._progress is not None:
                    self._progress(done, self._total)
            self._rewards.append((float(sums[0]), float(sums[1]), float(high), float(low)))

    def attributes(self) -> Iterator[dict[str, Any]]:
        """Return what is noted about each episode."""
        for (episodes, segment), statistics in zip(self._segments(), self._rewards, strict=True):
            about, count = episodes.about(segment), segment.stop - segment.start
            total, squares, high, low = statistics
            mean = total / count
            noted = {
                "total_steps": count,  # of an episode in parts, Minari has that of the last part
                "rewards_sum": total,
                "rewards_mean": mean,
                "rewards_std": float(np.sqrt(np.maximum(squares / count - mean * mean, 0.0))),
                "rewards_max": high,
                "rewards_min": low,
                **{
                    name: about[name]
                    for name in ("run_id", "episode_id", "agent_id", "env_index", "first_step")
                },
            }
            if about["metadata"]:
                noted["metadata"] = json.dumps(about["metadata"])
            yield _attributes(noted)

    def _segments(self) -> Iterator[tuple[RunEpisodes, Segment]]:
        for episodes in self._recorded:
            for segment in episodes.segments:
                yield episodes, segment

    @staticmethod
    def _buffer(buffer: Any, number: int, part: Part, about: Mapping[str, Any]) -> Any:
        options = about["options"] if part.begins else None
        return buffer(
            id=number,
            seed=about["seed"] if part.begins else None,
            options=_attributes(options) if isinstance(options, Mapping) else None,
            observations=_encoded(part.observations),
            actions=_encoded(part.actions),
            rewards=part.rewards,
            terminations=part.terminations,
            truncations=part.truncations,
            infos=_encoded(part.infos),
        )


def _encoded(value: Any) -> Any:
    """Return a nested value whose keys HDF5 can have."""
    if isinstance(value, dict):
        return {_encoded_key(key): _encoded(item) for key, item in value.items()}
    return tuple(map(_encoded, value)) if isinstance(value, tuple) else value


def _encoded_key(key: str) -> str:
    key = key.translate(_KEYS)
    return {"": "%", ".": "%2E"}.get(key, key)


def _encoded_space(space: Any) -> Any:
    spaces = import_module("gymnasium").spaces
    if isinstance(space, spaces.Dict):
        return spaces.Dict({_encoded_key(k): _encoded_space(v) for k, v in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_encoded_space(item) for item in space.spaces])
    return space


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as attributes of HDF5: other values become JSON, large ones are left out."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            made[str(name)] = _attributes(value)
            continue
        if not isinstance(value, bool | int | float | str):
            array = np.asarray(value) if _is_numbers(value) else None
            value = json.dumps(value) if array is None else array  # noqa: PLW2901 (converted)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            value = str(value)  # noqa: PLW2901
        if isinstance(value, str) and "\0" in value:
            value = json.dumps(value)  # noqa: PLW2901
        size = value.nbytes if isinstance(value, np.ndarray) else len(str(value).encode())
        if size <= _MAX_ATTRIBUTE:
            made[str(name)] = value
    return made


def _is_numbers(value: Any) -> bool:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return False
    return array.dtype.kind in "biuf" and array.size > 0


def _checked_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidTypeError(f"`minari` must be a dict, got {options!r}")
    for name, value in options.items():
        if name not in OPTIONS:
            raise InvalidError(
                f"`minari` has the unknown key {name!r}", hint=f"the keys are {', '.join(OPTIONS)}"
            )
        if name in _SETS or name == "requirements":
            items = [value] if isinstance(value, str) else value
            if not isinstance(items, Iterable) or not all(isinstance(x, str) for x in items):
                raise InvalidTypeError(
                    f"`minari[{name!r}]` must be a string or a list of strings, got {value!r}"
                )
        elif name.startswith("ref_"):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidTypeError(f"`minari[{name!r}]` must be a number, got {value!r}")
        elif name not in {"env", "eval_env"} and not name.endswith("_space"):
            as_text(f"`minari[{name!r}]`", value)
    return {name: value for name, value in options.items() if value is not None}


def _metadata(given: Mapping[str, Any], dataset_id: str, version: str) -> dict[str, Any]:
    """Return what Minari notes about a dataset."""
    made: dict[str, Any] = {"dataset_id": dataset_id, "minari_version": version}
    for name, value in given.items():
        if name == "eval_env":
            made["eval_env_spec"] = _spec(name, value).to_json()
        elif name in _SETS or name == "requirements":
            items = [value] if isinstance(value, str) else list(value)
            made[name] = set(items) if name in _SETS else items
        elif not name.endswith("_space"):
            made[name] = value
    return made


def _dataset_id(target: Path, given: str | None) -> str:
    """Return the id under which Minari finds the target."""
    path = Path(os.path.abspath(target))  # noqa: PTH100 (links stay)
    if given is None:
        root = _datasets_root()
        inside = path.is_relative_to(root) and path != root
        given = path.relative_to(root).as_posix() if inside else path.name
    elif path.parts[-len(Path(given).parts) :] != Path(given).parts:
        raise InvalidError(
            f"the path of the dataset {given!r} must end with its id, got `{target}`",
            hint=f"Minari finds a dataset at `{_ROOT_VARIABLE}/<dataset id>`",
        )
    parse = import_module("minari.dataset.minari_dataset").parse_dataset_id
    try:
        parse(given)
    except (ValueError, TypeError):  # without a version
        raise InvalidError(
            f"{given!r} is not the id of a Minari dataset",
            hint="end the path with a name and a version, such as `cartpole/dqn-v0`",
        ) from None
    return given


def _datasets_root() -> Path:
    given = os.environ.get(_ROOT_VARIABLE)
    root = Path(given) if given else Path.home() / ".minari" / "datasets"
    return Path(os.path.abspath(root))  # noqa: PTH100 (as Minari finds it)


def _add_namespace(target: Path, dataset_id: str) -> None:
    """Let Minari list the namespace of a dataset that is in its own root."""
    namespace, _, _ = dataset_id.rpartition("/")
    path = Path(os.path.abspath(target))  # noqa: PTH100
    if not namespace or path != _datasets_root() / dataset_id:
        return
    module = import_module("minari.namespace")
    if namespace not in module.list_local_namespaces():
        module.create_namespace(namespace)


def _check_dataset(folder: Path) -> None:
    """Raise an `InvalidError` unless a folder is a Minari dataset, which may be replaced."""
    try:
        found = json.loads((folder / _DATA / _METADATA).read_text("utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or "total_episodes" not in found:
        raise InvalidError(
            f"cannot replace `{folder}`: it is not a Minari dataset",
            hint="remove it first, or convert to another path",
        )


def _check_room(folder: Path, recorded: Sequence[RunEpisodes]) -> None:
    """Raise a `StorageError` if the disk has too little room: the library of HDF5 would crash."""
    needed = sum(len(episodes) * episodes.step_bytes for episodes in recorded)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"cannot write `{folder.parent}`: the dataset needs {needed} bytes, but the disk has "
            f"{free} left"
        )


def _check_alike(recorded: Sequence[RunEpisodes]) -> None:
    """Raise an `InvalidError` unless all runs have the same arrays."""
    first = recorded[0]
    for other in recorded[1:]:
        for name, leaves in first.leaves.items():
            if other.leaves[name] != leaves:
                raise InvalidError(
                    f"the {name}s of run {other.run.run_id!r} have other names, dtypes or shapes "
                    f"than those of run {first.run.run_id!r}",
                    hint="convert the runs one by one",
                )


def _space(recorded: Sequence[RunEpisodes], name: str, given: Mapping[str, Any]) -> Any:
    """Return the space of observations or actions."""
    leaves = list(recorded[0].leaves[name].values())
    for leaf in leaves:
        if 0 in leaf.shape:
            raise UnsupportedError(
                f"an array of the {name}s has the shape {leaf.shape}, which Minari cannot store"
            )
    space = given.get(f"{name}_space")
    if space is not None:
        if not isinstance(space, import_module("gymnasium").spaces.Space):
            raise InvalidTypeError(f"`minari['{name}_space']` must be a space, got {space!r}")
        if not fits(space, leaves):
            raise InvalidError(f"the recorded {name}s are not values of the space {space}")
        return _encoded_space(space)
    described = [_described(episodes, name) for episodes in recorded]
    if any(other != described[0] for other in described):
        raise InvalidError(
            f"the runs were recorded with different {name} spaces",
            hint=f'pass minari={{"{name}_space": …}}, or convert the runs one by one',
        )
    if name == "action":
        leaves = _joined([episodes.action_bounds() for episodes in recorded])
    return _encoded_space(space_of(described[0], leaves))


def _joined(found: Sequence[list[LeafType]]) -> list[LeafType]:
    """Return leaves with the bounds of those of all runs."""
    joined = []
    for leaves in zip(*found, strict=True):
        first = leaves[0]
        highs = [leaf.high for leaf in leaves if leaf.high is not None]
        low = min(leaf.low for leaf in leaves)
        joined.append(
            LeafType(first.keys, first.dtype, first.shape, low, max(highs) if highs else None)
        )
    return joined


def _described(episodes: RunEpisodes, name: str) -> Any:
    """Return the description of a space that a run was recorded with, or None."""
    spaces = episodes.run.info["spaces"]
    found = spaces.get(name) if isinstance(spaces, Mapping) else None
    if isinstance(found, Mapping) and "type" not in found and found:  # a space for each agent
        first, *others = found.values()
        return first if all(other == first for other in others) else None
    return found


def _env_spec(recorded: Sequence[RunEpisodes], given: Any) -> Any:
    """Return how the environment was made, if it is known and the same in all runs."""
    if given is not None:
        return _spec("env", given)
    specs = [episodes.run.info["env_spec"] for episodes in recorded]
    found = specs[0]
    if any(other != found for other in specs) or not isinstance(found, Mapping):
        return None
    arguments = found.get("kwargs")
    if isinstance(arguments, Mapping) and "num_envs" in arguments:
        single = {key: value for key, value in arguments.items() if key not in _OF_VECTORS}
        limit = arguments.get(_LIMIT, found.get(_LIMIT))
        found = {**found, "kwargs": single, _LIMIT: limit}
    registration = import_module("gymnasium.envs.registration")
    try:
        return registration.EnvSpec.from_json(json.dumps(found))
    except (KeyError, TypeError, ValueError, AttributeError):  # made of functions or objects
        return None


def _spec(name: str, value: Any) -> Any:
    registration = import_module("gymnasium.envs.registration")
    gymnasium = import_module("gymnasium")
    if isinstance(value, registration.EnvSpec):
        return value
    try:
        return gymnasium.spec(as_text(f"`minari[{name!r}]`", value))
    except gymnasium.error.Error as error:
        raise InvalidError(f"`minari[{name!r}]` is not an environment: {error}") from error


def _fields(episodes: RunEpisodes) -> dict[str, Field]:
    leaves = {name: leaf for found in episodes.leaves.values() for name, leaf in found.items()}
    return {
        **{name: Field(leaf.dtype, leaf.shape) for name, leaf in leaves.items()},
        "reward": Field("float64"),
        "terminated": Field("bool"),
        "truncated": Field("bool"),
    }
