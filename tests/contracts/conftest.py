"""Every source under contract, one after the other."""

import pytest

from tests.contracts.source_contract import SOURCES, Make


@pytest.fixture(params=SOURCES)
def make(request: pytest.FixtureRequest) -> Make:
    return SOURCES[request.param]
