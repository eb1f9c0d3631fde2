"""The demo's chapter on streaming: training from a published table, stopped and resumed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import relive
from examples.demo_report import Report, dots, lines

NAME = "demo/drive"
FILES, GROUPS, GROUP_ROWS = 8, 8, 500
WINDOW = 4_000
BATCH, SEED = 100, 7


def stream_chapter(report: Report, out: Path) -> list[str]:
    """Publish Parquet files, train from them with ranks that come and go; return a log."""
    table = _publish(out)
    total = table.count()
    said = [
        f"{FILES} Parquet files published as they are: {total} steps in {FILES * GROUPS} groups"
    ]

    started = time.perf_counter()
    losses, whole = _train(table.batches(BATCH, shuffle=True, seed=SEED), epochs=2)
    taken = time.perf_counter() - started
    said.append(f"2 epochs in {taken:.2f} s, loss {losses[0]:.3f} → {losses[-1]:.5f}")

    first = table.batches(BATCH, shuffle=True, seed=SEED)
    _, stopped = _train(_some(first, 150), epochs=1)
    state = json.dumps(first.state_dict())
    first.close()
    again = table.batches(BATCH, shuffle=True, seed=SEED)
    again.load_state_dict(json.loads(state))
    _, stopped = _train(again, epochs=2, weights=stopped)
    if not np.array_equal(whole, stopped):
        raise SystemExit("a training that was stopped and resumed came out different")
    said.append(f"stopped after 150 batches, resumed from {len(state)} bytes: the same weights")

    before, state = _ranks(table, 4, BATCH, steps=30)
    after, _ = _ranks(table, 3, 64, state=state)
    if sorted(before + after) != list(range(total)):
        raise SystemExit("ranks lost or repeated rows")
    said.append(
        f"4 ranks stopped after {len(before)} rows, 3 ranks went on with other batches: "
        "together every row once"
    )
    _tell(report, table, losses)
    return said


def _publish(out: Path) -> Any:
    """Write the steps of a controller as Parquet files, publish them, and open the table."""
    folder = out / "drive"
    folder.mkdir()
    random = np.random.default_rng(5)
    slopes = random.normal(size=(6, 2))
    paths = []
    for number in range(FILES):
        begin = number * GROUPS * GROUP_ROWS
        state = random.normal(size=(GROUPS * GROUP_ROWS, 6))
        action = np.tanh(state @ slopes) + random.normal(0, 0.02, (len(state), 2))
        paths.append(folder / f"part-{number}.parquet")
        rows = pa.table(
            {
                "step": np.arange(begin, begin + len(state)),
                "state": pa.FixedSizeListArray.from_arrays(state.reshape(-1), 6),
                "action": pa.FixedSizeListArray.from_arrays(action.reshape(-1), 2),
            }
        )
        pq.write_table(rows, paths[-1], row_group_size=GROUP_ROWS)
    builder = relive.DatasetBuilder(NAME, root=out / "datasets")
    builder.add_table("main", paths)
    builder.publish()
    return relive.dataset(NAME, root=out / "datasets").table()


def _train(
    stream: Any, epochs: int, weights: np.ndarray | None = None
) -> tuple[list[float], np.ndarray]:
    """Fit a layer to the rest of the epochs of a stream; return the losses and its weights."""
    found = np.zeros((6, 2)) if weights is None else weights
    losses = []
    for epoch in range(getattr(stream, "epoch", 0), epochs):
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        for batch in stream:
            state, wanted = _matrix(batch, "state"), _matrix(batch, "action")
            guess = np.tanh(state @ found)
            error = guess - wanted
            found = found - 0.5 * state.T @ (error * (1 - guess**2)) / len(state)
            losses.append(float((error**2).mean()))
    return losses, found


def _some(stream: Any, count: int) -> Iterator[Any]:
    """Yield the next `count` batches, and no more."""
    for _ in range(count):
        yield next(stream)


def _ranks(
    table: Any, world: int, batch: int, *, steps: int | None = None, state: Any = None
) -> tuple[list[int], Any]:
    """Let `world` ranks take steps of an epoch; return the rows of all of them, and the state."""
    found: list[int] = []
    after = state
    for rank in range(world):
        with table.batches(
            batch, columns=["step"], shuffle=True, seed=SEED, shard=(rank, world)
        ) as stream:
            if state is not None:
                stream.load_state_dict(state)
            batches = stream if steps is None else _some(stream, steps)
            found += [row for each in batches for row in each["step"].to_pylist()]
            after = stream.state_dict()
    return found, after


def _matrix(batch: pa.RecordBatch, name: str) -> np.ndarray:
    flat: np.ndarray = batch.column(name).flatten().to_numpy()
    return flat.reshape(batch.num_rows, -1)


def _tell(report: Report, table: Any, losses: list[float]) -> None:
    report.section("Stream")
    report.say(
        f"{FILES} Parquet files were published as they are, and a layer was trained from them, "
        "batch by batch. Each epoch takes the row groups in another random order, shuffles the "
        "rows inside a window of several groups, and reads each group once."
    )
    report.draw("Loss by batch", lines(losses, log=True))
    orders = {
        "in order": {},
        f"window of {WINDOW // 4:,} rows": {"shuffle": True, "window": WINDOW // 4},
        f"window of {WINDOW:,} rows": {"shuffle": True, "window": WINDOW},
    }
    report.draw(
        "Which rows the first batches take", dots({k: _rows(table, v) for k, v in orders.items()})
    )
    report.say(
        "A training was stopped after 150 batches and resumed from its state in a new stream: the "
        "weights came out the same, bit for bit. Four ranks were stopped in the middle of an epoch "
        "and three went on, with other batches: together they took every row once."
    )


def _rows(table: Any, how: dict[str, Any]) -> list[np.ndarray]:
    with table.batches(BATCH, columns=["step"], **how) as stream:
        return [batch["step"].to_numpy() for batch in _some(stream, 12)]
