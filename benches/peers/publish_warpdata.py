"""The original, warpdata 3.0.27, in an environment of its own.

Two things are overridden at run time: DuckDB loads httpfs from the installed package instead of
downloading it, and does not use TLS, which the server does not have.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, REGION, Place, PublishPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DATASET = "bench/table"


class WarpData(PublishPeer):
    """`warpdata.dataset(…, mode="remote").table("main").batches(…)`.

    In a new process it creates a client of boto3 and a connection to DuckDB, which loads its
    extension; `connected` has done both before the clock starts.
    """

    family: ClassVar[str] = "warpdata"
    packages: ClassVar[tuple[str, ...]] = ("warpdata", "duckdb", "boto3")
    python: ClassVar[Path | None] = Path(".venv-warpdata/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-warpdata; "
        ".venv-warpdata/bin/pip install -r benches/publish/warpdata.txt"
    )
    bucket: ClassVar[str] = "warpdata"
    """The only one that it publishes to."""
    stored = "warpdata"

    def __init__(self, *, connected: bool = False) -> None:
        self.given = {"connected": connected}
        self._connected = connected
        self.name = "warpdata, connected" if connected else "warpdata"

    def load(self) -> None:
        """Import warpdata with what it imports at the first use."""
        os.environ |= {
            "WARPDATASETS_S3_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
            "WARPDATASETS_S3_REGION": REGION,
        }
        engine = module("warpdata.engines.duckdb").DuckDBEngine
        engine._create_connection = _connection  # noqa: SLF001 - overridden
        for name in (
            "warpdata",
            "warpdata.cli.main",
            "warpdata.catalog.stores.s3",
            "duckdb_extension_httpfs",
            "pyarrow.parquet",
            "boto3",
        ):
            module(name)
        if self._connected:
            # botocore reads its description of S3 once in a process.
            module("boto3").client("s3")
            engine()._get_connection()  # noqa: SLF001 - kept for this thread

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`warp register`, then `warp publish`."""
        self.republish(place, [str(path) for path in files])

    def republish(self, place: Place, files: Sequence[str]) -> None:
        """The same commands again."""
        del place
        main = module("warpdata.cli.main").main
        pattern = f"main={Path(files[0]).resolve().parent}/*.parquet"
        for command in (["register", DATASET, "--table", pattern, "--force"], ["publish", DATASET]):
            status = main(command)
            if status:
                message = f"warp {command[0]} ended with status {status}"
                raise RuntimeError(message)

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """`table.batches(batch_size=rows)`."""
        return self._batches(place, batch_size=rows)

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """`table.batches(columns=names)`."""
        return self._batches(place, columns=list(names))

    def everything(self, place: Place) -> Iterator[Any]:
        """`table.batches()`."""
        return self._batches(place)

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """`table.filter(…)`, a relation of DuckDB."""
        found = self._open(place).filter(f"id >= {begin} AND id < {end}")
        return iter(found.fetch_record_batch(BATCH))

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """The same, with `select`."""
        found = self._open(place).filter(f"id >= {begin} AND id < {end}").select(*names)
        return iter(found.fetch_record_batch(BATCH))

    def _batches(self, place: Place, batch_size: int = BATCH, **given: Any) -> Iterator[Any]:
        found: Iterator[Any] = self._open(place).batches(batch_size=batch_size, **given)
        return found

    def _open(self, place: Place) -> Any:
        del place
        return module("warpdata").dataset(DATASET, mode="remote").table("main")


def _connection(engine: Any) -> Any:
    """What `DuckDBEngine._create_connection` does, but for the two overrides."""
    package = Path(module("duckdb_extension_httpfs").__file__).parent
    extension = next(package.rglob("httpfs.duckdb_extension"))
    connection = module("duckdb").connect(":memory:")
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET s3_use_ssl = false")
    connection.execute(f"SET s3_region = '{engine.settings.s3_region}'")
    endpoint = engine.settings.s3_endpoint_url.removeprefix("http://")
    connection.execute(f"SET s3_endpoint = '{endpoint}'")
    connection.execute("SET s3_url_style = 'path'")
    return connection
