"""Feetech STS frames as pure bytes: control table, checksums, sign-magnitude, and decoders that resynchronise.

    instruction  FF FF  ID  LEN  INST   P1..Pn  CHK        LEN = n + 2
    status       FF FF  ID  LEN  ERROR  P1..Pn  CHK        CHK = ~(ID + LEN + INST|ERROR + P1 + .. + Pn) & 0xFF

Two-byte values are little endian. Register names are LeRobot's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

HEADER = b"\xff\xff"
BROADCAST = 0xFE
MAX_FRAME = 250  # bytes; the limit of the vendor's SDK
TICKS_PER_TURN = 4096


class Instruction(IntEnum):
    PING = 0x01
    READ = 0x02
    WRITE = 0x03
    REG_WRITE = 0x04
    ACTION = 0x05
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83


class Register(NamedTuple):
    """Where a value lives: `address`, `size` in bytes, and the bit that holds the sign of a signed one."""

    address: int
    size: int
    sign_bit: int | None = None


REGISTERS = {
    # kept over power-off; written to memory only while Lock is 0
    "Firmware_Major_Version": Register(0, 1),
    "Firmware_Minor_Version": Register(1, 1),
    "Model_Number": Register(3, 2),
    "ID": Register(5, 1),
    "Baud_Rate": Register(6, 1),
    "Return_Delay_Time": Register(7, 1),  # 2 us
    "Response_Status_Level": Register(8, 1),  # 1: answer everything, 0: only READ and PING
    "Min_Position_Limit": Register(9, 2),
    "Max_Position_Limit": Register(11, 2),
    "Max_Temperature_Limit": Register(13, 1),  # degrees Celsius
    "Max_Voltage_Limit": Register(14, 1),  # 0.1 V
    "Min_Voltage_Limit": Register(15, 1),
    "Max_Torque_Limit": Register(16, 2),  # 0..1000; reaches Torque_Limit only at power-on
    "Phase": Register(18, 1),
    "Unloading_Condition": Register(19, 1),  # bits as in the error byte
    "LED_Alarm_Condition": Register(20, 1),
    "P_Coefficient": Register(21, 1),
    "D_Coefficient": Register(22, 1),
    "I_Coefficient": Register(23, 1),
    "Minimum_Startup_Force": Register(24, 2),
    "CW_Dead_Zone": Register(26, 1),
    "CCW_Dead_Zone": Register(27, 1),
    "Protection_Current": Register(28, 2),  # 6.5 mA
    "Angular_Resolution": Register(30, 1),
    "Homing_Offset": Register(31, 2, 11),  # reported position = shaft - offset
    "Operating_Mode": Register(33, 1),  # 0: position
    "Protective_Torque": Register(34, 1),  # percent left after an overload
    "Protection_Time": Register(35, 1),  # 10 ms
    "Overload_Torque": Register(36, 1),  # percent that starts Protection_Time
    "Over_Current_Protection_Time": Register(38, 1),
    # lost at power-off
    "Torque_Enable": Register(40, 1),
    "Acceleration": Register(41, 1),  # 100 counts/s^2; 0: unlimited
    "Goal_Position": Register(42, 2, 15),
    "Goal_Time": Register(44, 2),
    "Goal_Velocity": Register(46, 2, 15),  # counts/s; 0: the servo's own maximum
    "Torque_Limit": Register(48, 2),  # 0..1000
    "Lock": Register(55, 1),
    "Present_Position": Register(56, 2, 15),
    "Present_Velocity": Register(58, 2, 15),
    "Present_Load": Register(60, 2, 10),  # 0.1 % of the PWM duty
    "Present_Voltage": Register(62, 1),
    "Present_Temperature": Register(63, 1),
    "Status": Register(65, 1),  # bits as in the error byte
    "Moving": Register(66, 1),
    "Present_Current": Register(69, 2),  # 6.5 mA
    "Maximum_Velocity_Limit": Register(84, 1),
    "Maximum_Acceleration": Register(85, 1),
}

# The largest magnitude worth writing. Torque_Enable = 128 would make the present position 2048: never let it through.
WRITE_LIMITS = {
    "Torque_Enable": 1,
    "Lock": 1,
    "Acceleration": 254,
    "Maximum_Acceleration": 254,
    "Max_Torque_Limit": 1000,
    "Torque_Limit": 1000,
    "Protection_Current": 511,
    "Operating_Mode": 3,
}

# The largest magnitude that can be true. A frame that lost its low byte to the line can still satisfy the eight bits
# of the checksum, and then reads tens of thousands of counts; one turn and the greatest offset is all there can be.
READ_LIMITS = {"Present_Position": TICKS_PER_TURN - 1 + 2047}

# Register Baud_Rate -> bit/s. LeRobot and the vendor disagree about 5, 6 and 7: not to be used.
BAUD_RATES = {0: 1_000_000, 1: 500_000, 2: 250_000, 3: 128_000, 4: 115_200}
ERROR_BITS = {1: "voltage", 2: "magnetic sensor", 4: "over-temperature", 8: "over-current", 16: "angle", 32: "overload"}
MODELS = {777: "STS3215", 2825: "STS3250", 11272: "SM8512BL", 1284: "SCS0009"}


def error_names(bits: int) -> str:
    """The error byte (or register Status) in words: `over-temperature and overload`."""
    names = [name for bit, name in ERROR_BITS.items() if bits & bit]
    names += [f"unknown bit {bits & 0xC0}"] if bits & 0xC0 else []
    return " and ".join(names) or "no error"


def encode(name: str, value: int) -> bytes:
    """The bytes of register `name` for `value`: little endian, sign-magnitude where the register is signed.

    ValueError for a value that does not fit the register or must never be written to it.
    """
    register = REGISTERS[name]
    bits = register.sign_bit if register.sign_bit is not None else 8 * register.size
    limit = min((1 << bits) - 1, WRITE_LIMITS.get(name, 0xFFFF))
    lowest = 0 if register.sign_bit is None else -limit
    if not lowest <= value <= limit:
        raise ValueError(f"{name}: {value} is not in {lowest}..{limit}")
    raw = abs(value) | (value < 0) << bits
    return raw.to_bytes(register.size, "little")


def decode(name: str, data: bytes) -> int:
    """The value of register `name` in `data`; ValueError for another length. See `is_possible`."""
    register = REGISTERS[name]
    if len(data) != register.size:
        raise ValueError(f"{name}: {len(data)} bytes, expected {register.size}")
    value = int.from_bytes(data, "little")
    if register.sign_bit is not None:
        magnitude = value & ((1 << register.sign_bit) - 1)
        value = -magnitude if value >> register.sign_bit & 1 else magnitude
    return value


def is_possible(name: str, value: int) -> bool:
    """Whether register `name` can have answered `value`; if not, the frame was damaged, whatever its checksum says."""
    return abs(value) <= READ_LIMITS.get(name, 0xFFFF)


def frame(servo: int, code: int, parameters: bytes = b"") -> bytes:
    """A whole frame: an instruction, or a status when `code` is an error byte. ValueError when it is too long."""
    if not 0 <= servo <= BROADCAST:
        raise ValueError(f"servo id {servo} is not in 0..{BROADCAST}")
    if len(parameters) + 6 > MAX_FRAME:
        raise ValueError(f"a frame of {len(parameters) + 6} bytes is longer than {MAX_FRAME}")
    body = bytes((servo, len(parameters) + 2, code)) + parameters
    return HEADER + body + bytes((checksum(body),))


def checksum(body: bytes) -> int:
    """The checksum of `body`, which runs from the id to the last parameter."""
    return ~sum(body) & 0xFF


def ping(servo: int) -> bytes:
    return frame(servo, Instruction.PING)


def read(servo: int, name: str) -> bytes:
    register = REGISTERS[name]
    return read_table(servo, register.address, register.size)


def read_table(servo: int, address: int, count: int) -> bytes:
    return frame(servo, Instruction.READ, bytes((address, count)))


def write(servo: int, name: str, value: int) -> bytes:
    return frame(servo, Instruction.WRITE, bytes((REGISTERS[name].address,)) + encode(name, value))


def sync_read(servos: Iterable[int], name: str) -> bytes:
    register = REGISTERS[name]
    return sync_read_table(servos, register.address, register.size)


def sync_read_table(servos: Iterable[int], address: int, count: int) -> bytes:
    return frame(BROADCAST, Instruction.SYNC_READ, bytes((address, count, *servos)))


def sync_write(name: str, values: Mapping[int, int]) -> bytes:
    """One frame that writes register `name` of each servo in `values` (id -> value); nothing answers it."""
    register = REGISTERS[name]
    data = b"".join(bytes((servo,)) + encode(name, value) for servo, value in values.items())
    return frame(BROADCAST, Instruction.SYNC_WRITE, bytes((register.address, register.size)) + data)


class Frame(NamedTuple):
    """A frame that passed every check; `code` is the instruction, or the error byte of a status."""

    servo: int
    code: int
    parameters: bytes


class FrameDecoder:
    """Takes bytes as they come and gives the frames in them; what is no frame is skipped byte by byte and counted."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.skipped = 0  # bytes that belonged to no good frame
        self.damaged = 0  # frames that began well and failed their checks

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order."""
        self._buffer += data
        frames: list[Frame] = []
        while self._find_header():
            servo, length, code = self._buffer[2:5]
            end = length + 4
            if not self._fits(servo, length, code):
                self._skip(1)
            elif len(self._buffer) < end:
                break
            elif not self._is_whole(bytes(self._buffer[:end])):
                self.damaged += 1
                self._skip(1)  # not the whole frame: a good one may begin inside it
            else:
                frames.append(Frame(servo, code, bytes(self._buffer[5 : end - 1])))
                del self._buffer[:end]
        return frames

    def reset(self) -> None:
        """Forget a frame that was begun: the line went quiet."""
        self._skip(len(self._buffer))

    def _find_header(self) -> bool:
        """Drop what comes before the next header; whether enough of a frame is there to judge."""
        start = self._buffer.find(HEADER)
        if start < 0:
            start = len(self._buffer) - self._buffer.endswith(b"\xff")  # half a header may be a header soon
        self._skip(start)
        return len(self._buffer) >= 5

    def _fits(self, servo: int, length: int, code: int) -> bool:
        """Whether a frame that begins so can be meant."""
        return servo <= BROADCAST and 2 <= length <= MAX_FRAME

    def _is_whole(self, raw: bytes) -> bool:
        """Whether `raw`, header to checksum, is undamaged."""
        return raw[-1] == checksum(raw[2:-1])

    def _skip(self, count: int) -> None:
        self.skipped += count
        del self._buffer[:count]


class StatusDecoder(FrameDecoder):
    """Status frames only: of `servos` and with `parameters` data bytes, where these are given.

    Knowing what was asked, it need not wait for the end of a frame whose length was damaged.
    """

    def __init__(self, servos: Collection[int] | None = None, parameters: int | None = None) -> None:
        super().__init__()
        self._servos = servos
        self._length = None if parameters is None else parameters + 2

    def _fits(self, servo: int, length: int, code: int) -> bool:
        return (
            super()._fits(servo, length, code)
            and (servo < BROADCAST if self._servos is None else servo in self._servos)
            and (self._length is None or length == self._length)
            and code <= 0x7F
        )

    def _is_whole(self, raw: bytes) -> bool:
        # No value on these servos reads FF FF: inside a status it is the header of the next, and this one is cut short.
        return super()._is_whole(raw) and HEADER not in raw[4:]
