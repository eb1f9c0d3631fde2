"""Who downloads what, so that several processes do not download the same.

A claim is an empty file that its owner touches every two seconds. One that was not touched for ten
seconds is ignored: its owner was killed. Nothing but the number of downloads depends on claims, so
they may be lost, ignored or taken twice.
"""

import contextlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Final

from relive.store.cache.layout import CLAIMS

HEARTBEAT_S: Final = 2.0
STALE_S: Final = 10.0


class Claims:
    """The claims of this process in a cache. Thread-safe; not for a forked process.

    Example:
        >>> from pathlib import Path
        >>> from relive.store.cache.claims import Claims
        >>> mine, other = Claims(Path("cache")), Claims(Path("cache"))
        >>> mine.take("something"), other.take("something")
        (True, False)
        >>> mine.release("something")
        >>> other.take("something")
        True
    """

    def __init__(self, base: Path) -> None:
        self._folder = base / CLAIMS
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._skew_s = 0.0  # of the clock of the disk
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, name: str) -> bool:
        """Claim a name; return False if another process has it and is alive.

        Where files cannot be written, every claim succeeds.
        """
        path = self._folder / name
        try:
            try:
                handle = self._create(path)
            except FileExistsError:
                if not self._retire(path):
                    return False
                handle = self._create(path)
        except FileExistsError:
            return False
        except OSError:
            return True
        status = os.fstat(handle)
        os.close(handle)
        self._skew_s = status.st_mtime - time.time()
        with self._lock:
            self._held[name] = status.st_ino
            if self._thread is None:
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._beat, args=(self._ended,), name="relive-claims", daemon=True
                )
                self._thread.start()
        return True

    def release(self, name: str) -> None:
        """Give up a claim."""
        with self._lock:
            inode = self._held.pop(name, None)
            if not self._held and self._thread is not None:
                self._ended.set()
                self._thread = None
        if inode is not None:
            path = self._folder / name
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o666)

    def _retire(self, path: Path) -> bool:
        """Return whether the claim can be taken; delete that of a killed process."""
        try:
            if not self._is_stale(path):
                return False
            # Only one process can rename it, and what it renames may be a newer claim.
            retired = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
            path.rename(retired)
        except FileNotFoundError:  # its owner gave it up: another process may take it before us
            return True
        try:
            if not self._is_stale(retired):
                os.link(retired, path)
                return False
        finally:
            retired.unlink(missing_ok=True)
        return True

    def _is_stale(self, path: Path) -> bool:
        return time.time() + self._skew_s - path.stat().st_mtime > STALE_S

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT_S):
            with self._lock:
                held = list(self._held)
            for name in held:
                with contextlib.suppress(OSError):
                    os.utime(self._folder / name)
