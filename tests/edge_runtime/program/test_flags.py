"""Flags and YAML: what is understood, and the one line that each mistake gets."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.config import SO100FollowerConfig, SO101FollowerConfig, StartConfig
from edge_runtime.errors import (
    AccessError,
    BusTimeout,
    CameraError,
    ConfigError,
    EdgeRuntimeError,
    ModelError,
    OutputError,
    ProtocolError,
    StreamError,
    UsageError,
)
from edge_runtime.program import flags, schema
from tests.bad_input.programs import MAINS, WORDS

ARM = "--robot.type=so101_follower"


def start(*argv: str) -> StartConfig:
    return flags.parse(StartConfig, argv, prog="edge-runtime start")


@pytest.fixture
def run_yaml(tmp_path: Path) -> Callable[[str | bytes], str]:
    """Writes a configuration file and gives the flag that reads it."""

    def write(text: str | bytes) -> str:
        path = tmp_path / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return f"--config_path={path}"

    return write


# What is understood.


def test_defaults_alone() -> None:
    config = start(ARM)
    assert isinstance(config.robot, SO101FollowerConfig)
    assert config == StartConfig(robot=SO101FollowerConfig())


@pytest.mark.parametrize("argv", [["--fps=25"], ["--fps", "25"], ["--fps", "10", "--fps=25"]])
def test_flag_and_value_in_one_word_or_two_and_the_last_one_counts(argv: list[str]) -> None:
    assert start(ARM, *argv).fps == 25.0


@pytest.mark.parametrize(
    ("argv", "dry_run"),
    [
        (["--dry_run"], True),
        (["--dry_run", "--resize"], True),
        (["--dry_run=true"], True),
        (["--dry_run", "true"], True),
        (["--dry_run=false"], False),
        (["--dry_run", "false"], False),
        ([], False),
    ],
)
def test_bare_boolean_is_true(argv: list[str], dry_run: bool) -> None:
    assert start(*argv, ARM).dry_run is dry_run


@pytest.mark.parametrize(
    ("argv", "read", "value"),
    [
        ("--task=pick: up the [red] cube", lambda c: c.task, "pick: up the [red] cube"),
        ("--task=include the cube", lambda c: c.task, "include the cube"),
        ("--task=", lambda c: c.task, ""),
        ("--robot.id=007", lambda c: c.robot.id, "007"),
        ("--robot.id=null", lambda c: c.robot.id, None),
        ("--robot.id=yes", lambda c: c.robot.id, "yes"),
        ("--control_hz=null", lambda c: c.control_hz, None),
        ("--control_hz=60", lambda c: c.control_hz, 60.0),
        ("--max_frame_age_s=5e-1", lambda c: c.max_frame_age_s, 0.5),
        ("--actions_per_chunk=25", lambda c: c.actions_per_chunk, 25),
        ("--bundle=out/x.d", lambda c: c.bundle, Path("out/x.d")),
        ("--bundle=~/x", lambda c: c.bundle, Path.home() / "x"),
        ("--rename_map={front: static}", lambda c: c.rename_map, {"front": "static"}),
        ("--rename_map.front=static", lambda c: c.rename_map, {"front": "static"}),
        ("--rename_map.front.left=static", lambda c: c.rename_map, {"front.left": "static"}),
        ("--robot.max_relative_target=5", lambda c: c.robot.max_relative_target, 5.0),
        ("--robot.max_relative_target={gripper: 5}", lambda c: c.robot.max_relative_target, {"gripper": 5.0}),
        ("--robot.rest_pose={gripper: -1.5}", lambda c: c.robot.rest_pose, {"gripper": -1.5}),
        ("--robot.stop_policy=park", lambda c: c.robot.stop_policy, "park"),
    ],
)
def test_values(argv: str, read: Callable[[Any], Any], value: object) -> None:
    assert read(start(ARM, argv)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("/dev/video2", "/dev/video2"), ("http://h:80/a?b=1", "http://h:80/a?b=1")]
)
def test_cameras_as_lerobot_writes_them(text: str, value: int | str) -> None:
    config = start(
        ARM, f"--robot.cameras={{front: {{type: opencv, index_or_path: '{text}', width: 640, rotation: -90}}}}"
    )
    camera: Any = config.robot.cameras["front"]
    assert (camera.index_or_path, camera.width, camera.rotation) == (value, 640, -90)
    dotted = start(ARM, "--robot.cameras.front.type=opencv", f"--robot.cameras.front.index_or_path={text}")
    assert getattr(dotted.robot.cameras["front"], "index_or_path") == value  # noqa: B009


def test_flag_wins_over_file_and_file_over_default(run_yaml: Callable[[str], str]) -> None:
    file = run_yaml(
        "fps: 25\ntask: from the file\n"
        "robot:\n  type: so100_follower\n  port: /dev/ttyACM0\n  id: 7\n"
        "  cameras: {front: {type: opencv, width: 640, height: 480}}\n"
    )
    config = start("--robot.port=/dev/ttyACM1", "--robot.cameras.front.width=320", file, "--task=from the flag")
    assert isinstance(config.robot, SO100FollowerConfig)
    assert (config.fps, config.task, config.jpeg_quality) == (25.0, "from the flag", "auto")
    assert (config.robot.port, config.robot.id) == ("/dev/ttyACM1", "7")
    assert (config.robot.cameras["front"].width, config.robot.cameras["front"].height) == (320, 480)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_empty_file_is_no_settings(run_yaml: Callable[[str], str], text: str) -> None:
    assert start(run_yaml(text), ARM) == start(ARM)


# Mistakes in the command line: 64.


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--fsp=30"], "unknown flag --fsp; did you mean --fps?"),
        (["--dry-run"], "unknown flag --dry-run; did you mean --dry_run?"),
        (["--port=/dev/ttyACM0"], "unknown flag --port; did you mean --robot.port?"),
        (["--robot_port", "x"], "unknown flag --robot_port; did you mean --robot.port?"),
        (["--robot.prot=x"], "unknown flag --robot.prot; did you mean --robot.port?"),
        (["--robot.camera={}"], "unknown flag --robot.camera; did you mean --robot.cameras?"),
        (["--robot.cameras.front.fourc=MJPG"], "unknown flag --robot.cameras.front.fourc; did you mean"),
        (["--config=run.yaml"], "unknown flag --config; did you mean --config_path?"),
        (["--fps.x=1"], "unknown flag --fps.x; did you mean --fps?"),
        (["--zzz"], "unknown flag --zzz: see edge-runtime start --help"),
        (["--"], "unknown flag --: see edge-runtime start --help"),
        (["-f", "30"], "unknown flag -f"),
        (["-fps=30"], "unknown flag -fps; did you mean --fps?"),
        (["--fps"], "--fps: a value is missing, expected a number"),
        (["--fps", "--resize"], "--fps: a value is missing, expected a number"),
        (["--config_path"], "--config_path: a value is missing, expected a path"),
        (["--robot.stop_policy"], "--robot.stop_policy: a value is missing, expected one of limp, park, hold"),
        (["run.yaml"], "unexpected argument 'run.yaml': see edge-runtime start --help"),
        (["--dry_run", "yes"], "unexpected argument 'yes'"),
    ],
)
def test_mistake_in_the_command_line(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        start(ARM, *argv)
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code == 64


# Mistakes in the contents: 78.


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--fps=fast"], "fps: 'fast' is not a number"),
        (["--fps="], "fps: '' is not a number"),
        (["--fps=0"], "fps: 0 is not in 1..1000"),
        (["--fps=1e400"], "fps: '1e400' is not a number"),
        (["--episodes=1.5"], "episodes: 1.5 is not a whole number"),
        (["--resize=maybe"], "resize: 'maybe' is not true or false"),
        (["--mode=asinc"], "mode: 'asinc' is not one of async, sequential; did you mean async?"),
        (["--robot.stop_policy=lmp"], "robot.stop_policy: 'lmp' is not one of limp, park, hold; did you mean limp?"),
        (["--rename_map=front"], "rename_map: 'front' is not a mapping of names to text"),
        (["--rename_map={front: [static]}"], "rename_map.front: ['static'] is not text"),
        (["--rename_map={a: b, a: c}"], "rename_map: '{a: b, a: c}' is not a mapping of names to text: line 1: a is"),
        (["--rename_map={front"], "rename_map: '{front' is not a mapping of names to text: line 1: "),
        (["--bundle="], "bundle: '' is not a path"),
        (["--bundle=~nobody-of-that-name/x"], "bundle: '~nobody-of-that-name/x' is not a path"),
        (["--robot=so101_follower"], "robot: 'so101_follower' is not a mapping of settings"),
        (
            ["--robot.type=so10_follower"],
            "robot.type: 'so10_follower' is not known, expected one of so101_follower, so100",
        ),
        (["--robot.max_relative_target=fast"], "robot.max_relative_target: 'fast' is not a number or a mapping of"),
        (["--robot.max_relative_target={gripper: x}"], "robot.max_relative_target.gripper: 'x' is not a number"),
        (["--robot.max_speed=-1"], "robot.max_speed: -1 is less than 0"),
        (
            ["--robot.cameras={front: {index_or_path: 0}}"],
            "robot.cameras.front.type: is missing, expected one of",
        ),
        (
            ["--robot.cameras={front: {type: opncv}}"],
            "robot.cameras.front.type: 'opncv' is not known, expected one",
        ),
        (["--robot.cameras={front: 0}"], "robot.cameras.front: 0 is not a mapping of settings"),
        (["--robot.cameras=[a]"], "robot.cameras: ['a'] is not a mapping of names to settings"),
        (["--robot.cameras={front: {type: opencv, widht: 1}}"], "robot.cameras.front.widht: no such setting of opencv"),
        (["--robot.cameras={front: {type: opencv, width: -1}}"], "robot.cameras.front.width: -1 is not in 1..8192"),
        (
            ["--robot.cameras.front.type=opencv", "--robot.cameras.front.rotation=45"],
            "robot.cameras.front.rotation: 45",
        ),
        (["--episodes=5"], "episodes: needs reset_url"),
        (["--control_hz=45"], "control_hz: 45 is not a whole multiple of fps 30"),
    ],
)
def test_value_that_cannot_be(argv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(ARM, *argv)
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code == 78


def test_missing_robot_is_said_with_its_choices() -> None:
    with pytest.raises(
        ConfigError, match=r"robot\.type: is missing, expected one of so101_follower, so100_follower, none$"
    ):
        start()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fsp: 30", "fsp: no such setting; did you mean fps?"),
        ("zzz: 30", "zzz: no such setting; --help lists them all"),
        ("5: 30", "5: no such setting"),
        (
            "robot: {type: so101_follower, prot: x}",
            "robot.prot: no such setting of so101_follower; did you mean robot.",
        ),
        ("robot: so101_follower", "robot: 'so101_follower' is not a mapping of settings"),
        ("robot: {port: x}", "robot.type: is missing"),
        ("robot: {type: [so101_follower]}", "robot.type: ['so101_follower'] is not known"),
        ("robot:", "robot: null is not a mapping of settings"),
        ("- fps: 30", "FILE: [{'fps': 30}] is not a mapping of settings, such as fps: 30"),
        ("just text", "FILE: 'just text' is not a mapping of settings"),
        ("fps: 30\nfps: 25", "FILE: line 2: fps is there twice"),
        ("fps: 30\nrobot:\n  port: [", "FILE: line 3: "),
        ("fps: 30\n\ttask: x", "FILE: line 2: found character"),
        ("a: b: c", "FILE: line 1: mapping values are not allowed here"),
        ("task: !!python/object/apply:os.system [true]", "FILE: line 1: could not determine a constructor"),
        ("task: !include /etc/passwd", "FILE: line 1: could not determine a constructor"),
        ("task: 2024-13-45", "FILE: month must be in 1..12"),
        ("? [a, b]\n: 1", "FILE: line 1: found unhashable key"),
        ("x: " + "[" * 5000, "FILE: "),
        ("task: '" + "x" * 100, "FILE: line 1: found unexpected end of stream"),
        (b"\xff\xfe\x00\x80", "config_path: FILE is not text in UTF-8"),
        (b"task: \x00", "FILE: "),
        ("rename_map: " + "x" * 100, "rename_map: 'xxxxxxxxxxxxxxxxxxxx"),
    ],
)
def test_file_of_the_wrong_shape(run_yaml: Callable[[str | bytes], str], text: str | bytes, sentence: str) -> None:
    flag = run_yaml(text)
    with pytest.raises(ConfigError) as caught:
        start(flag)
    said = str(caught.value)
    assert said.startswith(sentence.replace("FILE", flag.partition("=")[2]))
    assert len(said.splitlines()) == 1
    assert len(said) < 300


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "no.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"config_path: cannot read {path}: {reason}"):
            start(f"--config_path={path}")


# Words without dashes.


@dataclass
class Words:
    """A program with a list of files."""

    files: list[Path]
    limits: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)


@dataclass
class Word:
    """A program with one file."""

    file: Path
    quiet: bool = False


def test_words_go_to_the_positional_field(run_yaml: Callable[[str], str]) -> None:
    config = flags.parse(Words, ["a", "--limits=[1, 2.5]", "b"], "prog", positional="files")
    assert config == Words([Path("a"), Path("b")], (1.0, 2.5))
    assert flags.parse(Word, ["a", "--quiet"], "prog", positional="file") == Word(Path("a"), True)
    assert flags.parse(Word, ["--quiet", "a"], "prog", positional="file") == Word(Path("a"), True)
    assert flags.parse(Word, [run_yaml("file: a")], "prog", positional="file") == Word(Path("a"))


def test_words_missing_or_too_many() -> None:
    with pytest.raises(UsageError, match="files is missing: prog FILES"):
        flags.parse(Words, [], "prog", positional="files")
    with pytest.raises(UsageError, match="unexpected argument 'b'"):
        flags.parse(Word, ["a", "b"], "prog", positional="file")
    with pytest.raises(ConfigError, match=r"counts\[1\]: 'x' is not a whole number"):
        flags.parse(Words, ["a", "--counts=[1, x]"], "prog", positional="files")
    with pytest.raises(ConfigError, match=r"counts\[1\]: 'x' is not a whole number"):
        flags.parse(Words, ["a", "--counts=1,x"], "prog", positional="files")
    with pytest.raises(ConfigError, match="counts: '' is not a list of whole numbers"):
        flags.parse(Words, ["a", "--counts="], "prog", positional="files")


@pytest.mark.parametrize(
    ("text", "counts"), [("[1, 2]", [1, 2]), ("1,2", [1, 2]), ("1, 2", [1, 2]), ("5", [5]), ("[]", [])]
)
def test_a_list_may_be_written_with_commas_alone(text: str, counts: list[int]) -> None:
    assert flags.parse(Words, ["a", f"--counts={text}"], "prog", positional="files").counts == counts


# Help.


def test_help_lists_every_flag_with_its_comment_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        start("--fps=fast", "--help")
    assert caught.value.code == 0
    said = capsys.readouterr().out
    for setting in schema.settings(StartConfig):
        assert f"--{setting.name}=" in said
    assert said.startswith("usage: edge-runtime start [--config_path=FILE.yaml]")
    assert "--robot.type=so101_follower|so100_follower" in said
    (line,) = (line for line in said.splitlines() if "--priority" in line)
    assert line.split() == ["--priority=N", "of", "SCHED_FIFO", "[80]"]
    first = said.split("\n\n")[2].split()
    assert [word.partition("=")[0] for word in first if word.startswith("--")] == [
        *("--robot.type", "--robot.port", "--robot.id"),
        *(f"--robot.cameras.NAME.{name}" for name in ("type", "index_or_path", "width", "height", "fps")),
        *("--server_address", "--bundle", "--task", "--fps"),
    ]
    assert "--status=false" in said
    assert "--dry_run=true" in said
    assert "--limits=[…]" in flags.help_text(Words, "prog", "files")


@pytest.mark.parametrize("word", WORDS)
def test_every_setting_is_described_in_words(word: str) -> None:
    assert [setting.name for setting in schema.settings(WORDS[word].settings) if not setting.comment] == []
    text = flags.help_text(WORDS[word].settings, word)
    assert not re.search(r"\b(None|True|False)\b", text)


@pytest.mark.parametrize("prog", MAINS)
def test_every_program_says_its_version(prog: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.run_main(MAINS[prog], ["--version"], prog) == 0
    assert capsys.readouterr().out == f"{prog} {metadata.version('edge-runtime')}\n"


# The last door.


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("said"), 64),
        (ModelError("said"), 65),
        (StreamError("said"), 69),
        (EdgeRuntimeError("said"), 70),
        (OutputError("said"), 73),
        (CameraError("said"), 74),
        (BusTimeout("said"), 74),
        (ProtocolError("said"), 76),
        (AccessError("said"), 77),
        (ConfigError("said"), 78),
    ],
)
def test_error_becomes_one_line_and_its_exit_code(
    error: EdgeRuntimeError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    assert flags.run_main(fail, [], "prog") == code
    assert capsys.readouterr() == ("", "prog: said\n")


def test_traceback_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise ConfigError("first\n  second")

    flags.run_main(fail, [], "prog")
    assert capsys.readouterr().err == "prog: first second\n"
    flags.run_main(fail, ["--debug"], "prog")
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("prog: first second\n")


def test_what_nobody_foresaw_is_internal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise KeyError("x")

    assert flags.run_main(fail, [], "prog") == 70
    assert capsys.readouterr().err == "prog: internal error: KeyError: 'x' (--debug shows where)\n"


def test_interrupt_and_success(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    assert flags.run_main(interrupted, [], "prog") == 130
    assert flags.run_main(len, ["a", "b"], "prog") == 2
    assert capsys.readouterr() == ("", "")


def test_program_says_its_line_and_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge_runtime", "start", "--fsp=30"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "edge-runtime: unknown flag --fsp; did you mean --fps?\n"


def test_off_is_a_word_where_it_is_one_of_the_choices(tmp_path: Path) -> None:
    arm = "--robot.type=so101_follower"
    assert flags.parse(StartConfig, [arm, "--realtime=off"], "test").realtime == "off"
    config = tmp_path / "c.yaml"
    config.write_text("realtime: off\n")
    assert flags.parse(StartConfig, [arm, f"--config_path={config}"], "test").realtime == "off"
    with pytest.raises(ConfigError, match="mode"):
        flags.parse(StartConfig, [arm, "--mode=off"], "test")


HELP = [sys.executable, "-m", "edge_runtime", "start", "--help"]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(HELP, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.close()
        _, said = run.communicate(timeout=30)
    assert (run.returncode, said) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("words", [HELP, [*HELP[:3], "--help"]], ids=["more than a buffer", "less than one"])
def test_output_that_does_not_fit_on_the_disk_is_told(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert (run.returncode, run.stderr) == (73, "edge-runtime: stdout: no space left on device\n")
