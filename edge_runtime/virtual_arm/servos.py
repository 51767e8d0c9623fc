"""One STS3215 that is not there: its control table, its memory and the way it moves."""

from __future__ import annotations

import math

from edge_runtime.motors.feetech import BAUD_RATES, REGISTERS, TICKS_PER_TURN, decode

TABLE_SIZE = 88
STORED = 40  # registers below are kept over power-off
MAX_SPEED = 3400.0  # counts/s without load
MIDDLE = 2048

_STEP_S = 0.002  # of the motion profile
_LANDED = 0.25  # counts from the goal
_FULL_TORQUE = 1000
_MULTI_TURN = 0x10  # bit of register Phase
_MAX_ACCELERATION = 254  # like 0: all that the motor can, and that is for the plant, with its masses, to say
_FACTORY = {
    "Firmware_Major_Version": 3,
    "Firmware_Minor_Version": 10,
    "Model_Number": 777,
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


class VirtualServo:
    """Answers reads and writes, and moves towards its goal as time is told to it.

    `joint` is which of the arm's it is; its id is a register, and may be another. `shaft` is the true position in
    ticks, which goes on counting where the encoder begins again. Without a plant it follows `setpoint`, the motion
    profile; with one, it is what the plant says and the profile is what the plant is asked for. `flags` is the error
    byte.
    """

    def __init__(self, servo: int, now: float, shaft: float = MIDDLE) -> None:
        self.joint = servo
        self.shaft = self.setpoint = float(shaft)
        self.flags = 0
        self._velocity = 0.0  # of the profile, counts/s
        self._now = now
        self._table = bytearray(TABLE_SIZE)
        self._stored = bytes(STORED)
        self._pending: tuple[int, bytes] | None = None  # a REG_WRITE that waits for ACTION
        for name, value in {**_FACTORY, "ID": servo}.items():
            self.set(name, value)
        self.power_cycle()

    @property
    def id(self) -> int:
        return self._value("ID")

    @property
    def baud(self) -> int:
        """The only rate at which it understands."""
        return BAUD_RATES.get(self._value("Baud_Rate"), 0)

    def get(self, name: str) -> int:
        register = REGISTERS[name]
        return decode(name, self.read(register.address, register.size))

    def set(self, name: str, value: int) -> None:
        """Put `value` into register `name` past every rule, and keep it: a bench's screwdriver."""
        register = REGISTERS[name]
        raw = abs(value) | (value < 0) << (register.sign_bit or 0)
        self._table[register.address : register.address + register.size] = raw.to_bytes(register.size, "little")
        self._stored = self._stored if register.address >= STORED else bytes(self._table[:STORED])

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes of the table; beyond its end the bus reads zeros."""
        for name, value in self._present().items():
            self.set(name, value)
        return bytes(self._table[address : address + count]).ljust(count, b"\0")

    def write(self, address: int, data: bytes) -> None:
        """As a WRITE does: read-only registers stay, and with Lock on the rest below 40 is lost at power-off."""
        if address == REGISTERS["Torque_Enable"].address and data[:1] == b"\x80":
            self._make_middle()
            return
        was_on = self._table[40]
        for offset, value in enumerate(data, start=address):
            if offset < TABLE_SIZE and offset not in _READ_ONLY:
                self._table[offset] = value
        if self._table[40] and not was_on:
            self.setpoint, self._velocity = self.shaft, 0.0
        if not self._table[REGISTERS["Lock"].address]:
            self._stored = bytes(self._table[:STORED])

    def register_write(self, address: int, data: bytes) -> None:
        self._pending = (address, data)

    def action(self) -> None:
        """Do what `register_write` left."""
        if self._pending is not None:
            self.write(*self._pending)
            self._pending = None

    def power_cycle(self) -> None:
        """Off and on again: memory as stored, torque off, the torque limit copied from its maximum, no flags."""
        self._table[:STORED] = self._stored
        self._table[STORED:56] = bytes(56 - STORED)
        self.flags = 0
        self._pending = None
        self._velocity = 0.0
        self.setpoint = self.shaft
        self.set("Torque_Limit", self._value("Max_Torque_Limit"))
        self.set("Lock", 1)
        self.set("Goal_Position", self._reported())

    def place(self, shaft: float) -> None:
        """Put the shaft there, at rest, and make it the goal."""
        self.shaft = self.setpoint = float(shaft)
        self._velocity = 0.0
        self.set("Goal_Position", self._reported())

    def turn(self, shaft: float) -> None:
        """A hand turns the shaft there; not against torque."""
        if not self.torque:
            self.shaft = self.setpoint = float(shaft)

    @property
    def torque(self) -> float:
        """The part of its force that it may use, 0..1: nothing while a flag says so that releases torque."""
        if not self._table[40] or self.flags & self._value("Unloading_Condition"):
            return 0.0
        return min(self._value("Torque_Limit"), _FULL_TORQUE) / _FULL_TORQUE

    def advance(self, now: float) -> None:
        """Let the profile run until `now`, in seconds on the bus's clock."""
        elapsed, self._now = now - self._now, now
        if not self.torque or self._value("Operating_Mode"):
            self.setpoint, self._velocity = self.shaft, 0.0
            return
        goal = self._goal()
        while elapsed > 0 and (self._velocity or self.setpoint != goal):
            self._run(goal, min(elapsed, _STEP_S))
            elapsed -= _STEP_S

    def _run(self, goal: float, seconds: float) -> None:
        """One step of the trapezoid: as fast as allowed, and no faster than it can brake before the goal."""
        limit = self._value("Acceleration")
        acceleration = limit * 100.0 if 0 < limit < _MAX_ACCELERATION else math.inf
        remaining = goal - self.setpoint
        speed = min(abs(self._value("Goal_Velocity")) or MAX_SPEED, MAX_SPEED)
        if math.isfinite(acceleration):
            wanted = math.copysign(min(speed, math.sqrt(2 * acceleration * abs(remaining))), remaining)
            change = wanted - self._velocity
            self._velocity += math.copysign(min(abs(change), acceleration * seconds), change)
        else:
            self._velocity = math.copysign(speed, remaining)
        move = self._velocity * seconds
        if abs(remaining) <= max(_LANDED, move if remaining > 0 else -move):
            self.setpoint, self._velocity = goal, 0.0
        else:
            self.setpoint += move

    def _goal(self) -> float:
        """The goal on the shaft, held inside the position limits; both 0 = many turns."""
        low, high = self._value("Min_Position_Limit"), self._value("Max_Position_Limit")
        goal = self._value("Goal_Position")
        if low or high:
            goal = min(max(goal, low), high)
        return float(goal + self._value("Homing_Offset"))

    def _make_middle(self) -> None:
        """Torque_Enable = 128: the present position becomes 2048."""
        offset = round(self.shaft) - MIDDLE
        self.set("Homing_Offset", max(-2047, min(2047, offset)))

    def _reported(self) -> int:
        ticks = round(self.shaft) - self._value("Homing_Offset")
        return ticks if self._value("Phase") & _MULTI_TURN else ticks % TICKS_PER_TURN

    def _present(self) -> dict[str, int]:
        return {
            "Present_Position": self._reported(),
            "Present_Velocity": round(self._velocity),
            "Status": self.flags,
            "Moving": int(self._velocity != 0),
        }

    def _value(self, name: str) -> int:
        register = REGISTERS[name]
        return decode(name, bytes(self._table[register.address : register.address + register.size]))
