"""Train a torch model from arrays, stop, and resume from a checkpoint.

Needs `pip install 'relive[torch]'`. With a GPU, batches arrive on it.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from relive.load.torch import DataLoader


def main() -> None:
    """Fit a linear model of twelve inputs, in two runs."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(20_000, 12)).astype(np.float32)
    slope = random.normal(size=(12, 1)).astype(np.float32)
    noise = random.normal(scale=0.1, size=(20_000, 1)).astype(np.float32)
    data = {"x": inputs, "y": inputs @ slope + noise}
    device = "cuda" if torch.cuda.is_available() else "cpu"

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        for run, steps in enumerate((60, 120)):
            model = torch.nn.Linear(12, 1).to(device)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
            loader = DataLoader(data, batch_size=256, device=device)
            if checkpoint.exists():
                saved = torch.load(checkpoint)
                model.load_state_dict(saved["model"])
                loader.load_state_dict(saved["loader"])
            loss = torch.tensor(float("nan"))
            for _ in range(steps):
                batch = next(loader)
                loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint)
            print(f"run {run + 1}: {loader.position} samples, loss {loss.item():.6f}")
            loader.close()


if __name__ == "__main__":
    main()
