"""The bus over a pty: every fault of the line is survived or named, and no value is ever made up."""

import fcntl
import logging
import os
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_runtime.errors import AccessError, BusError, BusTimeout
from edge_runtime.motors import feetech
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.port import Port
from edge_runtime.virtual_arm.bus import VirtualBus

IDS = range(1, 7)
POSITIONS = {1: 1111, 2: 2222, 3: 1333, 4: 2444, 5: 1555, 6: 2666}


@pytest.fixture
def arm() -> Iterator[VirtualBus]:
    with VirtualBus(seed=1) as arm:
        arm.place(list(POSITIONS.values()))
        yield arm


@pytest.fixture
def bus(arm: VirtualBus) -> Iterator[Bus]:
    with Bus(arm.path, names={3: "elbow_flex"}, timeout_s=0.1) as bus:
        yield bus


@pytest.fixture
def patient(arm: VirtualBus) -> Iterator[Bus]:
    """No answer is too late for it."""
    with Bus(arm.path, names={3: "elbow_flex"}, timeout_s=10.0) as bus:
        yield bus


def test_asks_and_tells(patient: Bus, arm: VirtualBus) -> None:
    assert patient.ping(4)
    assert patient.read(1, "Model_Number") == 777
    patient.write(2, "Goal_Velocity", -300)
    assert patient.read(2, "Goal_Velocity") == -300
    assert patient.sync_read("Present_Position", IDS) == POSITIONS
    patient.establish("Goal_Position", POSITIONS)
    assert dict(zip(IDS, arm.values("Goal_Position"), strict=True)) == POSITIONS
    assert (patient.misses, patient.damaged, patient.stray) == ({}, 0, 0)


def test_one_silent_servo_costs_the_others_nothing(bus: Bus, arm: VirtualBus) -> None:
    arm.inject({"fault": "silent", "ids": [3]})
    found = bus.sync_read("Present_Position", IDS)
    assert found == {servo: ticks for servo, ticks in POSITIONS.items() if servo != 3}
    assert bus.misses[3] == 3
    with pytest.raises(BusTimeout, match=r"no answer from elbow_flex \(id 3\) about Present_Position") as caught:
        bus.read_all("Present_Position", IDS)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.motor == 3
    assert not bus.ping(3)
    with pytest.raises(BusTimeout, match="elbow_flex"):
        bus.write(3, "Lock", 1)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("fault", ["corrupt", "truncate", "silent", "foreign", "junk", "deaf"])
def test_a_bad_line_gives_true_values_or_none(arm: VirtualBus, fault: str, rate: float) -> None:
    arm.inject({"fault": fault, "rate": rate})
    complete = 0
    with Bus(arm.path, timeout_s=0.03) as bus:
        for _ in range(10):
            found = bus.sync_read("Present_Position", IDS)
            complete += len(found) == 6
            assert found.items() <= POSITIONS.items()
    assert complete >= (5 if rate == 0.1 else 1)  # retries ask again for what is missing


def test_wrong_order_and_single_bytes_are_read_all_the_same(patient: Bus, arm: VirtualBus) -> None:
    arm.inject({"fault": "order"})
    arm.inject({"fault": "bytewise", "delay_s": 0.0001})
    assert patient.sync_read("Present_Position", IDS) == POSITIONS
    assert patient.misses == {}


def test_all_faults_at_once(arm: VirtualBus) -> None:
    for fault in ("corrupt", "truncate", "silent", "foreign", "junk", "order", "bytewise", "late"):
        arm.inject({"fault": fault, "rate": 0.2})
    with Bus(arm.path, timeout_s=0.03) as bus:
        for _ in range(10):
            assert bus.sync_read("Present_Position", IDS).items() <= POSITIONS.items()


def test_a_late_answer_is_not_taken_for_the_next_ones(arm: VirtualBus) -> None:
    with Bus(arm.path, timeout_s=0.5, retries=0) as bus:
        arm.servos[1].set("Present_Voltage", 120)
        arm.servos[1].set("Present_Temperature", 31)
        arm.inject({"fault": "late", "ids": [1], "delay_s": 0.8, "count": 1})
        with pytest.raises(BusTimeout):
            bus.read(1, "Present_Voltage")
        assert bus.read(1, "Present_Temperature") == 31  # both are one byte of the same servo
        assert bus.stray == 7


class Behind(Port):
    """A line without time: its adapter kept one answer, and since then gives each one when the next is asked for."""

    def __init__(self, registers: dict[int, int]) -> None:
        super().__init__("/dev/none")
        self._table = bytearray(100)
        for address, value in registers.items():
            self._table[address : address + 2] = value.to_bytes(2, "little")
        self._asked = 0
        self._late = b""
        self._heard = b""

    def write(self, data: bytes) -> None:
        address, count = data[5], data[6]
        answer = feetech.frame(1, 0, bytes(self._table[address : address + count]))
        self._asked += 1
        self._heard, self._late = (b"", answer) if self._asked == 1 else (self._late + answer, b"")

    def read(self, deadline: float, most: int = 4096) -> bytes:
        heard, self._heard = self._heard, b""
        return heard


class Later(Behind):
    """And that answer comes only with the one to the third question, which is about another register."""

    def write(self, data: bytes) -> None:
        late, self._late = self._late, b""
        super().write(data)
        self._late, self._heard = (self._late + late, self._heard) if self._asked < 3 else (b"", late + self._heard)


@pytest.mark.parametrize("line", [Behind, Later])
@pytest.mark.parametrize("ask", ["read", "sync_read"])
def test_a_late_answer_is_told_by_its_length_however_late(line: type[Behind], ask: str) -> None:
    """Lengths and servo agree, and no wait was long enough: range_max once read what range_min is, so."""
    bus = Bus(line({9: 1427, 11: 3300}), timeout_s=0.0)

    def value(name: str) -> int:
        return bus.read(1, name) if ask == "read" else bus.read_all(name, [1])[1]

    assert value("Min_Position_Limit") == 1427
    assert value("Max_Position_Limit") == 3300
    assert value("Min_Position_Limit") == 1427


def test_what_decides_is_read_twice_once_anything_was_late(
    bus: Bus, arm: VirtualBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> int:
        return len([entry for entry in arm.log if entry.request is None and "Model_Number" in entry.registers])

    assert bus.read_surely("Model_Number", IDS) == dict.fromkeys(IDS, 777)
    once = asked()
    arm.inject({"fault": "silent", "ids": [3], "count": 1})
    assert bus.ping(3)
    arm.log.clear()
    assert bus.read_surely("Model_Number", IDS) == dict.fromkeys(IDS, 777)
    assert (once, asked()) == (1, 2)
    servo, lies = arm.servos[3], iter(range(3000, 4000))
    monkeypatch.setattr(servo, "read", lambda address, count: next(lies).to_bytes(2, "little").rjust(count, b"\0"))
    with pytest.raises(BusError, match=r"elbow_flex \(id 3\) answers \d+, then \d+ about .*latency_timer"):
        bus.read_surely("Max_Position_Limit", IDS)


def test_status_errors_do_not_spoil_values_and_are_reported_once(
    patient: Bus, arm: VirtualBus, caplog: pytest.LogCaptureFixture
) -> None:
    arm.inject({"fault": "flags", "bits": "over-temperature"})
    arm.inject({"fault": "flags", "ids": [3], "bits": 33})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert patient.sync_read("Present_Position", IDS) == POSITIONS
    assert patient.flags == {1: 4, 2: 4, 3: 33, 4: 4, 5: 4, 6: 4}
    assert len(caplog.records) == 6
    assert "elbow_flex (id 3) reports voltage and overload" in caplog.messages
    patient.write(3, "Torque_Enable", 1)  # arrived, whatever the servo complains of


def test_what_did_not_arrive_is_written_again(patient: Bus, arm: VirtualBus) -> None:
    arm.inject({"fault": "deaf", "ids": [2, 5], "count": 2})
    patient.establish("Torque_Enable", dict.fromkeys(IDS, 1))
    assert [list(entry.values) for entry in arm.log.writes("Torque_Enable")] == [[1, 2, 3, 4, 5, 6], [2, 5]]
    assert all(arm.values("Torque_Enable"))


def test_what_cannot_be_set_is_named_and_the_rest_is_set(bus: Bus, arm: VirtualBus) -> None:
    arm.inject({"fault": "silent", "ids": [3]})
    with pytest.raises(BusError, match=r"Torque_Limit could not be set: elbow_flex \(id 3\) did not confirm"):
        bus.establish("Torque_Limit", dict.fromkeys(IDS, 400))
    assert set(arm.values("Torque_Limit")) == {400}
    arm.inject({"fault": "clear"})
    arm.inject({"fault": "deaf", "ids": [3], "rate": 0.0})
    with pytest.raises(BusError, match="servo 4 has 777, not 1"):
        bus.establish("Model_Number", {4: 1})


def test_waiting_costs_no_cpu(arm: VirtualBus) -> None:
    arm.inject({"fault": "silent"})
    with Bus(arm.path, timeout_s=0.3, retries=0) as bus:
        wall, cpu = time.monotonic(), time.thread_time()
        assert bus.sync_read("Present_Position", IDS) == {}
        assert time.monotonic() - wall >= 0.3
        assert time.thread_time() - cpu < 0.03


# An echoing line.


def test_echo_is_read_back(arm: VirtualBus) -> None:
    arm.inject({"fault": "echo"})
    with Bus(arm.path, echo=True, timeout_s=10.0) as bus:
        assert bus.read(1, "Present_Position") == POSITIONS[1]  # without the option, 568 and a sensor error
        assert bus.sync_read("Present_Position", IDS) == POSITIONS
        bus.establish("Torque_Enable", dict.fromkeys(IDS, 1))
        assert (bus.damaged, bus.stray, bus.misses) == (0, 0, {})


def test_echo_that_was_not_expected_is_named(arm: VirtualBus) -> None:
    arm.inject({"fault": "echo"})
    with Bus(arm.path, timeout_s=10.0) as bus, pytest.raises(BusError, match=r"--robot\.echo=true"):
        bus.sync_read("Model_Number", IDS)


def test_a_missing_echo_is_named(arm: VirtualBus) -> None:
    with Bus(arm.path, echo=True) as bus, pytest.raises(BusError, match=r"does not echo.*--robot\.echo=false"):
        bus.sync_write("Torque_Enable", {1: 0})


# The port.


def test_unplugging_is_one_error_and_then_a_closed_port(bus: Bus, arm: VirtualBus) -> None:
    assert bus.ping(1)
    arm.inject({"fault": "unplug"})
    with pytest.raises(BusError, match="the port is gone: unplugged, or its adapter lost power") as caught:
        bus.ping(1)
    assert caught.value.port == bus.port
    assert not bus.is_open
    with pytest.raises(BusError, match="is not open"):
        bus.sync_write("Torque_Enable", {1: 0})
    bus.close()
    bus.close()


def test_unplugging_wakes_who_waits(arm: VirtualBus) -> None:
    arm.inject({"fault": "silent"})
    with Bus(arm.path, timeout_s=60.0, retries=0) as bus:

        def pull() -> None:
            arm.log.wait_for(lambda entry: entry.instruction == "SYNC_READ", 20.0)
            arm.inject({"fault": "unplug"})

        thread = threading.Thread(target=pull)
        thread.start()
        with pytest.raises(BusError, match="port is gone"):  # and not: nothing, when it had waited
            bus.sync_read("Present_Position", IDS)
        thread.join()


def test_replugging_under_the_same_name_works_again(tmp_path: Path) -> None:
    with VirtualBus(link=tmp_path / "arm") as arm:
        bus = Bus(arm.path)
        bus.open()
        arm.inject({"fault": "unplug"})
        assert not (tmp_path / "arm").is_symlink()
        with pytest.raises(BusError, match="port is gone"):
            bus.ping(1)
        with pytest.raises(BusError, match="is not there"):
            bus.open()
        arm.inject({"fault": "replug"})
        with bus:
            assert bus.ping(1)


def test_a_bus_has_one_owner(bus: Bus, arm: VirtualBus) -> None:
    with pytest.raises(BusError, match=r"^robot\.port: .* is in use by another program"):
        Bus(arm.path).open()
    assert bus.ping(1)  # and its owner is not disturbed
    bus.close()
    with Bus(arm.path) as second:
        assert second.ping(1)


def is_exclusive(path: str) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        return bool(struct.unpack("i", fcntl.ioctl(fd, 0x80045440, bytes(4)))[0])  # TIOCGEXCL
    finally:
        os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open an exclusive port, to look at its flag")
def test_the_port_is_closed_to_those_who_ask_for_no_lock(bus: Bus, arm: VirtualBus) -> None:
    assert is_exclusive(arm.path)
    bus.close()
    assert not is_exclusive(arm.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open an exclusive port, to look at its flag")
def test_a_killed_owner_does_not_lock_the_virtual_port(arm: VirtualBus) -> None:
    code = (
        "import os, sys; from edge_runtime.motors.bus import Bus; b = Bus(sys.argv[1]); b.open(); print(b.ping(1));"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, arm.path], capture_output=True, text=True, timeout=20)
    assert done.returncode == -9, done.stderr
    fd = os.open(arm.path, os.O_RDWR | os.O_NOCTTY)
    try:
        deadline = time.monotonic() + 10.0
        while is_exclusive(arm.path) and time.monotonic() < deadline:
            arm.log.wait_for(lambda entry: True, 0.1)
    finally:
        os.close(fd)
    assert not is_exclusive(arm.path)


def test_a_port_that_is_not_there_lists_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usb-Feetech_URT-if00").touch()
    monkeypatch.setattr("edge_runtime.motors.port.BY_ID", tmp_path)
    with pytest.raises(BusError, match=rf"^robot\.port: /dev/no.* is not there; .*{tmp_path}/usb-Feetech_URT-if00"):
        Bus("/dev/no-such-arm").open()
    monkeypatch.setattr("edge_runtime.motors.port.BY_ID", tmp_path / "none")
    with pytest.raises(BusError, match="is it plugged in"):
        Bus("/dev/no-such-arm").open()


def test_a_file_or_a_folder_is_no_port(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path, Path("/dev/null")):
        with pytest.raises(BusError, match=rf"^robot\.port: {path} (is not a serial port|cannot be opened)"):
            Bus(str(path)).open()


@contextmanager
def nobody() -> Iterator[None]:
    """As a user who may not do everything."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


def test_a_port_that_is_not_permitted_names_the_group(arm: VirtualBus) -> None:
    os.chmod(arm.path, 0)
    with nobody(), pytest.raises(AccessError, match=r"group \w+ only: sudo usermod -aG \w+ \$USER") as caught:
        Bus(arm.path).open()
    assert caught.value.exit_code == 77


def write_for_ever(bus: Bus) -> None:
    for _ in range(100_000):
        bus.sync_write("Torque_Enable", dict.fromkeys(IDS, 0))


def test_a_line_that_takes_nothing_is_named() -> None:
    """Nobody reads at the other end, until its buffer is full."""
    master, slave = os.openpty()
    bus = Bus(os.ttyname(slave), timeout_s=0.001)
    try:
        with bus, pytest.raises(BusTimeout, match="takes no more bytes"):
            write_for_ever(bus)
    finally:
        os.close(slave)
        os.close(master)


def test_while_the_loop_has_the_bus_nobody_else_may_talk(bus: Bus, arm: VirtualBus) -> None:
    fd = bus.lend()
    with pytest.raises(BusError, match="the loop owns the bus"):
        bus.ping(1)
    os.write(fd, bytes.fromhex("FF FF 01 04 02 38 02 BE"))
    arm.log.wait_for(lambda entry: entry.instruction == "STATUS", 5.0)
    bus.take_back()
    bus.take_back()
    assert bus.read(1, "Max_Position_Limit") == 3300  # not the position that the loop had asked for
    assert termios.tcgetattr(fd)[4] == termios.B1000000
