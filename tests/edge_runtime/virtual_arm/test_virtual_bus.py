"""The virtual arm's bus, with Feetech's own SDK as its client, and the servo behind it."""

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scservo_sdk as sdk

from edge_runtime.errors import BusError, ConfigError, OutputError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.calibration import Mode, load
from edge_runtime.motors.feetech import (
    REGISTERS,
    Frame,
    FrameDecoder,
    Instruction,
    encode,
    frame,
    ping,
    read,
    sync_read,
    sync_write,
)
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import CALIBRATION, to_ticks, to_units, write_calibration
from edge_runtime.virtual_arm.chain import WEIGHTS, ServoChain
from edge_runtime.virtual_arm.faults import KEYS
from edge_runtime.virtual_arm.port import VirtualClock, VirtualPort
from edge_runtime.virtual_arm.servos import Felt

IDS = range(1, 7)
POSITIONS = {1: 1111, 2: 2222, 3: 1333, 4: 2444, 5: 1555, 6: 2666}


class Client:
    """What LeRobot talks through; `patience_ms` is how long it waits for an answer."""

    def __init__(self, path: str) -> None:
        self.patience_ms = 10_000.0
        self.port = sdk.PortHandler(path)
        self.packets = sdk.PacketHandler(0)
        assert self.port.openPort()
        # It waits 34 ms from the factory, which a busy machine may need for itself; LeRobot makes it longer too.
        self.port.setPacketTimeout = lambda length: self.port.setPacketTimeoutMillis(self.patience_ms)

    def read(self, servo: int, name: str) -> tuple[int, int, int]:
        """Value, result, error byte."""
        register = REGISTERS[name]
        reader = self.packets.read1ByteTxRx if register.size == 1 else self.packets.read2ByteTxRx
        return tuple(reader(self.port, servo, register.address))

    def write(self, servo: int, name: str, value: int) -> tuple[int, int]:
        register = REGISTERS[name]
        writer = self.packets.write1ByteTxRx if register.size == 1 else self.packets.write2ByteTxRx
        return tuple(writer(self.port, servo, register.address, value))

    def sync_read(self, name: str) -> tuple[int, dict[int, int]]:
        """Result and values."""
        register = REGISTERS[name]
        group = sdk.GroupSyncRead(self.port, self.packets, register.address, register.size)
        for servo in IDS:
            group.addParam(servo)
        result = group.txRxPacket()
        return result, {servo: group.getData(servo, register.address, register.size) for servo in IDS}

    def sync_write(self, name: str, values: dict[int, int]) -> int:
        register = REGISTERS[name]
        group = sdk.GroupSyncWrite(self.port, self.packets, register.address, register.size)
        for servo, value in values.items():
            group.addParam(servo, list(value.to_bytes(register.size, "little")))
        return int(group.txPacket())


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=1) as arm:
        arm.place(list(POSITIONS.values()))
        yield arm


@pytest.fixture
def client(arm: VirtualBus) -> Iterator[Client]:
    client = Client(arm.path)
    yield client
    client.port.closePort()


def test_sdk_pings_six_and_no_seventh(client: Client) -> None:
    for servo in IDS:
        assert client.packets.ping(client.port, servo) == (777, sdk.COMM_SUCCESS, 0)
    client.patience_ms = 300.0
    assert client.packets.ping(client.port, 7)[1] == sdk.COMM_RX_TIMEOUT


def test_sdk_reads_and_writes(client: Client, arm: VirtualBus) -> None:
    assert client.read(1, "Present_Position") == (1111, sdk.COMM_SUCCESS, 0)
    assert client.write(1, "Homing_Offset", 85 | 1 << 11) == (sdk.COMM_SUCCESS, 0)
    assert arm.servos[1].get("Homing_Offset") == -85
    assert client.read(1, "Present_Position")[0] == 1111 + 85


def test_sdk_sync_reads_and_writes(client: Client, arm: VirtualBus) -> None:
    assert client.sync_read("Present_Position") == (sdk.COMM_SUCCESS, POSITIONS)
    assert client.sync_write("Goal_Position", dict.fromkeys(IDS, 2000)) == sdk.COMM_SUCCESS
    entry = arm.log.wait_for(lambda entry: entry.instruction == "SYNC_WRITE", 20.0)
    assert entry.values == {servo: {"Goal_Position": 2000} for servo in IDS}
    assert set(arm.values("Goal_Position")) == {2000}


def test_sdk_sees_the_error_byte(client: Client, arm: VirtualBus) -> None:
    arm.inject({"fault": "flags", "ids": [5], "bits": "overload"})
    assert client.read(5, "Present_Position") == (1555, sdk.COMM_SUCCESS, 32)
    assert client.read(5, "Status") == (32, sdk.COMM_SUCCESS, 32)
    assert client.write(5, "Torque_Enable", 1) == (sdk.COMM_SUCCESS, 32)
    assert client.sync_read("Present_Position") == (sdk.COMM_SUCCESS, POSITIONS)


SILENCE = {sdk.COMM_RX_TIMEOUT}
DAMAGE = {sdk.COMM_RX_CORRUPT, sdk.COMM_RX_TIMEOUT}  # which of them depends on the byte


@pytest.mark.parametrize(
    ("fault", "results"),
    [
        ({"fault": "silent", "ids": [3]}, SILENCE),
        ({"fault": "deaf", "ids": [3]}, SILENCE),
        ({"fault": "power", "on": False}, SILENCE),
        ({"fault": "corrupt", "ids": [3]}, DAMAGE),
        ({"fault": "truncate", "ids": [3]}, DAMAGE),
    ],
)
def test_sdk_fails_as_on_a_bad_bus(client: Client, arm: VirtualBus, fault: dict[str, Any], results: set[int]) -> None:
    arm.inject(fault)
    client.patience_ms = 300.0
    assert client.sync_read("Present_Position")[0] in results
    arm.inject({"fault": "clear"})
    client.patience_ms = 10_000.0
    client.port.ser.reset_input_buffer()
    assert client.sync_read("Present_Position") == (sdk.COMM_SUCCESS, POSITIONS)


def test_sdk_client_may_come_and_go(arm: VirtualBus) -> None:
    for _ in range(3):
        client = Client(arm.path)
        assert client.sync_read("Present_Position") == (sdk.COMM_SUCCESS, POSITIONS)
        client.port.closePort()


def test_sdk_changes_an_id_and_is_answered_under_the_old_one(client: Client, arm: VirtualBus) -> None:
    """As LeRobot's `setup_motor` does, and waits for it."""
    assert client.write(6, "Lock", 0) == (sdk.COMM_SUCCESS, 0)
    assert client.write(6, "ID", 9) == (sdk.COMM_SUCCESS, 0)
    assert client.read(9, "Present_Position") == (POSITIONS[6], sdk.COMM_SUCCESS, 0)


def test_a_broadcast_ping_is_answered_and_a_broadcast_read_is_not(client: Client, arm: VirtualBus) -> None:
    client.port.ser.write(frame(sdk.BROADCAST_ID, Instruction.READ, bytes((56, 2))))
    client.port.ser.write(frame(sdk.BROADCAST_ID, Instruction.PING))
    arm.log.wait_for(lambda entry: entry.request is not None and entry.frame.servo == 6, 20.0)
    assert [entry.instruction for entry in arm.log] == ["READ", "PING", *["STATUS"] * 6]


def test_a_servo_lies_about_one_register_and_its_answer_is_whole(client: Client, arm: VirtualBus) -> None:
    arm.inject({"fault": "lie", "ids": [3], "value": 200, "count": 2})
    assert client.read(3, "Present_Temperature")[0] == 30
    assert client.sync_read("Present_Position") == (sdk.COMM_SUCCESS, POSITIONS | {3: 200})
    assert client.read(3, "Present_Position") == (200, sdk.COMM_SUCCESS, 0)
    assert client.read(3, "Present_Position") == (POSITIONS[3], sdk.COMM_SUCCESS, 0)
    arm.inject({"fault": "lie", "ids": [3], "name": "Present_Load", "value": -5})
    assert client.read(3, "Present_Load")[0] == 5 | 1 << 10


def test_a_write_is_answered_and_lost(client: Client, arm: VirtualBus) -> None:
    arm.inject({"fault": "lost_write", "ids": [2], "name": "Goal_Position", "count": 2})
    assert client.write(2, "Acceleration", 50) == (sdk.COMM_SUCCESS, 0)
    assert client.write(2, "Goal_Position", 1000) == (sdk.COMM_SUCCESS, 0)
    client.sync_write("Goal_Position", dict.fromkeys(IDS, 1200))
    assert client.sync_read("Goal_Position")[1] == dict.fromkeys(IDS, 1200) | {2: POSITIONS[2]}
    assert arm.servos[2].get("Acceleration") == 50
    client.write(2, "Goal_Position", 1000)
    assert arm.servos[2].get("Goal_Position") == 1000


def test_an_echo_is_lost() -> None:
    chain = ServoChain()
    chain.inject({"fault": "echo"})
    chain.inject({"fault": "lost_echo", "count": 1})
    (request,) = FrameDecoder().feed(ping(3))
    assert [raw for _, raw in chain.hear(request).said] == [frame(3, 0)]
    assert [raw for _, raw in chain.hear(request).said] == [ping(3), frame(3, 0)]


def test_a_detached_servo_has_no_supply_and_hears_nothing(client: Client, arm: VirtualBus) -> None:
    client.sync_write("Torque_Enable", dict.fromkeys(IDS, 1))
    arm.inject({"fault": "detach", "ids": [2, 3]})
    client.patience_ms = 300.0
    assert client.packets.ping(client.port, 2)[1] == sdk.COMM_RX_TIMEOUT
    arm.inject({"fault": "attach", "ids": [2]})
    client.patience_ms = 10_000.0
    assert client.read(2, "Torque_Enable") == (0, sdk.COMM_SUCCESS, 0)
    arm.inject({"fault": "clear"})
    assert client.read(3, "Torque_Enable") == (0, sdk.COMM_SUCCESS, 0)


def test_the_servos_write_down_what_they_did() -> None:
    seconds = [0.0]
    chain = ServoChain(clock=lambda: seconds[0])
    goals = dict.fromkeys(IDS, 2048) | {1: 2388}
    for request in (sync_write("Torque_Enable", dict.fromkeys(IDS, 1)), sync_write("Goal_Position", goals)):
        chain.hear(*FrameDecoder().feed(request))
    seconds[0] = 0.5
    chain.advance()
    chain.hear(*FrameDecoder().feed(sync_write("Torque_Limit", {2: 100})))
    seconds[0] = 0.6
    chain.advance()
    torque = [(each.time_s, all(each.torque)) for each in chain.moments]
    assert torque == [(0.0, False), (0.0, True), (0.0, True), (0.5, True), (0.5, True), (0.6, True)]
    assert [each.goals[0] for each in chain.moments] == [2048, 2048, 2388, 2388, 2388, 2388]
    assert [each.limits[1] for each in chain.moments] == [1000] * 4 + [100] * 2
    assert [each.positions[0] for each in chain.moments][2:] == [2048, 2388, 2388, 2388]
    assert [each.fastest[0] for each in chain.moments] == [0, 0, 0, 3400, 0, 0]  # though it is at rest by then
    assert chain.moments[-1].positions[1] == pytest.approx(2048 + 0.1 * 3400 * 0.06)
    assert chain.moments[-1].fastest[1] == pytest.approx(3400 * 0.06)


def test_in_one_process_on_a_clock_that_only_waiting_moves() -> None:
    clock = VirtualClock()
    chain = ServoChain(clock=clock, wire_time=True)
    port = VirtualPort(chain, clock)
    port.open()
    port.write(sync_read(IDS, "Present_Position"))
    heard = FrameDecoder().feed(b"".join(port.read(port.now() + 0.05) for _ in IDS))
    assert [status.servo for status in heard] == list(IDS)
    assert clock.now() == pytest.approx(14 * 10e-6 + 6 * (500e-6 + 8 * 10e-6))
    chain.inject({"fault": "deaf", "ids": [4]})
    port.write(read(4, "Present_Position"))
    assert port.read(7.0) == b""
    assert clock.now() == 7.0
    port.write(ping(1))
    assert port.read(8.0, most=2) + port.read(8.0, most=99) == frame(1, 0)
    chain.inject({"fault": "unplug"})
    with pytest.raises(BusError, match="the port is gone"):
        port.write(ping(1))
    with pytest.raises(BusError, match="is not there"):
        port.open()
    chain.inject({"fault": "replug"})
    port.open()
    port.write(ping(1))
    assert port.read(8.0) == frame(1, 0)


def test_reg_write_waits_for_action(client: Client, arm: VirtualBus) -> None:
    client.packets.regWriteTxRx(client.port, 1, 42, 2, list(encode("Goal_Position", 1024)))
    assert arm.servos[1].get("Goal_Position") == 1111
    client.packets.action(client.port, sdk.BROADCAST_ID)
    arm.log.wait_for(lambda entry: entry.instruction == "ACTION", 20.0)
    assert client.read(1, "Goal_Position")[0] == 1024


def test_status_level_0_answers_only_ping_and_read(client: Client, arm: VirtualBus) -> None:
    arm.inject({"fault": "register", "ids": [1], "name": "Response_Status_Level", "value": 0})
    client.patience_ms = 300.0
    assert client.write(1, "Torque_Enable", 1)[0] == sdk.COMM_RX_TIMEOUT
    client.patience_ms = 10_000.0
    assert client.read(1, "Torque_Enable") == (1, sdk.COMM_SUCCESS, 0)


def test_nonsense_harms_nobody(client: Client, arm: VirtualBus) -> None:
    dice = random.Random(1)
    for _ in range(300):
        servo, size = dice.choice([0, 1, 6, 7, 254]), dice.choice([0, 1, 2, 3, 5, 30])
        code = dice.choice([*Instruction, 0x06, 0x99])
        client.port.ser.write(frame(servo, code, dice.randbytes(size)) + dice.randbytes(10))
        client.port.ser.reset_input_buffer()
    client.port.ser.write(frame(2, Instruction.PING))
    answer = arm.log.wait_for(lambda entry: entry.request == Frame(2, Instruction.PING, b""), 20.0)
    assert answer.frame.servo == 2
    assert all(str(entry) for entry in arm.log)


# Plant, time, plugs.


class Weight:
    """A plant that hangs where it hangs."""

    def felt(self) -> list[Felt]:
        return [Felt(shaft, 0.0, 0.0) for shaft in (1000.4, 2000.6, 3000.0, 1500.0, 1600.0, 1700.0)]


def test_a_plant_says_where_the_shafts_are_and_is_told_where_to_go() -> None:
    with VirtualBus(plant=Weight(), clock=lambda: 1.0) as arm:
        client = Client(arm.path)
        assert client.sync_read("Present_Position")[1] == {1: 1000, 2: 2001, 3: 3000, 4: 1500, 5: 1600, 6: 1700}
        client.write(2, "Torque_Enable", 1)
        client.write(2, "Goal_Position", 3000)
        client.port.closePort()
        arm.inject({"fault": "push", "ids": [3], "force": -0.5})
        targets = arm.targets()
        assert targets.forces.tolist() == [1] * 6  # one is under torque; five stand where they were put
        assert targets.setpoints.tolist() == [2048, 2000.6, 2048, 2048, 2048, 2048]  # time stands still
        assert targets.pushes.tolist() == [0, 0, -0.5, 0, 0, 0]
        arm.inject({"fault": "hand", "on": False, "ids": [1, 3, 4, 5, 6]})
        assert arm.targets().forces.tolist() == [0, 1, 0, 0, 0, 0]


def time_of(arm: VirtualBus, cycles: int = 20) -> float:
    """The fastest of some sync reads, in seconds."""
    client = Client(arm.path)
    best = 1.0
    for _ in range(cycles):
        began = time.monotonic()
        assert client.sync_read("Present_Position")[0] == sdk.COMM_SUCCESS
        best = min(best, time.monotonic() - began)
    client.port.closePort()
    return best


def test_wire_time_is_10_us_a_byte_and_return_delay_2_us_a_count() -> None:
    with VirtualBus(wire_time=True, return_delay_s=0.0) as arm:
        assert time_of(arm) >= 620e-6
    with VirtualBus(wire_time=True) as arm:  # register 7 = 250 from the factory
        assert time_of(arm) >= 3620e-6
    with VirtualBus(return_delay_s=0.001) as arm:
        assert time_of(arm) >= 6e-3


def test_unplugging_takes_the_name_and_replugging_gives_it_back(tmp_path: Path) -> None:
    link = tmp_path / "arm"
    with VirtualBus(link=link) as arm:
        assert arm.path == str(link)
        arm.servos[1].set("Torque_Enable", 1)
        client = Client(arm.path)
        arm.inject({"fault": "unplug"})
        arm.inject({"fault": "unplug"})
        assert arm.path == ""
        assert not link.exists()
        assert os.read(client.port.ser.fileno(), 1) == b""  # hung up
        client.port.closePort()
        arm.inject({"fault": "replug"})
        client = Client(str(link))
        assert client.read(1, "Torque_Enable")[0] == 1  # the servos' supply was another
        client.port.closePort()
    assert not link.is_symlink()


def test_a_reboot_and_a_lost_supply_end_torque(arm: VirtualBus, client: Client) -> None:
    client.sync_write("Torque_Enable", dict.fromkeys(IDS, 1))
    assert client.sync_read("Torque_Enable")[1] == dict.fromkeys(IDS, 1)
    arm.inject({"fault": "reboot", "ids": [2]})
    assert client.sync_read("Torque_Enable")[1] == {**dict.fromkeys(IDS, 1), 2: 0}
    arm.inject({"fault": "power", "on": False})
    arm.inject({"fault": "power", "on": True})
    assert client.sync_read("Torque_Enable")[1] == dict.fromkeys(IDS, 0)


def test_the_link_must_not_hide_a_file(tmp_path: Path) -> None:
    (tmp_path / "arm").write_text("mine")
    with pytest.raises(OutputError, match="link: cannot create"), VirtualBus(link=tmp_path / "arm"):
        pass
    assert (tmp_path / "arm").read_text() == "mine"
    (tmp_path / "old").symlink_to("/dev/pts/999")
    with VirtualBus(link=tmp_path / "old") as arm:
        assert os.stat(arm.path).st_rdev


def test_a_link_is_one_line_s_and_whoever_else_takes_it_keeps_it(tmp_path: Path) -> None:
    link, way_round = tmp_path / "arm", tmp_path / "x" / ".." / "arm"
    (tmp_path / "x").mkdir()
    with VirtualBus(link=link) as arm:
        arm.inject({"fault": "unplug"})  # the name is ours all the same
        with pytest.raises(OutputError, match="arm: a virtual arm that runs has it"), VirtualBus(link=way_round):
            pass
        arm.inject({"fault": "replug"})
        assert os.stat(link).st_rdev
        link.unlink()
        link.symlink_to("/dev/null")
    assert str(link.readlink()) == "/dev/null"
    with VirtualBus(link=way_round):
        assert os.stat(link).st_rdev != os.stat("/dev/null").st_rdev


def test_the_log_is_for_people_too(arm: VirtualBus, client: Client) -> None:
    client.write(3, "Goal_Position", 1500)
    client.read(3, "Goal_Position")
    words = [str(entry).partition(" ")[2] for entry in arm.log]
    assert words == [
        "WRITE 3 Goal_Position 3=1500",
        "STATUS 3",
        "READ 3 Goal_Position",
        "STATUS 3 Goal_Position 3=1500",
    ]
    assert [entry.registers for entry in arm.log.writes("Goal_Position")] == [("Goal_Position",)]


def test_the_log_forgets_the_oldest() -> None:
    with VirtualBus(log_size=3) as arm:
        client = Client(arm.path)
        for servo in IDS:
            client.read(servo, "Present_Position")
        client.port.closePort()
        assert [entry.frame.servo for entry in arm.log] == [5, 6, 6]


@pytest.fixture
def page() -> str:
    page = Path(__file__).resolve().parents[3] / "docs" / "virtual-arm.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    return page.read_text()


def test_the_pages_program_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    assert capsys.readouterr().out.count("Frame(servo=") == 6


def test_the_page_says_of_each_fault_what_it_takes(page: str) -> None:
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    told = {word: re.findall(r"`(\w+)`", takes) for words, takes in rows for word in re.findall(r"`(\w+)`", words)}
    general = {"rate", "count", "on"}
    assert told == {word: [key for key in keys if word == "power" or key not in general] for word, keys in KEYS.items()}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({}, "fault: None is not one of deaf, silent"),
        ({"fault": "corupt"}, "'corupt' is not one of .*; corrupt?"),
        ({"fault": "silent", "ids": [7]}, r"ids: \[7\] is not a list of 1, 2, 3, 4, 5, 6"),
        ({"fault": "silent", "ids": 3}, "ids: 3 is not a list"),
        ({"fault": "silent", "rate": 2}, r"rate: 2 is not a number in 0\.\.1"),
        ({"fault": "silent", "rate": True}, "rate: True"),
        ({"fault": "late", "delay_s": "long"}, "delay_s: 'long'"),
        ({"fault": "echo", "ids": [1]}, "ids: echo takes on, rate, count"),
        ({"fault": "unplug", "on": True}, "on: unplug takes nothing"),
        ({"fault": "flags"}, "bits: flags needs it"),
        ({"fault": "flags", "bits": "overheat"}, "bits: 'overheat' is neither"),
        ({"fault": "power", "on": "off"}, "on: 'off' is neither true nor false"),
        ({"fault": "register", "name": "Gaol_Position", "value": 1}, "did you mean Goal_Position"),
        ({"fault": "register", "name": "Lock", "value": 70000}, "value: 70000"),
        ({"fault": "lie", "ids": [1]}, "value: lie needs it"),
        ({"fault": "lie", "name": "Present_Positon", "value": 1}, "did you mean Present_Position"),
        ({"fault": "push", "ids": [2]}, "force: push needs it"),
        ({"fault": "push", "force": 3}, r"force: 3 is not a number in -2\.\.2"),
        ({"fault": "hand", "ids": [2]}, "position: hand needs it"),
        ({"fault": "hand", "ids": [2], "position": float("nan")}, "position: nan is not a number"),
        ({"fault": "detach", "on": False}, "on: detach takes ids"),
    ],
)
def test_a_wrong_order_is_refused(arm: VirtualBus, order: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arm.inject(order)


def test_the_calibration_file_is_the_servos_own(tmp_path: Path, arm: VirtualBus) -> None:
    calibration = load(write_calibration(tmp_path, "virtual"))
    assert calibration == CALIBRATION
    for entry in calibration.values():
        servo = arm.servos[entry.id]
        assert servo.get("Homing_Offset") == entry.homing_offset
        assert servo.get("Min_Position_Limit") == entry.range_min
        assert servo.get("Max_Position_Limit") == entry.range_max


def test_units_of_the_virtual_arm_are_lerobots() -> None:
    for ticks in (1940, 2048, 3000):
        units = to_units(np.full(6, float(ticks)))
        for index, entry in enumerate(CALIBRATION.values()):
            mode = Mode.PERCENT if entry.id == 6 else Mode.DEGREES
            assert units[index] == pytest.approx(entry.to_units(ticks, mode), abs=1e-9)
        assert to_ticks(units) == pytest.approx([ticks] * 6)


# A bench: hands, new servos, other rates.


def hand(arm: ServoChain, positions: dict[int, float]) -> None:
    for joint, position in positions.items():
        arm.inject({"fault": "hand", "ids": [joint], "position": position})


def test_a_hand_turns_a_limp_joint_past_the_encoders_end_and_not_an_energised_one() -> None:
    with VirtualBus() as arm, Bus(arm.path) as bus:
        hand(arm, {1: 4095, 2: 4096, 3: -1})
        assert bus.read_all("Present_Position", [1, 2, 3]) == {1: 4095, 2: 0, 3: 4095}
        arm.inject({"fault": "register", "ids": [2], "name": "Phase", "value": 12 | 16})
        assert bus.read(2, "Present_Position") == 4096  # with multi-turn feedback
        bus.establish("Goal_Position", {4: 2048})
        bus.establish("Torque_Enable", {4: 1})
        with pytest.raises(ConfigError, match="ids: servo 4 is under torque, against which no hand"):
            hand(arm, {4: 100})
        assert bus.read(4, "Present_Position") == 2048


def test_a_hand_holds_until_it_lets_go() -> None:
    seconds = [0.0]
    arm = ServoChain(clock=lambda: seconds[0])
    hand(arm, {2: 1500})
    seconds[0] = 1.0
    assert arm.positions()[1] == 1500
    arm.inject({"fault": "hand", "ids": [2], "on": False})
    seconds[0] = 9.0
    assert arm.positions().tolist() == [2048, WEIGHTS[2].rest, 2048, 2048, 2048, 2048]


def test_a_servo_hears_only_its_own_rate_and_answers_to_the_id_in_its_memory() -> None:
    with VirtualBus() as arm, Bus(arm.path) as bus:
        arm.inject({"fault": "register", "ids": [6], "name": "ID", "value": 9})
        arm.inject({"fault": "register", "ids": [6], "name": "Baud_Rate", "value": 3})
        assert bus.discover() == [1, 2, 3, 4, 5]
        bus.set_baud(128_000)
        assert bus.discover() == [9]
