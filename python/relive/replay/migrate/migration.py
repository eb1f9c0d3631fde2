"""What all phases of one migration share."""

from dataclasses import dataclass, field
from pathlib import Path

from relive.errors import CorruptError, InvalidError, UnknownNameError
from relive.replay.migrate.blobs import DamagedError
from relive.replay.migrate.catalog import Catalog, OriginalEpisode, OriginalRun
from relive.replay.migrate.original import OriginalTables
from relive.replay.migrate.report import MigrationProgress, MigrationReport
from relive.replay.migrate.rows import StepKey, StepValues, step_key, step_values
from relive.replay.storage.connection import Database
from relive.replay.storage.tables import RunRow, read_run


@dataclass(frozen=True, slots=True)
class CopiedEpisode:
    """What a root has of an episode of the source."""

    segments: int = 0
    """How many episodes of the root it is: one, and one more each time it went on after its end."""
    steps: int = 0
    last: int = -1
    """The index of its last step."""
    is_open: bool = False


@dataclass(slots=True)
class Migration:
    """The source, the root, and what was done so far."""

    source: OriginalTables
    catalog: Catalog
    root: Path
    progress: MigrationProgress
    skip_damaged: bool
    report: MigrationReport = field(default_factory=MigrationReport)
    steps: int = 0
    """How many steps the source has."""

    def values(self, episode: OriginalEpisode, step_index: int, rowid: int) -> StepValues | None:
        """Return the values of a step; None if its row was deleted."""
        row = self.source.read(rowid)
        if row is None:
            return None
        key = step_key(row["episode_id"], row["step_index"], row.get("agent_id"), row.get("run_id"))
        if key != StepKey(episode.episode_id, step_index, episode.agent_id, episode.run.name):
            raise InvalidError(
                f"another process renumbered the rows of `{self.source.path}`",
                hint="migrate again",
            )
        return step_values(row)

    def leave_out(self, rowid: int, step: str, error: DamagedError) -> None:
        """Count a row that cannot be read, or raise an error."""
        if not self.skip_damaged:
            raise CorruptError(
                f"`{self.source.path}`, row {rowid}{step}: {error}",
                hint="repair the row, or leave out damaged rows with skip_damaged",
            ) from error
        self.report.damaged += 1
        self.catalog.leave_out(rowid)

    def known_run(self, database: Database, run: OriginalRun) -> RunRow | None:
        """Return the row that the root has of a run of the source; None without one."""
        with database.connection() as connection:
            try:
                return read_run(connection, run.run_id)
            except UnknownNameError:
                return None

    def copied(self, database: Database, episode: OriginalEpisode) -> CopiedEpisode:
        """Return what the root has of an episode."""
        copied = CopiedEpisode()
        while True:
            name = episode.segment(copied.segments)
            if copied.segments and self.catalog.has_episode(episode.run, name):
                return copied  # another episode of the source has this id
            found = database.rows(
                "SELECT steps, ended_ns, (SELECT max(step_index) FROM steps WHERE "
                "run_id = e.run_id AND episode_id = e.episode_id AND agent_id = e.agent_id) "
                "FROM episodes AS e WHERE run_id = ? AND episode_id = ? AND agent_id = ?",
                (episode.run.run_id, name, episode.agent_id),
            )
            if not found:
                return copied
            steps, ended_ns, last = found[0]
            copied = CopiedEpisode(
                copied.segments + 1,
                copied.steps + steps,
                copied.last if last is None else last,
                ended_ns is None,
            )
