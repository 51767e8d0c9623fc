"""LeRobot's flags, as its users type them: those that mean the same here are taken, all others get one answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edge_runtime.errors import UsageError


@dataclass(frozen=True)
class Theirs:
    """A flag of LeRobot's: `ours` is the flag that means the same; without one, `said` is the answer.

    `values` are its values that are spelled in another way here: their value -> our whole flag, empty for what is so
    here anyway. `{}` in `said` is its value.
    """

    ours: str = ""
    said: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


_SERVER = Theirs(said="on the server, where the policy runs: --providers=cuda, or --device=cuda with --engine=lerobot")
_RECORDS = Theirs(said="nothing is recorded here; lerobot-record does that")
_SHOWN = Theirs(said="edge-runtime top shows the run, and --queue_log=FILE writes the queue's level")
_TORCH = Theirs(said="an exported policy is not run by torch")
# A name that ends with a dot stands for all that begin with it.
ROBOT: Mapping[str, Theirs] = {
    # robot_client
    "policy_type": Theirs(said="the checkpoint says it"),
    "pretrained_name_or_path": Theirs(said="the server is started with it: policy-server start {} --fps=30 {robot}"),
    "policy_device": _SERVER,
    "client_device": Theirs(said="actions are no tensors here, and need no device"),
    "debug_visualize_queue_size": _SHOWN,
    # lerobot-rollout
    "policy.path": Theirs(ours="bundle"),
    "policy.device": _SERVER,
    "policy.": Theirs(said="a policy's own settings are fixed when it is exported"),
    "device": _SERVER,
    "duration": Theirs(ours="duration_s"),
    "strategy.type": Theirs(said="only base is done here: nothing is recorded", values={"base": ""}),
    "strategy.": _RECORDS,
    "inference.type": Theirs(
        said="expected sync or rtc", values={"sync": "--mode=sequential", "rtc": "--rtc.enabled=true"}
    ),
    "inference.rtc.execution_horizon": Theirs(ours="rtc.execution_horizon"),
    "inference.rtc.max_guidance_weight": Theirs(ours="rtc.max_guidance_weight"),
    "inference.rtc.prefix_attention_schedule": Theirs(
        said="expected ZEROS, ONES, LINEAR or EXP",
        values={each: f"--rtc.prefix_attention_schedule={each.lower()}" for each in ("ZEROS", "ONES", "LINEAR", "EXP")},
    ),
    "inference.rtc.enabled": Theirs(ours="rtc.enabled"),
    "inference.": Theirs(said="the queue is asked for more by chunk_size_threshold and rtc: see --help"),
    "interpolation_multiplier": Theirs(said="--control_hz is the loop's rate: {} times fps"),
    "return_to_initial_position": Theirs(
        said="expected true or false", values={"true": "--robot.stop_policy=park", "false": ""}
    ),
    "use_torch_compile": _TORCH,
    "torch_compile_backend": _TORCH,
    "torch_compile_mode": _TORCH,
    "compile_warmup_inferences": Theirs(said="the server warms its policies up by itself"),
    # lerobot-record
    "dataset.single_task": Theirs(ours="task"),
    "dataset.fps": Theirs(ours="fps"),
    "dataset.": _RECORDS,
    "teleop.": Theirs(said="no leader arm is read here; lerobot-teleoperate and lerobot-record do that"),
    "display_data": _SHOWN,
    "display_mode": _SHOWN,
    "display_ip": _SHOWN,
    "display_port": _SHOWN,
    "display_compressed_images": _SHOWN,
    "play_sounds": Theirs(said="nothing is spoken here", values={"false": ""}),
    "resume": Theirs(said="nothing is recorded that could be resumed", values={"false": ""}),
    # of the robot
    "robot.num_read_retries": Theirs(said="a lost answer is asked for again as long as the tick has time for it"),
    "robot.disable_torque_on_disconnect": Theirs(
        said="expected true or false", values={"true": "--robot.stop_policy=limp", "false": "--robot.stop_policy=hold"}
    ),
}
SERVER: Mapping[str, Theirs] = {
    "host": Theirs(ours="listen"),
    "port": Theirs(ours="listen"),
    "inference_latency": Theirs(said="answers go out as soon as they are there; --inject_latency_ms delays them"),
    "obs_queue_timeout": Theirs(said="an answer is sent when it is there, nobody polls for it"),
    "policy.path": Theirs(said="it is the first word: policy-server start {}"),
    "pretrained_name_or_path": Theirs(said="it is the first word: policy-server start {}"),
    "policy_type": Theirs(said="the checkpoint says it"),
    "policy_device": Theirs(said="--providers=cuda, or --device={} with --engine=lerobot"),
}
EXPORT: Mapping[str, Theirs] = {"policy.path": Theirs(ours="checkpoint")}
_IMAGES = "observation.images."
_ADDRESS = {"host": "127.0.0.1", "port": "8080"}  # of LeRobot's policy_server


def translated(argv: Sequence[str], table: Mapping[str, Theirs], prog: str) -> list[str]:
    """`argv` in this project's flags. Raises UsageError with an answer to every flag that has none, and the command."""
    taken: list[str] = []
    answers: list[str] = []
    address: dict[str, str] = {}
    robot = next((word for word in argv if word.startswith("--robot.type=")), "--robot.type=so101_follower")
    for name, value, words in _flags(argv, table):
        theirs = _of(name, table)
        if name == "rename_map":
            taken += [word.replace(_IMAGES, "") for word in words]
        elif theirs is None:
            taken += words
        elif theirs.ours == "listen":
            address[name] = value
        elif theirs.ours:
            taken.append(f"--{theirs.ours}={value}")
        elif (same := theirs.values.get(value, theirs.values.get(value.lower()))) is not None:
            taken += [same] if same else []
        else:
            answers.append(f"--{name}: {theirs.said.replace('{robot}', robot).replace('{}', value)}")
    if address:
        taken.append("--listen={host}:{port}".format(**_ADDRESS | address))
    if answers:
        raise UsageError(f"of LeRobot's flags {'; '.join(answers)}; here: {prog} {shlex.join(taken)}".rstrip())
    return taken


def _of(name: str, table: Mapping[str, Theirs]) -> Theirs | None:
    """The entry for a flag: its own, or that of the longest beginning which stands for all below it."""
    if name in table:
        return table[name]
    groups = [each for each in table if each.endswith(".") and name.startswith(each)]
    return table[max(groups, key=len)] if groups else None


def _flags(argv: Sequence[str], table: Mapping[str, Theirs]) -> Iterator[tuple[str, str, list[str]]]:
    """Each flag's name, its value, and the words it was made of; a word that is no flag has no name."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        words = [word]
        if not word.startswith("--"):
            name = ""
        elif not equals and _of(name, table) is not None:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
            words.append(value)
        yield name, value, words
