"""Frames, byte for byte as Feetech's own SDK makes them, and a decoder that believes no damaged one."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edge_runtime.motors import feetech
from edge_runtime.motors.feetech import (
    REGISTERS,
    Frame,
    FrameDecoder,
    Instruction,
    StatusDecoder,
    decode,
    encode,
    error_names,
    frame,
    is_possible,
)

GOALS = {1: 2048, 2: 1024, 3: 3072, 4: 2000, 5: 2047, 6: 1500}


def seven(goal: int) -> bytes:
    """Acceleration 50, goal, time 0, speed 1000: registers 41..47."""
    return encode("Acceleration", 50) + encode("Goal_Position", goal) + b"\0\0" + encode("Goal_Velocity", 1000)


REQUESTS = {
    "ping": (feetech.ping(1), "FF FF 01 02 01 FB"),
    "read model": (feetech.read(1, "Model_Number"), "FF FF 01 04 02 03 02 F3"),
    "read position": (feetech.read(1, "Present_Position"), "FF FF 01 04 02 38 02 BE"),
    "read offset": (feetech.read(2, "Homing_Offset"), "FF FF 02 04 02 1F 02 D6"),
    "read 15 bytes": (frame(1, Instruction.READ, bytes((56, 15))), "FF FF 01 04 02 38 0F B1"),
    "torque on": (feetech.write(1, "Torque_Enable", 1), "FF FF 01 04 03 28 01 CE"),
    "goal": (feetech.write(1, "Goal_Position", 3000), "FF FF 01 05 03 2A B8 0B 09"),
    "negative goal": (feetech.write(1, "Goal_Position", -100), "FF FF 01 05 03 2A 64 80 E8"),
    "negative offset": (feetech.write(3, "Homing_Offset", -85), "FF FF 03 05 03 1F 55 08 78"),
    "reg write": (
        frame(1, Instruction.REG_WRITE, bytes((42,)) + encode("Goal_Position", 1024)),
        "FF FF 01 05 04 2A 00 04 C7",
    ),
    "action": (frame(0xFE, Instruction.ACTION), "FF FF FE 02 05 FA"),
    "sync write": (
        feetech.sync_write("Goal_Position", GOALS),
        "FF FF FE 16 83 2A 02 01 00 08 02 00 04 03 00 0C 04 D0 07 05 FF 07 06 DC 05 51",
    ),
    "sync write of 7 bytes": (
        frame(
            0xFE, Instruction.SYNC_WRITE, bytes((41, 7)) + b"".join(bytes((i,)) + seven(g) for i, g in GOALS.items())
        ),
        "FF FF FE 34 83 29 07 01 32 00 08 00 00 E8 03 02 32 00 04 00 00 E8 03 03 32 00 0C 00 00 E8 03"
        " 04 32 D0 07 00 00 E8 03 05 32 FF 07 00 00 E8 03 06 32 DC 05 00 00 E8 03 81",
    ),
    "sync read": (feetech.sync_read(range(1, 7), "Present_Position"), "FF FF FE 0A 82 38 02 01 02 03 04 05 06 26"),
    "sync read of 6 bytes": (
        frame(0xFE, Instruction.SYNC_READ, bytes((56, 6, 1, 2, 3, 4, 5, 6))),
        "FF FF FE 0A 82 38 06 01 02 03 04 05 06 22",
    ),
    "LeRobot's goals": (
        feetech.sync_write("Goal_Position", {1: 2391, 2: 1822, 3: 2163, 4: 2050, 5: 2559, 6: 2050}),
        "FF FF FE 16 83 2A 02 01 57 09 02 1E 07 03 73 08 04 02 08 05 FF 09 06 02 08 0B",
    ),
}


@pytest.mark.parametrize(("made", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_requests_are_those_of_the_vendors_sdk(made: bytes, expected: str) -> None:
    assert made == bytes.fromhex(expected)


STATUSES = {
    "ok": ("FF FF 01 02 00 FC", Frame(1, 0, b"")),
    "model 777": ("FF FF 01 04 00 09 03 EE", Frame(1, 0, bytes.fromhex("0903"))),
    "position 2100": ("FF FF 01 04 00 34 08 BE", Frame(1, 0, bytes.fromhex("3408"))),
    "offset -85": ("FF FF 02 04 00 55 08 9C", Frame(2, 0, bytes.fromhex("5508"))),
    "third servo's ok": ("FF FF 03 02 00 FA", Frame(3, 0, b"")),
    "15 bytes": (
        "FF FF 01 11 00 34 08 00 00 00 00 79 20 00 00 00 00 00 00 00 18",
        Frame(1, 0, bytes.fromhex("340800000000792000000000000000")),
    ),
    "position 2133": ("FF FF 03 04 00 55 08 9B", Frame(3, 0, bytes.fromhex("5508"))),
    "position 1500": ("FF FF 06 04 00 DC 05 14", Frame(6, 0, bytes.fromhex("DC05"))),
    "position, speed, load": ("FF FF 01 08 00 9E 05 81 88 C0 04 86", Frame(1, 0, bytes.fromhex("9E058188C004"))),
    "overheated": ("FF FF 03 02 04 F6", Frame(3, 4, b"")),
    "position under overload": ("FF FF 06 04 20 00 08 CD", Frame(6, 32, bytes.fromhex("0008"))),
}


@pytest.mark.parametrize(("raw", "expected"), STATUSES.values(), ids=STATUSES)
def test_statuses_of_the_vendors_sdk_are_understood(raw: str, expected: Frame) -> None:
    assert StatusDecoder().feed(bytes.fromhex(raw)) == [expected]
    assert frame(*expected) == bytes.fromhex(raw)


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("Model_Number", "0903", 777),
        ("Present_Position", "3408", 2100),
        ("Homing_Offset", "5508", -85),
        ("Goal_Position", "6480", -100),
        ("Present_Velocity", "8188", -2177),
        ("Present_Load", "C004", -192),
        ("Present_Voltage", "79", 121),
        ("Homing_Offset", "FF0F", -2047),
        ("Homing_Offset", "FF07", 2047),
    ],
)
def test_values_are_sign_and_magnitude(name: str, data: str, value: int) -> None:
    assert decode(name, bytes.fromhex(data)) == value
    if name in ("Homing_Offset", "Goal_Position"):
        assert encode(name, value) == bytes.fromhex(data)


@given(st.sampled_from(sorted(REGISTERS)), st.integers(-70_000, 70_000))
def test_a_value_is_encoded_faithfully_or_refused(name: str, value: int) -> None:
    register = REGISTERS[name]
    largest = 1 << (register.sign_bit or 8 * register.size)
    try:
        data = encode(name, value)
    except ValueError:
        assert value < 0 or value >= largest or value > feetech.WRITE_LIMITS.get(name, largest)
    else:
        assert len(data) == register.size
        raw = int.from_bytes(data, "little")
        assert value == (raw if raw < largest else largest - raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Homing_Offset", 2048),
        ("Homing_Offset", -2048),
        ("Goal_Position", 32768),
        ("Torque_Enable", 128),  # would recalibrate the servo
        ("Torque_Enable", -1),
        ("Acceleration", 255),
        ("Torque_Limit", 1001),
        ("ID", 256),
        ("Max_Position_Limit", -1),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value} is not in"):
        encode(name, value)


def test_a_position_that_no_single_turn_servo_can_have_is_not_believed() -> None:
    short = bytes.fromhex("FF FF 01 04 00 08 F3 FF")  # FF FF 01 04 00 FF 08 F3 that lost a byte, and what came next
    (reply,) = StatusDecoder([1], 2).feed(short)
    assert not is_possible("Present_Position", decode("Present_Position", reply.parameters))
    assert is_possible("Present_Position", -2047)
    assert is_possible("Present_Position", 4095 + 2047)


def test_data_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="Present_Position: 1 bytes, expected 2"):
        decode("Present_Position", b"\x08")


def test_a_frame_too_long_or_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 250"):
        frame(1, Instruction.WRITE, bytes(245))
    with pytest.raises(ValueError, match="id 255"):
        feetech.ping(255)


def test_error_bits_are_named() -> None:
    assert error_names(0) == "no error"
    assert error_names(36) == "over-temperature and overload"
    assert error_names(0x41) == "voltage and unknown bit 64"


# The decoder.

bodies = st.binary(min_size=2, max_size=2).filter(lambda data: data != b"\xff\xff")
statuses = st.builds(frame, st.integers(1, 6), st.integers(0, 0x7F), bodies).filter(
    lambda raw: b"\xff\xff" not in raw[4:]
)
truncated = st.builds(lambda raw, end: raw[:end], statuses, st.integers(1, 7))
lost_byte = st.builds(lambda raw, at: raw[:at] + raw[at + 1 :], statuses, st.integers(0, 6))
corrupted = st.builds(
    lambda raw, at, change: raw[:at] + bytes((raw[at] ^ change,)) + raw[at + 1 :],
    statuses,
    st.integers(0, 7),
    st.integers(1, 255),
)
foreign = st.one_of(
    st.builds(frame, st.integers(7, 253), st.just(0), bodies),
    st.builds(frame, st.integers(1, 6), st.integers(0x80, 0xFF), bodies),
    st.builds(frame, st.integers(1, 6), st.just(0), st.binary(max_size=12).filter(lambda data: len(data) != 2)),
)
echoes = st.just(feetech.sync_read(range(1, 7), "Present_Position")) | st.just(feetech.ping(1))
bad = st.one_of(truncated, lost_byte, corrupted, foreign, echoes, st.binary(max_size=12))
pieces = st.lists(st.tuples(st.just(True), statuses) | st.tuples(st.just(False), bad), max_size=12)


def frames_by_brute_force(stream: bytes) -> list[tuple[int, Frame]]:
    """Every place at which eight bytes pass for a two-byte status of servos 1..6."""
    found = []
    for at in range(len(stream) - 7):
        raw = stream[at : at + 8]
        good = raw[:2] == b"\xff\xff" and 1 <= raw[2] <= 6 and raw[3] == 4 and raw[4] <= 0x7F
        if good and sum(raw[2:]) % 256 == 255 and b"\xff\xff" not in raw[4:]:
            found.append((at, Frame(raw[2], raw[4], raw[5:7])))
    return found


@given(pieces, st.randoms(use_true_random=False))
def test_any_mixture_yields_the_good_frames_and_nothing_else(
    mixture: list[tuple[bool, bytes]], dice: random.Random
) -> None:
    stream = b"".join(raw for _, raw in mixture)
    good, at = [], 0
    for is_good, raw in mixture:
        good += [(at, Frame(raw[2], raw[4], raw[5:7]))] if is_good else []
        at += len(raw)
    # What passes every check by chance is no damaged frame any more: eight bits of checksum cannot tell.
    assume(frames_by_brute_force(stream) == good)
    decoder = StatusDecoder(range(1, 7), 2)
    yielded = []
    while stream:
        cut = dice.randrange(1, len(stream) + 1)
        yielded += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert yielded == [each for _, each in good]


@given(st.lists(st.one_of(statuses, bad), max_size=12))
def test_nothing_is_yielded_that_fails_a_check(mixture: list[bytes]) -> None:
    stream = b"".join(mixture)
    possible = [each for _, each in frames_by_brute_force(stream)]
    for yielded in StatusDecoder(range(1, 7), 2).feed(stream):
        assert yielded in possible


def test_every_byte_is_accounted_for() -> None:
    decoder = StatusDecoder([1], 2)
    good, damaged = bytes.fromhex("FF FF 01 04 00 34 08 BE"), bytes.fromhex("FF FF 01 04 00 34 09 BE")
    assert decoder.feed(b"\x12" + good + damaged + good + b"\x55") == [Frame(1, 0, b"\x34\x08")] * 2
    assert (decoder.skipped, decoder.damaged) == (1 + 8 + 1, 1)


def test_a_damaged_length_holds_up_nobody() -> None:
    """An answer that claims 240 bytes must not swallow the ones behind it."""
    good = bytes.fromhex("FF FF 02 04 00 55 08 9C")
    assert StatusDecoder([1, 2], 2).feed(bytes.fromhex("FF FF 01 F0 00 34 08 BE") + good) == [Frame(2, 0, b"\x55\x08")]


def test_a_frame_that_is_cut_short_does_not_take_the_header_of_the_next_for_its_end() -> None:
    """FF FF 01 04 00 FC with the next FF FF behind it has a right checksum by chance."""
    good = bytes.fromhex("FF FF 02 04 00 55 08 9C")
    assert StatusDecoder([1, 2], 2).feed(bytes.fromhex("FF FF 01 04 00 FC") + good) == [Frame(2, 0, b"\x55\x08")]


def test_instructions_are_decoded_too_and_a_pause_ends_one() -> None:
    decoder = FrameDecoder()
    request = feetech.sync_write("Goal_Position", GOALS)
    assert decoder.feed(request[:9]) == []
    decoder.reset()
    assert decoder.feed(request) == [Frame(0xFE, Instruction.SYNC_WRITE, request[5:-1])]
