"""A servo bus: asks with a deadline, retries, and says which servo did not answer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import NamedTuple

from edge_runtime.errors import BusError, BusTimeout
from edge_runtime.motors import feetech
from edge_runtime.motors.feetech import StatusDecoder, error_names
from edge_runtime.motors.port import Port

TIMEOUT_S = 0.05  # long enough for an adapter that keeps bytes for 16 ms
LENGTHS = 8  # of answers after a miss: with a wait for each, longer than any answer is late
LONGEST = 4  # bytes of the other answers: the loop asks for position and speed
READINGS = 5  # of what decides, on a bad line

logger = logging.getLogger(__name__)


class _Window(NamedTuple):
    """`size` bytes of the table from `address` on, register `name` at `offset` in them; no name: no data."""

    name: str
    address: int
    size: int
    offset: int

    def value(self, data: bytes) -> int:
        if not self.name:
            return 0
        return feetech.decode(self.name, data[self.offset : self.offset + feetech.REGISTERS[self.name].size])


_NO_DATA = _Window("", 0, 0, 0)


def is_near(tick: int, other: int, apart: int) -> bool:
    """Whether the two are no more than `apart` from each other, the short way round."""
    half = feetech.TICKS_PER_TURN // 2
    return abs((tick - other + half) % feetech.TICKS_PER_TURN - half) <= apart


class Bus:
    """Feetech servos on the serial port `port`, a path or a Port; a context manager that opens and closes it.

    `timeout_s` is for each try; `names` (id -> name) serves the error messages; `echo` is for a bare UART, which hears
    its own bytes. Counted, for reports: `flags` (error bits ever seen, by id), `misses` (answers that did not come, by
    id), `damaged` frames and `stray` bytes.
    """

    def __init__(
        self,
        port: str | Port,
        *,
        names: Mapping[int, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = 2,
        echo: bool = False,
    ) -> None:
        self._port = port if isinstance(port, Port) else Port(port)
        self.port = self._port.path
        self.flags: dict[int, int] = {}
        self.misses: dict[int, int] = {}
        self.damaged = 0
        self.stray = 0
        self._names = dict(names or {})
        self.timeout_s, self._tries, self._echo = timeout_s, retries + 1, echo
        self._lent = False
        self._has_echoed = False
        self._late_may_come = False
        self._doubts = 0  # how many more questions must be told from those before by their length
        self._turn = 0

    def __enter__(self) -> Bus:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._port.is_open

    def open(self) -> None:
        """Open the port for us alone; errors as of `Port.open`."""
        self._port.open()

    def close(self) -> None:
        """Twice is harmless."""
        self._port.close()
        self._lent = False

    def fileno(self) -> int:
        return self._port.fileno()

    def lend(self) -> int:
        """The file descriptor, for the loop that owns the bus until `take_back`."""
        fd = self._owned().fileno()
        self._lent = True
        return fd

    def take_back(self) -> None:
        """Own the bus again; what the loop left unread is dropped before the next request. Twice is harmless."""
        if self._lent:
            self._expect_late()
        self._lent = False

    def label(self, servo: int) -> str:
        name = self._names.get(servo)
        return f"{name} (id {servo})" if name else f"servo {servo}"

    def set_baud(self, baud: int) -> None:
        """Speak at another rate, in bit/s, until told otherwise. BusError when the adapter cannot."""
        self._owned().set_baud(baud)

    def discover(self) -> list[int]:
        """The ids of all that answer in time, an id as often as it came; two at once may spoil each other."""
        self._flush()
        self._send(feetech.ping(feetech.BROADCAST))
        decoder = StatusDecoder(parameters=0)
        found: list[int] = []
        deadline = self._port.now() + self.timeout_s
        while data := self._owned().read(deadline):
            found += [reply.servo for reply in decoder.feed(data)]
        self.damaged += decoder.damaged
        self.stray += decoder.skipped
        return found

    def ping(self, servo: int) -> bool:
        """Whether it answers."""
        return bool(self._insist(feetech.ping(servo), servo))

    def read(self, servo: int, name: str) -> int:
        """Register `name` of one servo; BusTimeout when no good answer came."""
        found: dict[int, int] = {}
        for _ in range(self._tries):
            window = self._window(name)
            request = feetech.read_table(servo, window.address, window.size)
            if found := self._ask(request, [servo], window):
                break
        return self._all(name, [servo], found)[servo]

    def write(self, servo: int, name: str, value: int) -> None:
        """Write and wait for the answer; error bits in it are noted and are no failure. BusTimeout without one."""
        self._all(name, [servo], self._insist(feetech.write(servo, name, value), servo))

    def sync_read(self, name: str, servos: Collection[int], tries: int | None = None) -> dict[int, int]:
        """Register `name` of those of `servos` that gave a good answer; only the missing are asked again."""
        found: dict[int, int] = {}
        for _ in range(self._tries if tries is None else tries):
            missing = [servo for servo in servos if servo not in found]
            if missing:
                window = self._window(name)
                request = feetech.sync_read_table(missing, window.address, window.size)
                found |= self._ask(request, missing, window)
        return found

    def read_all(self, name: str, servos: Collection[int]) -> dict[int, int]:
        """As `sync_read`, and BusTimeout names those that did not answer."""
        return self._all(name, servos, self.sync_read(name, servos))

    def read_surely(self, name: str, servos: Collection[int]) -> dict[int, int]:
        """As `read_all`, for what decides; once the line was late or damaged, two readings in a row must agree."""
        values = self.read_all(name, servos)
        for _ in range(READINGS):
            if not (self.misses or self.damaged or self.stray):
                return values
            before, values = values, self.read_all(name, servos)
            if values == before:
                return values
        different = min(servo for servo in servos if values[servo] != before[servo])
        raise BusError(
            f"{self.port}: {self.label(different)} answers {before[different]}, then {values[different]} about {name}:"
            " the line cannot be trusted; look at the servo cables and at the adapter's latency_timer",
            port=self.port,
            motor=different,
        )

    def agreed(self, name: str, servos: Collection[int], apart: int, tries: int) -> dict[int, int]:
        """The latest of two readings in a row that were no more than `apart` ticks of a turn from each other.

        Of those of `servos` for which there were two such within `tries` readings: one may have been damaged.
        """
        found: dict[int, int] = {}
        before: dict[int, int] = {}
        for _ in range(tries):
            left = [servo for servo in servos if servo not in found]
            if not left:
                break
            now = self.sync_read(name, left, tries=1)
            found |= {
                servo: tick for servo, tick in now.items() if servo in before and is_near(tick, before[servo], apart)
            }
            before |= now
        return found

    def sync_write(self, name: str, values: Mapping[int, int]) -> None:
        """Register `name` of each servo in `values` (id -> value), at once. Nothing answers: see `establish`."""
        self._flush()
        self._send(feetech.sync_write(name, values))

    def establish(self, name: str, values: Mapping[int, int], tries: int = 3) -> None:
        """Write to all at once, read back, and write again where it did not arrive; BusError names what stays wrong."""
        wrong = dict(values)
        for _ in range(tries):
            self.sync_write(name, wrong)
            found = self.sync_read(name, wrong, tries=1)
            wrong = {servo: value for servo, value in wrong.items() if found.get(servo) != value}
            if not wrong:
                return
        reasons = [
            f"{self.label(servo)} " + (f"has {found[servo]}, not {value}" if servo in found else "did not confirm")
            for servo, value in wrong.items()
        ]
        raise BusError(f"{self.port}: {name} could not be set: {'; '.join(reasons)}", port=self.port, motor=min(wrong))

    def _insist(self, request: bytes, servo: int) -> dict[int, int]:
        """Until it has answered, without data, or the tries are used up."""
        for _ in range(self._tries):
            if found := self._ask(request, [servo], _NO_DATA):
                break
        return found

    def _window(self, name: str) -> _Window:
        """What to read for register `name`: itself, or after a miss more of the table than any question before asked.

        A late answer is told from the one that is waited for by its length alone: so none of the last LENGTHS
        questions may have had the same.
        """
        register = feetech.REGISTERS[name]
        size = register.size
        if self._doubts:
            self._doubts -= 1
            self._turn = (self._turn + 1) % LENGTHS
            size = LONGEST + 1 + self._turn
        first = max(register.address + register.size - size, 0)
        return _Window(name, first, size, register.address - first)

    def _ask(self, request: bytes, servos: Collection[int], window: _Window) -> dict[int, int]:
        """By id the value in `window` (0 without data) of those of `servos` that answered before the deadline."""
        self._flush()
        self._send(request)
        decoder = StatusDecoder(servos, window.size)
        values: dict[int, int] = {}
        heard = b""
        deadline = self._port.now() + self.timeout_s
        while len(values) < len(servos) and (data := self._owned().read(deadline)):
            heard += data
            for reply in decoder.feed(data):
                value = window.value(reply.parameters)
                if not feetech.is_possible(window.name, value):
                    decoder.damaged += 1
                    continue
                values.setdefault(reply.servo, value)
                self._note_flags(reply.servo, reply.code)
            if request[2] == feetech.BROADCAST and heard.startswith(request):
                raise BusError(f"{self.port}: the line returns what is sent (--robot.echo=true)", port=self.port)
        self.damaged += decoder.damaged
        self.stray += decoder.skipped
        for servo in servos:
            if servo not in values:
                self.misses[servo] = self.misses.get(servo, 0) + 1
        self._late_may_come = False
        if len(values) < len(servos):
            self._expect_late()
        return values

    def _expect_late(self) -> None:
        """An answer is still owed: it may come at any time."""
        self._late_may_come, self._doubts = True, LENGTHS

    def _note_flags(self, servo: int, flags: int) -> None:
        if flags & ~self.flags.get(servo, 0):
            logger.warning("%s reports %s", self.label(servo), error_names(flags))
        self.flags[servo] = self.flags.get(servo, 0) | flags

    def _all(self, name: str, servos: Iterable[int], values: dict[int, int]) -> dict[int, int]:
        missing = [servo for servo in servos if servo not in values]
        if missing:
            who = ", ".join(map(self.label, missing))
            raise BusTimeout(f"{self.port}: no answer from {who} about {name}", port=self.port, motor=missing[0])
        return values

    def _owned(self) -> Port:
        if self._lent:
            raise BusError(f"{self.port}: the loop owns the bus", port=self.port)
        return self._port

    def _flush(self) -> None:
        """Drop what was not asked for. After an answer that did not come, wait for it first: it may be only late.

        One that is later still is told by its length: see `_window`.
        """
        until = self._port.now() + (self.timeout_s if self._late_may_come else 0.0)
        while data := self._owned().read(until):
            self.stray += len(data)
        self._late_may_come = False

    def _send(self, request: bytes) -> None:
        self._owned().write(request)
        if self._echo:
            self._swallow(request)

    def _swallow(self, request: bytes) -> None:
        """Read our own bytes back, exactly."""
        heard = b""
        deadline = self._port.now() + self.timeout_s
        while len(heard) < len(request) and (data := self._owned().read(deadline, len(request) - len(heard))):
            heard += data
        if heard == request:
            self._has_echoed = True
            return
        self._expect_late()
        if not self._has_echoed and (not heard or StatusDecoder().feed(heard)):  # nothing, or an answer already
            raise BusError(f"{self.port}: the line does not echo: use --robot.echo=false", port=self.port)
        self.damaged += 1  # once it has echoed, it does: this one was lost, and the answer may come all the same
