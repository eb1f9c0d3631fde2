"""Counts lines of product code: without blanks, comments, docstrings and tests.

Rust files named `tests.rs`, `*_tests.rs` or `testing.rs` and everything from `#[cfg(test)]` on
are tests. Run as `python -m tools.count_lines [ROOT]`; prints a line per folder and the sum.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

from tools.workspace import ROOT

_TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*(?:pub\(crate\) )?mod \w+ \{", re.MULTILINE)
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def python_lines(text: str) -> int:
    """Count the lines of a Python file that hold code."""
    tree = ast.parse(text)
    docs: set[int] = set()
    for node in ast.walk(tree):
        # A string that is a statement: a docstring, or the text under an attribute.
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _BLANK:
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used - docs)


def rust_lines(text: str) -> int:
    """Count the lines of a Rust file that hold code; the crate has no block comments."""
    before_tests = _TESTS.split(text, maxsplit=1)[0]
    lines = (line.strip() for line in before_tests.splitlines())
    return sum(1 for line in lines if line and not line.startswith("//"))


def _is_test(path: Path) -> bool:
    return path.stem in {"tests", "testing"} or path.stem.endswith("_tests")


def count(root: Path) -> Counter[str]:
    """Count the product code below `root`, by folder."""
    found: Counter[str] = Counter()
    for path in sorted((root / "python").rglob("*.py*")):
        if path.suffix in {".py", ".pyi"}:
            found[str(path.parent.relative_to(root))] += python_lines(path.read_text())
    for path in sorted((root / "crates").rglob("*.rs")):
        if not _is_test(path):
            found[str(path.parent.relative_to(root))] += rust_lines(path.read_text())
    return found


def main() -> None:
    """Print the counts of the working tree, or of the tree given as the first argument."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = count(root)
    for folder, lines in sorted(found.items()):
        print(f"{lines:7,} {folder}")
    print(f"{found.total():7,} lines of product code")


if __name__ == "__main__":
    main()
