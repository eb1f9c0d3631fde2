"""Copies the steps of the source to the runs of a root."""

from collections.abc import Sequence
from typing import Final

from relive.errors import AlreadyExistsError
from relive.replay.config import ReplayConfig
from relive.replay.migrate.blobs import DamagedError
from relive.replay.migrate.catalog import OriginalEpisode, OriginalRun
from relive.replay.migrate.migration import CopiedEpisode, Migration
from relive.replay.migrate.rows import StepKey, step_key
from relive.replay.migrate.target import TargetRun
from relive.replay.storage.connection import Database
from relive.replay.storage.tables import migrated_from

_SCAN_ROWS: Final = 1000
_PROGRESS_STEPS: Final = 64


def scan(migration: Migration) -> tuple[int, int]:
    """Fill the catalog with what the source has; return its largest rowid and its rows."""
    source, catalog, report = migration.source, migration.catalog, migration.report
    # First the ends: all rows of an episode that is over are in the table by then.
    catalog.add_ends(source.ends())
    last, count = source.last_row()
    rows: list[tuple[int, StepKey, bool]] = []
    for rowid, *key, is_real in source.keys(last):
        report.rows += 1
        try:
            rows.append((rowid, step_key(*key), bool(is_real)))
        except DamagedError as error:
            migration.leave_out(rowid, "", error)
        if report.rows % _SCAN_ROWS == 0:
            catalog.add(rows)
            rows = []
            migration.progress("scan", report.rows, max(report.rows, count))
    catalog.add(rows)
    migration.progress("scan", report.rows, report.rows)
    report.runs, report.episodes, migration.steps, kept = catalog.counts()
    report.duplicates = kept - migration.steps
    for first, *others in catalog.repeated():
        _count_conflicts(migration, first, others)
    return last, count


def _count_conflicts(migration: Migration, first: int, others: Sequence[int]) -> None:
    """Count the rows of a step that are not the same as its first."""
    row = migration.source.read(first)
    for other in others:
        if migration.source.read(other) != row:
            migration.report.conflicting += 1
            migration.catalog.leave_out(other)


def copy(migration: Migration, database: Database, config: ReplayConfig) -> None:
    """Copy the steps that the root does not have."""
    for run in migration.catalog.runs():
        _RunCopy(migration, database, config, run).copy()
    migration.progress("copy", migration.steps, migration.steps)


class _RunCopy:
    """Copies one run."""

    def __init__(
        self, migration: Migration, database: Database, config: ReplayConfig, run: OriginalRun
    ) -> None:
        self._migration = migration
        self._report = migration.report
        self._database = database
        self._config = config
        self._run = run
        self._known = migration.known_run(database, run)
        self._target: TargetRun | None = None

    def copy(self) -> None:
        """Copy the episodes that are not complete; the run is opened only if there is one."""
        if self._known is not None and self._known.status == "deleted":
            self._report.skipped_runs.append(self._run.run_id)
            return
        try:
            for episode in self._migration.catalog.episodes(self._run):
                if not self._copy_episode(episode):
                    self._report.skipped_runs.append(self._run.run_id)
                    return
            if self._is_interrupted():
                self._open()
            if self._target is not None:
                self._target.complete()
                self._report.irregular += self._target.irregular
                self._report.split += self._target.split
        finally:
            if self._target is not None:
                self._target.release()

    def _copy_episode(self, episode: OriginalEpisode) -> bool:
        """Copy what is missing of an episode; return False if the run is read-only."""
        copied = self._migration.copied(self._database, episode)
        if not self._is_complete(episode, copied):
            if self._known is not None and self._known.status == "archived":
                return False
            if self._target is None:
                self._open()
                # Another process may have copied more of it before the run was locked.
                copied = self._migration.copied(self._database, episode)
        self._count_present(episode, copied)
        if self._target is not None and not self._is_complete(episode, copied):
            self._copy_steps(self._target, episode, copied)
        return True

    def _copy_steps(
        self, target: TargetRun, episode: OriginalEpisode, copied: CopiedEpisode
    ) -> None:
        target.enter_episode(episode, copied)
        for step_index, rowid in self._migration.catalog.steps(episode, copied.last):
            try:
                values = self._migration.values(episode, step_index, rowid)
            except DamagedError as error:
                if not self._migration.skip_damaged:
                    target.save()
                step = f", episode {episode.episode_id!r}, step {step_index}"
                self._migration.leave_out(rowid, step, error)
                continue
            if values is None:
                self._report.deleted += 1
                continue
            target.add(episode, step_index, values)
            self._report.copied += 1
            self._show_progress()
        target.leave_episode(episode)

    def _show_progress(self) -> None:
        done = self._report.copied + self._report.present
        if done % _PROGRESS_STEPS == 0:
            self._migration.progress("copy", done, max(done, self._migration.steps))

    def _open(self) -> None:
        root, run = self._migration.root, self._run
        self._target = TargetRun(root, run, self._config)
        if self._target.migrated_from != run.name:
            raise AlreadyExistsError(
                f"`{root}` has a run {run.run_id!r} that was not migrated from "
                f"`{self._migration.source.path}`",
                hint="migrate to another root",
            )

    def _is_interrupted(self) -> bool:
        """Check whether a run that has all steps was left without a complete file."""
        return (
            self._target is None
            and self._known is not None
            and self._known.status == "recording"
            and migrated_from(self._known) == self._run.name
        )

    def _is_complete(self, episode: OriginalEpisode, copied: CopiedEpisode) -> bool:
        if copied.is_open and episode.end is not None:
            return False
        return next(self._migration.catalog.steps(episode, copied.last), None) is None

    def _count_present(self, episode: OriginalEpisode, copied: CopiedEpisode) -> None:
        have = self._migration.catalog.count(episode, copied.last)
        self._report.present += min(have, copied.steps)
        self._report.late += max(0, have - copied.steps)
