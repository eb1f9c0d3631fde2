"""Migrates databases that have the arrays of steps as JSON to runs of relive.

The source is a SQLite database with a table `steps` whose columns `observation` and
`render_payload` are JSON documents, and a table `episodes`. `migrate` copies the steps to a root of
runs, compares the two, removes the two columns from the source, and compacts it.

- A step is a run, an episode, an agent and a step index. A row without `run_id` belongs to the run
  that its `episode_id` names before the last `-ep`. Of rows of the same step the first one counts.
- Rows are read one at a time, each in a transaction of its own, while other processes write.
- What was copied is derived from the steps that the root has, so that a call continues where
  another one ended or was killed, and copies rows that were added since.
- Arrays and numbers of `observation`, `action` and `render_payload` become arrays of the run.
  Everything else is kept as JSON: what the first step of an episode has in the metadata of the
  episode, and what differs from it in `info["__original__"]` of a step.
"""

from relive.replay.migrate.phases import migrate
from relive.replay.migrate.report import MigrationProblem, MigrationProgress, MigrationReport
from relive.replay.migrate.rows import BLOBS, ORIGINAL

__all__ = [
    "BLOBS",
    "ORIGINAL",
    "MigrationProblem",
    "MigrationProgress",
    "MigrationReport",
    "migrate",
]
