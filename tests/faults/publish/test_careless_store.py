"""A store that ignores conditional puts is refused before anything is uploaded."""

import secrets
from pathlib import Path

import pytest

from relive.errors import UnsupportedError
from relive.store.roots import open_root
from tests.faults.publish.programs.publisher import build
from tests.publish.version.example_versions import CarelessRoot
from tests.servers import Proxy, SeaweedFS


def test_a_directory_behind_a_careless_store(tmp_path: Path) -> None:
    root = CarelessRoot(open_root(tmp_path / "root"))
    with build(root, 1) as builder, pytest.raises(UnsupportedError, match="may only be created"):
        builder.publish()
    assert list(root.list()) == []


@pytest.mark.needs("obstore", "seaweedfs")
@pytest.mark.parametrize(
    "dropped", [("if-none-match",), ("if-match",), ("if-none-match", "if-match")]
)
def test_a_server_that_never_sees_the_conditions(
    dropped: tuple[str, ...], seaweed: SeaweedFS, proxy: Proxy
) -> None:
    seaweed.put("public/x", b"")
    options = {"endpoint": proxy.url, "region": "us-east-1", "skip_signature": True}
    root = open_root(f"s3://public/{secrets.token_hex(8)}", **options)
    proxy.troubles.drop = dropped
    with build(root, 1) as builder, pytest.raises(UnsupportedError) as caught:
        builder.publish()
    assert "lock=True" in (caught.value.hint or "")
    assert list(root.list()) == []
