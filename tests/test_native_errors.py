"""Native errors are raised as the classes of `relive.errors`, by kind."""

import numpy as np
import pytest

from relive import _native, errors


def test_every_native_error_kind_has_a_class() -> None:
    kinds = _native.error_kinds()
    assert len(set(kinds)) == len(kinds)
    for kind in kinds:
        assert errors.BY_KIND[kind].kind == kind


def test_native_errors_raise_those_classes() -> None:
    table = _native.Table([("x", np.arange(3), None)])
    with pytest.raises(errors.OutOfRangeError, match="index 3 is out of range for 3 rows"):
        table.gather(np.array([3]))
    with pytest.raises(errors.InvalidError, match="column 1 has 4 rows, but column 0 has 3"):
        _native.Table([("x", np.arange(3), None), ("y", np.arange(4), None)])
    with pytest.raises(errors.CorruptError):
        _native.Codec("zstd", None, None, 1 << 20).decode(b"not a frame", 5)
