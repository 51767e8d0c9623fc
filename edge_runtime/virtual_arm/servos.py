"""One STS3215 that is not there: its control table, its memory, and the shaft that it turns."""

from __future__ import annotations

import math
from struct import Struct
from typing import NamedTuple

from edge_runtime.motors.feetech import BAUD_RATES, REGISTERS, TICKS_PER_TURN, decode
from edge_runtime.virtual_arm.motion import MAX_SPEED, Means, Motion, Weight

TABLE_SIZE = 88
STORED = 40  # registers below are kept over power-off
MIDDLE = 2048
WEIGHTLESS = Weight()

_FULL_TORQUE = 1000
_STALL_CURRENT = 415  # of the register, 6.5 mA each: 2.7 A at 12 V (Feetech's data sheet of the STS3215)
_SATURATED = 123.0  # counts from the goal at which it uses all its force: 3.35 of 17.8 Nm/rad in the arm's MJCF
_MULTI_TURN = 0x10  # bit of register Phase
_MAX_ACCELERATION = 254  # like 0: all that the motor can, and that is for the plant, with its masses, to say
_FACTORY = {
    "Firmware_Major_Version": 3,
    "Firmware_Minor_Version": 10,
    "Model_Number": 777,
    "ID": 1,
    "Return_Delay_Time": 250,
    "Response_Status_Level": 1,
    "Max_Position_Limit": 4095,
    "Max_Temperature_Limit": 70,
    "Max_Voltage_Limit": 140,
    "Min_Voltage_Limit": 40,
    "Max_Torque_Limit": _FULL_TORQUE,
    "Phase": 12,
    "Unloading_Condition": 44,
    "LED_Alarm_Condition": 47,
    "P_Coefficient": 32,
    "D_Coefficient": 32,
    "Minimum_Startup_Force": 16,
    "CW_Dead_Zone": 1,
    "CCW_Dead_Zone": 1,
    "Protection_Current": 500,
    "Angular_Resolution": 1,
    "Protective_Torque": 20,
    "Protection_Time": 200,
    "Overload_Torque": 80,
    "Over_Current_Protection_Time": 200,
    "Maximum_Velocity_Limit": 80,
    "Maximum_Acceleration": 254,
    "Present_Voltage": 120,
    "Present_Temperature": 30,
}
_READ_ONLY = {REGISTERS[name].address + i for name in ("Firmware_Major_Version", "Model_Number") for i in range(2)}
_READ_ONLY |= set(range(56, TABLE_SIZE)) - {REGISTERS["Maximum_Acceleration"].address}
_FIRST_PRESENT = REGISTERS["Present_Position"].address
_TORQUE_ENABLE, _STATUS, _MOVING = (REGISTERS[name].address for name in ("Torque_Enable", "Status", "Moving"))
_PHASE, _MODE, _BAUD_RATE = (REGISTERS[name].address for name in ("Phase", "Operating_Mode", "Baud_Rate"))
_MOTOR = Struct("<BBHHHH")  # Torque_Enable, Acceleration, Goal_Position, Goal_Time, Goal_Velocity, Torque_Limit
_LIMITS = Struct("<HH")  # Min_Position_Limit, Max_Position_Limit
_MAGNITUDE = 0x7FFF  # without the sign in bit 15


def pack(name: str, value: int) -> bytes:
    """The bytes of register `name` for any value that fits, also one that `encode` would not let through."""
    _, size, sign_bit = REGISTERS[name]
    return (abs(value) | (value < 0) << (sign_bit or 0)).to_bytes(size, "little")


class Felt(NamedTuple):
    """What a plant does to one shaft: where it is (counts), counts/s, and the force on it, -1..1 of the stall force."""

    shaft: float
    velocity: float
    force: float


class VirtualServo:
    """Answers reads and writes, and moves towards its goal as time is told to it.

    `joint` is which of the arm's it is; its id is a register, and may be another. `shaft` is the true position in
    counts, which goes on where the encoder begins again. Without a plant the shaft moves as `Motion` says, under
    `weight`; with one it is where the plant says, and `setpoint`, the motion profile, is what the plant is asked for.
    `flags` is the error byte; `goal` and `limit` are the registers Goal_Position and Torque_Limit. `push` is a force
    from outside, in parts of the stall force; `held` is where something holds the shaft up while the servo is without
    torque, as a stand does until torque first goes on.
    """

    def __init__(self, servo: int, now: float, shaft: float = MIDDLE, weight: Weight = WEIGHTLESS) -> None:
        self.joint = servo
        self.flags = 0
        self.push = 0.0
        self.held: float | None = float(shaft)
        self._motion = Motion(float(shaft), weight)
        self._felt: Felt | None = None
        self._now = now
        self._table = bytearray(TABLE_SIZE)
        self._stored = bytes(STORED)
        self._pending: tuple[int, bytes] | None = None  # a REG_WRITE that waits for ACTION
        self._energised, self._target, self._offset = False, 0.0, 0
        self.goal = self.limit = 0  # the registers
        self._means = Means(0.0, 0.0, 0.0)
        self.reset_memory()
        self.set("ID", servo)

    @property
    def id(self) -> int:
        return self._table[REGISTERS["ID"].address]

    @property
    def baud(self) -> int:
        """The only rate at which it understands."""
        return BAUD_RATES.get(self._table[_BAUD_RATE], 0)

    @property
    def shaft(self) -> float:
        return self._motion.position if self._felt is None else self._felt.shaft

    @property
    def position(self) -> float:
        """The shaft as its registers count it: less the homing offset, neither rounded nor begun again after a turn."""
        return self.shaft - self._offset

    @property
    def setpoint(self) -> float:
        return self._motion.position

    @property
    def energised(self) -> bool:
        """Whether Torque_Enable is set, whatever force is left to it."""
        return self._energised

    @property
    def torque(self) -> float:
        """The part of its force that it may use, 0..1: nothing while a flag says so that releases torque."""
        if not self._energised or (self.flags and self.flags & self._value("Unloading_Condition")):
            return 0.0
        return self._means.force

    def get(self, name: str) -> int:
        register = REGISTERS[name]
        return decode(name, self.read(register.address, register.size))

    def set(self, name: str, value: int) -> None:
        """Put `value` into register `name` past every rule, and keep it: a bench's screwdriver."""
        register = REGISTERS[name]
        self._put(name, value)
        if register.address < STORED:
            self._stored = bytes(self._table[:STORED])
        self._understand()

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes of the table; beyond its end the bus reads zeros."""
        if address + count > _FIRST_PRESENT:
            self._measure()
        return bytes(self._table[address : address + count]).ljust(count, b"\0")

    def write(self, address: int, data: bytes) -> None:
        """As a WRITE does: read-only registers stay, and with Lock on the rest below 40 is lost at power-off."""
        if address == _TORQUE_ENABLE and data[:1] == b"\x80":
            self._make_middle()
            return
        was_on = self._energised
        for offset, value in enumerate(data, start=address):
            if offset < TABLE_SIZE and offset not in _READ_ONLY:
                self._table[offset] = value
        self._understand()
        if self._energised and not was_on:
            self._motion.stand(self.shaft)
        if not self._table[REGISTERS["Lock"].address]:
            self._stored = bytes(self._table[:STORED])

    def register_write(self, address: int, data: bytes) -> None:
        self._pending = (address, data)

    def action(self) -> None:
        """Do what `register_write` left."""
        if self._pending is not None:
            self.write(*self._pending)
            self._pending = None

    def reset_memory(self) -> None:
        """As from the factory, and just switched on."""
        self._table = bytearray(TABLE_SIZE)
        for name, value in _FACTORY.items():
            self._put(name, value)
        self._stored = bytes(self._table[:STORED])
        self.power_cycle()

    def power_cycle(self) -> None:
        """Off and on again: memory as stored, torque off, the torque limit copied from its maximum, no flags."""
        self._table[:STORED] = self._stored
        self._table[STORED:_FIRST_PRESENT] = bytes(_FIRST_PRESENT - STORED)
        self.flags = 0
        self._pending = None
        self._put("Torque_Limit", self._value("Max_Torque_Limit"))
        self._put("Lock", 1)
        self._understand()
        self._motion.stand(self.shaft)
        self.set("Goal_Position", self._reported())

    def place(self, shaft: float) -> None:
        """Put the shaft there, at rest and held up, and make it the goal."""
        self.held = float(shaft)
        self._felt = None
        self._motion.stand(float(shaft))
        self.set("Goal_Position", self._reported())

    def advance(self, now: float, felt: Felt | None = None) -> None:
        """Let time pass until `now`, in seconds on the bus's clock; a plant says what it has done meanwhile."""
        elapsed, self._now = now - self._now, now
        self._felt = felt
        if self._energised:
            self.held = None
        if felt is not None:
            self._follow(elapsed, felt)
        elif self.held is not None:
            self._motion.stand(self.held)
        else:
            goal = self._motion.position if self._table[_MODE] else self._target
            means = self._means._replace(force=self.torque)
            self._motion.advance(elapsed, goal, means, self.push)

    def take_extremes(self) -> tuple[float, float]:
        """The lowest and the highest velocity since this was last asked, in counts/s."""
        if self._felt is not None:
            return self._felt.velocity, self._felt.velocity
        return self._motion.take_extremes()

    def load(self) -> tuple[float, float]:
        """Duty and force, each -1..1; nothing without torque."""
        torque = self.torque
        if not torque:
            return 0.0, 0.0
        if self._felt is None:
            velocity = self._motion.velocity
            most = MAX_SPEED * abs(self._target - self.shaft) / _SATURATED  # its controller is proportional
            duty = self._motion.duty(min(max(velocity, -most), most), torque, self.push)
            return duty, self._motion.duty(velocity, torque, self.push) - velocity / MAX_SPEED
        duty = self._felt.force + self._felt.velocity / MAX_SPEED
        return min(max(duty, -torque), torque), self._felt.force

    def _follow(self, elapsed: float, felt: Felt) -> None:
        """Run the profile that the plant is asked for. It leads the shaft by no more than what uses all the force."""
        torque = self.torque
        if not torque or self._table[_MODE]:
            self._motion.stand(felt.shaft)
            return
        self._motion.advance(elapsed, self._target, self._means._replace(force=math.inf), 0.0)
        lead = 2 * _SATURATED * torque  # twice, for the shaft is told of a few milliseconds late
        self._motion.position = min(max(self._motion.position, felt.shaft - lead), felt.shaft + lead)

    def _understand(self) -> None:
        """What the table asks of the motor, taken out of it once and not at every step."""
        enable, units, goal, _, speed, self.limit = _MOTOR.unpack_from(self._table, _TORQUE_ENABLE)
        low, high = _LIMITS.unpack_from(self._table, REGISTERS["Min_Position_Limit"].address)
        self._energised = bool(enable)
        self._offset = self._value("Homing_Offset")
        self.goal = -(goal & _MAGNITUDE) if goal > _MAGNITUDE else goal
        self._means = Means(
            speed=min(speed & _MAGNITUDE or MAX_SPEED, MAX_SPEED),
            acceleration=units * 100.0 if 0 < units < _MAX_ACCELERATION else math.inf,
            force=min(self.limit, _FULL_TORQUE) / _FULL_TORQUE,
        )
        held = min(max(self.goal, low), high) if low or high else self.goal  # both 0 = many turns
        self._target = float(held + self._offset)

    def _make_middle(self) -> None:
        """Torque_Enable = 128: the present position becomes 2048."""
        offset = round(self.shaft) - MIDDLE
        self.set("Homing_Offset", max(-2047, min(2047, offset)))

    def _reported(self) -> int:
        ticks = round(self.shaft) - self._offset
        return ticks if self._table[_PHASE] & _MULTI_TURN else ticks % TICKS_PER_TURN

    def _measure(self) -> None:
        """Put into the table what the servo measures."""
        velocity = self._motion.velocity if self._felt is None else self._felt.velocity
        duty, force = self.load()
        self._put("Present_Position", self._reported())
        self._put("Present_Velocity", round(velocity))
        self._put("Present_Load", round(duty * _FULL_TORQUE))
        self._put("Present_Current", round(abs(force) * _STALL_CURRENT))
        self._table[_STATUS] = self.flags
        self._table[_MOVING] = round(velocity) != 0

    def _put(self, name: str, value: int) -> None:
        address, size, _ = REGISTERS[name]
        self._table[address : address + size] = pack(name, value)

    def _value(self, name: str) -> int:
        address, size, _ = REGISTERS[name]
        return decode(name, bytes(self._table[address : address + size]))
