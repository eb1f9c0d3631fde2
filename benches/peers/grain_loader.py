"""grain over an array_record file: shuffle, decode, batch, with threads or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module
from benches.peers.array_record_file import (
    array_record_path,
    array_record_paths,
    group_sizes,
    make_array_record,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benches.data import Bytes, Case

_BATCHES_AHEAD = 8
_READ_AHEAD = {"batches": _BATCHES_AHEAD, "records": 512}


def decode(record: bytes) -> Bytes:
    """One record as an array."""
    return np.frombuffer(record, np.uint8)


class GrainLoader(Peer):
    """grain's `MapDataset` or `DataLoader`, whichever setting of either is fastest."""

    name = "grain over array_record"
    family: ClassVar[str] = "grain"
    packages: ClassVar[tuple[str, ...]] = ("grain", "array_record")

    def settings(self, case: Case) -> Sequence[Setting]:
        """Sizes of group; batches or records read ahead by threads; worker processes."""
        kinds: list[dict[str, int | str]] = [
            {"api": "Map", "ahead": "batches", "threads": 1, "processes": 0},
            {"api": "Map", "ahead": "batches", "threads": 4, "processes": 0},
            {"api": "Map", "ahead": "records", "threads": 16, "processes": 0},
            {"api": "Map", "ahead": "batches", "threads": 1, "processes": 2},
            {"api": "Loader", "ahead": "records", "threads": 16, "processes": 0},
            {"api": "Loader", "ahead": "records", "threads": 16, "processes": 2},
        ]
        largest = group_sizes(case)[-1]
        smaller = [{"group": group, **kinds[1]} for group in group_sizes(case)[:-1]]
        return smaller + [{"group": largest, **kind} for kind in kinds]

    def files(self, case: Case) -> list[Path]:
        """The array_record files."""
        return array_record_paths(case)

    def prepare(self, case: Case) -> None:
        """Convert the records once."""
        make_array_record(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Build the pipeline and start it."""
        # It logs an error for every group size but one, even where one is slower.
        module("absl.logging").set_verbosity("fatal")
        module("absl.flags").FLAGS.mark_as_parsed()  # grain reads flags; we have no absl app
        path = array_record_path(case, int(setting["group"]))
        source = module("grain").sources.ArrayRecordDataSource(str(path))
        build = _map_dataset if setting["api"] == "Map" else _data_loader
        iterator = iter(build(source, case, setting))
        return Stream(
            iterator,
            np.asarray,
            ahead=_BATCHES_AHEAD * (1 + int(setting["processes"])),
            **({"close": iterator.close} if hasattr(iterator, "close") else {}),
        )


def _read_options(setting: Setting) -> Any:
    return module("grain").ReadOptions(
        num_threads=setting["threads"], prefetch_buffer_size=_READ_AHEAD[str(setting["ahead"])]
    )


def _map_dataset(source: Any, case: Case, setting: Setting) -> Any:
    grain = module("grain")
    records = grain.MapDataset.source(source).seed(case.seed).shuffle().repeat().map(decode)
    options = _read_options(setting)
    if setting["ahead"] == "records":
        batches = records.to_iter_dataset(options).batch(case.batch_size)
    else:
        batches = records.batch(case.batch_size).to_iter_dataset(options)
    processes = int(setting["processes"])
    if processes:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    return batches


def _data_loader(source: Any, case: Case, setting: Setting) -> Any:
    grain = module("grain")
    decoding = type("Decode", (grain.transforms.Map,), {"map": staticmethod(decode)})
    return grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.IndexSampler(
            num_records=case.records,
            shuffle=True,
            seed=case.seed,
            shard_options=grain.sharding.NoSharding(),
        ),
        operations=[decoding(), grain.transforms.Batch(case.batch_size)],
        worker_count=setting["processes"],
        read_options=_read_options(setting),
    )
