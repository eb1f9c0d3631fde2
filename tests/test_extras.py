"""Optional dependencies are imported late, and the error names the extra."""

import json
from pathlib import Path

import pytest

from relive._extras import require
from relive.errors import MissingExtraError


def test_installed_module_is_returned() -> None:
    assert require("json", extra="video", to="read") is json


@pytest.mark.parametrize("name", ["no_such_module", "no_such_module.inner", "json.no_such_part"])
def test_missing_module_error_names_the_extra(name: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        require(name, extra="video", to="decode video signals")
    assert caught.value.message == f"`{name}` is needed to decode video signals"
    assert caught.value.hint == "pip install 'relive[video]'"
    assert isinstance(caught.value, ImportError)


def test_broken_module_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import its_own_missing_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="its_own_missing_part") as caught:
        require("half_installed", extra="video", to="read")
    assert not isinstance(caught.value, MissingExtraError)
