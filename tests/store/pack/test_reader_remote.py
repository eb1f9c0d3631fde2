"""Remote packs: few round trips to the first batch, and the same results as a local file."""

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import Ragged, errors
from relive.store.codec import train_dictionary
from relive.store.pack import register_kind
from tests.servers import FaultyServer, Nginx, SeaweedFS
from tests.store.pack.packs import make_runs, write_runs

pytest.importorskip("obstore")

NOTES = [f"note number {k} ".encode() * (40 + k % 7) for k in range(300)]


def upper(value: str) -> bytes:
    return value.upper().encode()


def lower(data: Any) -> str:
    return bytes(data).decode().lower()


def write(path: Path, **options: Any) -> relive.PackReader:
    """Write a pack of named runs and notes, and one of a user kind."""
    register_kind("loud", upper, lower)
    with relive.PackWriter(path, **options) as writer:
        for number, run in enumerate(make_runs(12)):
            old = number % 4 == 0
            payload = relive.Run(run.boards, run.moves) if old else run
            writer.append(payload, kind="v1" if old else "v2", name=f"run-{number}")
        writer.extend(NOTES, names=[f"note-{number}" for number in range(len(NOTES))])
        writer.append("hello", kind="loud")
    return relive.PackReader.open(path)


def same(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        if isinstance(values, Ragged):
            assert values == right[name]
        else:
            np.testing.assert_array_equal(values, right[name], strict=True)


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "raw": dict,
    "table": lambda: {"steps": True},
    "zstd": lambda: {"codec": "zstd"},
    "dictionary": lambda: {"codec": "zstd", "dictionary": train_dictionary(NOTES, 4096)},
    # The head and tail requests return the whole file.
    "packed": lambda: {"align": 1, "codec": "lz4", "checksum": False},
}


@pytest.fixture(params=OPTIONS)
def both(
    request: pytest.FixtureRequest, nginx: Nginx
) -> tuple[relive.PackReader, relive.PackReader]:
    local = write(nginx.files / "pack", **OPTIONS[request.param]())
    return local, relive.PackReader.open(f"{nginx.url}/pack")


Both = tuple[relive.PackReader, relive.PackReader]


def test_entries_match_the_local_file(both: Both) -> None:
    local, remote = both
    assert len(remote) == len(local) == 313
    order = np.random.default_rng(3).integers(0, 313, 200)
    same(remote.gather(order), local.gather(order))
    assert remote.decode_batch(order) == local.decode_batch(order)
    assert remote[312] == "hello"
    assert [remote.kind(k) for k in (0, 1, 50, 312)] == ["v1", "v2", "bytes", "loud"]
    assert (remote.name(3), remote.name(312)) == ("run-3", None)
    assert remote.find("note-9") == 21
    assert bytes(remote.payload(100)) == NOTES[88]
    with pytest.raises(errors.UnknownNameError):
        remote.find("nobody")


def test_steps_match_the_local_file(both: Both) -> None:
    local, remote = both
    here, there = local.steps(), remote.steps()
    assert len(here) == len(there)
    order = np.random.default_rng(4).integers(0, len(here), 100)
    same(there.gather(order), here.gather(order))
    some = remote[[5, 0, 40, 2]].steps()
    same(some.gather(range(len(some))), local[[5, 0, 40, 2]].steps().gather(range(len(some))))


def test_stats_iteration_and_validation_match_the_local_file(both: Both) -> None:
    local, remote = both
    assert remote.stats == local.stats
    assert [*remote] == [*local]
    assert [*remote.iter_batches(64, shuffle=True, seed=1)] == [
        *local.iter_batches(64, shuffle=True, seed=1)
    ]
    assert [*remote.where(steps=(10, 40))] == [*local.where(steps=(10, 40))]
    assert len(remote.where(steps=(10, 40))) == 4
    assert remote.validate("full").ok
    first, second = remote.split([0.5, 0.5], seed=2)
    assert len(first) + len(second) == 313


# Round trips


def waves(nginx: Nginx, work: Callable[[relive.PackReader], object], name: str = "pack") -> int:
    nginx.gate.waves.clear()
    work(relive.PackReader.open(f"{nginx.url}/gated/{name}"))
    return len(nginx.gate.waves)


@pytest.mark.parametrize("options", OPTIONS)
def test_first_batch_takes_two_round_trips(nginx: Nginx, options: str) -> None:
    local = write(nginx.files / "pack", capacity=400, **OPTIONS[options]())
    order = np.arange(0, 313, 3)
    assert waves(nginx, lambda remote: same(remote.gather(order), local.gather(order))) <= 2
    assert waves(nginx, lambda remote: remote.decode_batch(order)) <= 2


@pytest.mark.parametrize("dictionary", [False, True])
def test_first_batch_of_many_entries_takes_three_round_trips(
    nginx: Nginx,
    dictionary: bool,  # noqa: FBT001
) -> None:
    payloads = [f"payload {k} ".encode() * 30 for k in range(5000)]
    options: dict[str, Any] = {"align": 8, "capacity": 5000}
    if dictionary:
        options |= {"codec": "zstd", "dictionary": train_dictionary(payloads[:500], 8192)}
    with relive.PackWriter(nginx.files / "pack", **options) as writer:
        writer.extend(payloads, names=[f"a name of some length, number {k}" for k in range(5000)])
    order = np.random.default_rng(5).integers(0, 5000, 256)

    def batch(remote: relive.PackReader) -> None:
        found = remote.gather(order)["payload"]
        assert [row.tobytes() for row in found] == [payloads[k] for k in order]

    assert waves(nginx, batch) <= 3


@pytest.mark.parametrize("table", [False, True])
def test_first_batch_of_steps_takes_three_round_trips(nginx: Nginx, table: bool) -> None:  # noqa: FBT001
    # More than the tail request returns, and the table is the first of the sections.
    local = relive.PackReader.open(
        write_runs(nginx.files / "pack", make_runs(100), steps=table)
    ).steps()
    order = np.random.default_rng(6).integers(0, len(local), 64)
    fields = ["board", "move", "reward"]

    def batch(remote: relive.PackReader) -> None:
        same(remote.steps().gather(order, fields), local.gather(order, fields))

    assert 2 <= waves(nginx, batch) <= 3


def test_batch_fetches_only_what_it_needs(nginx: Nginx) -> None:
    payloads = [np.random.default_rng(k).bytes(60_000) for k in range(200)]
    with relive.PackWriter(nginx.files / "pack") as writer:
        writer.extend(payloads)
    remote = relive.PackReader.open(f"{nginx.url}/pack")
    nginx.log()
    assert [row.tobytes() for row in remote.gather([20, 150, 20, 21])["payload"]] == [
        payloads[k] for k in (20, 150, 20, 21)
    ]
    log = nginx.log()
    assert len(log) == 2
    assert 180_000 <= sum(request.sent for request in log) < 190_000


# Loading


def test_loader_over_a_remote_pack(both: Both) -> None:
    local, remote = both
    options: dict[str, Any] = {"batch_size": 32, "seed": 4, "epochs": 1, "workers": 3}
    with (
        relive.DataLoader(remote, **options) as ours,
        relive.DataLoader(local, **options) as theirs,
    ):
        for left, right in zip(ours, theirs, strict=True):
            same(left, right)
    with relive.DataLoader(remote.steps(), batch_size=64, epochs=1) as loader:
        assert sum(len(batch["move"]) for batch in loader) == len(local.steps())


def read(remote: relive.PackReader) -> list[bytes]:
    return [row.tobytes() for row in remote.gather([20, 3, 300])["payload"]]


def read_in_workers(uri: str, method: str) -> list[list[bytes]]:
    remote = relive.PackReader.open(uri)
    here = read(remote)
    with multiprocessing.get_context(method).Pool(2) as pool:
        return [here, *pool.map_async(read, [remote, remote[:]]).get(timeout=60)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_remote_pack_in_other_processes(
    nginx: Nginx, method: str, spawned_pool: ProcessPoolExecutor
) -> None:
    local = write(nginx.files / "pack")
    assert len(pickle.dumps(relive.PackReader.open(f"{nginx.url}/pack"))) < 1000
    found = spawned_pool.submit(read_in_workers, f"{nginx.url}/pack", method).result(timeout=120)
    assert found == [read(local)] * 3


def read_with_torch(uri: str) -> list[bytes]:
    import torch.utils.data

    loader = torch.utils.data.DataLoader(
        relive.PackReader.open(uri)[12:312],
        batch_size=50,
        num_workers=2,
        collate_fn=list,
        multiprocessing_context="fork",
        timeout=60,
    )
    return [entry for batch in loader for entry in batch]


@pytest.mark.needs("torch")
def test_torch_workers_read_a_remote_pack(nginx: Nginx, spawned_pool: ProcessPoolExecutor) -> None:
    write(nginx.files / "pack")
    assert spawned_pool.submit(read_with_torch, f"{nginx.url}/pack").result(timeout=120) == NOTES


# Errors


def test_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    local = write(tmp_path / "pack")
    offset = local.files[0].native.entry(100)[0]
    with FaultyServer({"pack": (tmp_path / "pack").read_bytes()}) as server:
        remote = relive.PackReader.open(f"{server.url}/pack")
        server.faults.flipped = offset + 5
        with pytest.raises(
            errors.CorruptError, match=rf"`{server.url}/pack`: entry 100 at offset {offset}"
        ):
            remote.gather([40, 100])
        assert remote[40] == local[40]
        server.faults.flipped = None
        assert remote[100] == local[100]


@pytest.mark.parametrize("section", ["header", "index", "footer"])
def test_flipped_bit_in_the_metadata_is_found_on_open(tmp_path: Path, section: str) -> None:
    write(tmp_path / "pack")
    data = bytearray((tmp_path / "pack").read_bytes())
    data[{"header": 17, "index": 28 + 40, "footer": len(data) - 30}[section]] ^= 1
    with FaultyServer({"pack": bytes(data)}) as server, pytest.raises(errors.CorruptError):
        relive.PackReader.open(f"{server.url}/pack")


def test_replaced_pack_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path / "pack")
    with FaultyServer({"pack": (tmp_path / "pack").read_bytes()}) as server:
        remote = relive.PackReader.open(f"{server.url}/pack")
        server.faults.etag = '"another"'
        with pytest.raises(errors.CorruptError, match="changed while it was being read"):
            remote.gather(range(100))


def test_server_without_suffix_ranges(tmp_path: Path) -> None:
    local = write(tmp_path / "pack")
    with FaultyServer({"pack": (tmp_path / "pack").read_bytes()}) as server:
        server.faults.suffix = 501
        same(relive.PackReader.open(f"{server.url}/pack").gather([7, 99]), local.gather([7, 99]))


def test_server_errors_are_raised(tmp_path: Path) -> None:
    write(tmp_path / "pack")
    with FaultyServer({"pack": (tmp_path / "pack").read_bytes(), "no-pack": NOTES[0]}) as server:
        options: dict[str, Any] = {"retry_config": {"max_retries": 0}}
        remote = relive.PackReader.open(f"{server.url}/pack", **options)
        with pytest.raises(errors.CorruptError):
            relive.PackReader.open(f"{server.url}/no-pack")
        with pytest.raises(errors.NotFoundError):
            relive.PackReader.open(f"{server.url}/nothing")
        for status, error in {404: errors.NotFoundError, 403: errors.AccessDeniedError}.items():
            server.faults.failures = [status]
            with pytest.raises(error):
                remote.gather(range(50, 60))
        server.faults.failures = [503] * 100
        with (
            pytest.raises(errors.StorageError, match="503"),
            relive.DataLoader(remote, batch_size=8) as loader,
        ):
            next(loader)


@pytest.mark.needs("seaweedfs")
def test_pack_in_an_object_store(s3: SeaweedFS, tmp_path: Path) -> None:
    local = write(tmp_path / "pack", codec="zstd")
    s3.put("packs/a/pack.a2pack", (tmp_path / "pack").read_bytes())
    remote = relive.PackReader.open("s3://packs/a/pack.a2pack")
    assert remote.uri == "s3://packs/a/pack.a2pack"
    order = np.random.default_rng(3).integers(0, 313, 100)
    same(remote.gather(order), local.gather(order))
    two = relive.PackReader.open(["s3://packs/a/pack.a2pack", tmp_path / "pack"])
    assert len(two) == 626
    assert two[20] == two[333] == local[20]
