"""Makes a working tree ready: system packages, environment, dependencies, extension.

Each step remembers what it was done for under `build/stamps/` and does nothing when
that has not changed. Runs on the standard library alone.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.workspace import BUILD, ROOT, environment

OLDEST = (3, 11)


def say(text: str) -> None:
    """Tell the person watching what happens."""
    print(f"setup: {text}", flush=True)


def system_packages() -> None:
    """Install the Debian packages of `system-packages.txt` that are missing, if we may."""
    install_packages(_lines(ROOT / "tools" / "system-packages.txt"))


def install_packages(wanted: Sequence[str]) -> None:
    """Install those of the Debian packages that are missing, if we may."""
    missing = [name for name in wanted if not _installed(name)]
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"not installed here: {' '.join(missing)} (sudo {' '.join(command)})")
        return
    say(f"system packages: {' '.join(missing)}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "--quiet"], check=True, env=env)
    subprocess.run(command, check=True, env=env)


def _installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True).stdout == "installed"


def venv_version(venv: Path) -> tuple[int, int] | None:
    """The Python version of `venv`, or None where there is no working environment."""
    try:
        done = subprocess.run(
            [venv / "bin" / "python", "-c", "import sys, pip; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def ensure_venv(venv: Path, stamps: Path) -> bool:
    """Adopt the environment at `venv`, or make it with this interpreter; True if made."""
    version = venv_version(venv)
    mine = sys.version_info[:2]
    if version is not None and version < OLDEST:
        sys.exit(f"setup: {venv} has Python {_dotted(version)}, relive needs 3.11: delete it")
    if version is not None and version != mine and os.environ.get("PYTHON"):
        sys.exit(
            f"setup: {venv} has Python {_dotted(version)} and PYTHON is {_dotted(mine)}\n"
            f"hint: delete it, or keep both with VENV=.venv-{_dotted(mine)}"
        )
    if version is not None:
        return False
    say(f"environment in {venv.name} (Python {_dotted(mine)})")
    shutil.rmtree(stamps, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", venv])
    if done.returncode != 0:
        sys.exit(
            "setup: the environment could not be made\n"
            f"hint: on Debian, apt-get install python{_dotted(mine)}-venv"
        )
    return True


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def requirements(extras: Iterable[str]) -> list[str]:
    """What pyproject.toml asks for: hard dependencies, the build backend and `extras`."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = table["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    found = {*project["dependencies"], *table["build-system"]["requires"]}
    queue, seen = list(extras), set[str]()
    while queue:
        extra = queue.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in optional:
            sys.exit(f"setup: no extra `{extra}`; pyproject.toml has {', '.join(optional)}")
        for line in optional[extra]:
            if own := re.fullmatch(r"relive\[([\w,\s-]+)\]", line):
                queue.extend(name.strip() for name in own[1].split(","))
            else:
                found.add(line)
    return sorted(found)


def install(venv: Path, stamps: Path, extras: Iterable[str]) -> bool:
    """Install what `extras` ask for into `venv`; True if anything had to be done.

    Asking for less than is there leaves the rest alone.
    """
    wanted = requirements(extras)
    stamp = stamps / "dependencies.json"
    have: list[str] = json.loads(stamp.read_text()) if stamp.exists() else []
    if set(wanted) <= set(have):
        return False
    say(f"dependencies ({len(wanted)} requirements)")
    if not _pip(venv, wanted):
        sys.exit("setup: pip could not install the dependencies")
    # A requirement that was dropped or tightened must not look satisfied for ever.
    everything = set(requirements(_all_extras()))
    stamp.write_text(json.dumps(sorted((set(have) & everything) | set(wanted)), indent=1))
    return True


def install_peers(venv: Path, stamps: Path, extras: Iterable[str]) -> bool:
    """Try each requirement of `extras` by itself; one that does not install is only told.

    Those of `benches/alone.txt` come without what they ask for. What was tried is not tried
    again: the benchmarks report a missing peer themselves.
    """
    stamp = stamps / "peers.json"
    tried: list[str] = json.loads(stamp.read_text()) if stamp.exists() else []
    alone = _lines(ROOT / "benches" / "alone.txt")
    wanted = [name for name in (*requirements(extras), *alone) if name not in tried]
    for name in set(wanted) - set(requirements(())):
        say(f"peer {name}")
        if not _pip(venv, [*(["--no-deps"] if name in alone else []), name]):
            say(f"peer {name} does not install here")
    stamp.write_text(json.dumps(sorted({*tried, *wanted}), indent=1))
    return bool(wanted)


def install_beside(venv: Path, stamps: Path, path: Path) -> bool:
    """Install the requirements of a file into an environment of their own over `venv`.

    Its name is that of `venv` and of the file: `.venv-torchrl`. It has the packages of `venv` too,
    which stay as they are. What does not install is only told, and not tried again: the tests that
    need it are then reported as unable to run.
    """
    wanted, name = _lines(path), f"{venv.name}-{path.stem}"
    stamp, other = stamps / f"{name}.json", venv.with_name(name)
    tried = json.loads(stamp.read_text()) if stamp.exists() else None
    if tried == wanted and venv_version(other) is not None:
        return False
    say(f"environment in {name}: {', '.join(wanted)}")
    if subprocess.run([venv / "bin" / "python", "-m", "venv", "--clear", other]).returncode != 0:
        sys.exit(f"setup: the environment {name} could not be made")
    ours, theirs = (next(each.glob("lib/python3.*/site-packages")) for each in (venv, other))
    (theirs / "beside.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
    if not _pip(other, wanted):
        say(f"{', '.join(wanted)} does not install here")
    stamp.write_text(json.dumps(wanted))
    return True


def _pip(venv: Path, wanted: list[str]) -> bool:
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    with subprocess.Popen(
        [*command, *wanted], env=environment(venv), stdout=subprocess.PIPE, text=True
    ) as pip:
        for line in pip.stdout or ():
            if not line.lstrip().startswith("Requirement already satisfied"):
                print(f"  {line.rstrip()}", flush=True)
    return pip.returncode == 0


def _all_extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])


def build_extension(venv: Path, stamps: Path) -> bool:
    """Build `relive._native` and install the package in place; True if it had to be done."""
    digest = _sources_digest()
    stamp = stamps / "extension.json"
    if stamp.exists() and json.loads(stamp.read_text()) == [digest, _built(venv)]:
        return False
    if shutil.which("cargo") is None:
        sys.exit("setup: `cargo` was not found\nhint: install Rust (https://rustup.rs)")
    say("extension (maturin develop --release)")
    done = subprocess.run(
        [venv / "bin" / "maturin", "develop", "--release", "--quiet"],
        cwd=ROOT,
        env=environment(venv) | {"PIP_QUIET": "1"},
    )
    if done.returncode != 0:
        sys.exit("setup: the extension could not be built")
    stamp.write_text(json.dumps([digest, _built(venv)]))
    return True


def _sources_digest() -> str:
    names = ("Cargo.toml", "Cargo.lock", "pyproject.toml", "rust-toolchain.toml")
    files = [ROOT / name for name in names if (ROOT / name).exists()]
    files += sorted(path for path in (ROOT / "crates").rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _built(venv: Path) -> list[list[str | int]]:
    # Others may build over ours or remove it: size and time tell.
    found = [
        *(ROOT / "python" / "relive").glob("_native*.so"),
        *venv.glob("lib/python3.*/site-packages/relive-*.dist-info/METADATA"),
    ]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(found)]


def _lines(path: Path) -> list[str]:
    """What a file lists, one on each line, with comments behind `#`."""
    lines = path.read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main() -> None:
    """Bring the tree up to date and say so in one line."""
    parser = argparse.ArgumentParser(prog="tools.setup", description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--extras", default="", help="comma-separated names")
    parser.add_argument("--peers", default="", help="extras to install as far as possible")
    parser.add_argument("--beside", default="", help="files of requirements that go beside it")
    args = parser.parse_args()
    if sys.version_info < OLDEST:
        sys.exit(f"setup: relive needs Python 3.11 or newer, not {_dotted(sys.version_info[:3])}")
    venv = ROOT / args.venv
    extras, peers = _names(args.extras), _names(args.peers)
    stamps = BUILD / "stamps" / venv.name
    BUILD.mkdir(exist_ok=True)
    # Two makes at once in one tree take turns.
    with (BUILD / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        system_packages()
        changed = ensure_venv(venv, stamps)
        stamps.mkdir(parents=True, exist_ok=True)
        changed |= install(venv, stamps, extras)
        if peers:
            changed |= install_peers(venv, stamps, peers)
        changed |= build_extension(venv, stamps)
        for name in _names(args.beside):
            changed |= install_beside(venv, stamps, ROOT / name)
    say("ready" if changed else "up to date")


if __name__ == "__main__":
    main()
