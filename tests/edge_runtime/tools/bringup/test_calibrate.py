"""`calibrate` by a person on a pty, the arm moved by the test: file and servos in the end, or neither."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edge_runtime.config import SO101FollowerConfig
from edge_runtime.motors import calibration as calibrations
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS, JointCalibration
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.robots.so_servos import IDS
from edge_runtime.tools.bringup import calibrate
from edge_runtime.tools.bringup.terminal import Terminal
from edge_runtime.virtual_arm.bus import VirtualBus
from tests.edge_runtime.tools.bringup.person import CTRL_C, Person

MIDDLES = {1: 2000, 2: 2100, 3: 1900, 4: 100, 5: 4095, 6: 2047}  # of the shafts; the wrist was mounted at the end
REACH = {1: (-1250, 1250), 2: (-1100, 1200), 3: (-1100, 1100), 4: (-1000, 1100), 6: (-100, 1000)}
MEMORY = ("Homing_Offset", "Min_Position_Limit", "Max_Position_Limit", "Operating_Mode", "Phase", "Lock")


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus() as arm:
        arm.place(list(MIDDLES.values()))
        yield arm


def flags(arm: VirtualBus, folder: Path) -> list[str]:
    robot = {"type": "so101_follower", "port": arm.path, "id": "my_arm", "calibration_dir": folder}
    robot["bus_timeout_ms"] = 100  # the servos share the machine with whatever else it does
    return ["calibrate", *(f"--robot.{name}={value}" for name, value in robot.items())]


def hand(arm: VirtualBus, joint: int, position: float) -> None:
    arm.inject({"fault": "hand", "ids": [joint], "position": position})


def turn(arm: VirtualBus, joint: int, shaft: float) -> None:
    """Turn a joint by hand, slowly enough for the program to see each step, and wait until it has seen the last."""
    while (at := arm.servos[joint].shaft) != shaft:
        hand(arm, joint, at + max(-1000.0, min(1000.0, shaft - at)))
        wait_until_seen(arm, joint)


def wait_until_seen(arm: VirtualBus, joint: int) -> None:
    """Until the program has read where the joint is now."""
    arm.log.clear()
    seen = {joint: {"Present_Position": arm.servos[joint].get("Present_Position")}}
    arm.log.wait_for(lambda entry: entry.request is not None and entry.values == seen, 20)


def sweep(arm: VirtualBus, *joints: int) -> None:
    for joint in joints:
        low, high = REACH[joint]
        for offset in (low, high, 0):
            turn(arm, joint, MIDDLES[joint] + offset)


def memory(arm: VirtualBus) -> dict[str, list[int]]:
    return {name: arm.values(name) for name in MEMORY}


def in_servos(arm: VirtualBus) -> list[tuple[int, ...]]:
    return list(zip(*(memory(arm)[name] for name in MEMORY[:3]), strict=True))


def entries(file: Path) -> Mapping[str, Any]:
    return json.loads(file.read_text())


def test_from_a_new_arm_to_one_that_starts(arm: VirtualBus, tmp_path: Path) -> None:
    with Person(*flags(arm, Path()), cwd=tmp_path) as person:
        person.see("1. Move every joint to about the middle")
        assert arm.values("Max_Position_Limit") == [4095] * 6
        person.press()
        person.see("Press Enter when the table shows all of them")
        sweep(arm, 1, 2, 3, 4)
        person.press()
        person.see("not moved yet: gripper")
        sweep(arm, 6)
        person.press()
        person.see("wrote .*my_arm.json")
        person.see("wrote offsets and ranges into the servos")
        assert person.leave() == 0
        assert person.widest <= 80
    expected = {
        "shoulder_pan": (-47, 797, 3297),
        "shoulder_lift": (53, 947, 3247),
        "elbow_flex": (-147, 947, 3147),
        "wrist_flex": (-1947, 1047, 3147),
        "wrist_roll": (2047, 0, 4095),
        "gripper": (0, 1947, 3047),
    }
    text = (tmp_path / "my_arm.json").read_text()
    assert text == json.dumps(  # as LeRobot writes it
        {
            joint: {"id": number, "drive_mode": 0, "homing_offset": offset, "range_min": low, "range_max": high}
            for number, (joint, (offset, low, high)) in enumerate(expected.items(), start=1)
        },
        indent=4,
    )
    arm.inject({"fault": "reboot", "ids": [1, 2, 3, 4, 5, 6]})  # the servos keep it
    assert in_servos(arm) == list(expected.values())
    config = SO101FollowerConfig(id="my_arm", port=arm.path, calibration_dir=tmp_path)
    with SOFollower(config) as robot:
        assert robot.read()[:4] == pytest.approx([0, -4.4, 0, -4.4], abs=0.5)  # degrees from the middle of the range


def test_a_range_across_the_encoders_end_is_centred(arm: VirtualBus, tmp_path: Path) -> None:
    """Homed far from the middle, so that the wrap lies inside: LeRobot would record 0..4095."""
    with Person(*flags(arm, tmp_path)) as person:
        person.see("1. Move")
        hand(arm, 4, MIDDLES[4] + 3000)  # its far end; nobody looks yet
        person.press()
        person.see("Press Enter when")
        wait_until_seen(arm, 4)
        turn(arm, 4, MIDDLES[4])
        sweep(arm, 1, 2, 3, 6)
        person.press()
        person.see("wrote offsets")
        assert person.leave() == 0
    wrist = calibrations.load(tmp_path / "my_arm.json")["wrist_flex"]
    assert (wrist.range_min, wrist.range_max) == (547, 3547)
    hand(arm, 4, MIDDLES[4])
    assert arm.servos[4].get("Present_Position") == 547
    hand(arm, 4, MIDDLES[4] + 3000.0)
    assert arm.servos[4].get("Present_Position") == 3547


def test_more_than_a_turn_is_refused_and_measured_again(arm: VirtualBus, tmp_path: Path) -> None:
    with Person(*flags(arm, tmp_path)) as person:
        person.see("1. Move")
        person.press()
        person.see("Press Enter when")
        sweep(arm, 1, 2, 3, 4, 6)
        turn(arm, 6, MIDDLES[6] + 5000)
        turn(arm, 6, MIDDLES[6])
        person.press()
        person.see("a whole turn, measured again from here: gripper")
        person.press()
        person.see("not moved yet: gripper")
        sweep(arm, 6)
        person.press()
        person.see("wrote offsets")
        assert person.leave() == 0
    assert calibrations.load(tmp_path / "my_arm.json")["gripper"] == JointCalibration(6, 0, 0, 1947, 3047)


@pytest.mark.parametrize("moment", ["1. Move", "Press Enter when"])
@pytest.mark.parametrize("end", ["ctrl-c", "hang-up"])
def test_ctrl_c_leaves_the_servos_as_they_were(arm: VirtualBus, tmp_path: Path, moment: str, end: str) -> None:
    arm.inject({"fault": "register", "ids": [2], "name": "Homing_Offset", "value": -85})
    arm.inject({"fault": "register", "ids": [2], "name": "Phase", "value": 12 | 16})
    before = memory(arm)
    with Person(*flags(arm, tmp_path)) as person:
        person.see("1. Move")
        if moment != "1. Move":
            person.press()
            person.see(moment)
        assert memory(arm) != before
        if end == "ctrl-c":
            person.press(CTRL_C)
        else:
            person.send_signal(signal.SIGHUP)
        person.see("nothing is changed")
        assert person.leave() == 130
    assert memory(arm) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", calibrate.ENDING)
def test_nothing_disturbs_the_putting_back(arm: VirtualBus, again: int) -> None:
    """The window is closed, of which kernel and shell tell; or Ctrl-C is pressed again, or the system goes down."""

    class Disturbed(Bus):
        def establish(self, name: str, values: Mapping[int, int], tries: int = 3) -> None:
            super().establish(name, values, tries)
            if ended:
                signal.raise_signal(again)

    def begin_and_end(bus: Bus) -> None:
        nonlocal ended
        with calibrate._put_back_unless_done(said, bus):
            bus.establish("Phase", dict.fromkeys(IDS.values(), 12 | 16))
            ended = True
            signal.raise_signal(signal.SIGHUP)

    ended = False
    before, said = arm.values("Phase"), Mock(spec=Terminal)
    handlers = {number: signal.signal(number, calibrate._end) for number in calibrate.ENDING}
    try:
        with Disturbed(arm.path, timeout_s=0.2) as bus, pytest.raises(KeyboardInterrupt):
            begin_and_end(bus)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert arm.values("Phase") == before
    assert arm.values("Lock") == [1] * 6
    said.say.assert_called_once_with("\nnothing is changed; torque is off")


def test_a_file_that_cannot_be_written_is_told_before_the_arm_is_moved(arm: VirtualBus, tmp_path: Path) -> None:
    (tmp_path / "folder").touch()  # in the way
    before = memory(arm)
    with Person(*flags(arm, tmp_path / "folder")) as person:
        person.see(r"robot\.calibration_dir: \S+/folder is not a folder")
        assert person.leave() == 73
    assert memory(arm) == before


def test_unplugged_in_the_middle(arm: VirtualBus, tmp_path: Path) -> None:
    with Person(*flags(arm, tmp_path)) as person:
        person.see("1. Move")
        arm.inject({"fault": "unplug"})
        person.press()
        person.see(r"the servos are not as they were: .*calibrate\s+again")
        person.see("edge-runtime: .*the port is gone")
        assert person.leave() == 74


def test_the_old_file_is_kept_or_written_into_the_servos(arm: VirtualBus, tmp_path: Path) -> None:
    file = tmp_path / "my_arm.json"
    old = {joint: JointCalibration(number, 0, number, 700, 3000) for number, joint in enumerate(JOINTS, start=1)}
    calibrations.save(file, old)
    with Person(*flags(arm, tmp_path)) as person:
        person.see("w and Enter writes it")
        person.press("w\n")
        person.see("wrote offsets and ranges into the servos")
        assert person.leave() == 0
    assert in_servos(arm) == [(number, 700, 3000) for number in range(1, 7)]
    arm.place(list(MIDDLES.values()))
    with Person(*flags(arm, tmp_path)) as person:
        person.see("Enter measures anew")
        person.press()
        person.see("1. Move")
        person.press()
        person.see("Press Enter when")
        sweep(arm, 1, 2, 3, 4, 6)
        person.press()
        person.see("the one before is .*my_arm.json.bak")
        assert person.leave() == 0
    assert calibrations.load(tmp_path / "my_arm.json.bak") == old
    assert calibrations.load(file) != old


def test_an_arm_that_holds_itself_up_is_held_first(arm: VirtualBus, tmp_path: Path) -> None:
    for servo in arm.servos.values():
        servo.set("Torque_Enable", 1)
    with Person(*flags(arm, tmp_path)) as person:
        person.see("energised, and falls when let go. Hold it, then press Enter")
        assert all(servo.torque for servo in arm.servos.values())
        person.press()
        person.see("1. Move")
        assert not any(servo.torque for servo in arm.servos.values())


@pytest.mark.parametrize("word", ["calibrate", "setup-motors"])
def test_without_a_terminal(arm: VirtualBus, tmp_path: Path, word: str) -> None:
    command = [sys.executable, "-m", "edge_runtime", word, *flags(arm, tmp_path)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (64, 1)
    assert f"{word} asks and shows: it needs a terminal" in done.stderr
    assert not list(arm.log)


def test_servos_that_are_not_there(arm: VirtualBus, tmp_path: Path) -> None:
    arm.inject({"fault": "deaf", "ids": [3]})
    with Person(*flags(arm, tmp_path)) as person:
        person.see(r"no answer from elbow_flex \(id 3\)")
        assert person.leave() == 74
    assert not [entry for entry in arm.log if "WRITE" in entry.instruction]
