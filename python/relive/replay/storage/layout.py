"""The names of runs and of their files."""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relive._arguments import as_text
from relive.errors import CorruptError, InvalidError, NotFoundError
from relive.store.atomic import open_reader, read_file, storage_error
from relive.store.paths import absolute_path

if TYPE_CHECKING:
    from typing_extensions import TypeIs

REPLAY: Final = "replay"
"""The directory of the arrays of runs."""

INDEX: Final = "index.json"
"""The file that lists the files of the runs of a root for other programs."""

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_run_id(run_id: object, what: str = "run_id") -> str:
    """Return the id of a run; raise an `InvalidError` if files cannot be named after it."""
    text = as_text(what, run_id)
    if not is_run_id(text):
        raise InvalidError(
            f"`{what}` must have 1 to 128 letters, digits, `_`, `-` or `.`, and not begin with a "
            f"`.`, got {text!r}"
        )
    return text


def is_run_id(text: object) -> "TypeIs[str]":
    """Check whether a text can be the id of a run."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def check_stored_run_id(run_id: object, database: Path | None = None) -> str:
    """Return the id of a run that was read; raise a `CorruptError` if no recorder made it.

    A file that is named after another one, such as `../x`, may be anywhere. The error names the
    database, if it is passed.
    """
    if not is_run_id(run_id):
        where = "" if database is None else f"`{database}`: "
        raise CorruptError(f"{where}{run_id!r} is stored as the id of a run, but cannot be one")
    return run_id


def database_path(root: Path) -> Path:
    """Return the path of the database of all runs of a root."""
    return root / "telemetry" / "telemetry.sqlite"


def arrays_path(root: Path, run_id: str) -> Path:
    """Return the path of the arrays of a run."""
    return root / REPLAY / f"{check_stored_run_id(run_id)}.h5"


def lock_path(root: Path, run_id: str) -> Path:
    """Return the path of the file that the recorder of a run holds locked."""
    return root / REPLAY / f".{check_stored_run_id(run_id)}.lock"


def replacement_path(root: Path, run_id: str, version: int) -> Path:
    """Return the temporary name of the file that is version `version` of a run's arrays."""
    return root / REPLAY / f".{check_stored_run_id(run_id)}.{version}.h5"


def run_of_file(path: Path) -> tuple[Path, str] | None:
    """Return the root and the id of the run that a file is of, by its absolute path; or None."""
    root, run_id = path.parent.parent, path.name.removesuffix(".h5")
    is_file_of_run = is_run_id(run_id) and arrays_path(root, run_id) == path
    return (root, run_id) if is_file_of_run else None


def runs_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a root, or of the file of a run, as an absolute path.

    `~` at its beginning is the home directory. A URI is an `InvalidError`.
    """
    return Path(absolute_path(path, "a run"))


def replay_root(path: str | os.PathLike[str]) -> Path:
    """Return the root that has a directory of arrays; the directory must be named `replay`."""
    replay_dir = runs_path(path)
    if replay_dir.name != REPLAY:
        raise InvalidError(
            f"the directory of the arrays of runs must be named `{REPLAY}`, got `{replay_dir}`",
            hint=f"pass `{replay_dir / REPLAY}` if `{replay_dir}` is the directory of the runs",
        )
    return replay_dir.parent


def run_ids(root: Path) -> list[str]:
    """Return the ids of the runs that have a file in a root, sorted."""
    try:
        names = [path.name for path in (root / REPLAY).iterdir()]
    except FileNotFoundError:
        raise NotFoundError(f"`{root / REPLAY}` does not exist") from None
    found = [name.removesuffix(".h5") for name in names if name.endswith(".h5")]
    return sorted(name for name in found if is_run_id(name))


def is_hdf5(path: Path) -> bool:
    """Check whether a file begins as HDF5 files do; one that does not exist does not."""
    try:
        with open_reader(path) as file:
            return file.read(len(_HDF5)) == _HDF5
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path, "read") from error


def update_index(root: Path) -> None:
    """Write which file each run of a root has, for other programs, if that has changed.

    relive never reads it. An error is ignored: the next recorder writes it again.
    """
    path = root / REPLAY / INDEX
    with contextlib.suppress(OSError, InvalidError):  # errors of relive about files are these too
        wanted = _index(root)
        while read_file(path) != wanted:
            if wanted is None:
                path.unlink(missing_ok=True)
            else:
                temporary = path.with_name(f".{INDEX}.{os.getpid()}")
                temporary.write_bytes(wanted)
                temporary.replace(path)
            # Another process may have written an older list over a newer one.
            wanted = _index(root)


def _index(root: Path) -> bytes | None:
    """Return the content of the index; None if there are no runs."""
    ids = [run_id for run_id in run_ids(root) if is_hdf5(arrays_path(root, run_id))]
    files = {run_id: arrays_path(root, run_id).name for run_id in ids}
    return f"{json.dumps(files, indent=2)}\n".encode() if files else None
