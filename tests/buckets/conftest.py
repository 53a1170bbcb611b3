"""Buckets on this machine: in memory, and servers of S3, of Google Cloud Storage and of the Hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hub_server import TOKEN, Repository, running_hub

from jax_transformer.buckets import PLACE
from jax_transformer.buckets.address import PACKAGES


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the copies of this test's machine."""
    monkeypatch.setenv(PLACE, str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder in a bucket in this process, which needs no package: its address."""
    monkeypatch.setitem(PACKAGES, "memory", "fsspec")
    yield "memory://bucket/folder"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, s3_server: str, tmp_path: Path) -> str:
    """The address of a folder on the S3 server."""
    variables = {"ACCESS_KEY_ID": "name", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in variables.items() | {("ENDPOINT_URL", s3_server)}:
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    system.clear_instance_cache()
    system.makedirs("bucket", exist_ok=True)
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture(scope="session")
def gs_server() -> Iterator[str]:
    """The address of a server of Google Cloud Storage with a bucket."""
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch, gs_server: str, tmp_path: Path) -> str:
    """The address of a folder on the server of Google Cloud Storage."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    return f"gs://bucket/{tmp_path.name}"


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a folder in a repository on a Hub."""
    with running_hub() as hub:
        for name, value in {"ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": True, "HF_HUB_OFFLINE": False}.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        fsspec.get_filesystem_class("hf").clear_instance_cache()
        hub.models["owner/name"] = Repository()
        hub.models["owner/name"].commit({".gitattributes": b""})
        yield "hf://owner/name/folder"


@pytest.fixture(params=["memory", "s3", "gs", "hf"])
def folder(request: pytest.FixtureRequest) -> str:
    """The address of an empty folder, in each kind of bucket."""
    return request.getfixturevalue(request.param)
