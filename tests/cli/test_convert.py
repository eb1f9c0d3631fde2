"""`relive convert`."""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.bridge.write.record_store import unfinished_path
from relive.replay import ReplayRecorder
from relive.store.records import RecordStore
from tests.bridge.sample_files import contents, samples, tar
from tests.cli.conftest import Relive


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Write two archives of three and two samples."""
    paths = [tmp_path / "t-0.tar", tmp_path / "t-1.tar"]
    for path, count in zip(paths, (3, 2), strict=True):
        path.write_bytes(tar(samples(count)))
    return paths


def test_shards_become_a_store(relive: Relive, shards: list[Path], tmp_path: Path) -> None:
    done = relive("convert", *shards, tmp_path / "train", "--codec", "zstd", "--level", 5)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'train'}: 5 rows, ")
    with RecordStore.open(tmp_path / "train") as store:
        assert len(store) == 5
        assert (store.fields["jpg"].codec, store.fields["jpg"].level) == ("zstd", 5)
        assert store.fields["cls"].codec == "raw"
    done = relive("convert", tmp_path / "t-*.tar", tmp_path / "again", "--workers", 3)
    assert contents(tmp_path / "again") == contents(tmp_path / "train")


def test_result_as_json(relive: Relive, shards: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "train"
    line = ("convert", *shards, target, "--fields", "txt,cls", "--limit", 4, "--json")
    done = relive(*line)
    result = done.json
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    assert result == {
        "path": str(target),
        "rows": 4,
        "file_bytes": size,
        "fields": {
            "txt": {"dtype": "str", "shape": [], "ragged": 0, "codec": "raw", "level": None},
            "cls": {"dtype": "int64", "shape": [], "ragged": 0, "codec": "raw", "level": None},
        },
        "resumed_from": 0,
        "skipped": 0,
    }
    done = relive(*line)
    assert done.status == 1
    assert done.err == f"error: `{target}` already exists\nhint: pass --overwrite to replace it\n"
    assert relive(*line, "--overwrite").status == 0


def test_convert_to_parquet_and_back(relive: Relive, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(4, 3))
    for source, target, options in (
        ("a.npy", "store", ("--rename", "data=x")),
        ("store", "a.parquet", ()),
        ("a.parquet", "odd", ("--to", "npy", "--kind", "parquet", "--sample", 10)),
    ):
        done = relive("convert", tmp_path / source, tmp_path / target, *options)
        assert (done.status, done.err) == (0, "")
    assert np.array_equal(np.load(tmp_path / "odd"), np.arange(12).reshape(4, 3))


def test_pack_and_its_steps(relive: Relive, pack: Path, tmp_path: Path) -> None:
    done = relive("convert", pack, tmp_path / "all")
    assert done.out.startswith(f"{tmp_path / 'all'}: 3 rows")
    done = relive("convert", pack, tmp_path / "steps.parquet", "--steps")
    assert done.out.startswith(f"{tmp_path / 'steps.parquet'}: 12 rows")


def test_failure_reports_the_rows_kept(relive: Relive, tmp_path: Path) -> None:
    source, target = tmp_path / "a.parquet", tmp_path / "store"
    rows = [[[1, 2], [3, 4]]] * 1100 + [[[1], [2, 3]]]
    pq.write_table(pa.table({"m": rows}), source, row_group_size=1100)
    done = relive("convert", source, target)
    assert done.status == 1
    note, error, hint = done.err.splitlines()
    unfinished = unfinished_path(target)
    assert note == (
        f"note: the rows converted so far are kept in `{unfinished}`; "
        "run the command again to go on"
    )
    assert error.startswith("error: row 1100: field 'm' has inner lists of different lengths")
    assert hint.startswith("hint: ")
    assert not target.exists()
    done = relive("convert", source, tmp_path / "a.npy")
    assert done.status == 1
    assert "note:" not in done.err


@pytest.mark.parametrize(
    "args",
    [
        ["convert"],
        ["convert", "a"],
        ["convert", "a", "b", "--codec", "rar"],
        ["convert", "a", "b", "--kind", "csv"],
        ["convert", "a", "b", "--to", "csv"],
        ["convert", "a", "b", "--size", "3y4"],
        ["convert", "a", "b", "--size", "0"],
        ["convert", "a", "b", "--rename", "x"],
        ["convert", "a", "b", "--fields", ","],
        ["convert", "a", "b", "--fields", "x", "--rename", "x=y"],
        ["convert", "a", "b", "--limit", "0"],
    ],
    ids=" ".join,
)
def test_invalid_arguments_fail(relive: Relive, args: list[str]) -> None:
    done = relive(*args)
    assert (done.status, done.out) == (2, "")


def test_damaged_rows_can_be_skipped(relive: Relive, tmp_path: Path) -> None:
    files = [(f"{k}.cls", b"three" if k == 3 else b"%d" % k) for k in range(20)]
    (tmp_path / "a.tar").write_bytes(tar(files))
    args = ("convert", tmp_path / "a.tar", tmp_path / "store", "--sample", 2)
    assert relive(*args).status == 1
    done = relive(*args, "--errors", "skip", "--overwrite")
    assert (done.status, done.err) == (3, "warning: 1 row left out\n")
    assert done.out.startswith(f"{tmp_path / 'store'}: 19 rows, ")


class Terminal(io.StringIO):
    """A stream whose isatty() is true."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("name", "shown"), [("a.npy", "100%  5 of 5"), ("a.tar", "converting 5")])
def test_progress_is_shown_on_a_terminal(
    relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    (tmp_path / "a.tar").write_bytes(tar(samples(5)))
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert relive("convert", tmp_path / name, tmp_path / "store").status == 0
    assert shown in stream.getvalue()
    assert stream.getvalue().endswith("\r")


def test_mode_converts_images(relive: Relive, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "images").mkdir()
    image.new("L", (4, 3), 7).save(tmp_path / "images" / "a.png")
    image.new("RGB", (4, 3), (7, 7, 7)).save(tmp_path / "images" / "b.png")
    done = relive("convert", tmp_path / "images", tmp_path / "store", "--decode", "image")
    assert done.status == 1
    assert "b.png` has the mode RGB, but " in done.err
    assert 'mode="RGB"' in done.err
    done = relive("convert", tmp_path / "images", tmp_path / "store", "--mode", "L", "--json")
    assert done.json["fields"]["image"]["shape"] == [3, 4]
    assert relive("convert", tmp_path / "images", tmp_path / "x", "--mode", "BGR").status == 2


@pytest.mark.needs("minari", "gymnasium")
def test_run_for_minari(relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    with ReplayRecorder(tmp_path / "runs", "dqn", live=None) as recorder:
        for number in range(5):
            recorder.step([float(number)], number % 2, 1.0, truncated=number == 4)
    target = tmp_path / "sets" / "dqn-v0"
    line = ("convert", tmp_path / "runs" / "replay" / "dqn.h5", target, "--to", "minari")
    noted = ("--minari", "author=Ada", "--minari", "author=Bo", "--minari", "algorithm_name=DQN")
    done = relive(*line, *noted)
    assert done.status == 0
    assert done.out.startswith(f"{target}: 4 rows, ")
    assert done.err == "note: 1 step left out, after which it is not known what was observed\n"
    metadata = minari.load_dataset("dqn-v0").storage.metadata
    assert metadata["author"] == {"Ada", "Bo"}
    assert (metadata["algorithm_name"], metadata["total_steps"]) == ("DQN", 4)
    done = relive(*line)
    assert done.status == 1
    assert done.err == f"error: `{target}` already exists\nhint: pass --overwrite to replace it\n"
    assert relive(*line, "--overwrite", "--json").json["fields"]["observation"]["shape"] == [1]
    done = relive(*line, "--minari", "autor=me")
    assert done.status == 2
    assert "`autor=me` is not of the form KEY=VALUE" in done.err
