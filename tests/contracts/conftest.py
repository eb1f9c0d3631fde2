"""Parametrizes tests with every source under contract."""

import pytest

from tests.contracts.source_contract import BOUND, SOURCES, Make


@pytest.fixture(params=SOURCES)
def make(request: pytest.FixtureRequest) -> Make:
    return SOURCES[request.param]


@pytest.fixture(params=[name for name in SOURCES if name not in BOUND])
def make_portable(request: pytest.FixtureRequest) -> Make:
    return SOURCES[request.param]
