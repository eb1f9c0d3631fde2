"""`open_root`: the root at an address."""

import os
from pathlib import Path
from typing import Any

from relive._arguments import as_text
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.store import config
from relive.store.paths import absolute_path, is_remote, local_path
from relive.store.roots.root import Root


def open_root(address: str | os.PathLike[str] | Root | None = None, **options: Any) -> Root:
    """Return the root at `address`; makes no request.

    An address is a directory (or its `file://` URI), `s3://bucket/prefix`, `gs://…`, `az://…`,
    `http(s)://…` (read-only), a `.tar` file of `relive mirror` (read-only), or `memory://name`,
    which is shared in this process. None is `RELIVE_ROOT`, else a directory in the user's data
    directory. A root is returned as it is.

    `options` are those of obstore's stores, such as `endpoint`, `region`, `skip_signature`,
    `client_options` and `retry_config`; for `s3://` also `profile`, a profile of the AWS
    configuration.

    Example:
        >>> from relive.store.roots import open_root
        >>> root = open_root("memory://example")
        >>> root.put("a/b", b"bytes")
        >>> root.get("a/b").data
        b'bytes'
    """
    if address is None:
        address = config.default_root()
    if isinstance(address, Root):
        _refuse(options, address.name)
        return address
    if not isinstance(address, str | os.PathLike):
        raise InvalidTypeError(f"`root` must be a path or an address, got {address!r}")
    if isinstance(address, str):
        address = as_text("`root`", address)
    if not is_remote(address):
        _refuse(options, os.fspath(address))
        return _directory(local_path(address))
    assert isinstance(address, str)  # noqa: S101 - for the type checker
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "memory":
        _refuse(options, address)
        from relive.store.roots.memory import MemoryRoot

        return MemoryRoot(rest)
    if scheme.lower() == "relive":
        raise UnsupportedError(
            "a `relive://` URI names a dataset, not a root", hint="pass the address of its root"
        )
    from relive.store.roots.object_store import ObjectStoreRoot

    return ObjectStoreRoot(address, options)


def _directory(path: Path) -> Root:
    from relive.store.roots.directory import DirectoryRoot

    absolute_path(path, "a root in a directory")  # a `Path` may be of a URI, too
    path = path.expanduser()
    if path.suffix == ".tar" and path.is_file():
        from relive.store.roots.tar import TarRoot

        return TarRoot(path)
    if path.exists() and not path.is_dir():
        raise InvalidError(f"the root `{path}` is a file, expected a directory")
    return DirectoryRoot(path)


def _refuse(options: dict[str, Any], name: str) -> None:
    if options:
        given = ", ".join(f"`{option}`" for option in options)
        raise InvalidError(f"the root `{name}` takes no options, got {given}")
