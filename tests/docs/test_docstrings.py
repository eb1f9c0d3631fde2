"""The examples in docstrings run, and every public class has one.

An example begins with `>>>`. The examples of a docstring run in an empty directory; `...` in the
expected output matches any text, and any amount of white space matches any other.
"""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Needs

PACKAGE = Path(__file__).resolve().parent.parent.parent / "python" / "relive"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# The first pattern that matches a module name selects the optional packages of its examples.
EXTRAS = (
    (re.compile(r"relive\.load\.torch"), ("torch",)),
    (re.compile(r"relive\.load\.jax"), ("jax",)),
    (re.compile(r"relive\.replay\.gym(?:\..*)?"), ("gymnasium",)),
    (re.compile(r"relive\.replay\.pettingzoo"), ("pettingzoo",)),
    (re.compile(r"relive\.(?:.+\.)?video(?:_.*|\..*)?"), ("av",)),
)


# The modules that users import from.
PUBLIC = (
    "relive",
    "relive.episodes",
    "relive.load",
    "relive.load.jax",
    "relive.load.torch",
    "relive.model",
    "relive.publish",
    "relive.replay",
    "relive.replay.gym",
    "relive.replay.pettingzoo",
    "relive.store",
    "relive.store.arrays",
    "relive.store.codec",
    "relive.store.pack",
    "relive.store.records",
    "relive.store.runs",
)
FUNCTIONS = {"convert", "dataset", "diff", "open", "recover", "validate"}


def modules() -> Iterator[str]:
    """Return the names of the modules with examples."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(["relive", *path.relative_to(PACKAGE).with_suffix("").parts])


def extras(module: str) -> tuple[str, ...]:
    """Return the optional packages that the examples of a module need."""
    return next((needed for pattern, needed in EXTRAS if pattern.fullmatch(module)), ())


@pytest.mark.parametrize("name", list(modules()))
def test_examples_run(
    name: str, needs: Needs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(*extras(name))
    monkeypatch.setenv("RELIVE_CACHE_DIR", str(tmp_path / "cache"))
    module = importlib.import_module(name.removesuffix(".__init__"))
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    report: list[str] = []
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    assert any(test.examples for test in tests), "no docstring of this module has the example"
    for number, test in enumerate(tests):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_class_has_an_example(name: str, needs: Needs) -> None:
    needs(*extras(name))
    module = importlib.import_module(name)
    values = {each: getattr(module, each) for each in module.__all__}
    missing = [
        each
        for each, value in values.items()
        if (inspect.isclass(value) and not issubclass(value, BaseException)) or each in FUNCTIONS
        if ">>> " not in (value.__doc__ or "")
    ]
    assert not missing
