"""The demo's chapter on publishing: versions of a table, opened and streamed from a local root."""

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import relive
from examples.demo_report import Report, bars
from relive.publish import diff, validate

NAME = "demo/arm"
SHOWN_DIGITS = 12


def publish_chapter(report: Report, out: Path) -> list[str]:
    """Publish the steps of an arm, change them, open, query and stream them; return a log."""
    root = out / "datasets"
    store = relive.RecordStore.open(out / "arm")
    steps = _as_table(store)
    first = _publish(root, steps, tag="v1", message="as recorded")
    said = [f"{steps.num_rows} steps of the arm published as {NAME}@{first[:SHOWN_DIGITS]}, tag v1"]
    manifest = root / "manifests" / NAME / f"{first}.json"
    if hashlib.sha256(manifest.read_bytes()).hexdigest() != first:
        raise SystemExit("the version is not the SHA-256 of its manifest")
    said.append("the version is what sha256sum prints for its manifest")
    before = _files(root)
    if _publish(root, steps) != first or _files(root) != before:
        raise SystemExit("publishing the same content again changed something")
    said.append("published again: the same version, nothing was written")

    far = np.linalg.norm(np.asarray(store["state"])[:, 4:6], axis=1) > 0.5  # noqa: PLR2004
    second = _publish(root, steps.append_column("is_far", pa.array(far)), tag="v2")
    found = diff(f"{NAME}@v1", f"{NAME}@v2", root=root)
    (column,) = found.tables[0].columns
    said.append(f"v2 adds the column {column.name!r}; v1 stays as it was")

    dataset = relive.dataset(NAME, root=root)
    if dataset.digest != second:
        raise SystemExit("latest is not what was published last")
    started = time.perf_counter()
    answer = dataset.query(
        "SELECT is_far, count(DISTINCT reach) AS reaches, avg(norm) AS turn FROM "
        "(SELECT *, sqrt(action[1] * action[1] + action[2] * action[2]) AS norm FROM main) "
        "GROUP BY is_far ORDER BY is_far"
    ).to_pylist()
    taken = time.perf_counter() - started
    said.append(f"SQL over all steps in {1000 * taken:.0f} ms: {_answer_text(answer)}")

    rows = 0
    started = time.perf_counter()
    for batch in dataset.table().batches(batch_size=256, columns=["state", "action"]):
        rows += batch.num_rows
    taken = time.perf_counter() - started
    said.append(f"{rows} rows streamed in batches of 256, every byte verified, in {taken:.2f} s")

    table = dataset.table().select(["state", "action"])
    with relive.DataLoader(table, batch_size=128, tail="keep") as loader:
        shuffled = sum(len(each["state"]) for each in loader.epoch())
    said.append(f"the loader shuffles the same table: {shuffled} rows in an epoch")

    checked = validate(NAME, "full", root=root)
    if not checked.ok:
        raise SystemExit(f"the dataset is damaged: {checked.problems}")
    said.append(f"every byte compared with its digest: {checked.checked['bytes'] / 1e3:.0f} kB")
    _tell(report, dataset, answer)
    return said


def _as_table(store: relive.RecordStore) -> pa.Table:
    """Return the numbers and captions of the steps as an Arrow table."""
    return pa.table(
        {
            "reach": np.asarray(store["reach"]),
            "state": _vectors(np.asarray(store["state"])),
            "action": _vectors(np.asarray(store["action"])),
            "caption": [store["caption"][row] for row in range(len(store))],
        }
    )


def _vectors(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.astype(np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _publish(root: Path, table: pa.Table, **how: Any) -> str:
    builder = relive.DatasetBuilder(NAME, root=root)
    builder.add_table("main", table, key=["caption"])
    digest: str = builder.publish(**how)
    return digest


def _files(root: Path) -> dict[Path, int]:
    """Return when each file of the root was written."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def _answer_text(answer: list[dict[str, Any]]) -> str:
    words = {True: "far", False: "near"}
    return "; ".join(
        f"{row['reaches']} goals are {words[row['is_far']]}, mean turn {row['turn']:.3f}"
        for row in answer
    )


def _tell(report: Report, dataset: Any, answer: list[dict[str, Any]]) -> None:
    table = dataset.table()
    report.section("Publish")
    report.say(
        f"The steps of the arm were published as a table of {NAME} under a root that is a "
        "directory, twice: as they were recorded, and with one more column. Each version is named "
        "by the SHA-256 of its manifest, and the first one can still be opened by its tag."
    )
    report.table(
        ("version", "tags", "message"),
        [
            (each.digest[:SHOWN_DIGITS], ", ".join(each.tags), each.message or "")
            for each in dataset.versions
        ],
    )
    report.table(("column", "type"), [(field.name, str(field.type)) for field in table.schema()])
    report.say(
        "A query in SQL reads only the columns that it needs, and every byte of them is compared "
        "with its digest, as are the batches that a training loop gets."
    )
    report.draw(
        "Mean turn per step (milliradians), by the distance of the goal",
        bars({"far" if row["is_far"] else "near": 1000 * row["turn"] for row in answer}),
    )
