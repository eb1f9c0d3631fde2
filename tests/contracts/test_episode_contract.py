"""Tests that every kind of episode must pass."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.episodes import Episode, Signal
from tests.contracts.episode_contract import (
    EPISODES,
    FIRST,
    LAST,
    ON_DISK,
    START,
    STATICS,
    TIMES,
    UID,
    value,
)
from tests.episodes.processes import in_process


@pytest.fixture(params=EPISODES)
def episode(request: pytest.FixtureRequest) -> Episode:
    return EPISODES[request.param]()


def content(episode: Episode) -> dict[str, Any]:
    """Return the content of an episode as plain values."""
    signals = {
        name: [(np.asarray(item).tolist(), ts) for item, ts in signal]
        for name, signal in episode.signals.items()
    }
    return {"uid": episode.uid, "signals": signals, "statics": dict(episode.statics)}


EXPECTED = {
    "uid": UID,
    "signals": {
        name: [(np.asarray(value(name, row)).tolist(), ts) for row, ts in enumerate(times)]
        for name, times in TIMES.items()
    },
    "statics": STATICS,
}


def test_content_matches_the_model(episode: Episode) -> None:
    assert isinstance(episode, Episode)
    assert content(episode) == EXPECTED
    assert list(episode.signals) == sorted(TIMES)
    assert episode.meta["uid"] == UID
    assert episode.meta["created_ts_ns"] == 5
    assert "\n" not in repr(episode)
    assert repr(UID) in repr(episode)


def test_episode_is_a_mapping_of_names(episode: Episode) -> None:
    names = {*TIMES, *STATICS}
    assert set(episode) == set(episode.keys) == names
    assert len(episode) == len(names) == len(episode.values()) == len(episode.items())
    for name, item in episode.items():
        assert name in episode
        assert isinstance(item, Signal) == (name in TIMES)
    assert episode["task"] == "pick"
    assert len(episode["note"]) == 2
    assert episode["note"].name == "note"
    assert episode.get("nothing") is None
    assert "nothing" not in episode
    with pytest.raises(errors.UnknownNameError, match="no signal or static value is named 'tsak'"):
        episode["tsak"]


def test_start_and_end_times(episode: Episode) -> None:
    assert (episode.first_ts, episode.start_ts, episode.last_ts) == (FIRST, START, LAST)
    assert episode.duration_ns == LAST - FIRST


def test_selection_by_time(episode: Episode) -> None:
    found = episode.time[36]
    assert set(found) == {*TIMES, *STATICS}
    np.testing.assert_array_equal(found["arm/state"], value("arm/state", 2))
    assert found["note"] == "note 1"
    assert content(episode.time[...]) == EXPECTED
    window = episode.time[20:30]
    assert (window.uid, dict(window.statics)) == (UID, STATICS)
    assert {name: s.timestamps.tolist() for name, s in window.signals.items()} == {
        "arm/state": [20],
        "note": [25],
    }
    sampled = episode.time[[30, 25]]
    assert {tuple(s.timestamps.tolist()) for s in sampled.signals.values()} == {(30, 25)}
    stepped = episode.time[25::5]
    assert {tuple(s.timestamps.tolist()) for s in stepped.signals.values()} == {(25, 30, 35, 40)}
    with pytest.raises(errors.NoValueError, match="'note'"):
        episode.time[20]


def test_resampling(episode: Episode) -> None:
    held = episode.resample([25, 40])
    assert held["note"].values().tolist() == ["note 0", "note 1"]
    with pytest.raises(errors.UnknownNameError, match="tsak"):
        episode.resample([25], {"tsak": "hold"})


def test_returned_values_are_copies(episode: Episode) -> None:
    dict.__setitem__(episode.meta, "uid", "changed")
    episode.statics["pose"].append(3)
    episode["pose"][1]["x"] = 0
    assert content(episode) == EXPECTED
    assert episode.meta["uid"] == UID


def test_pickle_and_copy_round_trip(episode: Episode) -> None:
    for again in (pickle.loads(pickle.dumps(episode)), copy.deepcopy(episode)):  # noqa: S301
        assert content(again) == EXPECTED
    content(episode)  # reads everything
    assert content(pickle.loads(pickle.dumps(episode))) == EXPECTED  # noqa: S301


@pytest.mark.parametrize("name", [name for name in ON_DISK if name != "window"])
def test_pickled_local_episode_is_small(name: str) -> None:
    episode = EPISODES[name]()
    content(episode)
    assert len(pickle.dumps(episode)) < 2000


def test_concurrent_reads_from_threads(episode: Episode) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(content, [episode] * 8)) == [EXPECTED] * 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("name", ["view", "disk", "edited", "transformed", "replay"])
def test_reads_in_other_processes(name: str, method: str) -> None:
    assert in_process(method, content, EPISODES[name]()) == EXPECTED
