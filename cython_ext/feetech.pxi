import os

from edge_runtime.errors import ConfigError

from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport fabs, isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memmove
from posix.unistd cimport close as os_close, read as os_read, write as os_write

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_event:
        unsigned events
    unsigned EPOLLIN, EPOLLERR, EPOLLHUP, EPOLLET
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int epoll_wait(int, epoll_event *, int, int)

# The Feetech bus (STS series): frames, as `motors/feetech.py` packs them too.
#
#     sync read    FF FF FE  LEN  82  addr count  id1 .. idN              CHK    answered by each id in order:
#     sync write   FF FF FE  LEN  83  addr count  id1 lo hi .. idN lo hi  CHK    not answered
#     status       FF FF id  04   ERR lo hi                               CHK    CHK = ~(sum from the id on) & FF
cdef enum:
    SYNC_READ = 0x82
    SYNC_WRITE = 0x83
    BROADCAST = 0xFE
    GOAL_POSITION = 42
    PRESENT_POSITION = 56
    FEW = 2  # bytes from the position on: itself
    MORE = 4  # and the speed, which nobody needs: an answer to the other question is told by its length
    STATUS = 6  # bytes of a status beside its data
    FRAME = 256
    COUNTS = 4095  # LeRobot divides a turn by 4095, not by 4096
    MAGNITUDE = 0x7FFF  # sign and magnitude: bit 15 is the sign
    FARTHEST_POSITION = 4095 + 2047  # a turn and the greatest offset; more is a frame damaged past its checksum
    RETRIES = 2
    READ = 0x02
    TORQUE_ENABLE = 40  # health is read from here ..
    PRESENT_LOAD = 60
    PRESENT_VOLTAGE = 62
    PRESENT_TEMPERATURE = 63
    PRESENT_CURRENT = 69  # .. to here, two bytes
    HEALTH_BYTES = PRESENT_CURRENT + 2 - TORQUE_ENABLE
    HEALTH_FRAME = HEALTH_BYTES + 6
    DOUBTS = 2  # readings in a row before a servo is believed to be unwell: a checksum has eight bits
    QUIET_NS = 1_000_000  # a USB frame: after it nothing more of an answer is on its way
    PATIENCE_NS = 3_000_000  # the slowest adapter's turnaround: a retry never talks into an answer
    NAMED_AT = 3  # misses in a row
    FASTEST = 3400  # counts/s: no STS3215 turns faster, with 12 V and without a load
    TREMBLE = 10  # counts: a reading beside the truth, gears and backlash

cdef enum:  # `gone`, where it is not an errno
    HUNG_UP = -1
    TORQUELESS = -2
    HOT = -3

cdef enum:  # what is kept of a servo's health, as its registers hold it
    LOAD
    VOLTAGE
    TEMPERATURE
    CURRENT
    FIGURES

cdef enum:  # modes
    DEGREES = 0
    CENTRED = 1  # -100..100
    PERCENT = 2  # 0..100


cdef class FeetechPort(Port):
    """Servos on a serial line, without the GIL: one sync read and one sync write a tick, `poll` with a deadline.

    `fd` is an open serial port, made non-blocking here and not closed; None: `reopen` brings it. Per joint: its
    servo's id, the mode of its units (0 degrees, 1 -100..100, 2 0..100) and the calibrated range in ticks with
    LeRobot's drive_mode. A read ends after `timeout_ns` at the latest, retries included; servos that answered count
    even when others did not. `echo`: the line repeats what we send.
    Health is read with `expects_torque`, where a servo without torque is unwell, or a `stop_temperature`
    (degrees Celsius), from which on one is too hot; either ends the loop.
    Raises ConfigError for lists that do not fit, OSError for a bad `fd`.
    """

    cdef int _fd
    cdef int _arrivals  # an epoll that tells, once, that bytes came
    cdef bint _rest  # there may be more of what it told
    cdef bint _echo
    cdef int64_t _timeout_ns
    cdef int64_t _patience_ns
    cdef uint8_t _ids[MAX_JOINTS]
    cdef int _modes[MAX_JOINTS]
    cdef double _min[MAX_JOINTS]
    cdef double _max[MAX_JOINTS]
    cdef bint _reversed[MAX_JOINTS]
    # the answer that is being received; bit j stands for joint j
    cdef int _asks  # bytes of each servo
    cdef uint64_t _asked
    cdef uint64_t _missing
    cdef int _raw[MAX_JOINTS]
    cdef uint8_t _flags[MAX_JOINTS]
    cdef uint8_t _buffer[FRAME]
    cdef int _have
    # what goes out
    cdef uint8_t _frame[FRAME]
    cdef int _owed  # bytes of our own that the line will still repeat
    cdef int _repeated  # of these, how many it has
    cdef int _sent[MAX_JOINTS]  # goals in ticks
    cdef bint _has_sent[MAX_JOINTS]
    # counters
    cdef atomic_llong _reads
    cdef atomic_llong _retries
    cdef atomic_llong _bad_frames
    cdef atomic_llong _junk_bytes
    cdef atomic_llong _echo_errors
    cdef atomic_llong _held_goals
    cdef atomic_llong _misses[MAX_JOINTS]
    cdef atomic_llong _last_errors[MAX_JOINTS]
    cdef atomic_llong _all_errors[MAX_JOINTS]
    # health
    cdef bint _expects_torque
    cdef int _stop_temperature
    cdef int _patient  # the joint whose turn it is
    cdef int _doubts  # how often in a row it was unwell
    cdef atomic_llong _health[MAX_JOINTS][FIGURES]
    cdef atomic_llong _checks[MAX_JOINTS]

    def __cinit__(
        self,
        fd,
        ids,
        modes,
        range_min,
        range_max,
        drive_mode,
        *,
        int64_t timeout_ns,
        bint echo=False,
        bint expects_torque=False,
        int stop_temperature=0,
    ):
        cdef int joint
        self._fd = self._arrivals = -1
        self.joints = joints = len(ids)
        if not 1 <= joints <= MAX_JOINTS:
            raise ConfigError(f"ids: {joints} servos are not in 1..{MAX_JOINTS}")
        if not len(modes) == len(range_min) == len(range_max) == len(drive_mode) == joints:
            raise ConfigError(f"modes, range_min, range_max and drive_mode must each have {joints} entries")
        if len(set(ids)) != joints or not all(0 <= servo <= 253 for servo in ids):
            raise ConfigError(f"ids: {list(ids)} are not different numbers in 0..253")
        if timeout_ns <= 0:
            raise ConfigError(f"timeout_ns: {timeout_ns} is not a duration")
        for joint in range(joints):
            if modes[joint] not in (DEGREES, CENTRED, PERCENT):
                raise ConfigError(f"modes: {modes[joint]} of servo {ids[joint]} is not 0, 1 or 2")
            if not range_min[joint] < range_max[joint]:
                raise ConfigError(f"range of servo {ids[joint]}: {range_min[joint]}..{range_max[joint]} is empty")
            self._ids[joint] = ids[joint]
            self._modes[joint] = modes[joint]
            self._min[joint], self._max[joint] = range_min[joint], range_max[joint]
            self._reversed[joint] = bool(drive_mode[joint])
            low = <int> range_min[joint]
            scale = fabs(self._to_units(joint, low + 1) - self._to_units(joint, low))
            self.fastest[joint] = FASTEST * 1e-9 * scale
            self.slack[joint] = (FASTEST * 1e-9 * timeout_ns + TREMBLE) * scale  # a read may come so late in its tick
        self.limited = True
        self._echo = echo
        self._timeout_ns = timeout_ns
        self._patience_ns = max(timeout_ns // 4, PATIENCE_NS)
        self._expects_torque, self._stop_temperature = expects_torque, stop_temperature
        self._asks = FEW
        if fd is not None:
            self.reopen(fd)

    def __dealloc__(self):
        if self._arrivals >= 0:
            os_close(self._arrivals)

    def reopen(self, int fd):
        """Go on over another open serial port, the loop at rest; counts go on. OSError for a bad `fd`."""
        cdef epoll_event wanted
        cdef int joint, arrivals
        os.set_blocking(fd, False)
        wanted.events = EPOLLIN | EPOLLET
        arrivals = epoll_create1(EPOLL_CLOEXEC)
        if arrivals < 0 or epoll_ctl(arrivals, EPOLL_CTL_ADD, fd, &wanted):
            number = errno
            if arrivals >= 0:
                os_close(arrivals)
            raise OSError(number, os.strerror(number))
        if self._arrivals >= 0:
            os_close(self._arrivals)
        self._fd, self._arrivals = fd, arrivals
        self._rest = False
        self._owed = self._repeated = self._doubts = 0
        for joint in range(self.joints):
            self._has_sent[joint] = False
        self._begin()

    def to_units(self, int joint, int raw):
        """Joint units of a position register's value."""
        return self._to_units(joint, raw)

    def to_raw(self, int joint, double units):
        """Ticks for a goal in joint units, truncated as LeRobot's; None for what the register cannot hold."""
        cdef int raw
        return raw if self._to_raw(joint, units, &raw) else None

    @property
    def reads(self):
        """Position reads, retries not counted."""
        return load(&self._reads)

    @property
    def retries(self):
        return load(&self._retries)

    @property
    def bad_frames(self):
        """Frames refused: checksum, length, an id that was not asked, wrong order."""
        return load(&self._bad_frames)

    @property
    def junk_bytes(self):
        """Bytes that belong to no accepted frame, late answers included."""
        return load(&self._junk_bytes)

    @property
    def echo_errors(self):
        """Requests that the line repeated wrongly."""
        return load(&self._echo_errors)

    @property
    def held_goals(self):
        """Goals that the register cannot hold; the servo was sent its last one instead."""
        return load(&self._held_goals)

    @property
    def misses(self):
        """Reads without an answer, by joint."""
        return tuple(load(&self._misses[joint]) for joint in range(self.joints))

    @property
    def missed_in_a_row(self):
        return tuple(load(&self.missed[joint]) for joint in range(self.joints))

    @property
    def silent(self):
        """Ids of the servos that have missed three reads in a row by now."""
        return tuple(self._ids[joint] for joint in range(self.joints) if load(&self.missed[joint]) >= NAMED_AT)

    @property
    def last_errors(self):
        """The error byte of each joint's last answer: 1 voltage, 2 sensor, 4 temperature, 8 current, 32 overload."""
        return tuple(load(&self._last_errors[joint]) for joint in range(self.joints))

    @property
    def all_errors(self):
        """Every error bit a joint has ever shown."""
        return tuple(load(&self._all_errors[joint]) for joint in range(self.joints))

    @property
    def hung_up(self):
        """The port is gone: unplugged, or closed on the other side."""
        return load(&self.gone) > 0 or load(&self.gone) == HUNG_UP

    @property
    def health(self):
        """By joint the last (load, voltage, temperature, current) as its registers hold them; None before the first."""
        cdef int joint, i
        every = [tuple(load(&self._health[joint][i]) for i in range(FIGURES)) for joint in range(self.joints)]
        return tuple(each if load(&self._checks[joint]) else None for joint, each in enumerate(every))

    @property
    def checks(self):
        """How often the health of each joint was read."""
        return tuple(load(&self._checks[joint]) for joint in range(self.joints))

    def _lost(self, names):
        code = load(&self.gone)
        who = self._label(self._patient, names)
        if code == TORQUELESS:
            return f"{who} has lost its torque: it restarted or protects itself; did its supply break down?"
        if code == HOT:
            celsius = load(&self._health[self._patient][TEMPERATURE])
            return f"{who} is {celsius} °C hot, the limit is {self._stop_temperature}: let it cool down"
        return f"the port is gone ({os.strerror(code) if code > 0 else 'hung up'}): is the cable out?"

    def _label(self, int joint, names):
        return f"{names[joint]} (id {self._ids[joint]})" if names else f"servo {self._ids[joint]}"

    def _silence(self, int times, names):
        silent = [joint for joint in range(self.joints) if load(&self.missed[joint]) >= times]
        if 1 < len(silent) == self.joints:
            return f"no servo replied {times} times in a row: is the 12 V supply on?"
        who = [self._label(joint, names) for joint in silent]
        what = "no position that it can have come to," if any(self.doubts[joint] for joint in silent) else "no reply"
        return f"{', '.join(who)}: {what} {times} times in a row"

    def _deafness(self, int times):
        return f"goals could not be written {times} times in a row: the port takes no more bytes"

    # read

    cdef int read(self, int64_t now) noexcept nogil:
        cdef int64_t deadline = now_ns() + self._timeout_ns, began
        cdef uint64_t everyone = ~<uint64_t> 0 >> (64 - self.joints)
        cdef int tries, joint, answered = 0
        add(&self._reads, 1)
        self._flush()
        if self._missing:
            # Who is late answers the last question, and could else be taken for an answer to this one.
            self._asks = FEW + MORE - self._asks
        self._missing = everyone
        for tries in range(1 + RETRIES):
            add(&self._retries, tries > 0)
            began = now_ns()
            self._ask(deadline)
            if self._missing == 0 or load(&self.gone) or deadline - now_ns() < now_ns() - began:
                break  # no time for another try that lasts as long
        for joint in range(self.joints):
            if self._missing >> joint & 1:
                add(&self.missed[joint], 1)
                add(&self._misses[joint], 1)
            else:
                answered += self._heard(joint, self._to_units(joint, self._raw[joint]), now)
                store(&self._last_errors[joint], self._flags[joint])
                store(&self._all_errors[joint], load(&self._all_errors[joint]) | self._flags[joint])
        return answered

    cdef void _flush(self) noexcept nogil:
        """Drop what is left from before: a late answer must not answer this request."""
        cdef int64_t dropped = 0
        cdef int _turn
        for _turn in range(FRAME):  # bounded, should bytes come without end
            self._have = 0
            if not self._wait(0):
                break
            self._take(FRAME)
            dropped += self._have
        self._have = 0
        add(&self._junk_bytes, max(dropped - self._owed + self._repeated, 0))
        self._owed = self._repeated = 0

    cdef void _ask(self, int64_t deadline) noexcept nogil:
        """One sync read of the servos still missing; what answers is no longer missing.

        Answers come in the order asked. After the last one's only a moment of quiet is left to wait for the rest.
        """
        cdef uint64_t last
        cdef int64_t until
        self._asked = self._missing
        last = <uint64_t> 1 << (63 - clz(self._asked))
        self._have = 0
        if not self._send(self._pack_read()):
            return
        while self._missing:
            until = now_ns() + (self._patience_ns if self._missing & last else QUIET_NS)
            if not self._wait(min(until, deadline)):
                break
            if self._take(FRAME):
                self._drop_echo()
                self._decode()
            if load(&self.gone) or now_ns() > deadline:
                break  # what had come by then was still taken
        add(&self._junk_bytes, self._have)

    cdef void _drop_echo(self) noexcept nogil:
        """Take our own bytes from the front of what came; they must be what was sent."""
        cdef int count = min(self._have, self._owed - self._repeated), i
        if count <= 0:
            return
        for i in range(count):
            if self._buffer[i] != self._frame[self._repeated + i]:
                add(&self._echo_errors, 1)
                break
        self._repeated += count
        self._consume(count)

    cdef void _consume(self, int count) noexcept nogil:
        self._have -= count
        memmove(self._buffer, self._buffer + count, self._have)

    cdef void _decode(self) noexcept nogil:
        """Take every whole frame out of the buffer; where none begins, move on by one byte."""
        cdef int at = 0
        while self._have - at >= STATUS + self._asks:
            if self._accept(self._buffer + at):
                at += STATUS + self._asks
            else:
                at += 1
                add(&self._junk_bytes, 1)
        self._consume(at)

    cdef bint _accept(self, const uint8_t *frame) noexcept nogil:
        """Whether a status frame begins here that this request asked for; if so, its servo is heard.

        An answer from before one that was already taken means that the taken one was late: it counts no more.
        """
        cdef int joint = 0, raw
        cdef uint64_t bit
        if frame[0] != 0xFF or frame[1] != 0xFF or frame[2] >= BROADCAST:
            return False
        while joint < self.joints and not (self._asked >> joint & 1 and self._ids[joint] == frame[2]):
            joint += 1
        if joint == self.joints or frame[3] != self._asks + 2 or frame[4] > 0x7F:
            add(&self._bad_frames, 1)
            return False
        if frame[STATUS + self._asks - 1] != checksum(frame + 2, self._asks + 3):
            add(&self._bad_frames, 1)
            return False
        raw = frame[5] | (frame[6] & 0x7F) << 8
        if raw > FARTHEST_POSITION:
            add(&self._bad_frames, 1)
            return False
        bit = <uint64_t> 1 << joint
        if ~self._missing & self._asked & ~(bit - 1):
            add(&self._bad_frames, 1)
            self._missing |= self._asked & ~(bit - 1)
        self._missing &= ~bit
        self._raw[joint] = -raw if frame[6] & 0x80 else raw
        self._flags[joint] = frame[4]
        return True

    cdef int _pack_read(self) noexcept nogil:
        cdef int joint, at = 7
        for joint in range(self.joints):
            if self._asked >> joint & 1:
                self._frame[at] = self._ids[joint]
                at += 1
        return self._seal(SYNC_READ, PRESENT_POSITION, self._asks, at)

    # write

    cdef bint write(self, const double *goals) noexcept nogil:
        cdef int joint, at = 7, raw
        for joint in range(self.joints):
            if self._to_raw(joint, goals[joint], &raw):
                self._sent[joint] = raw
                self._has_sent[joint] = True
            else:
                add(&self._held_goals, 1)
            if not self._has_sent[joint]:
                continue  # nothing to hold yet
            raw = self._sent[joint]
            self._frame[at] = self._ids[joint]
            self._frame[at + 1] = abs(raw) & 0xFF
            self._frame[at + 2] = abs(raw) >> 8 | (0x80 if raw < 0 else 0)
            at += 3
        return at == 7 or self._send(self._seal(SYNC_WRITE, GOAL_POSITION, 2, at))

    cdef int _seal(self, uint8_t instruction, uint8_t address, uint8_t size, int end) noexcept nogil:
        """Close the frame whose parameters end at `end`; its length in all."""
        self._frame[0] = self._frame[1] = 0xFF
        self._frame[2] = BROADCAST
        self._frame[3] = end - 3
        self._frame[4] = instruction
        self._frame[5] = address
        self._frame[6] = size
        self._frame[end] = checksum(self._frame + 2, end - 2)
        return end + 1

    cdef bint _send(self, int size) noexcept nogil:
        """Put a frame into the port's buffer, which holds a hundred of them: one without room is not waited for."""
        cdef int sent = 0, count
        self._owed = size if self._echo else 0
        self._repeated = 0
        while sent < size:
            count = os_write(self._fd, self._frame + sent, size - sent)
            if count > 0:
                sent += count
            elif count == 0 or errno == EAGAIN:
                return False
            elif errno != EINTR:
                store(&self.gone, errno)
                return False
        return True

    # To poll or to read a terminal that is empty waits for the kernel's own thread to hand over what it may hold, on a
    # busy machine far beyond any deadline, priority or not. So neither is done: an edge of epoll tells that bytes are
    # there, each is told once, and a read that comes up short has taken all.

    cdef bint _wait(self, int64_t until) noexcept nogil:
        """Until there are bytes to take (True) or the time has come; what is there at that time still counts."""
        cdef epoll_event event
        cdef short ready = 0
        cdef int count
        while not self._rest:
            count = poll_ns(self._arrivals, POLLIN, max(until - now_ns(), 0), &ready)
            if count == 0:
                return False
            if count < 0 and errno != EINTR:
                store(&self.gone, errno)
                return False
            if count > 0 and epoll_wait(self._arrivals, &event, 1, 0) > 0:
                if event.events & (EPOLLHUP | EPOLLERR):
                    store(&self.gone, HUNG_UP)
                    return False
                return True
        return True

    cdef bint _take(self, int most) noexcept nogil:
        """After `_wait`: read into the buffer until it holds `most`; whether anything came."""
        cdef bint told = not self._rest
        cdef int count = os_read(self._fd, self._buffer + self._have, most - self._have)
        self._rest = count == most - self._have or (count < 0 and errno == EINTR)
        if count > 0:
            self._have += count
        elif count == 0 and told:
            store(&self.gone, HUNG_UP)
        elif count < 0 and errno != EAGAIN and errno != EINTR:
            store(&self.gone, errno)
        return count > 0

    # health

    cdef void check(self) noexcept nogil:
        cdef int64_t deadline = now_ns() + self._timeout_ns
        cdef int joint = self._patient, _turn
        if not (self._expects_torque or self._stop_temperature):
            return
        for _turn in range(self.joints):
            if self._doubts == 0:
                self._patient = joint = (joint + 1) % self.joints
            if load(&self.missed[joint]) == 0:
                break  # others are silent, and asking them would only cost time
            self._doubts = 0
        else:
            return
        self._await_echo(deadline)
        self._flush()
        self._have = 0
        if not self._send(self._pack_check(joint)):
            return
        while self._wait(min(now_ns() + self._patience_ns, deadline)):
            self._take(FRAME)
            self._drop_echo()
            while self._have >= HEALTH_FRAME:
                if self._accept_health(joint, self._buffer):
                    return
                self._consume(1)
                add(&self._junk_bytes, 1)
            if load(&self.gone) or now_ns() > deadline:
                break
        add(&self._junk_bytes, self._have)

    cdef void _await_echo(self, int64_t deadline) noexcept nogil:
        """Let the line repeat what was sent last, or it would come in between."""
        self._have = 0
        while self._repeated < self._owed and self._wait(deadline) and self._take(self._owed - self._repeated):
            self._drop_echo()

    cdef int _pack_check(self, int joint) noexcept nogil:
        self._frame[0] = self._frame[1] = 0xFF
        self._frame[2], self._frame[3], self._frame[4] = self._ids[joint], 4, READ
        self._frame[5], self._frame[6] = TORQUE_ENABLE, HEALTH_BYTES
        self._frame[7] = checksum(self._frame + 2, 5)
        return 8

    cdef bint _accept_health(self, int joint, const uint8_t *frame) noexcept nogil:
        """Whether the whole answer of `joint` begins here; if so it is kept and judged."""
        cdef const uint8_t *values = frame + 5
        cdef int unwell = 0
        if frame[0] != 0xFF or frame[1] != 0xFF or frame[2] != self._ids[joint] or frame[3] != HEALTH_BYTES + 2:
            return False
        if frame[HEALTH_FRAME - 1] != checksum(frame + 2, HEALTH_FRAME - 3):
            add(&self._bad_frames, 1)
            return False
        store(&self._health[joint][LOAD], word(values + PRESENT_LOAD - TORQUE_ENABLE))
        store(&self._health[joint][VOLTAGE], values[PRESENT_VOLTAGE - TORQUE_ENABLE])
        store(&self._health[joint][TEMPERATURE], values[PRESENT_TEMPERATURE - TORQUE_ENABLE])
        store(&self._health[joint][CURRENT], word(values + PRESENT_CURRENT - TORQUE_ENABLE))
        add(&self._checks[joint], 1)
        if self._expects_torque and values[0] == 0:
            unwell = TORQUELESS
        elif 0 < self._stop_temperature <= values[PRESENT_TEMPERATURE - TORQUE_ENABLE]:
            unwell = HOT
        self._doubts = self._doubts + 1 if unwell else 0
        if self._doubts >= DOUBTS:
            store(&self.gone, unwell)
        return True

    # units, in LeRobot's order of operations (motors/motors_bus.py, _normalize and _unnormalize), in double

    cdef double _to_units(self, int joint, int raw) noexcept nogil:
        cdef double low = self._min[joint], high = self._max[joint], bounded, units
        if self._modes[joint] == DEGREES:
            return (raw - (low + high) / 2) * 360 / COUNTS
        bounded = min(high, max(low, <double> raw))
        if self._modes[joint] == CENTRED:
            units = (bounded - low) / (high - low) * 200 - 100
            return -units if self._reversed[joint] else units
        units = (bounded - low) / (high - low) * 100
        return 100 - units if self._reversed[joint] else units

    cdef bint _to_raw(self, int joint, double units, int *raw) noexcept nogil:
        """False, and nothing converted, when the register cannot hold the result."""
        cdef double low = self._min[joint], high = self._max[joint], ticks
        if self._modes[joint] == DEGREES:
            ticks = units * COUNTS / 360 + (low + high) / 2
        elif self._modes[joint] == CENTRED:
            units = -units if self._reversed[joint] else units
            ticks = (min(100.0, max(-100.0, units)) + 100) / 200 * (high - low) + low
        else:
            units = 100 - units if self._reversed[joint] else units
            ticks = min(100.0, max(0.0, units)) / 100 * (high - low) + low
        if not (isfinite(units) and -MAGNITUDE - 1 < ticks < MAGNITUDE + 1):
            return False
        raw[0] = <int> ticks
        return True


cdef inline int word(const uint8_t *at) noexcept nogil:
    return at[0] | at[1] << 8


cdef inline uint8_t checksum(const uint8_t *body, int size) noexcept nogil:
    cdef unsigned total = 0
    cdef int i
    for i in range(size):
        total += body[i]
    return ~total & 0xFF
