"""The measurements of the guide page about data larger than memory."""

import pytest

from relive import errors
from tools import shuffle_quality
from tools.shuffle_quality import Case, block_bounds, epoch, measure

STEP = 512


@pytest.mark.parametrize(("blocks", "partitions"), [(4, 1), (4, 8), (16, 1)])
def test_noise_follows_the_formula(blocks: int, partitions: int) -> None:
    """A step draws from the blocks of the windows of all partitions."""
    found = measure(block_bounds(400_000), Case(blocks, partitions), seeds=1)
    assert found.noise == pytest.approx(1 + STEP / (blocks * partitions), rel=0.3)
    assert found.read == pytest.approx(1 / partitions, rel=0.1)
    assert found.blocks_in_step == pytest.approx(blocks * partitions + partitions, rel=0.2)


def test_more_blocks_in_a_step_are_a_better_shuffle() -> None:
    bounds = block_bounds(200_000)
    cases = [Case(4, 1), Case(4, 8), Case(None)]
    qualities = [measure(bounds, case, seeds=1) for case in cases]
    noises = [found.noise for found in qualities]
    assert noises == sorted(noises, reverse=True)
    assert noises[-1] == pytest.approx(1, abs=0.3)
    assert [found.distance for found in qualities] == sorted(found.distance for found in qualities)


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    shuffle_quality.main(["--rows", "20000", "--seeds", "1"])
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(shuffle_quality.CASES)
    assert {line.count("|") for line in [head, rule, *lines]} == {10}


def test_tables_smaller_than_a_step_are_refused() -> None:
    with pytest.raises(errors.InvalidError, match="the sampler has no batches"):
        epoch(block_bounds(100), Case(4), seed=0)
