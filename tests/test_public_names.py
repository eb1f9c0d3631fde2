"""`relive.__all__` is sorted and equals the public names of the package."""

import importlib.metadata
import inspect
import types
from importlib import import_module

import pytest

import relive
import relive.model
from tests.conftest import Needs


def test_names_are_sorted_and_unique() -> None:
    assert list(relive.__all__) == sorted(set(relive.__all__))


def test_every_name_exists() -> None:
    missing = [name for name in relive.__all__ if not hasattr(relive, name)]
    assert not missing


def test_no_other_public_names() -> None:
    # Subpackages become attributes when they are imported; they are not public names.
    found = {
        name
        for name in dir(relive)
        if not name.startswith("_") and not is_part(getattr(relive, name))
    }
    listed = {
        name
        for name in relive.__all__
        if not name.startswith("_") and not is_part(getattr(relive, name))
    }
    assert found == listed


def test_every_name_has_its_own_docstring() -> None:
    values = {name: getattr(relive, name) for name in relive.__all__}
    silent = [
        name
        for name, value in values.items()
        if (isinstance(value, type | types.ModuleType) or callable(value)) and not value.__doc__
    ]
    assert not silent


def is_part(value: object) -> bool:
    """Return whether `value` is a package or module of relive."""
    return isinstance(value, types.ModuleType) and value.__name__.startswith("relive.")


def test_version_matches_the_package() -> None:
    assert relive.__version__ == importlib.metadata.version("relive")
    with pytest.raises(AttributeError, match="no attribute 'wersion'"):
        getattr(relive, "wersion")  # noqa: B009 - unknown to mypy


def test_model_exports_what_a_custom_source_needs() -> None:
    needed = {"Batch", "Field", "Indices", "Source", "as_indices", "check_out", "pick_fields"}
    assert needed <= set(relive.model.__all__)
    assert list(relive.model.__all__) == sorted(relive.model.__all__)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_loaders_of_frameworks_list_every_option(framework: str, needs: Needs) -> None:
    needs(framework)
    loader = import_module(f"relive.load.{framework}").DataLoader
    options = dict(inspect.signature(loader).parameters)
    assert options.pop("device").default is None
    assert options == dict(inspect.signature(relive.DataLoader).parameters)
