"""README.md and the pages that it was: their commands exist, and the arm of "Step by step" does its work."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from edge_runtime import cli as edge
from edge_runtime.program import lerobot_flags
from policy_server import cli as server
from scripts import bench
from scripts.rig.program import Program

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
FIGURES = DOCS / "figures.md"
MOST_WORDS = 1300
SHORTER = {  # the commands under the pictures, in seconds instead of minutes
    "scripts.benches.asyncbench": ["--seeds=1", "--links=[constant-300]", "--thresholds=[0.5,auto]", "--output=."],
    "scripts.benches.loop": ["--quick"],
    "scripts.profile_latency": ["--chunks=3"],
}
ELSEWHERE = {"vs_lerobot", "export"}  # they need LeRobot, or torch

pytestmark = pytest.mark.skipif(not README.exists(), reason="the page is in the repository, not in the wheel")


def commands(text: str) -> list[list[str]]:
    """Every command of the ```bash blocks, as words, in order."""
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def called(program: str) -> list[list[str]]:
    pages = (README, DOCS / "lerobot-users.md")
    return [words[1:] for page in pages for words in commands(page.read_text()) if words[0] == program]


def test_make_words_are_in_the_makefile_and_the_main_ones_in_ci() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    words = {words[0] for words in called("make")}
    assert {"demo", "test"} <= words <= set(targets)
    for word in ("check", "test", "test-export", "demo"):
        assert f"make {word}" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(("program", "words"), [("edge-runtime", edge), ("policy-server", server)])
def test_each_flag_is_one_of_its_programs(program: str, words: object, capsys: pytest.CaptureFixture[str]) -> None:
    for word, *arguments in called(program):
        with pytest.raises(SystemExit, match="0"):
            words.dispatch([word, "--help"])  # type: ignore[attr-defined]
        known = set(re.findall(r"--([\w.]+)=?", capsys.readouterr().out))
        known |= {name for name, theirs in lerobot_flags.ROBOT.items() if theirs.ours and word == "start"}
        for argument in arguments:
            if argument.startswith("--"):
                flag = argument[2:].partition("=")[0]  # a mapping's own, or one of its keys
                assert any(f"{name}.".startswith(f"{flag}.") for name in known), f"{program} {word} {argument}"


def test_pages_that_are_linked_exist() -> None:
    for page in (README, *DOCS.glob("*.md")):
        linked = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
        assert [name for name in linked if not (page.parent / name).exists()] == [], page


def test_it_fits_on_a_screen_and_a_half_and_its_picture_loads_fast() -> None:
    assert len(README.read_text().split()) <= MOST_WORDS
    assert (DOCS / "figures" / "arm.gif").stat().st_size <= 2_000_000


def test_the_korean_page_has_the_same_sections_commands_tables_and_links() -> None:
    ours, korean = (ROOT / name for name in ("README.md", "README.ko.md"))
    for pattern in (r"^#+ ", r"^\|", r"\]\(([^)]+\.(?!md\))\w+)\)", r"\]\((docs/[^)]+)\)", r"^```\w*$"):
        found = [re.findall(pattern, page.read_text(), re.MULTILINE) for page in (ours, korean)]
        assert found[0], pattern
        assert found[0] == found[1]
    assert commands(ours.read_text()) == commands(korean.read_text())


def test_each_page_is_linked_from_the_first() -> None:
    linked = set(re.findall(r"\(docs/([\w-]+\.md)\)", README.read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_each_script_that_is_named_is_run_by_make_bench() -> None:
    named = set(re.findall(r"scripts[/.]benches[/.](\w+)", FIGURES.read_text()))
    assert named
    assert named - ELSEWHERE <= {name for name, quick in bench.benches().items() if quick}


@pytest.mark.long
def test_the_commands_under_the_pictures_draw_them(tmp_path: Path) -> None:
    shown = [DOCS / path for path in re.findall(r"!\[[^]]+\]\((figures/[^)]+)\)", FIGURES.read_text())]
    assert len(shown) == 3
    drawing = [words[2:] for words in commands(FIGURES.read_text()) if words[0] == "python" and words[2] in SHORTER]
    assert len(drawing) == len(SHORTER)
    for script, *flags in drawing:
        command = [sys.executable, "-m", script, *flags, *SHORTER[script]]  # the last of a flag counts
        path = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
    for picture in shown:
        assert picture.stat().st_size < 150_000
        for file in (picture, tmp_path / picture.name):
            assert cv2.imread(str(file)).shape[1] == 1200, file


@pytest.mark.long
def test_step_by_step_the_arm_moves(tmp_path: Path) -> None:
    """The three commands as they stand, but for ports and folders of the test's own."""
    here = {"/tmp/so101": f"{tmp_path}/so101", "127.0.0.1:8080": f"127.0.0.1:{free_port()}"}
    section = (DOCS / "virtual-arm.md").read_text().partition("## Step by step, by hand\n")[2].partition("\n## ")[0]
    arm, serve, start = [" ".join(map(shlex.quote, words)) for words in commands(section) if words[0] != "."]
    web = free_port()

    def words(command: str) -> list[str]:
        for ours, theirs in here.items():
            command = command.replace(ours, theirs)
        return shlex.split(command.replace("127.0.0.1:8090", f"127.0.0.1:{web}"))[1:]

    with Program("edge-runtime", [*words(arm), f"--http_port={web}", "--until_stdin_closes"], tmp_path) as first:
        first.wait_for('"port"')
        with Program("policy-server", [*words(serve), "--until_stdin_closes"], tmp_path) as second:
            second.wait_for("serving [")
            with Program("edge-runtime", words(start), tmp_path) as third:
                third.wait_for(": success")  # of an episode
                assert third.wait() == 0, third.text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
