"""Claims: of several processes one has it, also when another gives it up at the same moment."""

import os
from pathlib import Path
from typing import Any

import pytest

from relive.store.cache import claims as module
from relive.store.cache.claims import Claims


def test_a_claim_that_is_given_up_and_taken_again_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Claims(tmp_path) for _ in range(3))
    assert first.take("a")
    real, left = Path.stat, [True]

    def stat(self: Path, **options: Any) -> os.stat_result:
        if left.pop() if left else False:
            first.release("a")
            try:
                return real(self, **options)
            finally:
                assert third.take("a")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert not second.take("a")
    assert not Claims(tmp_path).take("a")
    third.release("a")
    assert second.take("a")


def test_of_two_that_find_a_claim_of_a_killed_process_one_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, second, third = (Claims(tmp_path) for _ in range(3))
    assert dead.take("a")
    path = tmp_path / "claims" / "a"
    os.utime(path, (0, 0))
    real, left = Claims._is_stale, [True]

    def is_stale(self: Claims, path: Path) -> bool:
        found = real(self, path)
        if left.pop() if left else False:
            assert third.take("a")
        return found

    monkeypatch.setattr(module.Claims, "_is_stale", is_stale)
    assert not second.take("a")
    assert not Claims(tmp_path).take("a")
    assert [each.name for each in path.parent.iterdir()] == ["a"]
    third.release("a")
    assert second.take("a")
