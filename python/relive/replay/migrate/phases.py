"""The phases of a migration, one after the other."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from relive.errors import CorruptError
from relive.replay.config import ReplayConfig
from relive.replay.migrate import in_place, original
from relive.replay.migrate.catalog import Catalog
from relive.replay.migrate.copying import copy, scan
from relive.replay.migrate.migration import Migration
from relive.replay.migrate.original import OriginalEditor, OriginalTables
from relive.replay.migrate.report import MigrationProgress, MigrationReport
from relive.replay.migrate.rows import BLOBS
from relive.replay.migrate.verify import verify as verify_steps
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path, runs_path
from relive.store.paths import absolute_path


def migrate(
    database: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    verify: bool = False,
    drop_blobs: bool = False,
    compact: bool = False,
    skip_damaged: bool = False,
    config: ReplayConfig | None = None,
    progress: MigrationProgress | None = None,
) -> MigrationReport:
    """Copy the steps of a database with JSON arrays to the runs of a root.

    A call that was killed is continued by the next one, and rows that were added later are copied
    by a later call. Memory does not depend on the size of the source.

    The database may be that of the root itself, `telemetry/telemetry.sqlite`. Then the runs are in
    the root `telemetry/migrating` until `drop_blobs`, which moves them into the database; the
    original's tables are then named `original_steps` and `original_episodes`. Steps that were
    recorded with `TelemetryStore(keep_blobs=True)` have their JSON in `original_steps` too.

    Args:
        database: The SQLite database. Other processes may write to it.
        root: The directory of the runs. It is created if it does not exist.
        verify: Compare every step of the source with the root, bit by bit. Differences are in the
            report.
        drop_blobs: Verify, and then remove the columns `observation` and `render_payload` from the
            source, in one transaction. Nothing is removed if there is a difference, or if another
            process changed the source during the call. Without the columns there is nothing to
            remove, and the call only verifies the rest. Rows that no run has, because they are
            damaged, conflicting or late, or because their run was deleted, are copied to the table
            `left_out_steps` before. SQLite needs about as much free space as the source has.
        compact: Rewrite the source without unused space.
        skip_damaged: Leave out rows that cannot be read, instead of raising a `CorruptError`.
        config: How the runs are stored.
        progress: Is called with the name of the phase, and how much of it is done.
    """
    path = Path(absolute_path(database, "a database"))
    target = runs_path(root)
    settings = replace(config or ReplayConfig(), overload="block")
    progress = progress or _ignore
    with contextlib.ExitStack() as stack:
        is_own = in_place.is_own_database(path, target)
        if is_own:
            stack.enter_context(in_place.locked(target))
        source = stack.enter_context(contextlib.closing(OriginalTables.open(path)))
        if is_own and source.is_relive:
            in_place.remove_staged(target)  # a process was killed after it had moved the runs
        is_staged = is_own and not source.is_relive
        runs = in_place.staged_root(target) if is_staged else target
        editor = None
        if drop_blobs and (is_staged or _droppable(source)):
            editor = stack.enter_context(contextlib.closing(OriginalEditor(path)))
        catalog = stack.enter_context(Catalog())
        migration = Migration(source, catalog, runs, progress, skip_damaged)
        migration.report.staged = runs if is_staged else None
        scanned = scan(migration)
        with Database.create(database_path(runs)) as tables:
            copy(migration, tables, settings)
            if editor is not None:
                editor.watch(source, scanned)
            if verify or drop_blobs:
                verify_steps(migration, tables)
        if drop_blobs:
            _check_same(migration)
        if editor is not None:
            _drop(migration, editor)
            if is_staged:
                in_place.remove_staged(target)
    if compact:
        _compact(migration)
    return migration.report


def _ignore(phase: str, done: int, total: int) -> None:
    """Show no progress."""


def _droppable(source: OriginalTables) -> tuple[str, ...]:
    """Return the columns with arrays that the source has."""
    return tuple(name for name in BLOBS if name in source.columns)


def _check_same(migration: Migration) -> None:
    """Raise a `CorruptError` if a step of the source is not the same in the root."""
    report, source = migration.report, migration.source
    if report.problem_count:
        count = "1 step" if report.problem_count == 1 else f"{report.problem_count} steps"
        raise CorruptError(
            f"`{source.path}` and `{migration.root}` differ in {count}; nothing was removed: "
            f"{report.problems[0]}",
            hint="migrate with verify to see all of them",
        )


def _drop(migration: Migration, editor: OriginalEditor) -> None:
    """Remove the columns with arrays from the source; staged runs are moved there."""
    report, source = migration.report, migration.source
    columns = _droppable(source)
    migration.progress("drop", 0, len(columns))
    staged = None if report.staged is None else database_path(report.staged)
    report.kept = editor.drop(columns, migration.catalog.left_out(), staged)
    report.dropped, report.staged = columns, None
    migration.progress("drop", len(columns), len(columns))


def _compact(migration: Migration) -> None:
    """Rewrite the source without unused space."""
    report = migration.report
    migration.progress("compact", 0, 1)
    report.bytes_before, report.bytes_after = original.compact(migration.source.path)
    migration.progress("compact", 1, 1)
