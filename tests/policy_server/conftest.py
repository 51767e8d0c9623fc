"""A server in this process over a real loopback connection, with engines that a test can hold and break."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from policy_server import bundle as bundles
from policy_server import server as server_module
from policy_server.bundle import Bundle
from policy_server.config import ServerConfig
from policy_server.engines import Engine, Source, open_engine
from policy_server.engines.providers import Runtime
from policy_server.server import PolicyServer
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import watch_health


class HeldEngine:
    """A real engine behind a gate. `sizes` yields the size of each batch as it enters; `spoil` may raise on it.

    `warmed` is set once it is warm.
    """

    def __init__(self, engine: Engine, may_warm_up: threading.Event) -> None:
        self._engine = engine
        self._may_warm_up = may_warm_up
        self.gate = threading.Event()
        self.gate.set()
        self.warmed = threading.Event()
        self.sizes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.spoil: Callable[[Mapping[str, Any]], None] = lambda batch: None

    @property
    def provider(self) -> str:
        return self._engine.provider

    def infer(self, batch: Mapping[str, Any]) -> Any:
        self.sizes.put(len(batch["observation.state"]))
        assert self.gate.wait(20)
        self.spoil(batch)
        return self._engine.infer(batch)

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        assert self._may_warm_up.wait(20)
        self._engine.warm_up(batch_sizes, progress)
        self.warmed.set()


class Engines(dict[str, HeldEngine]):
    """By policy name, once opened; `opened` names every load, `loads` yields them as they come.

    `may_warm_up` cleared holds the warm-ups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loads: queue.SimpleQueue[HeldEngine] = queue.SimpleQueue()
        self.may_warm_up = threading.Event()
        self.may_warm_up.set()

    def open(self, bundle: Bundle, runtime: Runtime) -> Engine:
        engine = HeldEngine(open_engine(bundle, runtime), self.may_warm_up)
        self[bundle.policy.name] = engine
        self.opened.append(bundle.policy.name)
        self.loads.put(engine)
        return engine


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines()
    monkeypatch.setattr(server_module, "open_engine", engines.open)
    return engines


@contextmanager
def serving(*offered: Path | Source, wait: bool = True, **settings: Any) -> Iterator[PolicyServer]:
    """A server for what is `offered`, bundles by their folders; warm unless `wait` is False."""
    config = ServerConfig(**{"listen": "127.0.0.1:0", "threads": 1} | settings)
    stop: Future[None] = Future()
    sources = [bundles.load(each) if isinstance(each, Path) else each for each in offered]
    with PolicyServer(config, sources) as server, ExitStack() as stack:
        thread = threading.Thread(target=server.run, args=(stop,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set_result, None)
        if wait:
            with grpc.insecure_channel(server.address) as channel:
                assert "SERVING" in watch_health(channel)
        yield server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State alone, chunks of 4."""
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State, two cameras of different size, two more numbers."""
    cameras = [("front", 24, 32), ("wrist", 16, 16)]
    return write_bundle(tmp_path_factory.mktemp("bundles") / "seeing", name="seeing", cameras=cameras, extra=2, bias=1)
