"""Filters select the right rows, and no row group with such a row is left out."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from relive import errors
from relive.publish.read.filters import expressions
from relive.publish.read.filters.conditions import make_filter, matches
from relive.publish.read.footer import ShardFooter
from tests.publish.read.sample_tables import START, every_type, footer_of, write

TABLE = every_type()
NEXT_DAY = START + dt.timedelta(days=1)
UTC_DAY = NEXT_DAY.replace(tzinfo=dt.UTC)
F = pc.field

# Row groups that remain, of ten with a hundred rows each; None: as many as have matching rows.
EXPRESSIONS: dict[str, tuple[Any, int | None]] = {
    "less": (F("i") < 250, 3),
    "literal first": (pc.scalar(250) > F("i"), 3),
    "float literal": (F("i") == 5.0, 1),
    "small integers": (F("i8") >= 8, 2),
    "unsigned": (F("u32") >= pa.scalar((1 << 32) - 150, pa.uint32()), 2),
    "unsigned 64": (F("u64") > pa.scalar((1 << 63) + 850, pa.uint64()), 2),
    "floats": (F("f") > 950, 1),
    "NaN is not less or equal": (~(F("f") <= 950), 10),
    "NaN is not equal": (F("f") != 5, 10),
    "is NaN": (pc.is_nan(F("f")), 10),
    "NaN as null": (F("f").is_null(nan_is_null=True), 10),
    "literal NaN": (F("f") != float("nan"), 10),  # noqa: PLW0177 - an expression
    "float32": (F("f32") == pa.scalar(0.1, pa.float32()), 1),
    "text": (F("s") > "s0950", 1),
    "bytes": (F("bin") < b"0050", 1),
    "dictionary": (F("d") == "c3", 1),
    "timestamp": (F("ts") < NEXT_DAY, 1),
    "timestamp in seconds": (F("ts_s") < NEXT_DAY, 1),
    "timestamp with zone": (F("tz") < pa.scalar(UTC_DAY), 1),
    "date": (F("date") >= dt.date(2022, 9, 1), 1),
    "decimal": (F("dec") < Decimal("3.25"), 6),
    "negative decimal": (F("dec") < Decimal(-120), 1),
    "boolean": (F("b") == True, 5),  # noqa: E712 - an expression
    "boolean column": (F("b"), 5),
    "not boolean column": (~F("b"), 5),
    "struct field": (F("n", "p") < 50, 1),
    "null": (F("empty").is_null(), 10),
    "valid": (F("empty").is_valid(), 0),
    "all null": (F("empty") > 3, 0),
    "some null": (F("s").is_null(), 10),
    "null comparison": (F("i") > pa.scalar(None, pa.int64()), None),
    "in": (F("i").isin([5, 950]), 2),
    "not in": (~F("i").isin([5, 950]), 10),
    "in with null": (F("s").isin(["s0001", None]), 10),
    "in nothing": (F("i").isin(pa.array([], pa.int64())), None),
    "and": ((F("i") > 100) & (F("i") < 150), 1),
    "or": ((F("i") < 50) | (F("s") > "s0990"), 2),
    "not": (~((F("i") < 50) | (F("i") >= 100)), 1),
    "function": (pc.starts_with(F("s"), "s00"), None),
    "function and comparison": (pc.starts_with(F("s"), "s00") & (F("i") < 150), 2),
    "cast": (F("i").cast(pa.float32()) > 5, None),
    "sum": (F("i") + 1 < 3, None),
    "null of a comparison": ((F("s") > "s0990").is_null(), 10),
    "constant": (pc.scalar(True), 10),  # noqa: FBT003 - an expression
}  # fmt: skip

SQL: dict[str, int | None] = {
    "i < 250": 3,
    "250 > I": 3,
    "i = 5.0": 1,
    "i8 >= 8": 2,
    "u64 > 9223372036854776658": 2,
    "f > 950": 10,  # NaN is the largest number
    "not f <= 950": 10,
    "f < 50": 1,
    "f = 'nan'": 10,
    "f32 = 0.1::float": 1,
    "s > 's0950'": 1,
    "d = 'c3'": 1,
    "ts < '2020-01-02'": 1,
    "ts_s < timestamp '2020-01-02'": 1,
    "tz < '2020-01-02 00:00:00+00'": 1,
    "date >= date '2022-09-01'": 1,
    "dec < 3.25": 6,
    "dec < -120": 1,
    "b = true": 5,
    "n.p < 50": None,
    "empty is null": 10,
    "empty is not null": 0,
    "empty > 3": 0,
    "i in (5, 950)": 2,
    "i not in (5, 950)": 10,
    "i between 100 and 149": 1,
    "this.i between 100 and 149": 1,
    "i < 50 or s > 's0990'": 2,
    "not (i < 50 or i >= 100)": 1,
    "s like 's00%' and i < 150": 2,
    "s > 5::varchar": None,
    "i = null": None,
    "i = -5": 0,
    "i > '900'": 1,
    "list_contains(l, 1) and i < 10 -- comment": 1,
    "true": 10,
}


@pytest.fixture(scope="module")
def footer(tmp_path_factory: pytest.TempPathFactory) -> ShardFooter:
    return footer_of(write(TABLE, tmp_path_factory.mktemp("parquet") / "all.parquet"))


def check(condition: Any, footer: ShardFooter, table: pa.Table = TABLE) -> int:
    """Compare row groups with the rows that match; return how many row groups remain."""
    made = make_filter(condition, table.schema)
    mask = np.array(made.mask(table).fill_null(False).to_pylist(), bool)  # noqa: FBT003
    edges = footer.starts[1:-1]
    matching = np.array([part.any() for part in np.split(mask, edges)])
    whole = np.array([part.all() for part in np.split(mask, edges)])
    possible, certain = matches([made], [footer])
    assert not (matching & ~possible).any()
    assert not (certain & ~whole).any()
    if isinstance(condition, pc.Expression):
        assert mask.sum() == table.filter(condition).num_rows
    return int(possible.sum())


@pytest.mark.parametrize(("condition", "remain"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_expression_leaves_out_row_groups(
    footer: ShardFooter, condition: Any, remain: int | None
) -> None:
    found = check(condition, footer)
    assert remain is None or found == remain


@pytest.mark.needs("duckdb")
@pytest.mark.parametrize(("condition", "remain"), SQL.items(), ids=SQL)
def test_sql_leaves_out_row_groups(footer: ShardFooter, condition: str, remain: int | None) -> None:
    found = check(condition, footer)
    assert remain is None or found == remain


def test_files_without_statistics_are_read(tmp_path: Path) -> None:
    footer = footer_of(write(TABLE, tmp_path / "a.parquet", write_statistics=False))
    assert check(F("i") < 50, footer) == 10
    assert check(F("empty").is_valid(), footer) == 10


def test_long_texts_have_no_statistics(tmp_path: Path) -> None:
    table = pa.table({"s": ["x" * 10_000 + f"{n:03d}" for n in range(200)]})
    footer = footer_of(write(table, tmp_path / "a.parquet"))
    assert check(F("s") == "x" * 10_000 + "150", footer, table) == 2


def test_old_timestamps_have_no_statistics(tmp_path: Path) -> None:
    table = TABLE.select(["ts"])
    options = {"use_deprecated_int96_timestamps": True}
    footer = footer_of(write(table, tmp_path / "a.parquet", **options))
    stored = table.cast(pa.schema([("ts", pa.timestamp("ns"))]))
    assert check(F("ts") < NEXT_DAY, footer, stored) == 10


def test_timestamps_in_another_unit(tmp_path: Path) -> None:
    table = TABLE.select(["ts"]).cast(pa.schema([("ts", pa.timestamp("ns"))]))
    footer = footer_of(write(table, tmp_path / "a.parquet", version="2.4"))
    assert check(F("ts") < NEXT_DAY, footer, table) == 1


def test_several_shards_are_compared_at_once(tmp_path: Path) -> None:
    first = footer_of(write(TABLE.select(["i", "s"]), tmp_path / "a.parquet"))
    without = footer_of(write(TABLE.select(["s"]), tmp_path / "b.parquet"))
    unknown = footer_of(write(TABLE.select(["i"]), tmp_path / "c.parquet", write_statistics=False))
    made = make_filter(F("i") < 150, TABLE.schema)
    possible, certain = matches([made], [first, without, unknown])
    assert possible.tolist() == [True] * 2 + [False] * 8 + [False] * 10 + [True] * 10
    assert certain.tolist() == [True] + [False] * 29


def test_expression_that_cannot_be_parsed_reads_everything(
    monkeypatch: pytest.MonkeyPatch, footer: ShardFooter
) -> None:
    monkeypatch.setattr(expressions, "_Parts", str)  # which cannot read
    made = make_filter(F("i") < 50, TABLE.schema)
    assert made.columns == tuple(TABLE.schema.names)
    assert matches([made], [footer])[0].all()


def test_names_that_look_like_parts_of_an_expression(tmp_path: Path) -> None:
    name = "a'\nliteral: '0"
    table = pa.table({name: range(200), "b'": range(200), "x.y": range(200)})
    footer = footer_of(write(table, tmp_path / "a.parquet"))
    assert check(F(name) < 50, footer, table) in {1, 2}
    assert check(F("b'") < 50, footer, table) == 1
    assert check(F("x.y") < 50, footer, table) == 1


def values(name: str) -> st.SearchStrategy[Any]:
    """Draw a value to compare a column with."""
    number = st.integers(-10, 1010)
    return {
        "i": number | st.floats(-10, 1010),
        "f": number | st.floats(),
        "s": number.map(lambda n: f"s{n:04d}"),
        "ts": number.map(lambda n: START + dt.timedelta(hours=n)),
        "empty": number,
        "dec": number.map(Decimal),
    }[name]


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> Any:
    """Draw an expression over several columns."""
    kind = draw(st.sampled_from(["compare", "compare", "and", "or", "not", "null", "in"]))
    if depth and kind in {"and", "or"}:
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        return left & right if kind == "and" else left | right
    if depth and kind == "not":
        return ~draw(conditions(depth - 1))
    name = draw(st.sampled_from(["i", "f", "s", "ts", "empty", "dec"]))
    if kind == "null":
        return F(name).is_null()
    if kind == "in" and name in {"s", "ts"}:
        return F(name).isin(draw(st.lists(values(name), min_size=1, max_size=3)))
    operator = draw(st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]))
    return getattr(F(name), operator)(draw(values(name)))


@hypothesis.settings(
    max_examples=150, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(condition=conditions())
def test_no_matching_row_group_is_left_out(footer: ShardFooter, condition: Any) -> None:
    check(condition, footer)


@pytest.mark.parametrize(
    ("condition", "error", "message"),
    [
        (F("idd") < 3, errors.UnknownNameError, "there is no column `idd`"),
        (F("i"), errors.InvalidError, "must be a condition"),
        (F("i") < "x", errors.InvalidError, "cannot be evaluated"),
        (3, errors.InvalidTypeError, "must be SQL or"),
    ],
    ids=str,
)
def test_wrong_conditions_are_typed_errors(
    condition: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_filter(condition, TABLE.schema)


@pytest.mark.needs("duckdb")
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("idd > 3", "not found"),
        ("i >", "syntax error"),
        ("i in (select max(i) from this)", "contains a query"),
        ("exists(from read_csv('/etc/passwd'))", "contains a query"),
        ("sum(i) > 3", "aggregates"),
        ("row_number() over () < 3", "window functions"),
        ("true) group by (i", "not a single condition"),
        ("true) limit (1", "not a single condition"),
        ("true; drop table x", "syntax error"),
        ("", "not a single condition"),
        (" -- nothing", "not a single condition"),
        ("i > 3, i < 5", "not a single condition"),
    ],
)
def test_wrong_sql_is_an_invalid_error(sql: str, message: str) -> None:
    with pytest.raises(errors.InvalidError, match=message):
        make_filter(sql, TABLE.schema)


@pytest.mark.needs("duckdb")
def test_sql_keeps_the_order_of_many_rows() -> None:
    table = pa.table({"a": np.arange(500_000)})
    found = make_filter("a % 7 = 3", table.schema).mask(table)
    assert table.filter(found)["a"].to_pylist() == list(range(3, 500_000, 7))


@pytest.mark.needs("duckdb")
def test_sql_needs_only_its_columns() -> None:
    schema = TABLE.schema
    assert make_filter("I < 3 and S is null", schema).columns == ("i", "s")
    assert make_filter("columns(*) is not null", schema.remove(16)).columns != ()
    twins = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    assert make_filter("a > 3", twins).columns == ("a", "A")
