"""Everyone who publishes a table and reads it over the network, behind one small interface.

Packages are imported late: a peer whose package is in another environment is described here and
runs there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from benches.publish.table import sums_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from benches.publish.table import Sums

KEY, SECRET, REGION = "key", "secret", "us-east-1"
"""Of `tests.servers.SeaweedFS`."""
BATCH = 8_192
"""Rows of a batch where all rows are read."""


class Place(NamedTuple):
    """Where a peer's objects are: a bucket of its own on the server at `endpoint`."""

    endpoint: str
    bucket: str
    scratch: Path
    """An empty folder for what it writes to disk."""

    @property
    def url(self) -> str:
        """The bucket as an `s3://` URL."""
        return f"s3://{self.bucket}"


class PublishPeer(ABC):
    """One library; every read opens the table anew and gives batches in its own form."""

    name: str
    """What tables call it."""
    family: ClassVar[str]
    """What `--only-peers` calls it."""
    packages: ClassVar[tuple[str, ...]]
    """The distributions whose versions belong to its figures."""
    python: ClassVar[Path | None] = None
    """The interpreter of its environment; None: this one."""
    hint: ClassVar[str] = ""
    """How that environment is made."""
    bucket: ClassVar[str]
    stored: str = ""
    """What it puts on the server; those who read the same objects have the same."""
    given: Mapping[str, Any] = MappingProxyType({})
    """The arguments it was made with."""

    @abstractmethod
    def load(self) -> None:
        """Import everything; this is not on the clock."""

    @abstractmethod
    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """Put the table on the server."""

    @abstractmethod
    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """Open the table; batches of which the first have `rows` rows together."""

    @abstractmethod
    def everything(self, place: Place) -> Iterator[Any]:
        """Open the table; batches of all rows."""

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """Open the table; batches of all rows with these columns."""
        del place, names
        raise self.lacking("cannot read some columns alone")

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """Open the table; batches of the rows with `begin <= id < end`."""
        del place, begin, end
        raise self.lacking("cannot filter")

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """Open the table; the same rows with these columns."""
        del place, begin, end, names
        raise self.lacking("cannot filter")

    def republish(self, place: Place, files: Sequence[str]) -> Any:
        """Publish the same table once more."""
        del place, files
        raise self.lacking("does not publish: its files are copied")

    def count(self, batch: Any) -> int:
        """Rows of a batch."""
        return int(batch.num_rows)

    def sums(self, batch: Any) -> Sums:
        """The sums of a batch."""
        return sums_of(batch)

    @staticmethod
    def lacking(text: str) -> NotImplementedError:
        """What it raises where it has no such call."""
        return NotImplementedError(text)


def environment(place: Place) -> dict[str, str]:
    """The variables of a child: the server's endpoint and keys, and empty caches."""
    scratch = place.scratch
    return {
        "AWS_ENDPOINT_URL": place.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "S3_ENDPOINT_URL": place.endpoint,
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_DATA_HOME": str(scratch / "data"),
        "HF_HOME": str(scratch / "huggingface"),
        "RELIVE_CACHE_DIR": str(scratch / "relive"),
        "TMPDIR": str(scratch),
    }


def upload(place: Place, files: Iterable[tuple[str, Path]]) -> None:
    """Put files into the bucket under these keys, with obstore of this environment."""
    from obstore import put
    from obstore.store import S3Store

    store = S3Store(
        place.bucket,
        endpoint=place.endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        client_options={"allow_http": True},
    )
    for key, path in files:
        put(store, key, path)
