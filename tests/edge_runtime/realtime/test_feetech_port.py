"""FeetechPort on a pty: every worked frame, and everything that a bus does to an answer."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime._realtime import ActionRing, ActuatorLoop, FeetechPort
from edge_runtime.errors import ActuatorFault, ConfigError
from edge_runtime.motors import feetech
from edge_runtime.motors.calibration import JointCalibration, Mode

IDS = (1, 2, 3, 4, 5, 6)
TICKS = (2100, 2133, 0, 4095, 1438, 1500)
PRIMED = tuple(ticks + 5 for ticks in TICKS)  # where the loop believes the joints to be before it has heard them
ALL = feetech.sync_read(IDS, "Present_Position")
NEVER_NS = 2_000_000_000  # a time-out that no passing test waits for
SHORT_NS = 400_000_000  # one that is waited for, generous to a servo thread on a busy machine
Answer = Callable[[bytes], bytes | Sequence[bytes]]


def status(servo: int, ticks: int, flags: int = 0, size: int = 2) -> bytes:
    return feetech.frame(servo, flags, feetech.encode("Present_Position", ticks).ljust(size, b"\0"))


def damaged(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 0x10,))


def answers(request: bytes) -> list[bytes]:
    """What healthy servos say to a sync read, a frame each."""
    return [status(servo, TICKS[servo - 1], size=request[6]) for servo in request[7:-1]]


def port_on(fd: int, timeout_ns: int = NEVER_NS, **settings: bool) -> FeetechPort:
    """Six joints in degrees around tick 2048."""
    return FeetechPort(fd, IDS, [0] * 6, [0] * 6, [4096] * 6, [0] * 6, timeout_ns=timeout_ns, **settings)


class Line:
    """A pty with servos at its far end: `answer` is called with each read request; goals land in `written`."""

    def __init__(self, answer: Answer = answers) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.written: queue.Queue[bytes] = queue.Queue()
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        self._quit, self._told_to_quit = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def port(self, timeout_ns: int = NEVER_NS, **settings: bool) -> FeetechPort:
        return port_on(self.slave, timeout_ns, **settings)

    def hang_up(self) -> None:
        """The cable comes out."""
        self._end()
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self._end()
        for fd in {self.master, self.slave, self._quit, self._told_to_quit} - {-1}:
            os.close(fd)

    def _end(self) -> None:
        os.write(self._told_to_quit, b".")
        self._thread.join()

    def _serve(self) -> None:
        pending = b""
        while True:
            ready, _, _ = select.select([self.master, self._quit], [], [])
            if self._quit in ready:
                return
            pending += os.read(self.master, 4096)
            while len(pending) > 3 and len(pending) >= pending[3] + 4:
                request, pending = pending[: pending[3] + 4], pending[pending[3] + 4 :]
                if request[4] == feetech.Instruction.SYNC_WRITE:
                    self.written.put(request)
                else:
                    self.requests.append(request)
                    reply = self.answer(request)
                    for piece in [reply] if isinstance(reply, bytes) else reply:
                        os.write(self.master, piece)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def loop_on(port: FeetechPort, **settings: object) -> ActuatorLoop:
    loop = ActuatorLoop(ActionRing(50, port.joints), port, fps=30, **settings)  # type: ignore[arg-type]
    loop.prime([(ticks + 0.25 - 2048) * 360 / 4095 for ticks in PRIMED[: port.joints]])
    return loop


def ticks_of(loop: ActuatorLoop) -> list[int]:
    """The positions of the last record, back in ticks."""
    return [round(float(value) * 4095 / 360 + 2048) for value in loop.record.positions]


# -- frames and units -----------------------------------------------------------------------------------------------


def test_a_tick_is_one_sync_read_and_one_sync_write(line: Line) -> None:
    loop = loop_on(line.port())
    loop.tick(0)
    assert bytes.fromhex("FF FF FE 0A 82 38 02 01 02 03 04 05 06 26") == ALL
    assert line.requests == [ALL]
    assert ticks_of(loop) == list(TICKS)
    assert line.written.get(timeout=20) == feetech.sync_write("Goal_Position", dict(zip(IDS, PRIMED, strict=True)))


def test_goals_go_out_as_lerobots_own_bytes(line: Line) -> None:
    """The last worked frame of LeRobot's bus: 30, -20, 10, 0, 45 degrees and 50 %."""
    port = FeetechPort(
        line.slave,
        IDS,
        [0, 0, 0, 0, 0, 2],
        [800, 800, 800, 800, 0, 800],
        [3300, 3300, 3300, 3300, 4095, 3300],
        [0] * 6,
        timeout_ns=NEVER_NS,
    )
    loop = ActuatorLoop(ActionRing(50, 6), port, fps=30)
    loop.prime([30, -20, 10, 0, 45, 50])
    loop.tick(0)
    expected = "FF FF FE 16 83 2A 02 01 57 09 02 1E 07 03 73 08 04 02 08 05 FF 09 06 02 08 0B"
    assert line.written.get(timeout=20) == bytes.fromhex(expected)


WORKED = [  # mode, drive_mode, raw -> unit, unit -> raw; homing_offset -85, range 812..3304
    (0, 0, {812: -109.5385, 2048: -0.8791, 2058: 0, 3304: 109.5385, 3500: 126.7692}),
    (1, 0, {812: -100, 2048: -0.8026, 3304: 100, 3500: 100}),
    (2, 0, {812: 0, 2048: 49.5987, 3304: 100}),
]
WORKED_BACK = [
    (0, 0, {90: 3081, -90: 1034, 0.05: 2058, -0.05: 2057, 200: 4333}),
    (0, 1, {90: 3081}),
    (1, 0, {50: 2681, 130: 3304}),
    (1, 1, {50: 1435}),
    (2, 0, {50: 2058, -20: 812}),
    (2, 1, {-20: 3304}),
]


def test_ticks_to_units_as_lerobot_computes_them(line: Line) -> None:
    for mode, drive_mode, table in WORKED:
        port = FeetechPort(line.slave, [1], [mode], [812], [3304], [drive_mode], timeout_ns=1)
        assert {raw: port.to_units(0, raw) for raw in table} == pytest.approx(table, abs=5e-5)


def test_units_to_ticks_as_lerobot_computes_them(line: Line) -> None:
    for mode, drive_mode, table in WORKED_BACK:
        port = FeetechPort(line.slave, [1], [mode], [812], [3304], [drive_mode], timeout_ns=1)
        assert {units: port.to_raw(0, units) for units in table} == table


@given(
    mode=st.sampled_from(Mode),
    drive_mode=st.integers(0, 1),
    low=st.integers(0, 4000),
    span=st.integers(1, 4095),
    raw=st.integers(-5000, 5000),
    units=st.floats(-2000, 2000),
)
def test_the_loop_and_the_calibration_convert_alike(
    mode: Mode, drive_mode: int, low: int, span: int, raw: int, units: float
) -> None:
    reader, writer = os.pipe()
    try:
        port = FeetechPort(reader, [1], [mode], [low], [low + span], [drive_mode], timeout_ns=1)
    finally:
        os.close(reader)
        os.close(writer)
    calibration = JointCalibration(1, drive_mode, 0, low, low + span)
    assert port.to_units(0, raw) == calibration.to_units(raw, mode)
    assert port.to_raw(0, units) == calibration.to_ticks(units, mode)


@pytest.mark.parametrize("low", [811, 812])
def test_every_count_in_range_survives_the_way_to_degrees_and_back(line: Line, low: int) -> None:
    port = FeetechPort(line.slave, [1], [0], [low], [3304], [0], timeout_ns=1)
    assert [port.to_raw(0, port.to_units(0, raw)) for raw in range(low, 3305)] == list(range(low, 3305))


def test_positions_and_goals_below_zero_are_sign_and_magnitude(line: Line) -> None:
    line.answer = lambda request: [status(servo, -100) for servo in IDS]
    loop = loop_on(line.port())
    loop.prime([-2148 * 360 / 4095] * 6)
    loop.tick(0)
    assert ticks_of(loop) == [-100] * 6
    assert line.written.get(timeout=20) == feetech.sync_write("Goal_Position", dict.fromkeys(IDS, -100))


def test_a_goal_that_the_register_cannot_hold_never_goes_out(line: Line) -> None:
    port = line.port()
    ring = ActionRing(50, 6, (0, 1))
    loop = ActuatorLoop(ring, port, fps=30)
    loop.prime([10, 20, 30, 40, 50, 60])
    loop.tick(0)
    sent = line.written.get(timeout=20)
    for beyond in (2901.0, -3062.0, 3e38, -3e38):
        ring.merge(ring.cursor, np.full((1, 6), beyond, np.float32), 0)
        loop.tick(0)
        assert line.written.get(timeout=20) == sent
    assert port.held_goals == 24
    assert port.to_raw(0, math.nan) is None


# -- faults on the bus ----------------------------------------------------------------------------------------------


def test_one_silent_servo_costs_the_others_nothing_and_is_named_at_the_third_miss(line: Line) -> None:
    line.answer = lambda request: [each for each in answers(request) if each[2] != 4]
    port = line.port(SHORT_NS)
    loop = loop_on(port, max_missed_replies=4, names=[f"joint_{servo}" for servo in IDS])
    for tick in range(3):
        assert port.silent == ()
        loop.tick(tick * 1_000_000_000)
        assert ticks_of(loop) == [*TICKS[:3], PRIMED[3], *TICKS[4:]]
        assert list(loop.record.ages_s) == [0, 0, 0, math.inf, 0, 0]
    assert port.silent == (4,)
    assert port.misses == (0, 0, 0, 3, 0, 0)
    assert loop.counters()["read_errors"] == 3
    with pytest.raises(ActuatorFault, match=r"joint_4 \(id 4\): no reply 4 times in a row") as fault:
        loop.tick(3_000_000_000)
    assert [each["answered"] for each in fault.value.ticks] == [5] * 4
    with pytest.raises(ActuatorFault, match="id 4"):
        loop.tick(4_000_000_000)
    assert line.written.qsize() == 3  # nothing was commanded at the fault or after it


def test_the_age_of_a_position_grows_until_its_servo_answers_again(line: Line) -> None:
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    loop.tick(1_000_000_000)
    line.answer = lambda request: [each for each in answers(request) if each[2] != 6]
    loop.tick(2_000_000_000)
    assert list(loop.record.ages_s) == [0, 0, 0, 0, 0, 1]
    assert ticks_of(loop) == list(TICKS)
    line.answer = answers
    loop.tick(3_000_000_000)
    assert list(loop.record.ages_s) == [0] * 6
    assert (port.misses[5], port.missed_in_a_row[5]) == (1, 0)


def first_then_healthy(first: Answer) -> Answer:
    """A first answer that something happened to; retries and later requests are answered well."""
    done: list[bytes] = []

    def answer(request: bytes) -> bytes | Sequence[bytes]:
        done.append(request)
        return first(request) if len(done) == 1 else answers(request)

    return answer


GOOD = [status(servo, ticks) for servo, ticks in zip(IDS, TICKS, strict=True)]
REPAIRED = {  # what came -> ids that are asked again
    "a damaged checksum": ([*GOOD[:2], damaged(GOOD[2]), *GOOD[3:]], (3,)),
    "a damaged id": ([b"\xff\xff\x09" + GOOD[0][3:], *GOOD[1:]], (1,)),
    "a damaged length": ([*GOOD[:2], GOOD[2][:3] + b"\xf0" + GOOD[2][4:], *GOOD[3:]], (3,)),
    "two damaged ones": ([damaged(GOOD[0]), *GOOD[1:4], damaged(GOOD[4]), GOOD[5]], (1, 5)),
    "a truncated frame": ([*GOOD[:3], GOOD[3][:5], *GOOD[4:]], (4,)),
    "a lost first byte": ([GOOD[0], GOOD[1][1:], *GOOD[2:]], (2,)),
    "a position that cannot be, past the checksum": ([feetech.frame(1, 0, b"\x08\xbe"), *GOOD[1:]], (1,)),
    "an error byte that cannot be": ([status(1, 2100, 0x80), *GOOD[1:]], (1,)),
    "an id that was not asked": ([GOOD[0], status(7, 1000), *GOOD[2:]], (2,)),
    "another register's answer": ([GOOD[0], feetech.frame(2, 0, b"\x20"), *GOOD[2:]], (2,)),
    "a longer answer with a checksum's look": (
        [GOOD[0], feetech.frame(2, 0, b"\x10\x08" + bytes((feetech.checksum(b"\x02\x05\x00\x10\x08"),))), *GOOD[2:]],
        (2,),
    ),
    "a servo out of turn": ([GOOD[0], GOOD[2], GOOD[1], *GOOD[3:]], (3,)),
    "the last one missing": ([*GOOD[:5]], (6,)),
}


@pytest.mark.parametrize("case", REPAIRED)
def test_what_is_not_whole_is_asked_again_within_the_tick(line: Line, case: str) -> None:
    pieces, again = REPAIRED[case]
    line.answer = first_then_healthy(lambda request: b"".join(pieces))
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    loop.tick(0)
    assert ticks_of(loop) == list(TICKS)
    assert line.requests == [ALL, feetech.sync_read(again, "Present_Position")]
    assert port.misses == (0,) * 6
    assert port.retries == 1
    assert port.bad_frames + port.junk_bytes > 0 or case == "the last one missing"


def test_a_servo_that_was_heard_is_not_heard_again_within_the_tick(line: Line) -> None:
    """What it says while another is asked again is an answer to something older."""
    replies = iter([[*GOOD[:2], damaged(GOOD[2]), *GOOD[3:]], [status(1, 99), GOOD[2]]])
    line.answer = lambda request: b"".join(next(replies))
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    loop.tick(0)
    assert ticks_of(loop) == list(TICKS)
    assert line.requests == [ALL, feetech.sync_read((3,), "Present_Position")]


INTACT = {
    "in one piece": [b"".join(GOOD)],
    "one byte at a time": [bytes((each,)) for each in b"".join(GOOD)],
    "junk between frames": [
        junk + each for junk, each in zip((b"\xff", b"\0\xff\xff", b"\xff\xff\x02\x04"), GOOD[:3], strict=True)
    ]
    + [b"\x01\x02\x03", *GOOD[3:]],
    "a third FF before the header": [b"\xff" + each for each in GOOD],
    "an old answer of the last servo in front": [status(6, 99), *GOOD],
    "old answers of several in front": [status(4, 99), status(5, 99), status(6, 99), *GOOD],
    "an answer twice": [*GOOD[:3], *GOOD[2:]],
}


@pytest.mark.parametrize("case", INTACT)
def test_good_frames_are_found_whatever_lies_around_them(line: Line, case: str) -> None:
    pieces = INTACT[case]
    joined = case.startswith("an old")  # they must lie in the line together
    line.answer = lambda request: b"".join(pieces) if joined else pieces
    loop = loop_on(line.port())
    loop.tick(0)
    assert ticks_of(loop) == list(TICKS)
    assert line.requests == [ALL]


def test_a_bus_that_says_nothing_is_asked_three_times(line: Line) -> None:
    line.answer = lambda request: b""
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    loop.tick(0)
    assert line.requests == [ALL] * 3
    assert port.misses == (1,) * 6


def test_a_bus_without_power_is_told_from_one_dead_servo(line: Line) -> None:
    line.answer = lambda request: b""
    with pytest.raises(ActuatorFault, match=r"no servo replied 1 times in a row: is the 12 V supply on\?"):
        loop_on(line.port(1_000_000), max_missed_replies=1).tick(0)


def test_signals_do_not_disturb_a_tick(line: Line) -> None:
    line.answer = lambda request: [each for each in answers(request) if each[2] != 6]
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        loop.tick(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ticks_of(loop) == [*TICKS[:5], PRIMED[5]]
    assert not port.hung_up


def test_a_late_answer_does_not_answer_the_next_request(line: Line) -> None:
    port = line.port()
    loop = loop_on(port)
    os.write(line.master, b"".join(status(servo, 99) for servo in IDS))
    assert select.select([line.slave], [], [], 5)[0]
    loop.tick(0)
    assert ticks_of(loop) == list(TICKS)
    assert port.junk_bytes == 48


@pytest.mark.parametrize("late", [1, 4, 6])
def test_an_answer_late_by_a_whole_tick_is_told_by_its_length(line: Line, late: int) -> None:
    """It comes where its servo's own would, after the line was flushed; the servo itself is late again."""
    port = line.port(SHORT_NS)
    loop = loop_on(port)
    asked: list[bytes] = []  # of each tick the first

    def answer(request: bytes) -> list[bytes]:
        frames = [each for each in answers(request) if each[2] != late]
        if len(request) == len(ALL):
            if asked:
                frames.insert(late - 1, status(late, 99, size=asked[-1][6]))
            asked.append(request)
        return [b"".join(frames)]

    line.answer = answer
    for tick in range(1, 5):
        loop.tick(tick * 1_000_000_000)
        assert [age == 0 for age in loop.record.ages_s] == [servo != late for servo in IDS]
        assert ticks_of(loop) == [PRIMED[servo - 1] if servo == late else TICKS[servo - 1] for servo in IDS]
    line.answer = answers
    for tick in range(5, 8):
        loop.tick(tick * 1_000_000_000)
        assert list(loop.record.ages_s) == [0] * 6
    assert line.requests[-3:] == [ALL] * 3  # nobody was late before these


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    """Master and slave, with nobody at the far end."""
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_a_port_that_takes_no_more_bytes_is_not_waited_for(pty: tuple[int, int]) -> None:
    _, slave = pty
    port = port_on(slave, SHORT_NS)
    loop = loop_on(port, max_missed_replies=1000)
    while loop.counters()["write_errors"] == 0:  # the kernel may still move on what is in it
        while select.select([], [slave], [], 0.05)[1]:
            with contextlib.suppress(BlockingIOError):
                os.write(slave, bytes(4096))
        loop.tick(0)
    assert loop.recent_ticks()[-1]["write_ns"] < SHORT_NS / 2
    assert not port.hung_up


@pytest.mark.parametrize("junk", [b"\xff", bytes(range(256)), status(3, 1000), status(9, 1000)])
def test_junk_without_end_takes_a_tick_no_longer_than_its_time(pty: tuple[int, int], junk: bytes) -> None:
    master, slave = pty
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            if select.select([], [master], [], 0.1)[1]:
                with contextlib.suppress(BlockingIOError):
                    os.write(master, junk * (4096 // len(junk)))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert select.select([slave], [], [], 5)[0]
        port = port_on(slave, SHORT_NS // 4, expects_torque=True)
        loop = loop_on(port)
        loop.tick(0)  # a read, a write and a look at the health of whoever was heard
        assert loop.bus_time().summary().max < 2 * SHORT_NS / 1e9
    finally:
        over.set()
        thread.join()
    assert not port.hung_up
    assert port.junk_bytes > 0


@pytest.mark.parametrize("minimum", [0, 1])  # 0, as pyserial sets it: a read of nothing returns nothing
@pytest.mark.parametrize("size", [255, 256, 257, 512])
def test_what_fills_the_buffer_to_the_byte_is_dropped_and_nothing_is_missed_after_it(
    line: Line, size: int, minimum: int
) -> None:
    attributes = termios.tcgetattr(line.slave)
    attributes[6][termios.VMIN] = minimum
    termios.tcsetattr(line.slave, termios.TCSANOW, attributes)
    port = line.port()
    loop = loop_on(port)
    for tick in range(3):
        os.write(line.master, bytes(size))
        assert select.select([line.slave], [], [], 5)[0]
        loop.tick(tick)
        assert ticks_of(loop) == list(TICKS)
        assert list(loop.record.ages_s) == [0] * 6
    assert line.requests == [ALL] * 3
    assert port.junk_bytes == 3 * size


def test_error_bits_are_raised_and_the_position_is_used(line: Line) -> None:
    overloaded = bytes.fromhex("FF FF 06 04 20 00 08 CD")
    line.answer = first_then_healthy(lambda request: [*GOOD[:5], overloaded])
    port = line.port()
    loop = loop_on(port)
    loop.tick(0)
    assert ticks_of(loop)[5] == 2048
    assert port.last_errors == (0, 0, 0, 0, 0, 32)
    loop.tick(1)
    assert port.last_errors == (0,) * 6
    assert port.all_errors == (0, 0, 0, 0, 0, 32)
    assert port.misses == (0,) * 6


def test_a_line_that_repeats_our_bytes(line: Line) -> None:
    line.answer = lambda request: [request + b"".join(answers(request))]
    port = line.port(echo=True)
    loop = loop_on(port)
    for tick in range(3):
        loop.tick(tick)
        goal = line.written.get(timeout=20)
        os.write(line.master, goal)
        assert select.select([line.slave], [], [], 5)[0]
        assert ticks_of(loop) == list(TICKS)
    assert (port.echo_errors, port.junk_bytes, port.bad_frames) == (0, 0, 0)


def test_a_request_that_the_line_repeats_wrongly_is_counted(line: Line) -> None:
    line.answer = lambda request: [damaged(request) + b"".join(answers(request))]
    port = line.port(echo=True)
    loop = loop_on(port)
    loop.tick(0)
    assert port.echo_errors == 1


def test_an_unplugged_cable_is_a_fault_at_once(line: Line) -> None:
    port = line.port()
    loop = loop_on(port, max_missed_replies=1000)
    loop.tick(0)
    line.hang_up()
    with pytest.raises(ActuatorFault, match=r"the port is gone \(.*\): is the cable out\?"):
        loop.tick(1)
    assert port.hung_up
    assert loop.counters()["ticks"] == 2


def test_a_cable_that_comes_out_while_waiting_ends_run(line: Line) -> None:
    hung = threading.Event()

    def answer(request: bytes) -> bytes:
        if len(line.requests) == 5:
            hung.set()
            return b""
        return b"".join(answers(request))

    line.answer = answer
    loop = loop_on(line.port())
    faults: list[ActuatorFault] = []

    def run() -> None:
        try:
            loop.run()
        except ActuatorFault as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    assert hung.wait(20)
    line.hang_up()
    thread.join(20)
    assert "is the cable out?" in str(faults[0])
    assert len(faults[0].ticks) == 5


WHOLE = st.builds(status, st.sampled_from((*IDS, 7)), st.integers(-7000, 7000), st.sampled_from((0, 4, 32, 0x80)))
PIECE = st.one_of(
    WHOLE,
    st.tuples(WHOLE, st.integers(0, 7)).map(lambda cut: cut[0][: cut[1]]),
    st.tuples(WHOLE, st.integers(0, 7), st.integers(1, 255)).map(
        lambda hit: hit[0][: hit[1]] + bytes((hit[0][hit[1]] ^ hit[2],)) + hit[0][hit[1] + 1 :]
    ),
    st.binary(max_size=12),
    st.sampled_from([ALL, feetech.ping(1), feetech.frame(1, 0), b"\xff\xff", b"\xff"]),
)


@settings(max_examples=150)
@given(st.lists(PIECE, max_size=14))
def test_no_mixture_of_bytes_yields_a_value_from_a_bad_frame(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    windows = [stream[at : at + 8] for at in range(len(stream) - 7)]
    whole = [
        each
        for each in windows
        if each[:2] == b"\xff\xff" and each[3] == 4 and each[4] <= 0x7F and each[7] == feetech.checksum(each[2:7])
    ]
    heard = {(each[2], feetech.decode("Goal_Position", each[5:7])) for each in whole}
    line = Line(lambda request: stream)
    try:
        loop = loop_on(line.port(3_000_000))
        loop.tick(0)
    finally:
        line.close()
    for servo, ticks, age in zip(IDS, ticks_of(loop), loop.record.ages_s, strict=True):
        assert (servo, ticks) in heard or not math.isfinite(age)


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": []}, "ids: 0 servos"),
        ({"ids": [1, 1]}, r"ids: \[1, 1\]"),
        ({"ids": [1, 254]}, r"ids: \[1, 254\]"),
        ({"modes": [0]}, "2 entries"),
        ({"modes": [0, 3]}, "modes: 3 of servo 2"),
        ({"range_max": [4095, 0]}, r"range of servo 2: 0\.\.0 is empty"),
        ({"timeout_ns": 0}, "timeout_ns: 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(line: Line, change: dict[str, object], message: str) -> None:
    fitting = {
        "ids": [1, 2],
        "modes": [0, 0],
        "range_min": [0, 0],
        "range_max": [4095, 4095],
        "drive_mode": [0, 0],
        "timeout_ns": 1_000_000,
    }
    with pytest.raises(ConfigError, match=message):
        FeetechPort(line.slave, **(fitting | change))  # type: ignore[arg-type]


def test_a_file_descriptor_that_is_not_open_is_refused() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        FeetechPort(-1, [1], [0], [0], [4095], [0], timeout_ns=1)


# -- readings that cannot be ----------------------------------------------------------------------------------------


def test_a_reading_that_the_servo_cannot_have_reached_is_not_believed_until_it_is_confirmed(line: Line) -> None:
    """3400 counts a second, and what a read may come late; a checksum has eight bits, and a servo may be mistaken."""
    said, now_ns = list(TICKS), 0
    line.answer = lambda request: [status(servo, said[servo - 1], size=request[6]) for servo in request[7:-1]]
    port = line.port(SHORT_NS)
    loop = loop_on(port, max_missed_replies=3)

    def heard(ticks: int, after_s: float) -> tuple[int, bool]:
        """Where servo 1 is believed to be, and whether it was believed just now."""
        nonlocal now_ns
        said[0], now_ns = ticks, now_ns + round(after_s * 1e9)
        loop.tick(now_ns)
        return ticks_of(loop)[0], loop.record.ages_s[0] == 0

    assert heard(2100, 0.0) == (2100, True)
    assert heard(2200, 0.033) == (2200, True)  # 112 counts, and 1370 for a read that may be late
    assert heard(4000, 0.033) == (2200, False)
    assert heard(2250, 0.033) == (2250, True)  # that was a lie
    assert heard(600, 0.033) == (2250, False)
    assert heard(650, 0.033) == (650, True)  # and this was none
    assert heard(2000, 1.0) == (2000, True)  # it had the time
    assert port.impossible == (2, 0, 0, 0, 0, 0)
    assert loop.counters()["impossible_readings"] == 2
    assert heard(100, 0.033) == (2000, False)
    assert heard(4000, 0.033) == (2000, False)
    with pytest.raises(ActuatorFault, match="servo 1: no position that it can have come to, 3 times in a row"):
        heard(100, 0.033)


def test_the_first_reading_is_held_against_where_the_loop_was_primed(line: Line) -> None:
    line.answer = lambda request: [status(1, 3900, size=request[6]), *answers(request)[1:]]
    loop = loop_on(line.port(SHORT_NS))
    loop.tick(0)
    assert ticks_of(loop) == [PRIMED[0], *TICKS[1:]]
    loop.tick(33_000_000)
    assert ticks_of(loop) == [3900, *TICKS[1:]]
