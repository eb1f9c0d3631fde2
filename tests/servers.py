"""Real servers on free local ports: nginx, SeaweedFS (S3), one with faults, proxies, credentials.

Each is a context manager, serves until the block ends, and records its requests.
"""

import contextlib
import hashlib
import hmac
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote


class Request(NamedTuple):
    """One request: the requested range, and the status and body size of the response."""

    range: str
    status: int
    sent: int


class Gate:
    """Holds requests until no other has arrived for a while, then releases all of them.

    Requests released together were in flight at the same time: one wave, one round trip.
    """

    def __init__(self, quiet_s: float = 0.15) -> None:
        self.waves: list[int] = []
        self._quiet_s = quiet_s
        self._changed = threading.Condition()
        self._waiting = 0
        self._arrived = 0

    def hold(self) -> None:
        """Wait until the wave is complete."""
        with self._changed:
            wave = len(self.waves)
            self._waiting += 1
            self._arrived += 1
            self._changed.notify_all()
            while len(self.waves) == wave:
                arrived = self._arrived
                notified = self._changed.wait(self._quiet_s)
                if not notified and self._arrived == arrived and len(self.waves) == wave:
                    self.waves.append(self._waiting)
                    self._waiting = 0
                    self._changed.notify_all()


@dataclass
class Faults:
    """The faults of a server; the defaults are those of a correct one."""

    suffix: int = 206  # status of the response to a suffix range; 200 sends everything
    ranges: bool = True
    failures: list[int] = field(default_factory=list)  # statuses of the first responses
    broken: int = 0  # number of bodies that end in the middle
    short: int = 0  # number of responses that declare half the data as all of it
    shifted: bool = False  # ranges start one byte later
    flipped: int | None = None  # this byte of the file is sent with flipped bits
    etag: str | None = '"one"'
    redirect: bool = False
    password: str | None = None  # the required Authorization header
    wait_s: float = 0.0


class FaultyServer:
    """A small HTTP server of `files`, whose `faults` may change while it runs."""

    def __init__(self, files: dict[str, bytes], faults: Faults | None = None) -> None:
        self.files = files
        self.faults = faults or Faults()
        self.gate: Gate | None = None
        self.log: list[Request] = []
        self._server = _Threading(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Respond with the faults, and record the request."""
        faults, asked = self.faults, request.headers.get("range", "")
        if self.gate is not None:
            self.gate.hold()
        time.sleep(faults.wait_s)
        path = unquote(request.path.partition("?")[0]).lstrip("/")
        data = self.files.get(path.removeprefix("moved/"))
        status, body, headers = 404, b"no such file", dict[str, str]()
        if faults.failures:
            status, body = faults.failures.pop(0), b"a body with a secret"
        elif faults.password not in {None, request.headers.get("authorization")}:
            status, body = 401, b"unauthorized"
        elif data is not None and faults.redirect and not path.startswith("moved/"):
            status, body, headers["Location"] = 302, b"", f"/moved{request.path}"
        elif data is not None:
            status, body, headers = self._part(data, asked)
        length = len(body)
        if status == 206 and faults.broken:
            faults.broken -= 1
            body, request.close_connection = body[: length // 2], True
        elif status == 206 and faults.short:
            faults.short -= 1
            body = body[: length // 2]
            length = len(body)
        sent = b"" if request.command == "HEAD" else body
        self.log.append(Request(asked, status, len(sent)))
        request.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have disconnected
            request.wfile.write(sent)

    def _part(self, data: bytes, asked: str) -> tuple[int, bytes, dict[str, str]]:
        faults = self.faults
        headers = {"ETag": faults.etag} if faults.etag else {}
        first, _, last = asked.removeprefix("bytes=").partition("-")
        suffix = bool(asked) and not first
        if not asked or not faults.ranges or (suffix and faults.suffix == 200):
            return 200, data, headers
        if suffix and faults.suffix != 206:
            return faults.suffix, b"", {}
        start = max(0, len(data) - int(last)) if suffix else int(first)
        stop = len(data) if suffix else min(len(data), int(last) + 1)
        if start >= len(data):
            return 416, b"", {"Content-Range": f"bytes */{len(data)}"}
        if faults.shifted:
            start += 1
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        part = bytearray(data[start:stop])
        if faults.flipped is not None and start <= faults.flipped < stop:
            part[faults.flipped - start] ^= 0x10
        return 206, bytes(part), headers


class _Threading(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def _handler(server: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body is sent at once after its header

        def do_GET(self) -> None:
            server.answer(self)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - fixed names

        def log_message(self, *_: object) -> None:
            """Log nothing: the server records requests itself."""

        def finish(self) -> None:
            with contextlib.suppress(OSError):  # the connection may have been reset
                super().finish()
            if isinstance(server, Proxy):
                server.close(self)

    return Handler


class _GateServer:
    """The gate, for a server that can only ask over HTTP whether to continue."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.gate.hold()
        request.send_response(204)
        request.end_headers()


def nginx() -> str | None:
    """Return the path of nginx; the PATH of a user often lacks its folder."""
    folders = os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"
    return shutil.which("nginx", path=os.pathsep.join(folders))


def weed() -> str | None:
    """Return the path of SeaweedFS: next to this interpreter, or on the PATH."""
    return shutil.which("weed", path=os.fspath(Path(sys.executable).parent)) or shutil.which("weed")


_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  log_format asked '$http_range|$status|$body_bytes_sent|$uri';
  access_log {folder}/access.log asked;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  keepalive_requests 100000;
  server {{
    listen 127.0.0.1:{port};
    location / {{ root {files}; }}
    location /gated/ {{ alias {files}/; auth_request /gate; }}
    location = /gate {{ internal; proxy_pass http://127.0.0.1:{gate}; }}
    location /whole/ {{ alias {files}/; max_ranges 0; }}
    location /unnamed/ {{ alias {files}/; etag off; }}
    location /secret/ {{ alias {files}/; auth_basic here; auth_basic_user_file {folder}/users; }}
    location /forbidden/ {{ return 403; }}
    location = /mark {{ return 204; }}
  }}
}}
"""


class Nginx:
    """Serves the folder `files` with nginx; requests under `gated/` wait for their wave.

    Under `whole/` ranges are disabled, under `unnamed/` there are no ETags, `secret/` needs the
    user `me` with the password `pass`, and `forbidden/` is denied.
    """

    def __init__(self, files: Path, folder: Path) -> None:
        self.files = files
        self.gate = Gate()
        self._gate_server = _Threading(("127.0.0.1", 0), _handler(_GateServer(self.gate)))
        self._thread = threading.Thread(target=self._gate_server.serve_forever, args=(0.01,))
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "access.log"
        (folder / "users").write_text("me:{PLAIN}pass\n")
        text = _NGINX.format(
            folder=folder, files=files, port=port, gate=self._gate_server.server_port
        )
        (folder / "nginx.conf").write_text(text)
        self._command = [nginx() or "nginx", "-p", f"{folder}", "-c", f"{folder / 'nginx.conf'}"]

    def __enter__(self) -> Self:
        self._thread.start()
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        wait_for(self._mark, self._process)
        self.log()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._gate_server.shutdown()
        self._gate_server.server_close()
        self._thread.join()

    def log(self) -> list[Request]:
        """Return the requests since the last call."""
        # A line is written after its response is sent; one more response comes after that line.
        self._mark()
        lines: list[str] = []
        while not any(line.endswith("|/mark") for line in lines):
            lines = self._log.read_text().splitlines()
        self._log.write_text("")  # nginx appends
        parts = [line.split("|") for line in lines if not line.endswith("|/mark")]
        return [
            Request(asked.strip("-"), int(status), int(sent)) for asked, status, sent, _ in parts
        ]

    def _mark(self) -> None:
        urllib.request.urlopen(f"{self.url}/mark").close()  # noqa: S310 - our own


class SeaweedFS:
    """SeaweedFS with its S3 interface; keys `key` and `secret`; buckets need no creation.

    The keys `reader` and `reader-secret` may only read. Without keys, everything is allowed in
    the bucket `public` and nothing elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        public = [f"{action}:public" for action in ("Admin", "Read", "Write", "List")]
        identities = [
            _identity("tester", "key", "secret", ["Admin", "Read", "Write", "List"]),
            _identity("reader", "reader", "reader-secret", ["Read", "List"]),
            {"name": "anonymous", "actions": public},
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir()
        names = ("master.port", "volume.port", "filer.port", "s3.port")
        self._ports = free_ports(8)
        listen = dict(zip([*names, *(f"{name}.grpc" for name in names)], self._ports, strict=True))
        self.url = f"http://127.0.0.1:{listen['s3.port']}"
        self._log = folder / "weed.log"
        self._command = [
            weed() or "weed",
            "server",
            f"-dir={folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
            f"-s3.config={folder / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-master.electionTimeout=1s",
            "-master.heartbeatInterval=100ms",
            "-volume.max=100",
            "-volume.minFreeSpacePercent=0",
            *(f"-{name}={port}" for name, port in listen.items()),
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_for(lambda: self.put("ready/yes", b"yes"), self._process)
        return self

    def __exit__(self, *error: object) -> None:
        # On SIGTERM it spends up to a minute writing its state.
        self._process.kill()
        self._process.wait()
        for path in Path("/tmp").glob("seaweedfs-*.sock"):  # noqa: S108 - fixed by SeaweedFS
            if path.stem.endswith(tuple(f"-{port}" for port in self._ports)):
                path.unlink(missing_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Return the options that connect `s3://` URIs to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def options(self, url: str | None = None, user: str = "tester") -> dict[str, Any]:
        """Return the options for `open_root`: of a user, and of a proxy's URL if given."""
        key, secret = {"tester": ("key", "secret"), "reader": ("reader", "reader-secret")}[user]
        return {
            "endpoint": url or self.url,
            "access_key_id": key,
            "secret_access_key": secret,
            "region": "us-east-1",
        }

    def put(self, key: str, data: bytes) -> None:
        """Store `data` as `bucket/key`."""
        import obstore
        from obstore.store import S3Store

        bucket, _, name = key.partition("/")
        store = S3Store(
            bucket,
            endpoint=self.url,
            access_key_id="key",
            secret_access_key="secret",  # noqa: S106 - of the server above
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        obstore.put(store, name, data)


def _identity(name: str, key: str, secret: str, actions: list[str]) -> dict[str, Any]:
    credentials = [{"accessKey": key, "secretKey": secret}]
    return {"name": name, "credentials": credentials, "actions": actions}


@dataclass(frozen=True)
class Exchange:
    """One request that a proxy received, and its response."""

    number: int
    """Counted from 1 on."""
    method: str
    path: str
    """With the query."""
    range: str
    status: int
    """0 if the connection was reset or the request was not answered."""
    received: int
    """Bytes of the request's body."""
    sent: int
    """Bytes of the response's body."""


Canned = tuple[int, bytes]
"""A status and a body."""


@dataclass
class Troubles:
    """What a proxy does besides passing on requests; may be changed while it runs."""

    delay_s: float = 0.0  # before each response
    busy: float = 0.0  # share of requests that are answered with 503
    reset: float = 0.0  # share of connections that are reset, before or in the middle of a body
    silent: float = 0.0  # share of requests that are not answered for `silent_s`
    silent_s: float = 3.0
    canned: list[Canned] = field(default_factory=list)  # answers to the next requests
    drop: tuple[str, ...] = ()  # request headers that are removed, in lower case
    flip: tuple[str, int] | None = None  # part of a path, and the byte of its object to change


class Proxy:
    """A reverse proxy for the server at `target`: counts requests, delays and disturbs them.

    `before(number)` is called before a request is passed on, `after(number)` when the server has
    answered and before the client has the response. Faults are drawn with `seed`.

        with Proxy(seaweed.url) as proxy:
            root = open_root("s3://bucket/root", **seaweed.options(proxy.url))
            root.exists(["a"])
            assert [each.method for each in proxy.log] == ["HEAD"]
    """

    def __init__(self, target: str, *, seed: int = 0, **troubles: Any) -> None:
        self.troubles = Troubles(**troubles)
        self.log: list[Exchange] = []
        self.gate: Gate | None = None
        self.before: Callable[[int], object] | None = None
        self.after: Callable[[int], object] | None = None
        self._target = target.removeprefix("http://")
        self._random = random.Random(seed)  # noqa: S311 - for faults
        self._lock = threading.Lock()
        self._count = 0
        self._connections: dict[BaseHTTPRequestHandler, http.client.HTTPConnection] = {}
        self._server = _Threading(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for client in [*self._connections]:  # of connections that the client still has open
            self.close(client)

    @property
    def count(self) -> int:
        """The number of requests since the last `clear`."""
        return self._count

    def clear(self) -> None:
        """Count from 1 again, and forget the log."""
        with self._lock:
            self._count = 0
            self.log = []

    def wait(self) -> None:
        """Wait until the log has all requests; clients do not wait for those not answered."""
        deadline = time.monotonic() + 60
        while len(self.log) < self._count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def methods(self) -> list[str]:
        """Return the methods of the requests in the log."""
        return [each.method for each in self.log]

    def kill_at(self, number: int, pid: int | None, *, answered: bool = False) -> None:
        """Kill a process at a request: before the server gets it, or after it `answered` it.

        Without a process, only the connection is reset.
        """

        def kill(now: int) -> None:
            if now == number:
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise _StoppedError

        self.before, self.after = (None, kill) if answered else (kill, None)

    def close(self, client: BaseHTTPRequestHandler) -> None:
        """Close the connection to the server that belongs to a client's."""
        with self._lock:
            connection = self._connections.pop(client, None)
        if connection is not None:
            connection.close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Pass on a request, with the troubles, and record it."""
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        troubles = self.troubles
        with self._lock:
            self._count += 1
            number = self._count
            draw = self._random.random()
            place = self._random.random()
            canned = troubles.canned.pop(0) if troubles.canned else None
        status, headers, content = 0, dict[str, str](), b""
        resets = troubles.busy <= draw < troubles.busy + troubles.reset
        silent = 0 <= draw - troubles.busy - troubles.reset < troubles.silent
        try:
            if self.gate is not None:
                self.gate.hold()
            if self.before is not None:
                self.before(number)
            time.sleep(troubles.delay_s)
            if canned is not None or draw < troubles.busy:
                status, content = canned or (503, b"<Error><Code>SlowDown</Code></Error>")
            elif silent:
                time.sleep(troubles.silent_s)
            elif not resets or place < 0.5:
                status, headers, content = self._pass_on(request, body)
                if self.after is not None:
                    self.after(number)
        except _StoppedError:
            status = 0
        # Recorded before the client can continue.
        sent = 0 if request.command == "HEAD" else len(content)
        asked, method, path = request.headers.get("range", ""), request.command, request.path
        with self._lock:
            self.log.append(Exchange(number, method, path, asked, status, len(body), sent))
        if status:
            _send(request, status, headers, content, cut=resets)
        else:
            _reset(request)

    def _pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        headers = self._headers(request)
        with self._lock:
            connection = self._connections.get(request)
            if connection is None:
                connection = http.client.HTTPConnection(self._target)
                self._connections[request] = connection
        connection.putrequest(
            request.command, request.path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        content = response.read()
        found = {
            name: value
            for name, value in response.getheaders()
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}
        }
        length = response.getheader("content-length")
        if request.command == "HEAD" and length is not None:
            found["Content-Length"] = length
        return response.status, found, self._flipped(request, content)

    def _headers(self, request: BaseHTTPRequestHandler) -> dict[str, str]:
        """Return the headers of the request to the server."""
        dropped = {"connection", *self.troubles.drop}
        return {
            name: value for name, value in request.headers.items() if name.lower() not in dropped
        }

    def _flipped(self, request: BaseHTTPRequestHandler, content: bytes) -> bytes:
        if self.troubles.flip is None or self.troubles.flip[0] not in request.path:
            return content
        asked = request.headers.get("range", "").removeprefix("bytes=").partition("-")[0]
        at = self.troubles.flip[1] - int(asked or 0)
        if not 0 <= at < len(content) or request.command != "GET":
            return content
        return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def seed_with_every_fault(share: float, first: int, stop: int) -> int:
    """Return a seed with which a proxy has every kind of fault from a request on up to another.

    The `first` requests, of those who open, are not disturbed. `share` is that of each kind.
    """
    for seed in itertools.count():
        chance = random.Random(seed)  # noqa: S311 - for faults
        draws = [(chance.random(), chance.random())[0] for _ in range(stop)]
        kinds = {int(draw / share) for draw in draws[first:] if draw < 3 * share}
        if len(kinds) == 3 and min(draws[:first]) >= 3 * share:
            return seed
    raise AssertionError  # for the type checker


@dataclass
class IssuedKey:
    """A temporary key of a `CredentialService`."""

    secret: str
    token: str
    expires_s: float
    uses: int = 0


class CredentialService:
    """Issues temporary keys as the services of AWS do, each for `lifetime_s` seconds.

    | service | address |
    |---|---|
    | of a container | `{url}/container`; with `authorization`, that header is required |
    | of an instance | `{url}` |
    | security tokens | `{url}/sts`, for the web identity `identity` |

    The next requests are answered with the statuses in `failures`. `declared_s` is the lifetime
    that responses declare, if it is not the true one. The next keys have the true lifetimes in
    `lifetimes_s`, and responses declare `lifetime_s`.
    """

    def __init__(self, lifetime_s: float = 3600.0) -> None:
        self.lifetime_s = lifetime_s
        self.declared_s: float | None = None
        self.lifetimes_s: list[float] = []
        self.authorization: str | None = None
        self.identity = "identity"
        self.failures: list[int] = []
        self.issued: dict[str, IssuedKey] = {}
        self.log: list[str] = []
        self._lock = threading.Lock()
        self._server = _Threading(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def expire_all(self) -> None:
        """Let all issued keys expire, whatever was declared."""
        for key in self.issued.values():
            key.expires_s = 0.0

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Respond as one of the services."""
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        roles = "/latest/meta-data/iam/security-credentials/"
        with self._lock:
            self.log.append(f"{request.command} {request.path}")
            failure = self.failures.pop(0) if self.failures else None
        status, content = 404, b""
        if failure is not None:
            status = failure
        elif request.path == "/container":
            wrong = self.authorization not in {None, request.headers.get("authorization")}
            status, content = (401, b"") if wrong else (200, self._issue())
        elif (request.command, request.path) == ("PUT", "/latest/api/token"):
            status, content = 200, b"metadata-token"
        elif request.headers.get("x-aws-ec2-metadata-token") != "metadata-token":
            status, content = self._assume(request, body)
        elif request.path == roles:
            status, content = 200, b"a-role"
        elif request.path == f"{roles}a-role":
            status, content = 200, self._issue()
        _send(request, status, {}, content)

    def _assume(self, request: BaseHTTPRequestHandler, body: bytes) -> Canned:
        form = parse_qs(body.decode())
        if request.path != "/sts":
            return 401, b""
        if form.get("WebIdentityToken") != [self.identity] or form.get("RoleArn") != ["a-role"]:
            return 403, b"<Error><Code>InvalidIdentityToken</Code></Error>"
        found = json.loads(self._issue())
        found["SessionToken"] = found.pop("Token")
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in found.items())
        return 200, f"<Response><Credentials>{inner}</Credentials></Response>".encode()

    def _issue(self) -> bytes:
        with self._lock:
            name = f"TEMPORARY{len(self.issued)}"
            lifetime_s = self.lifetimes_s.pop(0) if self.lifetimes_s else self.lifetime_s
            made = IssuedKey(
                f"hidden-secret-{name}", f"hidden-token-{name}", time.time() + lifetime_s
            )
            self.issued[name] = made
        declared = self.lifetime_s if self.declared_s is None else self.declared_s
        expires = datetime.fromtimestamp(time.time() + declared, UTC)
        return json.dumps(
            {
                "AccessKeyId": name,
                "SecretAccessKey": made.secret,
                "Token": made.token,
                "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
        ).encode()


class SigningProxy(Proxy):
    """A proxy that accepts only keys that `service` has issued and that have not expired.

    Signatures are verified. Requests go on with the key of the server, signed again, because
    SeaweedFS does not know temporary keys.
    """

    def __init__(self, target: str, service: CredentialService, **troubles: Any) -> None:
        super().__init__(target, **troubles)
        self.service = service
        self.refused: list[str] = []
        """The error codes of refused requests."""

    def _pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        refusal = self._refusal(request)
        if refusal is None:
            return super()._pass_on(request, body)
        self.refused.append(refusal)
        status = 400 if refusal == "ExpiredToken" else 403
        text = f"<Error><Code>{refusal}</Code><Message>hidden-in-the-body</Message></Error>"
        return status, {}, text.encode()

    def _refusal(self, request: BaseHTTPRequestHandler) -> str | None:
        name, _, signature = _authorization(request)
        key = self.service.issued.get(name)
        if key is None:
            return "InvalidAccessKeyId"
        if request.headers.get("x-amz-security-token") != key.token:
            return "InvalidToken"
        if signature != _signature(request, {**request.headers}, key.secret):
            return "SignatureDoesNotMatch"
        if time.time() > key.expires_s:
            return "ExpiredToken"
        key.uses += 1
        return None

    def _headers(self, request: BaseHTTPRequestHandler) -> dict[str, str]:
        headers = super()._headers(request)
        headers = {
            name: value
            for name, value in headers.items()
            if name.lower() not in {"x-amz-security-token", "authorization"}
        }
        _, names, _ = _authorization(request)
        names = [name for name in names if name != "x-amz-security-token"]
        signature = _signature(request, headers, "secret", names)
        scope = _scope(request)
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential=key/{scope},"
            f" SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return headers


def _authorization(request: BaseHTTPRequestHandler) -> tuple[str, list[str], str]:
    """Return the key, the names of the signed headers and the signature of a request."""
    text = request.headers.get("authorization", "")
    found = re.search(r"Credential=([^/]+)/.*SignedHeaders=([^,]+), ?Signature=(\w+)", text)
    return (found[1], found[2].split(";"), found[3]) if found else ("", [], "")


def _scope(request: BaseHTTPRequestHandler) -> str:
    found = re.search(r"Credential=[^/]+/([^,]+)", request.headers.get("authorization", ""))
    return found[1] if found else ""


def _signature(
    request: BaseHTTPRequestHandler,
    headers: dict[str, str],
    secret: str,
    names: list[str] | None = None,
) -> str:
    """Return the signature (version 4) of a request to S3."""
    values = {name.lower(): value.strip() for name, value in headers.items()}
    names = _authorization(request)[1] if names is None else names
    path, _, query = request.path.partition("?")
    pairs = sorted(each if "=" in each else f"{each}=" for each in query.split("&") if each)
    lines = [request.command, path, "&".join(pairs)]
    lines += [f"{name}:{values.get(name, '')}" for name in names]
    lines += ["", ";".join(names), values.get("x-amz-content-sha256", "")]
    scope = _scope(request)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", values.get("x-amz-date", ""), scope, digest])
    key = f"AWS4{secret}".encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class _StoppedError(Exception):
    """The client is gone."""


def _send(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    content: bytes,
    *,
    cut: bool = False,
) -> None:
    content = b"" if request.command == "HEAD" else content
    with contextlib.suppress(ConnectionError):  # the client may have disconnected
        request.send_response_only(status)
        if status not in {204, 304}:
            headers = {"Content-Length": str(len(content)), **headers}
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            _reset(request)


def _reset(request: BaseHTTPRequestHandler) -> None:
    """Close the connection so that the client sees a reset."""
    with contextlib.suppress(OSError):
        request.wfile.flush()
        linger = struct.pack("ii", 1, 0)
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.connection.close()
    request.close_connection = True


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def wait_for(attempt: Callable[[], object], process: subprocess.Popen[Any]) -> None:
    """Retry until it works; a server that exits, or takes a minute, is an error."""
    deadline = time.monotonic() + 60
    while True:
        try:
            attempt()
        except Exception:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def serving(data: bytes, **faults: Any) -> Iterator[tuple[FaultyServer, str]]:
    """Serve `data` as one file with these faults; yield the server and the URL."""
    with FaultyServer({"file": data}, Faults(**faults)) as server:
        yield server, f"{server.url}/file"
