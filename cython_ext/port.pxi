# -- the ports ------------------------------------------------------------------------------------------------------

import numpy as np

from edge_runtime.errors import ConfigError

from libc.math cimport fabs
from libc.stdint cimport int64_t

cdef class Port:
    """What the loop asks of a robot: where the joints are, and to go somewhere. All in joint units."""

    cdef readonly int joints
    cdef double positions[MAX_JOINTS]  # the last known
    cdef int64_t heard_ns[MAX_JOINTS]  # when that was, by the clock of tick()
    cdef bint known[MAX_JOINTS]  # heard at least once
    cdef atomic_llong missed[MAX_JOINTS]  # reads in a row without an answer
    cdef bint limited  # a joint cannot be anywhere at once
    cdef double fastest[MAX_JOINTS]  # then: what a joint can travel in a nanosecond, in units
    cdef double slack[MAX_JOINTS]  # and by what a true reading may be beyond that
    cdef bint doubts[MAX_JOINTS]  # the last answer was not believed
    cdef double doubted[MAX_JOINTS]  # it, and when
    cdef int64_t doubted_ns[MAX_JOINTS]
    cdef atomic_llong _impossible[MAX_JOINTS]
    cdef atomic_llong gone  # 0, or the reason why asking again is of no use

    cdef int read(self, int64_t now) noexcept nogil:
        """Ask every joint; how many answered. Takes `now` for the time of their answers."""
        return 0

    cdef bint write(self, const double *goals) noexcept nogil:
        """Send every joint its goal; False if that failed."""
        return False

    cdef void check(self) noexcept nogil:
        """See how one of the joints feels, the next each time."""

    cdef void _begin(self) noexcept nogil:
        """Forget what failed: from here it counts anew."""
        cdef int joint
        store(&self.gone, 0)
        for joint in range(self.joints):
            store(&self.missed[joint], 0)
            self.known[joint] = self.doubts[joint] = False

    cdef bint _heard(self, int joint, double position, int64_t now) noexcept nogil:
        """Take a reading; False where it counts as a miss, because the joint cannot be there yet.

        It is believed once the next one confirms it: is where the joint can have come to from there.
        """
        cdef int64_t since = self.heard_ns[joint] if self.known[joint] else now
        if self.limited and not self._can_come(joint, self.positions[joint], position, now - since):
            if not (
                self.doubts[joint]
                and self._can_come(joint, self.doubted[joint], position, now - self.doubted_ns[joint])
            ):
                self.doubts[joint], self.doubted[joint], self.doubted_ns[joint] = True, position, now
                add(&self._impossible[joint], 1)
                add(&self.missed[joint], 1)
                return False
        self.doubts[joint] = False
        self.positions[joint] = position
        self.heard_ns[joint] = now
        self.known[joint] = True
        store(&self.missed[joint], 0)
        return True

    cdef inline bint _can_come(self, int joint, double start, double end, int64_t ns) noexcept nogil:
        return fabs(end - start) <= self.slack[joint] + self.fastest[joint] * max(ns, 0)

    @property
    def impossible(self):
        """Readings that were not believed, by joint: the joint could not have come there since the last."""
        return tuple(load(&self._impossible[joint]) for joint in range(self.joints))

    # why the loop gave up, for a person

    def _lost(self, names):
        return ""

    def _silence(self, int times, names):
        return ""

    def _deafness(self, int times):
        return ""


cdef class PythonPort(Port):
    """A robot that is a Python object: `read()` -> positions of all joints, `write(goals)`; float64, joint units.

    The loop takes the GIL for these two calls, so the promise of an exact rate does not cover it. An exception counts
    as a missed reply of every joint, or as a failed write; its text is in the fault's message.
    """

    cdef object _robot
    cdef object _error  # the last exception

    def __cinit__(self, robot, int joints):
        if not 1 <= joints <= MAX_JOINTS:
            raise ConfigError(f"joints: {joints} is not in 1..{MAX_JOINTS}")
        self._robot = robot
        self.joints = joints

    cdef int read(self, int64_t now) noexcept nogil:
        cdef int joint
        with gil:
            if self._read(now):
                return self.joints
        for joint in range(self.joints):
            add(&self.missed[joint], 1)
        return 0

    cdef bint write(self, const double *goals) noexcept nogil:
        with gil:
            return self._write(goals)

    cdef bint _read(self, int64_t now) noexcept:
        cdef const double[::1] values
        cdef int joint
        try:
            positions = np.ascontiguousarray(self._robot.read(), np.float64)
            if positions.shape != (self.joints,) or not np.isfinite(positions).all():
                raise ValueError(f"{positions.tolist()} are not {self.joints} finite positions")
            values = positions
        except BaseException as error:
            self._failed(error)
            return False
        for joint in range(self.joints):
            self._heard(joint, values[joint], now)
        return True

    cdef bint _write(self, const double *goals) noexcept:
        try:
            self._robot.write(to_array(goals, self.joints, np.float64))
        except BaseException as error:
            self._failed(error)
            return False
        return True

    cdef _failed(self, error):
        self._error = error
        if not isinstance(error, Exception):  # KeyboardInterrupt and its kind end the loop at once
            store(&self.gone, 1)

    def _lost(self, names):
        raise self._error

    def _silence(self, int times, names):
        return f"robot.read() failed {times} times in a row: {type(self._error).__name__}: {self._error}"

    def _deafness(self, int times):
        return f"robot.write() failed {times} times in a row: {type(self._error).__name__}: {self._error}"


cdef to_array(const double *values, int joints, dtype):
    cdef int joint
    return np.array([values[joint] for joint in range(joints)], dtype)
