"""Parametrizes tests with every source under contract, and closes those that are written."""

from collections.abc import Iterator

import pytest

from tests.contracts.source_contract import BOUND, SOURCES, Make, close_written


@pytest.fixture(autouse=True)
def end_stores() -> Iterator[None]:
    yield
    close_written()


@pytest.fixture(params=SOURCES)
def make(request: pytest.FixtureRequest) -> Make:
    return SOURCES[request.param]


@pytest.fixture(params=[name for name in SOURCES if name not in BOUND])
def make_portable(request: pytest.FixtureRequest) -> Make:
    return SOURCES[request.param]
