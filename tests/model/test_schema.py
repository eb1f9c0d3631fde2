"""Fields normalize their arguments and refuse types that cannot be stored."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError
from relive.model import Field
from relive.model.schema import CODECS, codec_name


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ("float32", np.dtype(np.float32)),
        (np.uint8, np.dtype(np.uint8)),
        (float, np.dtype(np.float64)),
        (bool, np.dtype(np.bool_)),
        (">i4", np.dtype(">i4")),
        ("datetime64[ns]", np.dtype("M8[ns]")),
        ("S8", np.dtype("S8")),
        ([("a", "i4"), ("b", "f8", (2,))], np.dtype([("a", "i4"), ("b", "f8", (2,))])),
        ("bytes", "bytes"),
        ("str", "str"),
        ("json", "json"),
        (bytes, "bytes"),
        (str, "str"),
    ],
)
def test_dtype_is_numpy_or_a_name(given: Any, dtype: Any) -> None:
    field = Field(given)
    assert field.dtype == dtype
    assert type(field.dtype) is type(dtype)


@pytest.mark.parametrize(
    "given", [object, "O", None, "U", "S", "V0", dict, [("a", object)], "no-such", 3, "finfo"]
)
def test_unsupported_dtype_raises(given: Any) -> None:
    with pytest.raises(InvalidTypeError):
        Field(given)


def test_object_dtype_error_has_a_hint() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        Field(object)
    assert caught.value.hint is not None
    for word in ('"bytes"', '"str"', '"json"', "ragged=True"):
        assert word in caught.value.hint


def test_shape_becomes_a_tuple_of_integers() -> None:
    assert Field("i4", [np.int64(2), 3]).shape == (2, 3)
    assert Field("i4", 4).shape == (4,)
    assert Field("i4", (0, 5)).shape == (0, 5)
    assert Field(np.dtype(("i4", (2, 3))), (4,)) == Field("i4", (4, 2, 3))
    with pytest.raises(InvalidError, match="at least 0"):
        Field("i4", (2, -1))
    for shape in (1.5, (2.0,), "ab", None):
        with pytest.raises(InvalidTypeError):
            Field("i4", shape)  # type: ignore[arg-type]


def test_codec_name_is_normalized() -> None:
    assert [codec_name(codec) for codec in CODECS] == ["raw", "deflate", "zstd", "lz4"]
    assert Field("i4", codec="none").codec == "raw"
    assert Field("i4", codec="flate").codec == "deflate"
    for codec in ("gzip", "ZSTD", "", None):
        with pytest.raises(InvalidError, match="unknown codec") as caught:
            Field("i4", codec=codec)  # type: ignore[arg-type]
        assert caught.value.hint == "use one of raw, deflate, zstd, lz4"


def test_ragged_is_a_number_of_dimensions() -> None:
    for one in (True, 1, np.True_, np.int8(1)):
        assert Field("i4", ragged=one) == Field("i4", ragged=True)  # type: ignore[arg-type]
        assert Field("i4", ragged=one).ragged is True  # type: ignore[arg-type]
    assert Field("i4", ragged=0).ragged is False
    assert (Field("i4", ragged=3).ragged, Field("i4", ragged=3).fixed) == (3, False)
    for wrong in (-1, 33):
        with pytest.raises(InvalidError):
            Field("i4", ragged=wrong)
    for bad in (1.0, "yes", None):
        with pytest.raises(InvalidTypeError):
            Field("i4", ragged=bad)  # type: ignore[arg-type]


def test_level_is_an_integer() -> None:
    assert Field("i4", codec="zstd", level=np.int64(3)).level == 3  # type: ignore[arg-type]
    assert Field("i4").level is None
    with pytest.raises(InvalidTypeError):
        Field("i4", codec="zstd", level="high")  # type: ignore[arg-type]


def test_bytes_per_row() -> None:
    assert Field("f4", (3, 5)).nbytes == 60
    assert Field("f4").nbytes == 4
    assert Field("f4", (3, 0)).nbytes == 0
    assert Field("u1", (1 << 20, 1 << 20, 1 << 20, 1 << 20)).nbytes == 1 << 80
    assert Field("f4", (3,), ragged=True).nbytes is None
    assert Field("str").nbytes is None
    assert Field("f4").fixed
    assert not Field("json").fixed
    assert not Field("f4", ragged=True).fixed
    assert Field("str").array_dtype == np.dtype("O")
    assert Field("f4").array_dtype == np.float32


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (Field("f4"), "Field('float32')"),
        (Field("f4", (3,)), "Field('float32', (3,))"),
        (Field("bytes", codec="zstd"), "Field('bytes', codec='zstd')"),
        (Field(">i2", (2, 3), ragged=True), "Field('>i2', (2, 3), ragged=True)"),
        (Field([("a", "i4")]), "Field([('a', '<i4')])"),
        (Field("f4", ragged=2), "Field('float32', ragged=2)"),
        (Field("str", codec="zstd", level=9), "Field('str', codec='zstd', level=9)"),
    ],
)
def test_repr_is_the_constructor_call(field: Field, text: str) -> None:
    assert repr(field) == text
    assert eval(text, {"Field": Field}) == field  # noqa: S307 - written above


def test_equal_fields_have_equal_hashes() -> None:
    assert len({Field("f4", [3]), Field(np.float32, (3,), "none"), Field("f8", 3)}) == 2
    assert Field("str") != Field("bytes")
    assert Field("U3") != Field("str")


def test_frozen_and_picklable() -> None:
    field = Field("f4", (3,), "zstd", ragged=True)
    with pytest.raises(AttributeError):
        field.codec = "raw"  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(field))  # noqa: S301 - our own data
    assert again == field
    assert hash(again) == hash(field)


@pytest.mark.needs("jax")  # imports ml_dtypes
def test_extension_dtypes_by_name() -> None:
    # In a new process, because NumPy may already know the names in this one.
    code = (
        "import pickle; from relive.model import Field; f = Field('bfloat16', (2,));"
        "assert f.nbytes == 4 and repr(f) == \"Field('bfloat16', (2,))\", f;"
        "assert pickle.loads(pickle.dumps(f)) == f; Field('float8_e4m3fn')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_extension_dtype_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(InvalidTypeError) as caught:
        Field("float9_e9")
    assert "pip install ml_dtypes" in str(caught.value)
