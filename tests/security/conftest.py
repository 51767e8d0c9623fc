"""Certificates of every kind that a test needs, and a server behind them."""

from __future__ import annotations

import datetime
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_runtime.config import TlsConfig
from edge_runtime.link import stream
from edge_runtime.link.channel import Access
from edge_runtime.wire.messages import ServerDescription
from policy_server.door import certificates
from scripts.rig.bundles import write_bundle

DAY = datetime.timedelta(days=1)
HOSTS = ["localhost", "127.0.0.1", "::1"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State alone, chunks of 4."""
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `policy-server make-certs` writes."""
    return written(tmp_path_factory.mktemp("certs"), certificates.make(HOSTS, DAY))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, by somebody else's CA."""
    return written(tmp_path_factory.mktemp("strangers"), certificates.make(HOSTS, DAY))


@pytest.fixture(scope="session")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, over since a minute ago; its own CA too."""
    return written(tmp_path_factory.mktemp("expired"), certificates.make(HOSTS, datetime.timedelta(minutes=-1)))


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For another host."""
    return written(tmp_path_factory.mktemp("elsewhere"), certificates.make(["gpu-box"], DAY))


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of tokens, of mode 0600 unless told otherwise."""

    def write(*tokens: str, name: str = "token", mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text("\n".join(tokens or [secrets.token_hex(16)]) + "\n")
        path.chmod(mode)
        return path

    return write


def written(folder: Path, pairs: dict[str, certificates.Pair]) -> Path:
    certificates.write(folder, pairs)
    return folder


def robot_tls(folder: Path, *, cert: bool = True, ca: Path | None = None, server_name: str = "") -> TlsConfig:
    """What a robot with the files in `folder` says."""
    mine = {"cert": folder / "robot.crt", "key": folder / "robot.key"} if cert else {}
    return TlsConfig(ca=(ca or folder) / "ca.crt", server_name=server_name, **mine)


def describe(access: Access, patience_s: float = 20.0) -> ServerDescription:
    """What the server offers a robot with this access, once it is warm. Raises what the edge would end with."""
    answer = stream.PolicyStream(access, give_up_after_s=patience_s).describe(threading.Event())
    assert answer is not None
    return answer
