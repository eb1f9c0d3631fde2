"""SeaweedFS, and the proxy through which it is a round trip away and its requests are counted."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import SeaweedFS

ROUND_TRIP_MS = 20
SOURCE = Path(__file__).with_name("delay_proxy.rs")


class Counts(NamedTuple):
    """What passed the proxy."""

    connections: int
    requests: int
    writes: int
    """Those of the requests that are PUT, POST or DELETE."""
    sent: int
    received: int


class DelayedServer:
    """An S3 server: `near` is its own address, `far` that of the proxy."""

    def __init__(self, server: SeaweedFS, proxy: subprocess.Popen[str]) -> None:
        self.near = server.url
        self._server = server
        self._proxy = proxy
        self.far = f"http://127.0.0.1:{self._line()}"

    def make_bucket(self, name: str) -> None:
        """Create a bucket; SeaweedFS does so at the first object."""
        self._server.put(f"{name}/.made", b"")

    def take(self) -> Counts:
        """What passed the proxy since the last call."""
        assert self._proxy.stdin is not None
        self._proxy.stdin.write("\n")
        self._proxy.stdin.flush()
        return Counts(*map(int, self._line().split()))

    def _line(self) -> str:
        assert self._proxy.stdout is not None
        return self._proxy.stdout.readline().strip()


@contextmanager
def serving(folder: Path, round_trip_ms: int = ROUND_TRIP_MS) -> Iterator[DelayedServer]:
    """Start SeaweedFS, whose data is below `folder`, and the proxy."""
    from tests.servers import SeaweedFS

    folder.mkdir(parents=True)
    program = _compiled(folder / "delay_proxy")
    with SeaweedFS(folder) as server:
        proxy = subprocess.Popen(  # noqa: S603 - our own command
            [program, server.url.rpartition(":")[2], str(round_trip_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield DelayedServer(server, proxy)
        finally:
            proxy.kill()
            proxy.wait()


def _compiled(program: Path) -> Path:
    command = ["rustc", "--edition=2024", "-O", "-o", str(program), str(SOURCE)]
    subprocess.run(command, check=True)  # noqa: S603 - our own command
    return program
