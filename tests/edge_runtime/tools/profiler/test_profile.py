"""`edge-runtime profile` as a user runs it, against servers and links that are wrong in a known way."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import policy_server
from scripts.rig.bundles import write_bundle
from scripts.rig.program import Program, Server
from scripts.rig.proxy import Link, Proxy

pytestmark = pytest.mark.long

STATE = "act_so101_pick_place"


def profile(folder: Path, *arguments: str) -> Program:
    with Program("edge-runtime", ["profile", *arguments], folder) as program:
        assert program.wait() == 0, program.text
    return program


def test_a_slow_policy(tmp_path: Path) -> None:
    with Server(tmp_path, STATE, "--inject_latency_ms=900") as server:
        said = profile(tmp_path, f"--server_address={server.address}", "--chunks=3", "--chunk_size_threshold=1").text
    said = " ".join(said.split())
    assert "The delay asked for bounds the loop" in said
    assert "No threshold is safe" in said
    assert "the server carries 1 robot" in said
    assert "What would fit: chunks of" in said


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "seeing", name="seeing", cameras=[("top", 480, 640)], chunk=50)


def test_raw_frames_on_20_mbit(tmp_path: Path, seeing: Path) -> None:
    flags = ["--chunks=3", "--chunk_size_threshold=1", "--json=p.json", "--html=p.html"]
    with Server(tmp_path, str(seeing)) as server, Proxy(server.address) as proxy:
        proxy.link = Link(bytes_per_s=20e6 / 8)
        raw = profile(tmp_path, f"--server_address={proxy.address}", "--jpeg_quality=0", *flags)
        numbers = json.loads((tmp_path / "p.json").read_text())
        profile(tmp_path, f"--server_address={proxy.address}", *flags)
        better = json.loads((tmp_path / "p.json").read_text())
    said = " ".join(raw.text.split())
    assert "Sending bounds the loop" in said
    assert "An observation is 922 kB, and the link carries" in said
    assert re.search(r"--jpeg_quality=\d+ makes 922 kB of pixels 1\d\d kB", said)  # of whichever frame came last
    assert "a policy exported for 320x240 with --resize=true" in said
    assert numbers["bound_by"] == "sending"
    assert numbers["bytes"]["observation"] == pytest.approx(480 * 640 * 3, rel=0.01)
    assert better["bytes"]["observation"] < numbers["bytes"]["observation"] / 2
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")


def test_its_own_server_and_rest_between_observations(tmp_path: Path) -> None:
    bundle = Path(policy_server.__file__).parent / "bundles" / STATE
    profile(
        tmp_path,
        f"--bundle={bundle}",
        *("--chunks=3", "--chunk_size_threshold=1", "--idle_gap_ms=300", "--json=p.json"),
    )
    numbers = json.loads((tmp_path / "p.json").read_text())
    assert numbers["setting"]["robot"] == "none"
    assert numbers["setting"]["idle_gap_ms"] == 300
    assert len(numbers["round_trips_s"]) >= 4
    assert numbers["summary"]["duration_s"] > 3 * 0.3


@pytest.mark.parametrize(
    ("flag", "code", "part"),
    [
        ("--chunks=-1", 78, "chunks"),
        ("--mode=sequential", 78, "mode"),
        ("--json=/nowhere/at/all.json", 73, "/nowhere/at"),
        ("--server_address=127.0.0.1:9", 69, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_profiled(tmp_path: Path, flag: str, code: int, part: str) -> None:
    with Program("edge-runtime", ["profile", flag, "--give_up_after_s=0.2"], tmp_path) as program:
        assert program.wait() == code, program.text
    assert part in program.lines[-1]
