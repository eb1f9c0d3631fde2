"""Publish a table once, then train a torch model from it; stop, and resume.

Needs `pip install 'relive[torch]' pyarrow`. The root is a folder here. With
`root="s3://bucket/prefix"` the same lines train from a bucket, and what was read is kept in a
cache on this machine.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

import relive


def publish(root: Path) -> None:
    """Publish 20,000 rows: twelve inputs and a target."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(20_000, 12)).astype(np.float32)
    slope = random.normal(size=12).astype(np.float32)
    target = inputs @ slope + random.normal(scale=0.1, size=20_000).astype(np.float32)
    rows = pa.table({"x": pa.FixedSizeListArray.from_arrays(inputs.reshape(-1), 12), "y": target})
    builder = relive.DatasetBuilder("examples/linear", root=root)
    builder.add_table("main", rows)
    builder.publish(tag="v1")


def train(root: Path, checkpoint: Path, epochs: int) -> None:
    """Train until `epochs` epochs are done, from the checkpoint if there is one."""
    model = torch.nn.Linear(12, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    table = relive.dataset("examples/linear@v1", root=root).table()
    data = table.to_torch(256, shuffle=True, seed=7)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        data.load_state_dict(saved["data"])
    loss = torch.tensor(float("nan"))
    # With torchrun, every process has its own part of each step: shard="auto" is the default.
    for epoch in range(data.epoch, epochs):
        data.set_epoch(epoch)
        for batch in data:
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    torch.save({"model": model.state_dict(), "data": data.state_dict()}, checkpoint)
    print(f"{epochs} epochs: loss {loss.item():.6f}, {data.stats()['rows']:.0f} rows in this run")


def main() -> None:
    """Train in two runs, of one epoch and of two more."""
    with tempfile.TemporaryDirectory() as folder:
        root, checkpoint = Path(folder) / "root", Path(folder) / "checkpoint.pt"
        publish(root)
        for epochs in (1, 3):
            train(root, checkpoint, epochs)


if __name__ == "__main__":
    main()
