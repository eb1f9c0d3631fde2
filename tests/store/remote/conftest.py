"""What tests of credentials share: no credentials but those of a service that issues some."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import CredentialService, SeaweedFS, SigningProxy, free_ports


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all credentials from the environment, and those of this machine."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.fixture
def service(no_credentials: None) -> Iterator[CredentialService]:
    """Start a service that issues temporary keys."""
    with CredentialService() as server:
        yield server


@pytest.fixture
def signing(
    seaweed: SeaweedFS, service: CredentialService, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SigningProxy]:
    """Start an object store that accepts only temporary keys."""
    with SigningProxy(seaweed.url, service) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server


@pytest.fixture
def container(
    service: CredentialService, signing: SigningProxy, monkeypatch: pytest.MonkeyPatch
) -> CredentialService:
    """Configure the service as that of a container."""
    assert signing.service is service
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/container")
    return service
