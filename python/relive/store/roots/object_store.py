"""`ObjectStoreRoot`: objects in a bucket or on a web server, through obstore."""

import builtins
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from relive.errors import InvalidError, ReadOnlyError, UnsupportedError
from relive.store.digest import FileDigest
from relive.store.remote import fork_proxy
from relive.store.remote.connection import HTTP, public_name, scheme_of
from relive.store.remote.hidden import hidden_address, hidden_options
from relive.store.remote.ranges import Data, KeyRange, Piece, RangePlan
from relive.store.remote.root_client import IMMUTABLE, NO_CACHE, RootClient
from relive.store.remote.threads import at_once, is_forked
from relive.store.roots.root import (
    Body,
    Check,
    Entry,
    Root,
    Stored,
    check_key,
    check_prefix,
    check_range,
)

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class ObjectStoreRoot(Root):
    """Objects below `s3://bucket/prefix`, `gs://…`, `az://…`, or `http(s)://…` (read-only).

    All roots of one bucket with the same options share their connections. In a forked process
    requests are made by a helper process.
    """

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        scheme = scheme_of(address)
        self.name = public_name(address).rstrip("/")
        self.is_read_only = scheme in HTTP
        self._address, self._options = address.rstrip("/"), dict(options)
        if self.is_read_only and self.name != self._without_user():
            raise InvalidError(
                f"the address of the root `{self.name}` must not have a query or fragment",
                hint="pass headers with client_options={'default_headers': …}",
            )
        if "credential_provider" in self._options:
            raise InvalidError(
                "a root does not take `credential_provider`, which other processes cannot use",
                hint="name a profile with profile=, or set the credentials in the environment",
            )
        self._client: RootClient | None = None
        if not is_forked():
            self._connected()  # so that wrong options are an error here

    @property
    def identity(self) -> str:
        """The address, and the endpoint where one is given."""
        given = (self._options.get("endpoint"), *map(os.environ.get, _ENDPOINTS))
        found = [] if self.is_read_only else [str(one) for one in given if one]
        return " ".join([self.name, *found[:1]])

    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return the objects, None for missing ones."""
        found = self._call("get_many", [check_key(key) for key in keys])
        return [None if each is None else Stored(*each) for each in found]

    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> builtins.list[Data]:
        """Return the bytes of each range, with as few requests as the planner makes."""
        for wanted in ranges:
            check_range(*wanted)
        plan = RangePlan(ranges, gap)

        def receive(piece: Piece, data: Data) -> None:
            if check is not None:
                check(piece.key, piece.start, data)
            plan.receive(piece, data)

        if not plan.pieces:
            pass
        elif is_forked():
            parts = fork_proxy.fetch(self._address, self._options, plan.pieces)
            pairs = [*zip(plan.pieces, parts, strict=True)]
            at_once(lambda pair: receive(pair[0], memoryview(pair[1])), pairs)
        else:
            self._connected().fetch(plan.pieces, receive)
        return plan.results()

    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Return for each key whether there is such an object."""
        found: list[bool] = self._call("exists", [check_key(key) for key in keys])
        return found

    def sizes(self, keys: Sequence[str]) -> builtins.list[int | None]:
        """Return the size of each object, None for missing ones."""
        found: list[int | None] = self._call("sizes", [check_key(key) for key in keys])
        return found

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:
        """Write an object, or replace it."""
        self._check_writable(key)
        self._call("put", key, body, IMMUTABLE if immutable else NO_CACHE)

    def put_file(
        self, key: str, path: Path, expected: FileDigest, sent: Callable[[int], object]
    ) -> None:
        """Write a file as an object; `sent` is called if it is large, not in a forked process."""
        self._check_writable(key)
        report = () if is_forked() else (sent,)
        self._call("put_file", key, path, expected, IMMUTABLE, *report)

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        """Write an object that does not exist."""
        self._check_writable(key)
        return str(self._call("create", key, bytes(data), IMMUTABLE if immutable else NO_CACHE))

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that still has `tag`."""
        self._check_writable(key)
        return str(self._call("replace", key, bytes(data), tag, NO_CACHE))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects below `prefix`."""
        if self.is_read_only:
            raise UnsupportedError(
                f"cannot list `{self.name}`: web servers do not list their files",
                hint="name the dataset, or open the root as a directory or a bucket",
            )
        prefix = check_prefix(prefix)
        found = self._call("list_all" if is_forked() else "list", prefix)
        return (Entry(*each) for each in found)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        for key in keys:
            self._check_writable(key)
        if keys:
            self._call("delete", builtins.list(keys))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the address and the options, without secrets."""
        return type(self), (hidden_address(self._address), hidden_options(self._options))

    def _get(self, key: str, if_changed: str | None, retry_s: float | None) -> Stored | None:
        found = self._call("get", key, if_changed, retry_s)
        return None if found is None else Stored(*found)

    def _call(self, method: str, *arguments: object) -> Any:
        if is_forked():
            return fork_proxy.call("root", self._address, self._options, method, *arguments)
        return getattr(self._connected(), method)(*arguments)

    def _connected(self) -> RootClient:
        if self._client is None:
            self._client = RootClient(self._address, self._options)
        return self._client

    def _check_writable(self, key: str) -> None:
        check_key(key)
        if self.is_read_only:
            raise ReadOnlyError(f"cannot write `{self.uri(key)}`: a web server is read-only")

    def _without_user(self) -> str:
        scheme, _, rest = self._address.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
