"""Lists the error messages of the package, to review their wording.

Finds the text of every error that Python code creates and of every `Error::…` of the Rust core;
values are shown as `{…}`. Texts that only put a name before another message are left out. Run as
`python -m tools.error_messages [--sample N --seed S]`.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tools.workspace import ROOT

_RUST = re.compile(
    r"(?:Error::\w+|\bcorrupt|\binvalid|\bunsupported|\btoo_large|\bdamaged|\bclosed)\s*\(\s*"
    r"(?:format!\s*\(\s*)?\"((?:[^\"\\]|\\.)*)\"",
    re.DOTALL,
)


def python_messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each error that a Python file creates."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if not (name.endswith("Error") or name in {"storage_error", "fail"}):
            continue
        text = _text(node.args[0])
        if text is None:
            continue
        hints = [_text(word.value) for word in node.keywords if word.arg == "hint"]
        yield node.lineno, text + "".join(f"  hint: {hint}" for hint in hints if hint)


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else "{" + ast.unparse(part.value) + "}"
                for part in values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{_text(left) or '{…}'}{_text(right) or '{…}'}"
        case _:
            return None


def rust_messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each error that a Rust file creates, tests apart."""
    text = path.read_text().partition("#[cfg(test)]\nmod tests {")[0]
    for found in _RUST.finditer(text):
        message = re.sub(r"\\\n\s*", "", found[1]).replace('\\"', '"')
        yield text.count("\n", 0, found.start()) + 1, message


def messages() -> list[str]:
    """Return every message with its file and line."""
    found = []
    for path in sorted((ROOT / "python").rglob("*.py")):
        found += [
            f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in python_messages(path)
        ]
    for path in sorted((ROOT / "crates").rglob("*.rs")):
        if path.stem in {"tests", "testing"} or path.stem.endswith("_tests"):
            continue
        found += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in rust_messages(path)]
    return [text for text in found if _is_sentence(text)]


def _is_sentence(text: str) -> bool:
    """Return whether a message has words of its own besides its values and its file."""
    words = re.sub(r"\{[^}]*\}", "", text.partition(": ")[2])
    return len(re.findall(r"[A-Za-z]{2,}", words)) > 1


def main() -> None:
    """Print all messages, or a sample of them."""
    parser = argparse.ArgumentParser(prog="tools.error_messages", description=__doc__)
    parser.add_argument("--sample", type=int, help="print so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = messages()
    if args.sample is not None:
        found = random.Random(args.seed).sample(found, args.sample)  # noqa: S311 - not a secret
    print(*found, sep="\n")


if __name__ == "__main__":
    main()
