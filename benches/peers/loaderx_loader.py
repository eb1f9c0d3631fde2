"""loaderx: its Loader over a raw Dense container of the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case

_PREFETCH = 4
_APPEND_BYTES = 256 << 20


def _path(case: Case) -> Path:
    return case.folder / f"{case.stem}.zrecord"


def _array(shards: Sequence[dict[str, Any]]) -> NDArray[Any]:
    return np.asarray(np.from_dlpack(shards[0]["data"]))


class LoaderxLoader(Peer):
    """`Loader({"data": [Dense]}, Sampler(…, CYCLIC))` at its best number of workers."""

    name = "loaderx Loader"
    family: ClassVar[str] = "loaderx"
    packages: ClassVar[tuple[str, ...]] = ("loaderx",)

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Synchronous, and a few numbers of threads."""
        return [{"workers": count} for count in (0, 1, 2, 4)]

    def files(self, case: Case) -> list[Path]:
        """Its container."""
        return [_path(case)]

    def prepare(self, case: Case) -> None:
        """Copy the records into a container without compression."""
        dense = module("loaderx.zrecord").Dense
        path = _path(case)
        if path.exists():
            return
        partial = path.with_suffix(".partial")
        mapped = case.memmap()
        step = max(1, _APPEND_BYTES // case.record_bytes)
        with dense.create(partial, np.uint8, (case.record_bytes,), codec="raw") as container:
            for start in range(0, case.records, step):
                container.append(np.array(mapped[start : start + step]))
        partial.rename(path)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open the container and start the workers."""
        sampling = module("loaderx.sampler").Sampler
        container = module("loaderx.zrecord").Dense.open(_path(case))
        sampler = sampling(case.records, case.batch_size, sampling.Mode.CYCLIC, seed=case.seed)
        workers = int(setting["workers"])
        loader = module("loaderx").Loader(
            {"data": [container]}, sampler, workers=workers, prefetch=_PREFETCH
        )

        def close() -> None:
            loader.close()
            container.close()

        return Stream(iter(loader), _array, ahead=_PREFETCH + workers, close=close)
