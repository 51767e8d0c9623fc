"""The servos: every fault that reading can find, and what mends it; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.config import SO101FollowerConfig
from edge_runtime.errors import BusError
from edge_runtime.motors.bus import Bus
from edge_runtime.robots.so_follower import SOFollower
from edge_runtime.robots.so_servos import IDS
from edge_runtime.tools.doctor import servos
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import write_calibration
from tests.edge_runtime.tools.doctor.findings import Findings

PERIOD_S = 1 / 30


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=1) as arm:
        yield arm
    assert not [entry for entry in arm.log if "WRITE" in entry.instruction]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_calibration(tmp_path, "virtual")
    return tmp_path


def look(arm: VirtualBus, folder: Path, period_s: float = PERIOD_S, **settings: Any) -> Findings:
    config = SO101FollowerConfig(**{"id": "virtual", "port": arm.path, "calibration_dir": folder} | settings)
    with Bus(arm.path, names={number: joint for joint, number in IDS.items()}, echo=config.echo) as bus:
        return Findings(servos.examine(bus, config, period_s))


def test_an_arm_that_is_well(arm: VirtualBus, folder: Path) -> None:
    found = look(arm, folder, period_s=10.0)  # so that a busy host is no slow bus
    assert set(found.states().values()) == {"ok"}
    assert found.about("servos").said == "six STS3215 at ids 1..6, firmware 3.10"
    assert found.about("supply").said == "12 V at the servos"
    assert found.about("calibration").said == f"{folder}/virtual.json, and the same in the servos"


def register(id: int, name: str, value: int) -> dict[str, Any]:
    return {"fault": "register", "ids": [id], "name": name, "value": value}


@pytest.mark.parametrize(
    ("fault", "about", "said", "mend"),
    [
        ({"fault": "power", "on": False}, "servos", "none of the six servos answers", "switch the servos' supply on"),
        (
            {"fault": "deaf", "ids": [3, 4]},
            "servos",
            "no answer from elbow_flex (id 3), wrist_flex (id 4)",
            "the cable to the elbow_flex; if it was never set up: edge-runtime setup-motors --joint=elbow_flex",
        ),
        (register(2, "Model_Number", 2825), "servos", "shoulder_lift (id 2) is model 2825 (STS3250)", "STS3215 there"),
        (register(6, "Firmware_Minor_Version", 9), "servos", "different firmware", "Feetech's own tool"),
        ({"fault": "echo"}, "servos", "the line returns what is sent", "--robot.echo=true for a bare UART"),
        (
            register(5, "Present_Voltage", 151),
            "supply",
            "wrist_roll (id 5) has 15.1 V, and takes 4.0..14.0",
            "the supply that belongs to these servos",
        ),
        (register(6, "Present_Temperature", 61), "temperature", "gripper (id 6) is 61 °C hot", "cool down"),
        *(
            ({"fault": "flags", "ids": [2], "bits": name}, "alarms", f"shoulder_lift (id 2) reports {name}", mend)
            for name, mend in {
                "overload": "take the load off the joint and free what blocks it, then switch the servos' supply",
                "over-current": "look for a damaged cable",
                "over-temperature": "let the arm cool down, with its supply off",
                "magnetic sensor": "replace it, then setup-motors and calibrate",
            }.items()
        ),
        (
            register(3, "Homing_Offset", -85),
            "calibration",
            "elbow_flex.homing_offset: file 0, servo -85",
            "edge-runtime calibrate",
        ),
    ],
)
def test_what_is_wrong_is_named_and_mended(
    arm: VirtualBus, folder: Path, fault: dict[str, Any], about: str, said: str, mend: str
) -> None:
    arm.inject(fault)
    found = look(arm, folder)
    finding = found.about(about)
    assert (finding.state, finding.exit_code) == ("failed", 78 if about == "calibration" else 74)
    assert said in finding.said
    assert mend in finding.mend
    assert [each.about for each in found.all if each.state == "failed"] == [about]


@pytest.mark.parametrize(
    "fault",
    [
        register(5, "Present_Voltage", 151),
        register(5, "Present_Voltage", 39),
        register(6, "Present_Temperature", 61),
        *({"fault": "flags", "ids": [2], "bits": bits} for bits in ("overload", "over-current", "magnetic sensor", 5)),
    ],
)
def test_what_doctor_refuses_start_refuses_in_the_same_words(
    arm: VirtualBus, folder: Path, fault: dict[str, Any]
) -> None:
    """And before torque: the fixture sees to it that nothing was written."""
    arm.inject(fault)
    (finding,) = [each for each in look(arm, folder).all if each.state == "failed"]
    robot = SOFollower(SO101FollowerConfig(id="virtual", port=arm.path, calibration_dir=folder))
    with pytest.raises(BusError) as refused:
        robot.open()
    assert str(refused.value) == f"{finding.said}: {finding.mend}"
    assert refused.value.exit_code == finding.exit_code
    arm.inject({"fault": "clear"})
    with pytest.raises(BusError) if fault["fault"] == "register" else nullcontext(), robot:
        arm.inject(fault)
        with pytest.raises(BusError, match="reports"):  # it came between the two
            robot.prepare()


def test_an_adapter_that_keeps_bytes_is_measured(arm: VirtualBus, folder: Path) -> None:
    arm.inject({"fault": "late", "delay_s": 0.016})
    finding = look(arm, folder).about("bus")
    assert (finding.state, finding.exit_code) == ("warning", 0)
    assert "the adapter keeps every answer for " in finding.said
    assert "latency_timer" in finding.mend


@pytest.mark.parametrize(
    ("fault", "about", "said"),
    [
        (register(6, "Present_Temperature", 60), "temperature", "gripper (id 6) the warmest"),
        ({"fault": "flags", "ids": [2], "bits": "voltage"}, "alarms", "shoulder_lift (id 2) reports voltage"),
        ({"fault": "flags", "ids": [2], "bits": "angle"}, "alarms", "shoulder_lift (id 2) reports angle"),
        ({"fault": "silent", "ids": [4], "count": 2, "rate": 0.2}, "bus", "2 answers missing"),
        ({"fault": "corrupt", "ids": [4], "count": 3, "rate": 0.1}, "bus", "answers missing"),
        ({"fault": "bytewise", "ids": [1], "delay_s": 0.0015}, "bus", "of 33 ms"),
    ],
)
def test_what_could_be_better_is_a_warning(
    arm: VirtualBus, folder: Path, fault: dict[str, Any], about: str, said: str
) -> None:
    arm.inject(fault)
    finding = look(arm, folder).about(about)
    assert (finding.state, finding.exit_code) == ("warning", 0)
    assert said in finding.said
    assert finding.mend


def test_no_calibration_file(arm: VirtualBus, folder: Path) -> None:
    finding = look(arm, folder, id="other").about("calibration")
    assert (finding.state, finding.exit_code) == ("failed", 78)
    assert "'other' has no calibration file" in finding.said
    assert "edge-runtime calibrate" in finding.mend


def test_unplugged_meanwhile(arm: VirtualBus, folder: Path) -> None:
    with Bus(arm.path) as bus:
        steps = servos.examine(bus, SO101FollowerConfig(id="virtual", calibration_dir=folder), PERIOD_S)
        assert next(steps).about == "servos"
        arm.inject({"fault": "unplug"})
        finding = next(steps)
    assert "the port is gone" in finding.said
    assert finding.mend == "plug the adapter in again"
