"""What Prometheus reads: names, units and numbers, from this machine only."""

from __future__ import annotations

import logging
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_runtime.errors import OutputError
from edge_runtime.wire import codec
from edge_runtime.wire.messages import Ping, Policy
from policy_server import bundle
from policy_server.server import PolicyServer
from scripts.rig.robots import Robot, hello_to, look, refusal
from tests.policy_server.conftest import Engines, HeldEngine, serving

Sample = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return bundle.load(tiny).policy


@pytest.fixture
def server(tiny: Path, engines: Engines, caplog: pytest.LogCaptureFixture) -> Iterator[PolicyServer]:
    caplog.set_level(logging.INFO)
    with serving(tiny, metrics_port=0) as server:
        yield server


@pytest.fixture
def engine(server: PolicyServer, engines: Engines) -> HeldEngine:
    return engines["tiny"]


@pytest.fixture
def page(server: PolicyServer, caplog: pytest.LogCaptureFixture) -> str:
    """The address that the log names."""
    (address,) = re.findall(r"metrics on (http://127\.0\.0\.1:\d+/metrics)", caplog.text)
    return str(address)


def read(page: str) -> Sample:
    with urllib.request.urlopen(page, timeout=5) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Sample, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted({"model": "tiny", **labels}.items()))]


def test_what_was_answered_is_counted_by_model_and_stage(page: str, server: PolicyServer, policy: Policy) -> None:
    with Robot(server.address, hello_to(policy, similarity_tolerance=1.0)) as robot:
        robot.welcomed()
        for id, state in ((1, 0.0), (2, 0.1), (3, 5.0)):
            robot.ask(look(id, timestep=id, state=state))
        samples = read(page)
        assert value(samples, "policy_server_sessions") == 1
    assert value(samples, "policy_server_answers_total", answer="chunk") == 2
    assert value(samples, "policy_server_answers_total", answer="similar") == 1
    for stage in ("receive", "admit", "wait", "prepare", "infer", "inject", "finish"):
        assert value(samples, "policy_server_stage_seconds_count", stage=stage) == 2
        assert value(samples, "policy_server_stage_seconds_bucket", stage=stage, le="10.0") == 2
    assert 0 < value(samples, "policy_server_stage_seconds_sum", stage="infer") < 1
    assert value(samples, "policy_server_batch_size_bucket", le="1") == 2
    assert value(samples, "policy_server_batch_size_sum") == 2
    assert value(samples, "policy_server_engine_busy_seconds_total") > 0
    assert value(samples, "policy_server_overloaded") == 0
    info = {"type": "act", "digest": policy.digest.hex()[:12], "provider": "CPUExecutionProvider"}
    assert value(samples, "policy_server_model_info", **info) == 1


def test_failures_halved_batches_and_refusals_are_counted(
    page: str, server: PolicyServer, engine: HeldEngine, policy: Policy
) -> None:
    def spoil(batch: object) -> None:
        raise MemoryError

    refusal(server.address, hello_to(policy, fps=1.0))
    with Robot(server.address, hello_to(policy)) as one, Robot(server.address, hello_to(policy)) as two:
        engine.gate.clear()
        one.welcomed().send(look(1))
        engine.sizes.get(timeout=5)
        for robot in (one, two.welcomed()):
            robot.send(look(2, timestep=9))
            robot.send_bytes(codec.encode_ping(Ping(1)).SerializeToString())
            assert robot.receive() == Ping(1)  # what was sent before it is in the slot
        assert value(read(page), "policy_server_queue_age_seconds") > 0
        engine.spoil = spoil
        engine.gate.set()
        assert [one.receive().observation for _ in range(2)] == [1, 2]  # type: ignore[union-attr]
        assert two.receive().observation == 2  # type: ignore[union-attr]
        samples = read(page)
    assert value(samples, "policy_server_answers_total", answer="failure") == 3
    assert value(samples, "policy_server_halved_batches_total") == 1
    assert value(samples, "policy_server_queue_age_seconds") == 0
    assert samples["policy_server_refused_streams_total", ()] == 1


def test_names_and_units_keep_to_the_conventions(page: str) -> None:
    with urllib.request.urlopen(page, timeout=5) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    ours = [family for family in families if not family.name.startswith(("process_", "python_"))]
    assert len(ours) == 11
    for family in ours:
        assert re.fullmatch(r"policy_server_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|us|milliseconds|total)$", family.name)
    assert any(family.name == "process_resident_memory_bytes" for family in families)


def test_a_port_in_use_is_refused_in_one_line(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OutputError, match=rf"metrics_port: 127\.0\.0\.1:{port}: address already in use"):
            serving(tiny, metrics_port=port).__enter__()
