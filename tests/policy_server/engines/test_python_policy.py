"""A policy written in Python, served as a bundle is: batched, measured, replaced, and survived when it is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.errors import ConfigError, ModelError, UsageError
from edge_runtime.wire.messages import Chunk, Failure, Replaced
from policy_server import bundle, cli
from policy_server.config import ServerConfig
from policy_server.engines import python
from policy_server.engines.python import PythonPolicy
from policy_server.engines.sources import find
from policy_server.server import PolicyServer
from policy_server.serving.models import Models
from scripts.rig.bundles import write_bundle
from scripts.rig.robots import Robot, hello_to, look
from tests.policy_server.conftest import serving

HEAD = """
import threading
import numpy as np
from policy_server import policy

may_answer = threading.Event()
described = policy(joints={"a.pos": "degrees", "b.pos": "degrees", "c.pos": "percent"}, chunk_size=4, fps=30)

@described
def repeat(batch):
    return np.repeat(batch["observation.state"][:, None], 4, axis=1)
"""
FAULTS = """
calls = 0

@described
def fault(batch):
    global calls
    calls += 1
    state = batch["observation.state"]
    if state[0, 0] == 1: raise RuntimeError("no such drawer")
    if state[0, 0] == 2: return state
    if state[0, 0] == 3: return np.full((len(state), 4, 3), np.nan)
    if state[0, 0] == 4: may_answer.wait(20)
    if state[0, 0] == 5: raise SystemExit(3)
    return repeat(batch)
"""
CLASS = """
@described
class Counting:
    def __init__(self):
        self.thread = threading.get_ident()
    def infer(self, batch):
        assert threading.get_ident() == self.thread
        return repeat(batch) + 1
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes code below HEAD into a module that no other test has, and gives the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # within a second a changed file looks like the compiled one
    module = re.sub(r"\W", "_", tmp_path.name) + "_policy"

    def write(text: str) -> str:
        (tmp_path / f"{module}.py").write_text(HEAD + text)
        return module

    yield write
    sys.modules.pop(module, None)


@contextmanager
def robot_of(name: str) -> Iterator[Robot]:
    source = PythonPolicy(name)
    with serving(source) as server, Robot(server.address, hello_to(source.policy)) as robot:
        yield robot.welcomed()


def test_a_function_and_a_class_are_served(written: Callable[[str], str]) -> None:
    module = written(CLASS)
    for name, more in (("repeat", 0), ("Counting", 1)):
        with robot_of(f"{module}:{name}") as robot:
            chunk = robot.ask(look(1, state=7.0))
        assert isinstance(chunk, Chunk)
        np.testing.assert_array_equal(chunk.actions, np.full((4, 3), 7 + more, np.float32))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (1, "{name}: RuntimeError: no such drawer"),
        (2, "{name}: action: (1, 3) is not (1, 4, 3)"),
        (3, "fault: row 0 of the chunk, a.pos: nan is not a finite number"),
        (5, "{name}: SystemExit: 3"),
    ],
)
def test_what_a_policy_does_wrong_is_a_failure_with_its_name_and_the_server_lives_on(
    written: Callable[[str], str], caplog: pytest.LogCaptureFixture, state: int, said: str
) -> None:
    name = f"{written(FAULTS)}:fault"
    with robot_of(name) as robot:
        failure = robot.ask(look(1, timestep=1, state=state))
        assert isinstance(failure, Failure)
        assert failure.message == said.format(name=name)
        assert sum(failure.message in record.getMessage() for record in caplog.records) == 1
        assert isinstance(robot.ask(look(2, timestep=2, state=9.0)), Chunk)


def test_a_policy_that_answers_nothing_is_given_up_and_asked_again_once_it_is_done(
    written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{written(FAULTS)}:fault"
    with robot_of(name) as robot:
        monkeypatch.setattr(python, "ANSWER_S", 0.05)
        given_up = robot.ask(look(1, timestep=1, state=4.0))
        busy = robot.ask(look(2, timestep=2, state=9.0))
        monkeypatch.setattr(python, "ANSWER_S", 20.0)
        assert isinstance(given_up, Failure)
        assert given_up.message == f"{name}: no answer within 0.05 s"
        assert isinstance(busy, Failure)
        assert busy.message == f"{name}: is still busy with a batch that was given up"
        module = sys.modules[name.partition(":")[0]]
        calls = module.calls
        module.may_answer.set()
        timestep = 3
        while isinstance(answer := robot.ask(look(timestep, timestep=timestep, state=9.0)), Failure):
            timestep += 1
        assert isinstance(answer, Chunk)
        assert module.calls == calls + 1  # nothing was queued behind what hung


def test_a_policy_that_is_wrong_from_the_start_is_refused(
    written: Callable[[str], str],
) -> None:
    module = written("@described\ndef short(batch):\n    return batch['observation.state'][:, None]\n")
    source = PythonPolicy(f"{module}:short")
    engine = source.open(python.Runtime("cpu"))
    with pytest.raises(ModelError, match=rf"{module}:short: action: \(1, 1, 3\) is not \(1, 4, 3\)"):
        engine.warm_up([1, 2], lambda progress: None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def it(batch): return 1", "policy: {module}:it is not described by @policy"),
        (
            "it = policy(joints={}, chunk_size=4, fps=30)(f)",
            "policy: cannot load '{module}:it': ConfigError: ",
        ),
        ("it = policy(joints={'a': 'm'}, chunk_size=0, fps=30)(f)", "chunk_size: 0 is not in 1..4096"),
        ("it = policy(joints={'a': 'm'}, chunk_size=4, fsp=30)(f)", "policy.fsp: no such setting; did you mean"),
        (
            "it = policy(joints={'a': 'm'}, chunk_size=4, fps=1, cameras={'c': (0, 9)})(f)",
            "height: 0 is not in 1..",
        ),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("it = 3", "policy: {module}:it is not described by @policy"),
    ],
)
def test_what_is_not_described_or_cannot_be_loaded_is_one_line(
    written: Callable[[str], str], code: str, said: str
) -> None:
    module = written(f"def f(batch): return 1\n{code}\n")
    with pytest.raises(ConfigError) as caught:
        PythonPolicy(f"{module}:it")
    assert said.format(module=module) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_is_taken_from_the_command_line_alone(
    written: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a configuration file, nor the admin socket, nor a bundle can name code that then is run."""
    name = f"{written('')}:repeat"
    module = name.partition(":")[0]
    only = "is code, which may be named on the server's own command line only"
    with pytest.raises(UsageError, match=only):
        cli._sources(ServerConfig(bundles=[name]), [f"--config_path={tmp_path}/server.yaml"])
    with pytest.raises(UsageError, match=only):
        Models(lambda source: None, code=["another:policy"]).load(name, print)  # type: ignore[arg-type, return-value]
    folder = write_bundle(tmp_path / "bundle", type=name)
    refused = pytest.raises(ModelError, match=f"type: '{name}' is not one of")
    with PolicyServer(ServerConfig(listen="127.0.0.1:0", threads=1), [bundle.load(folder)]) as server, refused:
        server.run(Future())
    assert module not in sys.modules
    assert [source.path for source in cli._sources(ServerConfig(bundles=[name]), [name])] == [name]


def test_a_policy_is_replaced_by_what_its_file_says_now(written: Callable[[str], str]) -> None:
    name = f"{written(CLASS)}:Counting"
    source = find(name, [name])
    with serving(source) as server, Robot(server.address, hello_to(source.policy)) as robot:
        robot.welcomed()
        first = robot.ask(look(1, timestep=1, state=1.0))
        written(CLASS.replace("+ 1", "+ 10"))
        server._models.replace(name, print)
        assert isinstance(replaced := robot.receive(), Replaced)
        assert replaced.policy.digest != source.policy.digest
        second = robot.ask(look(2, timestep=2, state=1.0))
    assert (first.actions[0, 0], second.actions[0, 0]) == (2.0, 11.0)


def test_robots_share_a_batch(written: Callable[[str], str]) -> None:
    module = written(
        "sizes = []\n"
        "@described\n"
        "def seen(batch):\n"
        "    sizes.append(len(batch['observation.state']))\n"
        "    return repeat(batch)\n"
    )
    source = PythonPolicy(f"{module}:seen")
    with ExitStack() as stack:
        server = stack.enter_context(serving(source, max_batch=3, batch_window_ms=20_000.0))
        robots = [stack.enter_context(Robot(server.address, hello_to(source.policy))) for _ in range(3)]
        for robot in robots:
            robot.welcomed().send(look(1, timestep=1))
        assert all(isinstance(robot.receive(), Chunk) for robot in robots)
    assert sys.modules[module].sizes[-1] == 3
