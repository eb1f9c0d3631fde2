"""Rules that a formatter cannot check: file names, folders, docstrings, local paths."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BANNED = {"base", "common", "helpers", "manager", "misc", "utils"}

MACHINE_PATH = re.compile(r"(?<![\w.~$})-])/(?:root|home|Users|work|workspace)/\w")
REGISTRY = re.compile(
    r"\b(?:(?:files\.)?pythonhosted\.org|(?:test\.)?pypi\.org/simple|(?:static|index)\.crates\.io"
    r"|registry\.npmjs\.org|registry\.yarnpkg\.com)"
    r"|--(?:extra-)?index-url|--find-links"
)
# Cargo writes its public registry only in this form.
CARGO_REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def repository_files() -> list[Path]:
    """Return every file that git tracks or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return sorted(path for name in listed if name and (path := ROOT / name).is_file())


FILES = repository_files()
PYTHON = [path for path in FILES if path.suffix in {".py", ".pyi"}]
RUST = [path for path in FILES if path.suffix == ".rs"]


def named(paths: list[Path]) -> list[str]:
    """Return `paths` relative to the repository."""
    return [str(path.relative_to(ROOT)) for path in paths]


def text_of(path: Path) -> str | None:
    """Return the text of a file, or None if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_file_names_are_specific() -> None:
    vague = [
        path
        for path in PYTHON + RUST
        for part in path.relative_to(ROOT).with_suffix("").parts
        if part in BANNED or part.endswith(("_utils", "_helpers", "_common"))
    ]
    assert not named(vague)


def test_folders_have_3_to_15_modules() -> None:
    # A folder of the package has at most fifteen modules, a sub-folder at least three.
    package = ROOT / "python" / "relive"
    counts = Counter(
        path.parent
        for path in PYTHON
        if path.is_relative_to(package) and path.suffix == ".py" and path.stem != "__init__"
    )
    crowded = [f"{folder.relative_to(ROOT)}: {n} modules" for folder, n in counts.items() if n > 15]
    sparse = [f"{folder.relative_to(ROOT)}: {n} modules" for folder, n in counts.items() if n < 3]
    assert not crowded + sparse


def test_every_python_file_has_a_docstring() -> None:
    silent = [path for path in PYTHON if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not named(silent)


def test_every_rust_file_has_a_docstring() -> None:
    silent = [path for path in RUST if not path.read_text().lstrip().startswith("//!")]
    assert not named(silent)


def test_no_local_paths_or_registry_hosts() -> None:
    leaks = []
    for path in FILES:
        text = text_of(path)
        if path == Path(__file__) or text is None:
            continue
        leaks += [
            f"{path.relative_to(ROOT)}:{number}: {found[0]}"
            for number, line in enumerate(text.splitlines(), 1)
            if (found := MACHINE_PATH.search(line) or REGISTRY.search(line))
        ]
    assert not leaks


def test_rust_dependencies_come_from_the_public_registry() -> None:
    locks = [path for path in FILES if path.name == "Cargo.lock"]
    sources = {
        source
        for path in locks
        for source in re.findall(r'^source = "(.*)"$', path.read_text(), re.MULTILINE)
    }
    assert locks
    assert sources <= {CARGO_REGISTRY}


def test_packages_import_each_other_by_module() -> None:
    # A name imported from the top would bypass the layers contract.
    package = ROOT / "python" / "relive"
    inner = [path for path in PYTHON if path.is_relative_to(package)]
    detours = []
    for path in set(inner) - {package / "__init__.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "relive":
                wrong = [alias.name for alias in node.names if not is_module(package / alias.name)]
            elif isinstance(node, ast.Import):
                wrong = [alias.name for alias in node.names if alias.name == "relive"]
            else:
                continue
            detours += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in wrong]
    assert not sorted(detours)


def is_module(path: Path) -> bool:
    """Return whether the extension, a package or a module is at `path`."""
    return path.name == "_native" or path.is_dir() or path.with_suffix(".py").exists()


def test_every_stub_exception_has_a_reason() -> None:
    lines = (ROOT / "tools" / "stubtest-allow.txt").read_text().splitlines()
    entries = [line for line in lines if line.partition("#")[0].strip()]
    unexplained = [line for line in entries if not line.partition("#")[2].strip()]
    assert not unexplained


def test_every_ruff_exception_in_code_names_its_rule() -> None:
    # PGH004 catches a blanket `noqa`, but not one for a whole file.
    blanket = [
        path for path in PYTHON if re.search(r"^# ruff: noqa\s*$", path.read_text(), re.MULTILINE)
    ]
    assert not named(blanket)
