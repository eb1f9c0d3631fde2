"""Runs as Minari datasets: Minari itself reads what was recorded, value by value."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.bridge.read import runs
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    StorageError,
    UnsupportedError,
)
from relive.model.schema import Field
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun

gymnasium = pytest.importorskip("gymnasium")
minari = pytest.importorskip("minari")

SMALL = ReplayConfig(chunk_rows=4, sync_episodes=False)
SIDE = 36
"""Minari stores pictures from 32 pixels on as JPEG, if it is allowed to."""


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which Minari looks for datasets."""
    folder = tmp_path / "sets"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    return folder


class Toy(gymnasium.Env):  # type: ignore[misc, name-defined]
    """An environment whose every return is different, with nested spaces and changing infos."""

    def __init__(self, length: int = 5) -> None:
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
                "a/b.c": spaces.Tuple(
                    (spaces.Discrete(9, start=-1), spaces.Box(-1, 1, (2,), np.float32))
                ),
            }
        )
        self.action_space = spaces.Tuple(
            (spaces.MultiDiscrete([3, 4]), spaces.Box(-2.0, np.inf, (), np.float64))
        )
        self.length = length
        self.count = 0
        self.episode = -1
        self.trace: list[dict[str, Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.episode += 1
        episode = {"observations": [self.seen()], "infos": [{"lives": 3, "text": "go"}]}
        self.trace.append(episode | {"actions": [], "rewards": [], "ends": [], "seed": seed})
        return self.seen(), {"lives": 3, "text": "go"}

    def step(self, action: Any) -> Any:
        self.count += 1
        is_last = self.count == self.length
        terminated, truncated = is_last and self.episode % 2 == 0, is_last and self.episode % 2 == 1
        reward = self.count / 3
        info = self.info()
        episode = self.trace[-1]
        episode["observations"].append(self.seen())
        episode["infos"].append(info)
        episode["actions"].append(action)
        episode["rewards"].append(reward)
        episode["ends"].append((terminated, truncated))
        return self.seen(), reward, terminated, truncated, info

    def seen(self) -> Any:
        number = 10 * self.episode + self.count
        image = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        return {
            "image": image,
            "a/b.c": (np.int64(number % 9 - 1), np.array([number / 100, -0.5], np.float32)),
        }

    def info(self) -> dict[str, Any]:
        count = self.count
        found: dict[str, Any] = {
            "lives": 3 - count % 2,
            "speed": count / 7,
            "text": f"step {count}",
            "pose": [count, 0.5],
            "inner": {"is_won": count == 2, "map": np.full((700,), count, np.float32)},
            "large": np.full((40, 40), count, np.int32),
            "changing": count if count % 2 else "two",
        }
        if count == 3:
            found |= {"bonus": 5, "note": "zero \0 byte"}
        return found


def act(number: int) -> Any:
    return (np.array([number % 3, number % 4]), np.array(number / 8))


def record_toy(root: Path, run_id: str = "toy", episodes: int = 3, length: int = 5) -> Toy:
    """Record episodes of a toy, and return it."""
    from relive.replay.gym import Record

    toy = Toy(length)
    with Record(toy, root, run_id, frames=None, config=SMALL, live=None) as env:
        for number in range(episodes):
            env.reset(seed=100 + number, options={"level": number, "names": ["a", None]})
            for step in range(length):
                env.step(act(step))
    return toy


def assert_same(found: Any, wanted: Any) -> None:
    """Compare nested values, their dtypes and their shapes."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict)
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f")


def stacked(values: list[Any]) -> Any:
    """Join the values of steps."""
    first = values[0]
    if isinstance(first, dict):
        return {key.replace("/", "%2F"): stacked([v[key] for v in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([value[place] for value in values]) for place in range(len(first)))
    return np.stack([np.asarray(value) for value in values])


def attributes(dataset: Any, number: int) -> dict[str, Any]:
    (found,) = dataset.storage.get_episode_metadata([number])
    return dict(found)


def test_minari_reads_everything_that_the_environment_returned(tmp_path: Path, sets: Path) -> None:
    toy = record_toy(tmp_path / "runs")
    made = relive.convert(tmp_path / "runs", sets / "toy" / "first-v0", to="minari")
    assert (made.rows, made.left_out, made.skipped) == (15, 0, 0)
    assert made.fields["action.0"] == Field("int64", (2,))
    assert made.fields["reward"] == Field("float64")
    dataset = minari.load_dataset("toy/first-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 15)
    spaces = gymnasium.spaces
    place, vector = toy.observation_space["a/b.c"].spaces
    assert dataset.observation_space == spaces.Dict(
        {"image": toy.observation_space["image"], "a%2Fb.c": spaces.Tuple((place, vector))}
    )
    assert dataset.action_space == toy.action_space
    for number, (episode, wanted) in enumerate(zip(dataset, toy.trace, strict=True)):
        assert_same(episode.observations, stacked(wanted["observations"]))
        assert_same(episode.actions, stacked(wanted["actions"]))
        assert_same(episode.rewards, np.array(wanted["rewards"]))
        assert list(zip(episode.terminations, episode.truncations, strict=True)) == wanted["ends"]
        noted = attributes(dataset, number)
        assert noted["seed"] == wanted["seed"] == 100 + number
        assert noted["options"] == {"level": number, "names": '["a", null]'}
        assert (noted["run_id"], noted["episode_id"]) == ("toy", f"toy-ep{number:04}")
        assert (noted["total_steps"], noted["first_step"]) == (5, 0)
        rewards = np.array(wanted["rewards"])
        for name in ("sum", "mean", "std", "max", "min"):
            assert noted[f"rewards_{name}"] == pytest.approx(getattr(rewards, name)())


def test_infos_begin_with_that_of_the_reset(tmp_path: Path, sets: Path) -> None:
    toy = record_toy(tmp_path / "runs")
    relive.convert(tmp_path / "runs", sets / "first-v0", to="minari")
    infos = minari.load_dataset("first-v0")[1].infos
    wanted = toy.trace[1]["infos"]
    steps = wanted[1:]
    assert infos["lives"].tolist() == [3, 2, 3, 2, 3, 2]
    assert np.isnan(infos["speed"][0])
    assert infos["speed"][1:].tolist() == [info["speed"] for info in steps]
    assert infos["text"].tolist() == [info["text"].encode() for info in wanted]
    assert infos["pose"][1:].tolist() == [info["pose"] for info in steps]
    assert infos["inner"]["is_won"].tolist() == [False, False, True, False, False, False]
    assert infos["inner"]["map"][1:].tolist() == [info["inner"]["map"].tolist() for info in steps]
    assert infos["large"].dtype == np.int32  # of 6 KiB: recorded as an array
    assert_same(
        infos["large"], stacked([np.zeros((40, 40), np.int32), *(i["large"] for i in steps)])
    )
    assert [json.loads(text) for text in infos["changing"]] == [None, 1, "two", 3, "two", 5]
    # Only the third step has these: masks tell, as in vectors of Gymnasium.
    assert infos["bonus"].tolist() == [0, 0, 0, 5, 0, 0]
    assert infos["_bonus"].tolist() == [False, False, False, True, False, False]
    assert json.loads(infos["note"][3]) == "zero \0 byte"
    masks = {name for name in infos if name.startswith("_")}
    assert masks == {"_bonus", "_note"}


def test_long_episodes_are_written_in_parts(
    tmp_path: Path, sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_toy(tmp_path / "runs", episodes=2, length=11)
    relive.convert(tmp_path / "runs", sets / "whole-v0", to="minari")
    sizes = []
    count = runs.RunEpisodes.parts

    def parts(*given: Any) -> Iterator[runs.Part]:
        for part in count(*given):
            sizes.append(len(part.rewards))
            yield part

    monkeypatch.setattr(runs.RunEpisodes, "parts", parts)
    monkeypatch.setattr(runs, "_MAX_PART", 4)
    done: list[tuple[int, int | None]] = []
    relive.convert(
        tmp_path / "runs",
        sets / "parts-v0",
        to="minari",
        progress=lambda rows, total: done.append((rows, total)),
    )
    assert sizes == [4, 4, 3] * 2
    assert done == [(rows, 22) for rows in (4, 8, 11, 15, 19, 22)]
    whole, parted = (minari.load_dataset(name) for name in ("whole-v0", "parts-v0"))
    for number, (one, other) in enumerate(zip(whole, parted, strict=True)):
        assert_same(other.observations, one.observations)
        assert_same(other.actions, one.actions)
        for name in ("rewards", "terminations", "truncations"):
            assert_same(getattr(other, name), getattr(one, name))
        texts = {"text", "changing", "note"}
        assert other.infos.keys() == one.infos.keys()
        for name in one.infos:
            if name in texts:
                assert other.infos[name].tolist() == one.infos[name].tolist()
            else:
                assert_same(other.infos[name], one.infos[name])
        (noted, wanted) = (attributes(dataset, number) for dataset in (parted, whole))
        assert noted.pop("options") == wanted.pop("options")
        assert noted == pytest.approx(wanted)
    assert (parted.total_steps, parted.total_episodes) == (22, 2)


def record_ends(root: Path) -> None:
    """Record episodes that end in every way; an observation is [episode, step]."""
    with ReplayRecorder(root, "ends", config=SMALL, live=None) as recorder:

        def step(episode: int, number: int, **given: Any) -> None:
            seen = np.array([episode, number], np.float32)
            recorder.step(seen, number, float(number), **given)

        for number in range(3):
            step(0, number, terminated=number == 2)  # what was seen last is not known
        for number in range(3):
            step(1, number, truncated=number == 2)
        for number in range(3):
            last = np.array([2, 9], np.float32)
            step(2, number, truncated=number == 2, next_observation=last if number == 2 else None)
        step(3, 0, truncated=True)  # nothing is known about its only step
        for number in (0, 1, 3, 4):  # step 2 was dropped
            step(4, number, step_index=number, terminated=number == 4, env=1)
        step(5, 0)  # never ended
        step(5, 1)


def test_steps_are_those_of_transitions(tmp_path: Path, sets: Path) -> None:
    record_ends(tmp_path / "runs")
    run = ReplayRun(tmp_path / "runs", "ends")
    made = relive.convert(run, sets / "ends-v0", to="minari")
    dataset = minari.load_dataset("ends-v0")
    assert made.left_out == 4
    assert len(run) - made.left_out == made.rows == dataset.total_steps == len(run.transitions())
    found = [
        (
            episode.observations.tolist(),
            episode.actions.tolist(),
            episode.terminations.tolist(),
            episode.truncations.tolist(),
        )
        for episode in dataset
    ]
    assert found == [
        # A step that terminated repeats its own observation.
        ([[0, 0], [0, 1], [0, 2], [0, 2]], [0, 1, 2], [False, False, True], [False] * 3),
        # After truncation the value of what was seen counts: the last step is not written.
        ([[1, 0], [1, 1], [1, 2]], [0, 1], [False, False], [False, True]),
        ([[2, 0], [2, 1], [2, 2], [2, 9]], [0, 1, 2], [False] * 3, [False, False, True]),
        ([[4, 0], [4, 1]], [0], [False], [True]),
        ([[4, 3], [4, 4], [4, 4]], [3, 4], [False, True], [False, False]),
        ([[5, 0], [5, 1]], [0], [False], [True]),
    ]
    noted = [attributes(dataset, number) for number in range(6)]
    assert [each["first_step"] for each in noted] == [0, 0, 0, 0, 3, 0]
    assert noted[3]["episode_id"] == noted[4]["episode_id"] == "ends-ep0004"
    assert [each["env_index"] for each in noted] == [0, 0, 0, 1, 1, 0]
    transitions: dict[str, Any] = run.transitions().gather(np.arange(made.rows))
    order = np.argsort(transitions["episode"], kind="stable")
    assert np.array_equal(
        np.concatenate([episode.observations[1:] for episode in dataset]),
        transitions["next_observation"][order],
    )


def test_run_that_is_still_recorded(tmp_path: Path, sets: Path) -> None:
    with ReplayRecorder(tmp_path, "live", live=None) as recorder:
        for number in range(4):
            recorder.step([float(number)], 0, None, info={"n": number})
        recorder.flush()
        relive.convert(ReplayRun(tmp_path, "live"), sets / "live-v0", to="minari")
    (episode,) = minari.load_dataset("live-v0")
    assert episode.observations.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert episode.truncations.tolist() == [False, False, True]
    assert np.isnan(episode.rewards).all()  # a step without a reward
    assert episode.infos["n"].tolist() == [0, 0, 1, 2]


def test_vectors_are_episodes_of_each_environment(tmp_path: Path, sets: Path) -> None:
    from relive.replay.gym import Record

    vector = gymnasium.make_vec("CartPole-v1", num_envs=3, max_episode_steps=7)
    with Record(vector, tmp_path / "runs", "many", live=None) as env:
        env.reset(seed=5)
        for number in range(20):
            env.step(np.array([number % 2] * 3))
    run = ReplayRun(tmp_path / "runs", "many")
    made = relive.convert(run.source.path, sets / "many-v0", to="minari")
    dataset = minari.load_dataset("many-v0")
    assert made.rows == len(run) == dataset.total_steps
    assert len(dataset) == len(run.episodes)
    for number, (episode, wanted) in enumerate(zip(dataset, run.episodes, strict=True)):
        arrays = run.episode(wanted.statics["episode_id"]).arrays()
        last = arrays["final"]["observations"][None]
        assert_same(episode.observations, np.concatenate((arrays["observations"], last)))
        assert_same(episode.actions, arrays["actions"])
        assert_same(episode.rewards, arrays["rewards"])
        assert attributes(dataset, number)["env_index"] == wanted["env_index"]
    with dataset.recover_environment() as again:  # a single one
        assert again.spec.max_episode_steps == 7
        assert again.reset()[0].shape == (4,)


def test_extras_are_infos(tmp_path: Path, sets: Path) -> None:
    with ReplayRecorder(tmp_path, "r", live=None) as recorder:
        for number in range(4):
            extras = {"log/prob": np.float32(-number), "state": {"h": np.full((2,), number)}}
            recorder.step([0.0], 0, 1.0, extras=extras if number != 2 else None)
    relive.convert(tmp_path, sets / "r-v0", to="minari")
    extras = minari.load_dataset("r-v0")[0].infos["extras"]
    found = extras["log%2Fprob"]
    assert found.dtype == np.float32
    assert np.array_equal(found, [np.nan, 0, -1, np.nan], equal_nan=True)
    assert extras["_log%2Fprob"].tolist() == [False, True, True, False]
    assert extras["state"]["h"].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]


def test_spaces_that_were_not_recorded_are_the_largest(tmp_path: Path, sets: Path) -> None:
    spaces = gymnasium.spaces
    with ReplayRecorder(tmp_path, "r", live=None) as recorder:
        for number in range(4):
            seen = {
                "pixels": np.full((2, 2), number, np.uint8),
                "flags": np.array([True, False]),
                "half": np.float16(0.5),
                "on": True,
            }
            recorder.step(seen, 7 - number, 1.0)
    relive.convert(tmp_path, sets / "r-v0", to="minari")
    dataset = minari.load_dataset("r-v0")
    assert dataset.observation_space == spaces.Dict(
        {
            "flags": spaces.MultiBinary([2]),
            "half": spaces.Box(-np.inf, np.inf, (), np.float16),
            "on": spaces.Discrete(2),
            "pixels": spaces.Box(0, 255, (2, 2), np.uint8),
        }
    )
    assert dataset.action_space == spaces.Discrete(8)
    assert dataset.env_spec is None
    given = {"action_space": spaces.Discrete(9), "env": "CartPole-v1", "eval_env": "Acrobot-v1"}
    relive.convert(tmp_path, sets / "given-v0", to="minari", minari=given)
    dataset = minari.load_dataset("given-v0")
    assert dataset.action_space == spaces.Discrete(9)
    assert dataset.env_spec.id == "CartPole-v1"
    with dataset.recover_environment(eval_env=True) as env:
        assert env.spec.id == "Acrobot-v1"
    wrong = {"observation_space": spaces.Box(0, 1, (3,), np.float32)}
    with pytest.raises(InvalidError, match="observations are not values of the space"):
        relive.convert(tmp_path, sets / "wrong-v0", to="minari", minari=wrong)


def test_bounds_of_which_only_a_digest_was_recorded(tmp_path: Path, sets: Path) -> None:
    from relive.replay.gym import describe_space

    low = np.arange(400, dtype=np.float32)
    described = describe_space(gymnasium.spaces.Box(low, low + 1, dtype=np.float32))
    assert "sha256" in described["low"]
    space = {"observation": described, "action": {"type": "Unknown", "repr": "x"}}
    with ReplayRecorder(tmp_path, "r", spaces=space, live=None) as recorder:
        for _ in range(2):
            recorder.step(low, np.zeros(2, np.int8), 1.0)
    relive.convert(tmp_path, sets / "r-v0", to="minari")
    dataset = minari.load_dataset("r-v0")
    assert dataset.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (400,), np.float32)
    assert dataset.action_space == gymnasium.spaces.Box(-128, 127, (2,), np.int8)


def test_several_runs(tmp_path: Path, sets: Path) -> None:
    for run_id, actions in (("one", (0, 1)), ("two", (4, 2))):
        with ReplayRecorder(tmp_path / "runs", run_id, live=None) as recorder:
            for action in actions:
                recorder.step([0.0], action, 1.0, terminated=action == actions[1])
    relive.convert(tmp_path / "runs", sets / "all-v0", to="minari")
    dataset = minari.load_dataset("all-v0")
    assert [episode.actions.tolist() for episode in dataset] == [[0, 1], [4, 2]]
    assert dataset.action_space == gymnasium.spaces.Discrete(5)
    chosen = [ReplayRun(tmp_path / "runs", "two"), tmp_path / "runs" / "replay" / "one.h5"]
    relive.convert(chosen, sets / "chosen-v0", to="minari")
    dataset = minari.load_dataset("chosen-v0")
    assert [attributes(dataset, number)["run_id"] for number in range(2)] == ["two", "one"]
    with ReplayRecorder(tmp_path / "runs", "wide", live=None) as recorder:
        recorder.step([0.0, 1.0], 0, 1.0, terminated=True)
    with pytest.raises(InvalidError, match="observations of run 'wide' have other names"):
        relive.convert(tmp_path / "runs", sets / "none-v0", to="minari")
    record_toy(tmp_path / "toys", "first")
    record_toy(tmp_path / "toys", "second")
    relive.convert(tmp_path / "toys", sets / "toys-v0", to="minari")
    assert len(minari.load_dataset("toys-v0")) == 6


def test_copied_file_of_a_run(tmp_path: Path, sets: Path) -> None:
    toy = record_toy(tmp_path / "runs")
    copy = tmp_path / "copy.h5"
    copy.write_bytes((tmp_path / "runs" / "replay" / "toy.h5").read_bytes())
    relive.convert(copy, sets / "copy-v0", to="minari")
    episode = minari.load_dataset("copy-v0")[2]
    assert_same(episode.observations, stacked(toy.trace[2]["observations"]))
    # The infos of steps are only in the database, but for large arrays; those of resets are here.
    assert {*episode.infos} == {"lives", "_lives", "text", "_text", "large"}
    assert episode.infos["large"][5].tolist() == np.full((40, 40), 5).tolist()


def test_options_are_noted(tmp_path: Path, sets: Path) -> None:
    record_ends(tmp_path / "runs")
    noted = {
        "dataset_id": "a/b/ends-v3",
        "author": "Ada",
        "author_email": ["a@x.org", "b@x.org"],
        "algorithm_name": "DQN",
        "description": "a test",
        "requirements": ["numpy>=1"],
        "ref_min_score": 1,
        "ref_max_score": 3.0,
    }
    target = tmp_path / "elsewhere" / "a" / "b" / "ends-v3"
    relive.convert(tmp_path / "runs", target, to="minari", minari=noted)
    found = minari.MinariDataset(target / "data")
    metadata = found.storage.metadata
    assert (
        metadata | noted | {"author": {"Ada"}, "author_email": {"a@x.org", "b@x.org"}} == metadata
    )
    assert found.id == "a/b/ends-v3"
    assert minari.get_normalized_score(found, np.array([2.0])).tolist() == [0.5]


def test_target_appears_when_it_is_complete(
    tmp_path: Path, sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_ends(tmp_path / "runs")
    target = sets / "ends-v0"
    seen: list[Any] = []
    relive.convert(
        tmp_path / "runs",
        target,
        to="minari",
        progress=lambda *_: seen.append((target.exists(), minari.list_local_datasets())),
    )
    assert seen == [(False, {})] * 6
    assert [path.name for path in sets.iterdir()] == ["ends-v0"]
    before = (target / "data" / "main_data.hdf5").read_bytes()
    with pytest.raises(FileExistsError, match="already exists") as refused:
        relive.convert(tmp_path / "runs", target, to="minari")
    assert isinstance(refused.value, AlreadyExistsError)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relive.convert(tmp_path / "runs", target, to="minari", overwrite=True, progress=interrupt)
    damaged = ReplayRun(tmp_path / "runs", "ends")

    def read(*_: object) -> None:
        raise CorruptError("damaged")

    with monkeypatch.context() as patch:
        patch.setattr(runs.RunEpisodes, "_rewards", read)
        with pytest.raises(CorruptError):
            relive.convert(damaged, target, to="minari", overwrite=True)
        with pytest.raises(CorruptError):
            relive.convert(damaged, sets / "other-v0", to="minari")
    assert [path.name for path in sets.iterdir()] == ["ends-v0"]
    assert (target / "data" / "main_data.hdf5").read_bytes() == before
    record_toy(tmp_path / "toys")
    relive.convert(tmp_path / "toys", target, to="minari", overwrite=True)
    assert minari.load_dataset("ends-v0").total_episodes == 3
    assert [path.name for path in sets.iterdir()] == ["ends-v0"]


def test_disk_without_room(tmp_path: Path, sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_ends(tmp_path / "runs")
    full = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    with pytest.raises(StorageError, match="but the disk has 100 left"):
        relive.convert(tmp_path / "runs", sets / "ends-v0", to="minari")
    assert not any(sets.iterdir())


def test_what_is_refused(tmp_path: Path, sets: Path) -> None:
    record_ends(tmp_path / "runs")
    run = ReplayRun(tmp_path / "runs", "ends")

    def convert(source: Any = run, name: str = "x-v0", **options: Any) -> None:
        relive.convert(source, sets / name, to="minari", **options)

    with pytest.raises(UnsupportedError, match="only recorded runs"):
        convert(np.zeros(3))
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(UnsupportedError, match=r"is an array .* only recorded runs"):
        convert(tmp_path / "a.npy")
    with pytest.raises(InvalidError, match="'x' is not the id of a Minari dataset") as refused:
        convert(name="x")
    assert "version" in str(refused.value.hint)
    with pytest.raises(InvalidError, match="must end with its id"):
        convert(minari={"dataset_id": "y-v0"})
    with pytest.raises(InvalidError, match="unknown key 'autor'"):
        convert(minari={"autor": "me"})
    with pytest.raises(InvalidTypeError, match=r"minari\['author'\]"):
        convert(minari={"author": 3})
    with pytest.raises(InvalidTypeError, match=r"minari\['ref_max_score'\]` must be a number"):
        convert(minari={"ref_max_score": "3"})
    with pytest.raises(InvalidTypeError, match="must be a space"):
        convert(minari={"action_space": 3})
    with pytest.raises(InvalidError, match="is not an environment"):
        convert(minari={"eval_env": "No-Such-Env-v0"})
    with pytest.raises(InvalidTypeError, match="must be a dict"):
        convert(minari=3)
    with pytest.raises(InvalidError, match="`limit` cannot be used"):
        convert(limit=3)
    with pytest.raises(InvalidError, match="`errors` cannot be used"):
        convert(errors="skip")
    with pytest.raises(InvalidError, match="`minari` can be used only with"):
        relive.convert(np.zeros(3), tmp_path / "b.npy", minari={})
    (sets / "x-v0").mkdir(parents=True)
    (sets / "x-v0" / "mine.txt").touch()
    with pytest.raises(InvalidError, match="it is not a Minari dataset"):
        convert(overwrite=True)
    assert [path.name for path in sets.iterdir()] == ["x-v0"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"observation": [0.0], "action": None}] * 2, "has no actions in its arrays"),
        ([{"observation": None, "action": 1}] * 2, "has no observations in its arrays"),
        ([{"observation": [0.0], "action": a} for a in (1, None, 1)], "step 1 has no action"),
        ([{"observation": [0.0], "action": 1}], "there are no steps to write"),
        ([{"observation": [1j], "action": 1}] * 2, "has the dtype complex128"),
        ([{"observation": np.zeros((0, 2)), "action": 1}] * 2, r"has the shape \(0, 2\)"),
    ],
)
def test_runs_that_minari_cannot_have(
    tmp_path: Path, sets: Path, steps: list[dict[str, Any]], message: str
) -> None:
    with ReplayRecorder(tmp_path, "r", live=None) as recorder:
        for step in steps:
            recorder.step(**step, reward=1.0)
    with pytest.raises((InvalidError, UnsupportedError), match=message):
        relive.convert(tmp_path, sets / "r-v0", to="minari")
    assert not sets.exists() or not any(sets.iterdir())
