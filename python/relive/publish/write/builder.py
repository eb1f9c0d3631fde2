"""`DatasetBuilder`: builds a version of a dataset and publishes it."""

import contextlib
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, overload

from relive._arguments import as_text, check_choice, worker_count
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    InvalidTypeError,
    NameTakenError,
    NotFoundError,
    ReadOnlyError,
    UnknownNameError,
)
from relive.model.report import Progress
from relive.publish.version import names
from relive.publish.version.catalog import Catalog, names_version, put_segments
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import Reference
from relive.publish.version.pointers import Pointer, fitting_parts
from relive.publish.write.local_digests import LocalDigests
from relive.publish.write.parquet_files import read_footer
from relive.publish.write.pending_table import PendingShard, PendingTable, read_table
from relive.publish.write.shard_writer import SIZES
from relive.publish.write.upload import LocalBlob, find_missing, upload
from relive.store.atomic import open_reader, storage_error
from relive.store.roots.open import open_root
from relive.store.roots.root import Root

_ON_CONFLICT: Final = ("raise", "move")


@dataclass(frozen=True)
class Plan:
    """What publishing uploads.

    Example:
        >>> Plan("5e0f", blobs=2, nbytes=1024, is_current=False).blobs
        2
    """

    digest: str
    """The version."""
    blobs: int
    """The number of blobs, without their leaf tables."""
    nbytes: int
    """The bytes of blobs and leaf tables."""
    is_current: bool
    """Whether `latest` names this version already."""


class DatasetBuilder:
    """Builds a version of a dataset from tables, and publishes it.

    A version is immutable and named by its content: publishing the same content again changes
    nothing, and almost the same content uploads only the shards that differ. Rows that are not
    Parquet files already are written to temporary files (in `TMPDIR`) when they are added.
    Nothing is visible to readers before `publish` is complete. The temporary files are removed by
    `close`, and when a builder is dropped, with a `ResourceWarning` if rows were added
    and `publish` was not called. Used by one thread at a time.

    Args:
        id: The dataset: `workspace/name`.
        root: The address of the root, see `relive.store.roots.open_root`. None is `RELIVE_ROOT`.
        base: The version that this one begins with: `latest`, a tag, a digest, or one of another
            dataset of the root, as in `ws/other@v1`. Everything in it that is not changed is
            inherited without copying anything. None begins with nothing.
        remote: Options of the root, such as `endpoint` and `region`.

    Example:
        >>> import pyarrow as pa
        >>> from relive.publish.write.builder import DatasetBuilder
        >>> builder = DatasetBuilder("lab/kitchen", root="root")
        >>> builder.add_table("main", pa.table({"step": [0, 1, 2]}))
        >>> version = builder.publish(message="first three steps")
        >>> len(version)
        64
        >>> builder = DatasetBuilder("lab/kitchen", root="root", base="latest")
        >>> builder.append_table("main", pa.table({"step": [3]}))
        >>> builder.publish(dry_run=True).blobs
        1
        >>> builder.close()
    """

    _closed = True  # until `__init__` is done

    def __init__(
        self,
        id: str,  # noqa: A002 - its public name
        root: str | os.PathLike[str] | Root | None = None,
        base: str | None = None,
        **remote: Any,
    ) -> None:
        self.id = names.parse_id(id)
        self.root = open_root(root, **remote)
        self.report: Plan | None = None
        """What the last call of `publish` uploaded."""
        self._base = Manifest()
        self._base_id: names.DatasetId | None = None
        self._parent: str | None = None
        self._expected: Pointer | None = None
        self._parts: dict[str, bytes] = {}
        if base is not None:
            self._inherit(base)
        self._tables = {
            name: PendingTable.inherited(name, entry) for name, entry in self._base.tables.items()
        }
        self._version = replace(self._base, tables={})
        self._spool: Path | None = None
        self._remove_spool: Callable[[], object] | None = None
        self._spooled = 0
        self._sizes = SIZES
        self._is_unpublished = False
        """Whether rows were added since the last call of `publish`."""
        self._process = os.getpid()
        self._closed = False

    def __del__(self) -> None:
        if not self._closed and self._is_unpublished and self._process == os.getpid():
            warnings.warn(
                f"rows were added to `{self.id}`, but not published; call publish(), or close() "
                "to drop them",
                ResourceWarning,
                stacklevel=2,
            )

    @property
    def tables(self) -> dict[str, int]:
        """The tables of the version so far, each with its number of rows."""
        return {name: table.rows for name, table in self._tables.items()}

    def add_table(
        self,
        name: str,
        data: Any,
        *,
        rewrite: bool = False,
        key: str | Sequence[str] | None = None,
        splits: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a table.

        Args:
            name: The name of the table; readers open `main` by default.
            data: Paths, glob patterns or directories of Parquet files; a `pyarrow.Table`,
                `RecordBatch` or `RecordBatchReader`; an iterable of record batches; a pandas or
                Polars `DataFrame`, a Polars `LazyFrame`, a DuckDB relation, or another object
                with the Arrow PyCapsule interface. Readers and iterables may be larger than
                memory. Files are published byte for byte when `publish` is called, and must not
                change until then; everything else is read now.
            rewrite: Read the rows of Parquet files and write them as relive does, so that they
                are read fast and a small change uploads few shards.
            key: The columns that identify a row. Shards are cut at a hash of them instead of all
                columns, so that a change of others moves no cut.
            splits: Names of rows for `ds.table(name, split=…)`: for each `(start, stop)`, a range
                or a slice of rows, paths or glob patterns of files of the table, or a list.
        """
        self._check_new(name)
        self._tables[name] = self._read(name, data, rewrite, key, splits)

    def append_table(
        self,
        name: str,
        data: Any,
        *,
        rewrite: bool = False,
        key: str | Sequence[str] | None = None,
        splits: Mapping[str, Any] | None = None,
    ) -> None:
        """Add rows to the end of a table; arguments as of `add_table`.

        The shards that it has stay as they are. `splits` count from the first added row, and
        extend those of the same name.
        """
        table = self._existing(name)
        self._tables[name] = table.followed_by(self._read(name, data, rewrite, key, splits))

    def replace_table(
        self,
        name: str,
        data: Any,
        *,
        rewrite: bool = False,
        key: str | Sequence[str] | None = None,
        splits: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a table, in place of the one of that name if there is one; as `add_table`."""
        self._check_open()
        names.check_member_name(name)
        self._tables[name] = self._read(name, data, rewrite, key, splits)

    def drop(self, name: str) -> None:
        """Leave out a table, or a member of another section that was inherited."""
        self._check_open()
        found = self._tables.pop(name, None) is not None
        sections = dict(self._version.sections)
        for section, members in sections.items():
            if isinstance(members, dict) and name in members:
                sections[section] = {key: each for key, each in members.items() if key != name}
                found = True
        if not found:
            raise self._unknown(name)
        bindings = sections.get("bindings", [])
        kept = [each for each in bindings if name not in {each["table"], each["artifact"]}]
        if len(kept) < len(bindings):
            sections["bindings"] = kept
        sections = {section: members for section, members in sections.items() if members}
        self._version = replace(self._version, sections=sections)

    def describe(
        self,
        *,
        readme: str | os.PathLike[str] | None = None,
        license: str | None = None,  # noqa: A002 - its public name
        creator: str | None = None,
        citation: str | None = None,
        url: str | None = None,
    ) -> None:
        """Describe the dataset; what is None stays as it was, an empty text removes it.

        `readme` is text in Markdown, or a `Path` of a file that has it.
        """
        self._check_open()
        given = {"license": license, "creator": creator, "citation": citation, "url": url}
        about = dict(self._version.about)
        for name, value in given.items():
            if value is not None:
                about[name] = as_text(f"`{name}`", value)
        if isinstance(readme, os.PathLike):
            readme = _read_text(readme)
        text = self._version.readme if readme is None else as_text("`readme`", readme)
        about = {name: value for name, value in about.items() if value}
        self._version = replace(self._version, about=about, readme=text or None)

    @overload
    def publish(
        self,
        *,
        set_latest: bool = True,
        tag: str | None = None,
        message: str | None = None,
        author: str | None = None,
        force_tag: bool = False,
        on_conflict: str = "raise",
        dry_run: Literal[False] = False,
        rehash: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
        lock: bool = False,
    ) -> str: ...

    @overload
    def publish(
        self,
        *,
        set_latest: bool = True,
        tag: str | None = None,
        message: str | None = None,
        author: str | None = None,
        force_tag: bool = False,
        on_conflict: str = "raise",
        dry_run: Literal[True],
        rehash: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
        lock: bool = False,
    ) -> Plan: ...

    @overload
    def publish(
        self,
        *,
        set_latest: bool = True,
        tag: str | None = None,
        message: str | None = None,
        author: str | None = None,
        force_tag: bool = False,
        on_conflict: str = "raise",
        dry_run: bool,
        rehash: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
        lock: bool = False,
    ) -> str | Plan: ...

    def publish(
        self,
        *,
        set_latest: bool = True,
        tag: str | None = None,
        message: str | None = None,
        author: str | None = None,
        force_tag: bool = False,
        on_conflict: str = "raise",
        dry_run: bool = False,
        rehash: bool = False,
        progress: Progress | None = None,
        workers: int | None = None,
        lock: bool = False,
    ) -> str | Plan:
        """Upload what the root lacks, publish the version, and return its digest.

        After an error, Ctrl-C or a kill readers see the version before; calling it again uploads
        only the rest. `report` has what was uploaded.

        Args:
            set_latest: Let `latest` name this version. If another publisher moved `latest` since
                this call began (with `base="latest"`: since the builder was made), the version
                exists but `latest` stays, and a `ConflictError` is raised.
            tag: A name for this version. A tag of another version is an `AlreadyExistsError`.
            message: What changed, for the log.
            author: Who publishes; not recorded by default.
            force_tag: Move a tag that names another version.
            on_conflict: `"move"` moves `latest` even if another publisher moved it.
            dry_run: Upload nothing, and return a `Plan` of what would be uploaded.
            rehash: Hash local files again even if their size, time and inode are those of the
                last time.
            progress: Called with the bytes that are uploaded and those that are to be.
            workers: The number of files that are hashed or uploaded at a time.
            lock: Publish to a store that ignores conditional puts, with a lock object. All who
                publish to that root must pass it.
        """
        self._check_open()
        self._is_unpublished &= bool(dry_run)
        self._check_arguments(tag, message, author, on_conflict, workers)
        if self.root.is_read_only and not dry_run:
            raise ReadOnlyError(
                f"the root `{self.root.name}` is read-only", hint="publish to another root"
            )
        catalog = Catalog(self.root, lock=lock)
        expected = self._expected or catalog.pointer(self.id)
        manifest, local = self._hashed(rehash=rehash, workers=workers)
        is_current = names_version(expected, manifest.digest)
        is_first = self._expected is None
        if is_current and not is_first:
            # The builder may be hours old. What `latest` named then may be deleted now.
            expected = catalog.pointer(self.id)
            is_current = names_version(expected, manifest.digest)
            if not is_current and set_latest and on_conflict == "raise":
                raise catalog.conflict(self.id, manifest.digest, expected)
        if dry_run:
            missing = [] if is_current else self._missing(catalog, expected, manifest, local)
            return _plan(manifest, missing, is_current=is_current)
        commit = partial(
            catalog.commit,
            self.id,
            manifest,
            expected=expected,
            set_latest=set_latest,
            tag=tag,
            force_tag=force_tag,
            message=message,
            author=author,
            parent=self._parent,
            on_conflict=on_conflict,
        )
        if is_current and catalog.is_current(
            self.id, manifest.digest, expected, tag, with_index=is_first
        ):
            upload(self.root, [], progress=progress, workers=workers)
            self.report = _plan(manifest, [], is_current=True)
        else:
            self._check_tag(catalog, tag, manifest.digest, force=force_tag)

            def restore() -> None:
                self._restore(catalog, manifest, local, workers)

            with catalog.protected(
                lambda: {ref.digest for ref in manifest.blobs()}, restore
            ) as confirm:
                missing = self._missing(catalog, expected, manifest, local)
                self._parts |= upload(self.root, missing, progress=progress, workers=workers)
                commit(self._inline_parts(manifest), confirm=confirm)
            self.report = _plan(manifest, missing, is_current=False)
        self._expected = None
        return manifest.digest

    def close(self) -> None:
        """Remove the temporary files. Any later call is a `ClosedError`."""
        self._closed = True
        if self._remove_spool is not None:
            self._remove_spool()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        tables = ", ".join(f"{name}: {table.rows} rows" for name, table in self._tables.items())
        return f"DatasetBuilder({str(self.id)!r}, root={self.root.name!r}, {{{tables}}})"

    def _inherit(self, base: str) -> None:
        text = as_text("`base`", base)
        if "/" in text:
            reference = names.parse_reference(text)
        else:
            reference = Reference(self.id, names.as_version(text))
        catalog = Catalog(self.root)
        if reference != (self.id, None):
            version = catalog.resolve(reference)
            self._base, self._parent = version.manifest, version.digest
            self._base_id = reference.id
            self._parts = dict(version.parts)
            return
        # The pointer itself, so that publishing is a conflict if `latest` moves meanwhile.
        pointer = catalog.pointer(self.id)
        if pointer is None:
            raise catalog.missing_pointer(self.id, None)
        manifest = pointer.manifest
        if manifest is None or not manifest.is_complete:
            manifest = catalog.manifest(self.id, pointer.digest)
        self._base, self._parent, self._expected = manifest, pointer.digest, pointer
        self._base_id = self.id
        self._parts = dict(pointer.parts)

    def _read(
        self,
        name: str,
        data: Any,
        rewrite: bool,  # noqa: FBT001 - passed on
        key: str | Sequence[str] | None,
        splits: Mapping[str, Any] | None,
    ) -> PendingTable:
        if self._spool is None:
            try:
                self._spool = Path(tempfile.mkdtemp(prefix="relive-publish-"))
            except OSError as error:
                raise storage_error(error, tempfile.gettempdir(), "write to") from error
            self._remove_spool = weakref.finalize(self, _remove_spool, self._spool, os.getpid())
        spool = self._spool / f"{self._spooled}"
        self._spooled += 1
        spool.mkdir()
        try:
            table = read_table(
                name, data, spool, rewrite=rewrite, key=key, splits=splits, sizes=self._sizes
            )
        except BaseException:
            shutil.rmtree(spool, ignore_errors=True)
            raise
        self._is_unpublished = True
        return table

    def _hashed(self, *, rehash: bool, workers: int | None) -> tuple[Manifest, list[LocalBlob]]:
        """Return the manifest, and the blobs of it that are on this machine."""
        if not self._tables and not self._version.sections:
            raise InvalidError(
                f"`{self.id}` has nothing to publish", hint="add a table with add_table first"
            )
        digests = LocalDigests()
        try:
            for name, table in self._tables.items():
                self._tables[name] = table.hashed(digests, rehash=rehash, workers=workers)
        finally:
            digests.save()
        tables = {name: table.entry() for name, table in self._tables.items()}
        manifest = replace(self._version, tables=tables)
        return manifest, [b for table in self._tables.values() for b in table.local_blobs()]

    def _missing(
        self,
        catalog: Catalog,
        expected: Pointer | None,
        manifest: Manifest,
        local: list[LocalBlob],
    ) -> list[LocalBlob]:
        """Return the blobs to upload. Those of `latest` and of the base are there.

        That is so as long as their manifests exist. If that of the base does not, because it was
        withdrawn meanwhile, what is inherited of it is looked for blob by blob.
        """
        known: dict[str, frozenset[str]] = {}  # digests of blobs, by the key of their manifest
        if self._base_id is not None and self._parent is not None:
            key = names.manifest_key(self._base_id, self._parent)
            known[key] = frozenset(ref.digest for ref in self._base.blobs())
        if local and expected is not None and expected.digest != self._parent:
            current = expected.manifest
            if current is None or not current.is_complete:
                with contextlib.suppress(NotFoundError):  # withdrawn
                    current = catalog.manifest(self.id, expected.digest)
            if current is not None:
                key = names.manifest_key(self.id, expected.digest)
                known[key] = frozenset(ref.digest for ref in current.blobs())
        missing, gone = find_missing(self.root, local, known)
        if gone and self._parent is not None:
            self._check_inherited(catalog, manifest, local)
        return missing

    def _check_inherited(
        self, catalog: Catalog, manifest: Manifest, local: list[LocalBlob]
    ) -> None:
        """Raise an error if a blob does not exist that is not on this machine."""
        made = {digest for blob in local for digest in (blob.ref.digest, blob.ref.leaves)}
        made |= {d for ref in manifest.new_segments() for d in (ref.digest, ref.leaves)}
        catalog.check_blobs(
            f"{self.id}@{manifest.digest}",
            [ref.digest for ref in manifest.blobs() if ref.digest not in made],
        )

    def _restore(
        self, catalog: Catalog, manifest: Manifest, local: list[LocalBlob], workers: int | None
    ) -> None:
        """Upload what a gc deleted while this process did not renew its lease."""
        self._check_inherited(catalog, manifest, local)
        missing, _ = find_missing(self.root, local, {})
        upload(self.root, missing, progress=None, workers=workers)
        put_segments(self.root, manifest)

    def _inline_parts(self, manifest: Manifest) -> dict[str, bytes]:
        """Return the footers and leaf tables that a pointer may inline, if they are at hand."""
        files: dict[str, Path] = {}
        found = dict(self._parts)
        for table in self._tables.values():
            for shard in table.shards:
                if isinstance(shard, PendingShard):
                    files[shard.file.footer_digest] = shard.file.path
            for blob in table.local_blobs():
                if blob.ref.leaves is not None and blob.leaf_table is not None:
                    found[blob.ref.leaves] = blob.leaf_table
        for part in fitting_parts(manifest):
            if part.digest in files:
                found[part.digest] = read_footer(files[part.digest])
        return found

    def _check_tag(self, catalog: Catalog, tag: str | None, digest: str, *, force: bool) -> None:
        """Raise the error of a tag that exists before anything is uploaded."""
        if tag is None or force:
            return
        pointer = catalog.pointer(self.id, tag)
        if pointer is not None and pointer.digest != digest:
            raise AlreadyExistsError(
                f"the tag `{tag}` of `{self.id}` names the version `{pointer.digest[:12]}`",
                hint="choose another tag, or pass force_tag=True (--force-tag) to move it",
            )

    def _check_arguments(
        self,
        tag: str | None,
        message: str | None,
        author: str | None,
        on_conflict: str,
        workers: int | None,
    ) -> None:
        if tag is not None:
            names.check_tag(tag)
        for name, text in (("message", message), ("author", author)):
            if text is not None:
                as_text(f"`{name}`", text)
        check_choice("on_conflict", on_conflict, _ON_CONFLICT)
        worker_count(workers)

    def _check_new(self, name: str) -> None:
        self._check_open()
        if names.check_member_name(name) in self._tables:
            raise NameTakenError(
                f"`{self.id}` already has a table `{name}`",
                hint="use append_table to add rows, or replace_table to replace it",
            )

    def _existing(self, name: str) -> PendingTable:
        self._check_open()
        if name not in self._tables:
            raise self._unknown(name)
        return self._tables[name]

    def _unknown(self, name: str) -> UnknownNameError:
        if not isinstance(name, str):
            raise InvalidTypeError(f"the name of a table must be a string, got {name!r}")
        there = ", ".join(f"`{each}`" for each in self._tables) or "no tables"
        hint = f"there are {there}"
        if not self._parent:
            hint += "; pass base='latest' to begin with the tables of the last version"
        return UnknownNameError(f"`{self.id}` has no table `{name}`", hint=hint)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the builder of `{self.id}` is closed")


def _plan(manifest: Manifest, missing: Sequence[LocalBlob], *, is_current: bool) -> Plan:
    nbytes = sum(blob.nbytes for blob in missing)
    return Plan(manifest.digest, len(missing), nbytes, is_current)


def _remove_spool(spool: Path, process: int) -> None:
    if os.getpid() == process:  # not the copy of the builder in a forked process
        shutil.rmtree(spool, ignore_errors=True)


def _read_text(path: os.PathLike[str]) -> str:
    try:
        with open_reader(path) as file:
            return file.read().decode()
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"`{os.fspath(path)}` is not UTF-8 text") from error
