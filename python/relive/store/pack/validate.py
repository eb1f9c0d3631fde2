"""Checks of packs, also of those that cannot be opened."""

from collections.abc import Sequence

from relive import _native
from relive._arguments import worker_count
from relive.model.report import Level, Problem, Progress, Report, check_level
from relive.store.pack.files import OpenOptions, find_packs
from relive.store.paths import Location
from relive.store.remote.file import RemoteFile


def validate(
    uri: Location,
    level: Level = "sample",
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **remote: object,
) -> Report:
    """Check a pack, also one that cannot be opened.

    `checked["entries"]` of the report is the number of entries that were read. A problem's
    `row` is the position of its entry. A pack with entries without checksums is in `unchecked`.

    Args:
        uri: A path, a glob pattern or a URI.
        level: "index" reads the index, "sample" some entries too, "full" every byte.
        workers: The number of threads; by default the number of cores, at most eight.
        progress: Called with the number of entries of a pack that were read, and of those that
            `level` reads.
        remote: Options for URIs; see `relive.store.remote.file.RemoteFile`.

    Example:
        >>> import relive
        >>> from relive.store.pack import validate
        >>> with relive.PackWriter("a.pack") as writer:
        ...     position = writer.append(b"payload")
        >>> report = validate("a.pack", "full")
        >>> report.ok, report.checked["entries"]
        (True, 1)
    """
    files = find_packs(uri, remote)
    return validate_files(files, level, OpenOptions(workers=worker_count(workers)), progress)


def validate_files(
    files: Sequence[str | RemoteFile],
    level: Level,
    options: OpenOptions,
    progress: Progress | None = None,
) -> Report:
    """Check several packs one after the other."""
    check_level(level)
    checked = 0
    problems: list[Problem] = []
    unchecked: list[str] = []
    limit = options.max_payload_bytes
    for file in files:
        if isinstance(file, str):
            path = file
            entries, lacks, found = _native.validate_pack(
                path, level, limit, options.workers, progress
            )
        else:
            path = file.name
            entries, lacks, found = _native.validate_pack(
                path, level, limit, 1, progress, file.size, file.read_ranges
            )
        checked += entries
        if lacks:
            unchecked.append(path)
        problems += [
            Problem(path, kind, message, row=entry, offset=offset)
            for entry, offset, kind, message in found
        ]
    return Report(level, {"entries": checked}, tuple(problems), unchecked=tuple(unchecked))
