"""`setup-motors` by a person on a pty: servos fresh from the box, one at a time, then all six."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge_runtime.errors import BusError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import JOINTS
from edge_runtime.tools.bringup.identity import Identity, find
from edge_runtime.virtual_arm.bus import VirtualBus
from tests.edge_runtime.tools.bringup.person import CTRL_C, Person

ALL = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus() as arm:
        yield arm


def connect(arm: VirtualBus, *joints: int) -> None:
    """Only these are on the cable."""
    arm.inject({"fault": "detach", "ids": ALL})
    arm.inject({"fault": "attach", "ids": list(joints)})


def make(arm: VirtualBus, joint: int, id: int, code: int = 0) -> None:
    for name, value in (("ID", id), ("Baud_Rate", code)):
        arm.inject({"fault": "register", "ids": [joint], "name": name, "value": value})


def flags(arm: VirtualBus) -> list[str]:
    return ["setup-motors", "--robot.type=so101_follower", f"--robot.port={arm.path}", "--robot.bus_timeout_ms=100"]


def test_six_new_servos(arm: VirtualBus) -> None:
    for joint in ALL:
        make(arm, joint, id=1)
    make(arm, 5, id=7, code=4)  # used before, in something else
    with Person(*flags(arm)) as person:
        for number, joint in reversed(list(enumerate(JOINTS, start=1))):
            person.see(f"Connect the {joint}'s servo only, then press Enter")
            connect(arm, number)
            person.press()
            was = {1: "as it was", 5: "was id 7 at 115200 bit/s"}.get(number, "was id 1")
            person.see(f"✓ {joint}: id {number}, {was}")
        person.see("chain all six")
        person.press()
        shown = person.see(r"✗ (.|\n)*: check\s+cable\s+and\s+id")  # still the last one alone
        assert "no answer from shoulder_lift (id 2), " in " ".join(shown.split())
        connect(arm, *ALL)
        person.see("chain all six")
        person.press()
        person.see("✓ all six answer")
        assert person.leave() == 0
        assert person.widest <= 80
    arm.inject({"fault": "reboot", "ids": ALL})
    assert [servo.id for servo in arm.servos.values()] == ALL  # kept over power-off
    assert {servo.baud for servo in arm.servos.values()} == {1_000_000}
    assert set(arm.values("Lock")) == {1}


def test_it_asks_again_until_the_right_servo_is_there(arm: VirtualBus) -> None:
    with Person(*flags(arm), "--joint=gripper") as person:
        connect(arm)
        person.see("Connect the gripper's servo only")
        person.press()
        person.see("✗ no servo answers at any rate: is it plugged in, and its supply on")
        connect(arm, 2, 3)
        person.see("Connect the gripper's servo only")
        person.press()
        person.see(r"✗ 2 servos answer \(id 2, id 3\)")
        connect(arm, 4)
        arm.inject({"fault": "register", "ids": [4], "name": "Model_Number", "value": 2825})
        person.see("Connect the gripper's servo only")
        person.press()
        person.see(r"✗ this servo is model 2825 \(STS3250\), expected 777 \(STS3215\)")
        connect(arm, 6)
        person.see("Connect the gripper's servo only")
        person.press()
        person.see("✓ gripper: id 6, as it was")
        assert person.leave() == 0
    assert not arm.log.writes("ID")


def test_a_servo_that_was_just_set_up_keeps_its_id(arm: VirtualBus) -> None:
    connect(arm, 6)
    with Person(*flags(arm)) as person:
        person.see("Connect the gripper's servo only")
        person.press()
        person.see("✓ gripper: id 6, as it was")
        person.see("Connect the wrist_roll's servo only")
        person.press()  # the gripper's is on the adapter still
        shown = person.see(r"✗ this is still (.|\n)*--joint=wrist_roll")
        assert "this is still the gripper's servo (id 6): connect the wrist_roll's" in " ".join(shown.split())
        connect(arm, 5)
        person.see("Connect the wrist_roll's servo only")
        person.press()
        person.see("✓ wrist_roll: id 5, as it was")
        person.see("Connect the wrist_flex's servo only")  # what is typed before a question is flushed, Ctrl-C too
        person.press(CTRL_C)
        assert person.leave() == 130
    assert not arm.log.writes("ID")


def test_two_new_servos_at_once_are_refused(arm: VirtualBus) -> None:
    make(arm, 5, id=1)
    make(arm, 6, id=1)
    connect(arm, 5, 6)
    with Bus(arm.path) as bus, pytest.raises(BusError, match="2 servos answer"):
        find(bus)


@pytest.mark.parametrize("spoilt", [ALL, ALL[:-1]])  # the last one comes through
def test_answers_that_spoil_each_other_are_told_from_none(arm: VirtualBus, spoilt: list[int]) -> None:
    arm.inject({"fault": "corrupt", "ids": spoilt})
    with Bus(arm.path) as bus, pytest.raises(BusError, match="all at once"):
        find(bus)


@pytest.mark.parametrize(("code", "baud"), [(0, 1_000_000), (1, 500_000), (2, 250_000), (3, 128_000), (4, 115_200)])
def test_every_rate_is_found(arm: VirtualBus, code: int, baud: int) -> None:
    connect(arm, 3)
    make(arm, 3, id=42, code=code)
    with Bus(arm.path) as bus:
        assert find(bus) == Identity(42, baud)


@pytest.mark.parametrize("name", ["Lock", "ID"])
def test_a_servo_that_does_not_take_it(arm: VirtualBus, name: str) -> None:
    make(arm, 6, id=1)
    connect(arm, 6)
    arm.inject({"fault": "lost_write", "name": name})
    with Person(*flags(arm), "--joint=gripper") as person:
        person.see("Connect")
        person.press()
        person.see("✗ .*Lock could not be set" if name == "Lock" else "✗ the servo did not take id 6")
        arm.inject({"fault": "lost_write", "name": name, "on": False})
        person.see("Connect")
        person.press()
        person.see("✓ gripper: id 6, was id 1")
        assert person.leave() == 0


def test_unplugged(arm: VirtualBus) -> None:
    with Person(*flags(arm)) as person:
        person.see("Connect")
        arm.inject({"fault": "unplug"})
        person.press()
        person.see("edge-runtime: .*the port is gone")
        assert person.leave() == 74


@pytest.mark.parametrize(
    ("extra", "said", "code"),
    [
        (["--joint=griper"], "did you mean gripper", 78),
        (["--robot.prot=x"], "did you mean --robot.port", 64),
    ],
)
def test_a_wrong_flag(arm: VirtualBus, extra: list[str], said: str, code: int) -> None:
    with Person(*flags(arm), *extra) as person:
        person.see(said)
        assert person.leave() == code
