"""Runs every fuzz target for a given time, and reports which ones failed."""

import argparse
import os
import shutil
import subprocess
import sys

from tools.workspace import BUILD, ROOT

SEEDS = {"pack": "pack", "ring": "ring", "run_v1": "runs", "run_v2": "runs"}
"""The directory of golden files for a target."""


def main() -> None:
    """Fuzz each target in turn; exits with 1 when one of them crashed."""
    parser = argparse.ArgumentParser(prog="tools.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="per target")
    args = parser.parse_args()
    fuzz = ["cargo", "+nightly", "fuzz"]
    if not (ROOT / "fuzz").is_dir():
        sys.exit("fuzz: the directory `fuzz` does not exist")
    _install()
    listed = subprocess.run([*fuzz, "list"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if listed.returncode != 0:
        sys.exit("fuzz: cannot list the targets\nhint: rustup toolchain install nightly")
    targets = listed.stdout.split()
    failed = []
    for number, target in enumerate(targets, 1):
        print(f"fuzz: {target} ({number} of {len(targets)}, {args.seconds} s)", flush=True)
        limits = (f"-max_total_time={args.seconds}", "-malloc_limit_mb=64")
        run = [*fuzz, "run", target, *_corpora(target), "--", *limits]
        if subprocess.run(run, cwd=ROOT).returncode != 0:
            failed.append(target)
    verdict = f"failed: {', '.join(failed)}" if failed else "none failed"
    print(f"relive: {len(targets)} fuzz targets, {verdict}")
    sys.exit(1 if failed else 0)


def _corpora(target: str) -> list[str]:
    """Return the corpus directory of a target, and its golden files as seeds."""
    own = ROOT / "fuzz" / "corpus" / target
    own.mkdir(parents=True, exist_ok=True)
    golden = ROOT / "tests" / "golden" / SEEDS.get(target, "")
    return [str(own), *([str(golden)] if target in SEEDS else [])]


def _install() -> None:
    """Install cargo-fuzz under build/, unless it is on the PATH already."""
    tools = BUILD / "cargo"
    os.environ["PATH"] = f"{os.environ['PATH']}{os.pathsep}{tools / 'bin'}"
    if shutil.which("cargo-fuzz") is None:
        print("fuzz: installing cargo-fuzz", flush=True)
        command = ["cargo", "install", "--quiet", "--locked", "--root", str(tools), "cargo-fuzz"]
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            sys.exit("fuzz: cannot install cargo-fuzz\nhint: cargo install cargo-fuzz")


if __name__ == "__main__":
    main()
