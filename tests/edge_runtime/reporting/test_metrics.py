"""The metrics port of a run, under the summary's names, and `edge-runtime top` on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_runtime.tools.top.reading import Reading, read
from scripts.rig.program import Edge, Program
from tests.edge_runtime.link.scripted_server import POLICY, ScriptedServer

NO_ROBOT = ["--robot.type=none", f"--robot.joints={json.dumps({joint.name: joint.unit for joint in POLICY.joints})}"]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.kill()


def until(url: str, name: str, least: float) -> Reading:
    """Reads until a count has risen: each read is answered, so that this ends by what the run does."""
    for _ in range(20_000):
        reading = read(url)
        if reading[name] >= least:
            return reading
    raise AssertionError(f"{name} stays below {least}")


def test_the_port_tells_what_the_summary_tells_at_the_end(server: ScriptedServer, tmp_path: Path) -> None:
    with Edge(
        tmp_path,
        *NO_ROBOT,
        *(f"--server_address={server.address}", "--metrics_port=0", "--summary=s.json"),
        *("--similarity_tolerance=0", "--episodes=0"),
    ) as edge:
        url = re.findall(r"http://\S+", edge.wait_for("metrics on http"))[0]
        edge.wait_for("-> running")
        reading = until(url, "chunks_merged_total", 2)
        top = Program("edge-runtime", ["top", f"--url={url}", "--frames=2", "--every_s=0.05"], tmp_path)
        with top:
            assert top.wait() == 0, top.text
        assert edge.end() == 0, edge.text
    assert reading.state == "running"
    assert reading["control_hz"] == 30
    report = json.loads((tmp_path / "s.json").read_text())
    for group in ("loop", "observations", "chunks", "traffic"):
        for name, value in report[group].items():
            if not isinstance(value, dict):
                assert 0 <= reading[f"{group}_{name}_total"] <= value, name
    assert reading["lateness_seconds_count"] > 0
    assert reading["traffic_observation_bytes_total"] > 20
    for word in ("running", "queue", "round trip", "lateness", "starved"):
        assert word in top.text
    assert "█" not in edge.text, "no status line where stderr is no terminal"


def test_two_runs_cannot_have_one_port(server: ScriptedServer, tmp_path: Path) -> None:
    flags = [*NO_ROBOT, f"--server_address={server.address}"]
    with Edge(tmp_path, *flags, "--metrics_port=0") as first:
        port = first.wait_for("metrics on http").rpartition(":")[2].partition("/")[0]
        with Edge(tmp_path, *flags, f"--metrics_port={port}") as second:
            assert second.wait() == 73
        assert "address already in use" in second.lines[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--url=http://127.0.0.1:9/metrics"], 69, "127.0.0.1:9"),
        (["--url=ftp://x"], 78, "url"),
        (["--every_s=0"], 78, "every_s"),
    ],
)
def test_top_says_what_is_wrong(arguments: list[str], code: int, part: str, tmp_path: Path) -> None:
    with Program("edge-runtime", ["top", *arguments], tmp_path) as top:
        assert top.wait() == code, top.text
    assert part in top.lines[-1]
