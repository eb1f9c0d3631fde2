"""Tables in an object store read in torch workers: faults and renewed keys change no row."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.publish.read.dataset import dataset
from tests.publish.read.sample_tables import publish
from tests.servers import (
    CredentialService,
    Proxy,
    SeaweedFS,
    SigningProxy,
    seed_with_every_fault,
)

pytestmark = pytest.mark.needs("obstore", "seaweedfs", "torch")

METHODS = ("fork", "spawn", "forkserver")
ROWS, FILES, GROUP, BATCH, WORKERS = 6400, 8, 100, 160, 2
WINDOW = 400
REQUESTS = 25  # there are more
# A share of 1 % for each kind of fault, or what a longer campaign asks for.
SHARE = float(os.environ.get("RELIVE_FAULT_SHARE", "0.01"))
EPOCHS = int(os.environ.get("RELIVE_WORKER_EPOCHS", "1"))
KEY_S = float(os.environ.get("RELIVE_KEY_S", "3"))


@pytest.fixture
def address(seaweed: SeaweedFS, bucket: str, tmp_path: Path) -> str:
    """Publish a table of several files of many row groups; return the address of its root."""
    numbers = np.arange(ROWS)
    noise = np.random.default_rng(0).random((ROWS, 16)).tolist()
    rows = pa.table({"id": numbers, "x": pa.array(noise, pa.list_(pa.float64(), 16))})
    paths = []
    for number in range(FILES):
        part = rows.slice(number * ROWS // FILES, ROWS // FILES)
        paths.append(tmp_path / f"rows-{number}.parquet")
        pq.write_table(part, paths[-1], row_group_size=GROUP, compression="none")
    publish(bucket, {"main": paths}, **seaweed.options())
    return bucket


def expected(address: str, seaweed: SeaweedFS, epochs: int) -> list[list[list[int]]]:
    """Return the batches of each epoch, read without faults in this process."""
    table = dataset("test/data", mode="remote", root=address, **seaweed.options()).table()
    found = []
    for epoch in range(epochs):
        stream = table.batches(BATCH, columns=["id"], shuffle=True, seed=5, window=WINDOW)
        stream.set_epoch(epoch)
        batches = [next(stream).column(0).to_pylist() for _ in range(ROWS // BATCH)]
        found.append(batches)
    return found


def read_in_torch(
    address: str, method: str, options: dict[str, Any], epochs: int, pause_s: float = 0.0
) -> list[list[list[int]]]:
    """Return the batches of each epoch from torch's workers, after this process has read."""
    import time

    import torch

    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["torch"])  # once, instead of in each worker
    table = dataset("test/data", mode="remote", root=address, **options).table()
    assert next(table.batches(10, columns=["id"])).num_rows == 10
    # Nothing ahead, or so small a table would be fetched at once.
    data = table.to_torch(BATCH, shard=None, shuffle=True, seed=5, window=WINDOW, prefetch=0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=WORKERS, multiprocessing_context=method
    )
    found: list[list[list[int]]] = []
    for epoch in range(epochs):
        data.set_epoch(epoch)
        found.append([])
        for batch in loader:
            assert batch["x"].shape == (BATCH, 16)
            found[-1].append(batch["id"].tolist())
            time.sleep(pause_s)
    return found


def read_with(environment: dict[str, str], *arguments: Any) -> list[list[list[int]]]:
    """Return what `read_in_torch` returns, with these variables in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith("AWS_"):
                patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        return read_in_torch(*arguments)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Start processes to start workers in: in this one, other tests have used many libraries."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("method", METHODS)
def test_faults_change_neither_order_nor_rows(
    method: str, address: str, seaweed: SeaweedFS, processes: ProcessPoolExecutor
) -> None:
    want = expected(address, seaweed, EPOCHS)
    assert sorted(chain(*want[0])) == [*range(ROWS)]
    faults = {"busy": SHARE, "reset": SHARE, "silent": SHARE, "silent_s": 1.5}
    with Proxy(seaweed.url, seed=seed_with_every_fault(SHARE, 10, REQUESTS), **faults) as proxy:
        options = {**seaweed.options(proxy.url), "client_options": {"timeout": "700ms"}}
        work = processes.submit(read_in_torch, address, method, options, EPOCHS)
        assert work.result(timeout=120) == want
        proxy.wait()
        statuses = [each.status for each in proxy.log]
    assert len(statuses) >= REQUESTS
    assert statuses.count(503) >= 1
    assert statuses.count(0) >= 1  # not answered, or reset before an answer


def test_short_keys_are_renewed_while_workers_read(
    address: str, seaweed: SeaweedFS, tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    want = expected(address, seaweed, 1)
    with CredentialService() as service, SigningProxy(seaweed.url, service) as signing:
        # They expire together, once: on a slow machine a new key could be too old when it is used.
        service.declared_s = KEY_S
        environment = {
            "AWS_ENDPOINT_URL": signing.url,
            "AWS_REGION": "us-east-1",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{service.url}/container",
            "HOME": str(tmp_path),  # not the profiles of this machine
        }
        pause_s = (KEY_S + 2.0) / (ROWS // BATCH)
        works = [
            processes.submit(read_with, environment, address, method, {}, 1, pause_s)
            for method in ("fork", "spawn")
        ]
        threading.Timer(KEY_S, service.expire_all).start()
        assert [work.result(timeout=60 + 2 * KEY_S) for work in works] == [want] * 2
    # Keys for the two processes, and more than one for each of their four workers.
    assert sum(key.uses > 0 for key in service.issued.values()) >= 10
    assert {*signing.refused} <= {"ExpiredToken"}
