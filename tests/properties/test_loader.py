"""Loaders with any options, stopped and resumed anywhere."""

import itertools
import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from relive import DataLoader, Sampler, Source
from relive.load import Concat, Mix
from tests.load.reference import MODES, TAILS, Plain, batches_of, rows, same

workers = st.integers(0, 4)
prefetches = st.integers(1, 9)


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """Draw a source: rows, views, or joined sources, native or in Python."""
    parts: list[Source] = []
    for _ in range(draw(st.integers(1, 3))):
        part: Source = rows(draw(st.integers(1, 12)))
        if draw(st.booleans()):
            part = part[draw(st.lists(st.integers(0, len(part) - 1), min_size=1, max_size=8))]
        if draw(st.booleans()):
            part = part[:: draw(st.sampled_from([1, 2, -1, -3]))]
        parts.append(Plain(part) if draw(st.integers(0, 3)) == 0 else part)
    if draw(st.booleans()):
        return Concat(*parts)
    return Mix(*parts, length=draw(st.integers(1, 30)), seed=draw(st.integers(0, 9)))


@st.composite
def streams(draw: st.DrawFn, length: int) -> dict[str, Any]:
    world = draw(st.integers(1, 3))
    return {
        "batch_size": draw(st.integers(1, 9)),
        "mode": draw(st.sampled_from(MODES)),
        "seed": draw(st.integers(0, 99)),
        "tail": draw(st.sampled_from(TAILS)),
        "rank": draw(st.integers(0, world - 1)),
        "world_size": world,
        "window": draw(st.none() | st.integers(1, length)),
    }


def negate(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"vec": -batch["vec"]}


@settings(max_examples=60)
@given(st.data())
def test_loader_matches_sampler_and_source(data: st.DataObject) -> None:
    source = data.draw(sources())
    stream = data.draw(streams(len(source)))
    samples = len(source)
    assume(stream["tail"] != "drop" or stream["batch_size"] * stream["world_size"] <= samples)
    transform = data.draw(st.sampled_from([None, negate]))
    expected = batches_of(source, Sampler(samples, **stream), 12)
    if transform is not None:
        expected = [transform(batch) for batch in expected]

    done = 0
    state = None
    while done < 12:  # each part with another loader
        with DataLoader(
            source,
            workers=data.draw(workers),
            prefetch=data.draw(prefetches),
            transform=transform,
            **stream,
        ) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            leg = data.draw(st.integers(1, 8))
            for found in itertools.islice(loader, min(leg, 12 - done)):
                assert same(found, expected[done])
                done += 1
            state = loader.state_dict()


@settings(max_examples=40)
@given(st.data())
def test_epochs_end(data: st.DataObject) -> None:
    """With any tail, iteration by epoch matches one continuous iteration."""
    length, epochs = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    stream = data.draw(streams(length)) | {"window": None}
    assume(stream["tail"] != "drop" or stream["batch_size"] * stream["world_size"] <= length)
    source = rows(length)
    with DataLoader(source, epochs=epochs, workers=data.draw(workers), **stream) as loader:
        whole = list(loader)
        assert len(whole) == len(loader)
        loader.seek(0)
        parts: list[Any] = []
        while not parts or loader.position < epochs * length:
            parts += list(loader.epoch())
        assert len(parts) == len(whole)
        assert all(same(one, other) for one, other in zip(parts, whole, strict=True))
        assert len(list(loader)) == len(whole)  # the next epochs
        loader.seek(0)
        assert all(same(one, other) for one, other in zip(loader, whole, strict=True))
