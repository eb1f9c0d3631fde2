"""`relive.load.torch` with a CUDA device: pinned gathers, and copies on a separate stream."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

import relive
from relive.load import Map

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("cuda")

from relive.load.torch import DataLoader  # noqa: E402 - needs torch


def source(rows: int = 1000) -> relive.ArraySource:
    return relive.ArraySource(
        {
            "x": np.repeat(np.arange(rows, dtype=np.int32)[:, None], 1000, axis=1),
            "label": np.arange(rows),
            "tokens": relive.Ragged.from_list([np.full(k % 4, k) for k in range(rows)]),
        }
    )


def check(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert batch["x"].device.type == "cuda"
    assert np.array_equal(batch["x"].cpu().numpy(), expected["x"])
    assert batch["label"].cpu().tolist() == expected["label"].tolist()
    assert batch["tokens"]["values"].cpu().tolist() == expected["tokens"].values.tolist()


def test_batches_arrive_whole_and_in_order() -> None:
    loader = DataLoader(source(), batch_size=64, seed=1, device="cuda", workers=4)
    plain = relive.DataLoader(source(), batch_size=64, seed=1)
    for batch, expected in islice(zip(loader, plain, strict=False), 200):
        check(batch, expected)


def test_held_batches_do_not_change() -> None:
    loader = DataLoader(source(), batch_size=64, device="cuda")
    held = list(islice(loader, 50))
    plain = relive.DataLoader(source(), batch_size=64)
    for batch, expected in zip(held, plain, strict=False):
        check(batch, expected)


def test_consumer_may_use_another_stream() -> None:
    loader = DataLoader(source(), batch_size=64, device="cuda")
    plain = relive.DataLoader(source(), batch_size=64)
    for step in range(50):
        with torch.cuda.stream(torch.cuda.Stream()):
            batch, expected = next(loader), next(plain)
            total = batch["x"].sum(dtype=torch.int64)
        torch.cuda.synchronize()
        assert int(total) == int(expected["x"].sum(dtype=np.int64)), step


def test_current_stream_is_unchanged() -> None:
    loader = DataLoader(source(), batch_size=8, device="cuda")
    before = torch.cuda.current_stream()
    next(loader)
    assert torch.cuda.current_stream() == before


def test_state_counts_returned_batches_not_those_in_transfer() -> None:
    loader = DataLoader(source(), batch_size=64, device="cuda", workers=3)
    for _ in range(7):
        next(loader)
    assert loader.position == 7 * 64
    other = DataLoader(source(), batch_size=64, device="cuda")
    other.load_state_dict(loader.state_dict())
    assert torch.equal(next(loader)["x"], next(other)["x"])


def test_epochs_end_and_errors_are_raised_in_order() -> None:
    loader = DataLoader(source(), batch_size=300, device="cuda", epochs=1, tail="keep")
    assert [len(batch["label"]) for batch in loader] == [300, 300, 300, 100]

    def fail_on_the_third(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["label"][0] >= 600:
            raise ValueError("the third batch")
        return {"label": batch["label"]}

    failing = DataLoader(
        source(), batch_size=300, device="cuda", mode="sequential", transform=fail_on_the_third
    )
    assert next(failing)["label"][0].item() == 0
    assert next(failing)["label"][0].item() == 300
    with pytest.raises(ValueError, match="the third batch"):
        next(failing)


def test_rows_from_python_are_pinned() -> None:
    doubled = Map(source(), lambda batch: {"twice": batch["x"] * 2})
    batch = next(DataLoader(doubled, batch_size=8, device="cuda", mode="sequential"))
    assert batch["twice"][:, 0].cpu().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
