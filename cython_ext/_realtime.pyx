# cython: language_level=3, auto_pickle=False
# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The plan of actions, the loop that executes it and the ports it speaks through; only the Python port takes the GIL.

Below every `def` that checks stands a `cdef ... noexcept nogil` that works: no objects, no allocation, no logging.
What happens there is counted, and Python reads the counters. From top to bottom: clock and atomics, the exchange
between two threads, the ring, the ports, the loop.
"""

import os
import threading
from dataclasses import dataclass

import numpy as np

from edge_runtime.errors import AccessError, ActuatorFault, ConfigError, DeviceError
from edge_runtime.timing import BUCKETS as PYTHON_BUCKETS
from edge_runtime.timing import Histogram

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, EPERM, errno
from libc.math cimport INFINITY, exp, isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove
from posix.unistd cimport read as os_read, write as os_write

cdef extern from *:
    """
    #include <errno.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <poll.h>
    #include <pthread.h>
    #include <sched.h>
    #include <stdatomic.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    #ifndef MCL_ONFAULT
    #define MCL_ONFAULT 4
    #endif
    #if defined(SYS_futex_time64) && defined(__USE_TIME_BITS64)  /* 32 bits with a 64-bit time_t */
    #define FUTEX_CALL SYS_futex_time64
    #else
    #define FUTEX_CALL SYS_futex
    #endif

    static inline int64_t now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }

    static inline int64_t thread_ns(void) {  /* what the scheduler has given this thread */
        struct timespec spent;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
        return spent.tv_sec * INT64_C(1000000000) + spent.tv_nsec;
    }

    /* Sleep until *word is not `value` any more or CLOCK_MONOTONIC reaches until_ns: 0, or ETIMEDOUT, EAGAIN, EINTR.
       The kernel's timer is absolute, as clock_nanosleep's, and one wake reaches every sleeper. */
    static int sleep_on(atomic_uint *word, unsigned value, int64_t until_ns) {
        struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        return syscall(FUTEX_CALL, word, FUTEX_WAIT_BITSET_PRIVATE, value, &until, NULL, FUTEX_BITSET_MATCH_ANY)
            ? errno : 0;
    }
    static void wake_all(atomic_uint *word) {
        syscall(FUTEX_CALL, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }

    static int poll_ns(int fd, short events, int64_t timeout_ns, short *revents) {
        struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
        struct pollfd slot = {fd, events, 0};
        int ready = ppoll(&slot, 1, &timeout, NULL);
        *revents = slot.revents;
        return ready;
    }

    /* A number that one thread writes and others read for information: no order is implied. */
    static inline int64_t load(atomic_llong *n) { return atomic_load_explicit(n, memory_order_relaxed); }
    static inline void store(atomic_llong *n, int64_t v) { atomic_store_explicit(n, v, memory_order_relaxed); }
    static inline void add(atomic_llong *n, int64_t v) { store(n, load(n) + v); }
    """
    ctypedef int atomic_int
    ctypedef unsigned atomic_uint
    ctypedef long long atomic_llong
    int memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel
    unsigned atomic_fetch_add_explicit(atomic_uint *, unsigned, int) noexcept nogil
    int atomic_exchange_explicit(atomic_int *, int, int) noexcept nogil
    int atomic_load_int "atomic_load_explicit"(atomic_int *, int) noexcept nogil
    unsigned atomic_load_uint "atomic_load_explicit"(atomic_uint *, int) noexcept nogil
    int64_t atomic_load_llong "atomic_load_explicit"(atomic_llong *, int) noexcept nogil
    void atomic_store_int "atomic_store_explicit"(atomic_int *, int, int) noexcept nogil
    void atomic_store_uint "atomic_store_explicit"(atomic_uint *, unsigned, int) noexcept nogil
    void atomic_store_llong "atomic_store_explicit"(atomic_llong *, int64_t, int) noexcept nogil
    int64_t load(atomic_llong *) noexcept nogil
    void store(atomic_llong *, int64_t) noexcept nogil
    void add(atomic_llong *, int64_t) noexcept nogil

    int64_t now_ns() noexcept nogil
    int64_t thread_ns() noexcept nogil
    int sleep_on(atomic_uint *, unsigned, int64_t) noexcept nogil
    void wake_all(atomic_uint *) noexcept nogil
    int poll_ns(int, short, int64_t, short *) noexcept nogil
    short POLLIN, POLLOUT, POLLHUP, POLLERR, POLLNVAL
    int clz "__builtin_clzll"(unsigned long long) noexcept nogil

    ctypedef unsigned long pthread_t
    struct sched_param:
        int sched_priority
    int SCHED_FIFO
    pthread_t pthread_self() noexcept nogil
    int pthread_getschedparam(pthread_t, int *, sched_param *) noexcept nogil
    int pthread_setschedparam(pthread_t, int, const sched_param *) noexcept nogil
    int sched_yield() noexcept nogil
    int MCL_CURRENT, MCL_ONFAULT
    int mlockall(int) noexcept nogil

cpdef enum:  # what `pick` returns
    STARVED = 0
    PICKED = 1
    HOLE = 2

cdef enum:
    PAUSED = 3  # what else can become of a timestep in the loop
    FAILED = 4
    MAX_JOINTS = 64  # a bit each in a 64-bit word; a sync write of 64 goals is 200 bytes, the frame's limit 250
    BUCKETS = 1280  # timing.BUCKETS

assert BUCKETS == PYTHON_BUCKETS

cdef int64_t FARTHEST = 1 << 60  # timesteps and times beyond are refused, so that adding to one cannot overflow

# -- one writer, one reader, neither waits --------------------------------------------------------------------------
#
# Three places. The writer fills `back`, the reader reads `front`, and `middle` lies between them:
#
# 1. publish swaps back and middle, receive swaps front and middle, each by one atomic exchange; so the three stay
#    different, and no place is ever in two hands.
# 2. The exchange releases what was written before it and acquires what the other side's exchange released: a place
#    is whole when it arrives, and free when it comes back. x86 would forgive a weaker order, ARM does not.
# 3. FRESH marks a middle that the reader has not seen; a newer publication simply takes its place.

cdef enum:
    FRESH = 4

cdef struct Places:
    atomic_int middle
    int back
    int front

cdef void lay_out(Places *places) noexcept nogil:
    places.back, places.front = 1, 2
    atomic_store_int(&places.middle, 0, memory_order_relaxed)

cdef inline void publish(Places *places) noexcept nogil:
    """The writer's half: `back` becomes the newest, and another place becomes `back`."""
    places.back = atomic_exchange_explicit(&places.middle, places.back | FRESH, memory_order_acq_rel) & ~FRESH

cdef inline bint receive(Places *places) noexcept nogil:
    """The reader's half: True when `front` is a newer place than before."""
    if not atomic_load_int(&places.middle, memory_order_relaxed) & FRESH:
        return False
    places.front = atomic_exchange_explicit(&places.middle, places.front, memory_order_acq_rel) & ~FRESH
    return True


# -- the ring -------------------------------------------------------------------------------------------------------

# LeRobot's aggregate functions (async_inference/configs.py, 0.6): keep * old + take * new.
AGGREGATE = {
    "weighted_average": (0.3, 0.7),
    "latest_only": (0.0, 1.0),
    "average": (0.5, 0.5),
    "conservative": (0.7, 0.3),
}


cdef class TemporalEnsemble:
    """Average all chunks that speak of a timestep, the i-th oldest weighted exp(-coeff * i); 0 = all alike.

    Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (2023), algorithm 2, as the
    running mean of LeRobot's ACTTemporalEnsembler. Raises ConfigError unless `coeff` is finite.
    """

    cdef readonly double coeff

    def __cinit__(self, double coeff):
        if not isfinite(coeff):
            raise ConfigError(f"temporal_ensemble_coeff: {coeff} is not finite")
        self.coeff = coeff

    def __repr__(self):
        return f"TemporalEnsemble({self.coeff:g})"

    cdef running_mean(self, Py_ssize_t depths):
        """(keep, take) for the second chunk, the third and so on: keep = S_n-1 / S_n, take = w_n / S_n.

        With S_n the sum of the first n weights; as w_n+1 = w_n / e^coeff, take_n+1 = take_n / (take_n + e^coeff).
        """
        cdef double take = 1
        pairs = []
        for _ in range(depths):
            take /= take + exp(self.coeff)
            pairs.append((1 - take, take))
        return pairs


cdef class LinearBlend:
    """Go over from the plan to the new chunk in equal parts, on the first `rows` timesteps that both cover.

    Row i of them takes (i + 1) / (rows + 1) of the chunk, later rows all of it: what would be one jump in the motion
    becomes rows + 1 small ones, and `rows` ticks on the arm follows the newest observation alone. Where fewer
    timesteps are shared, the parts are larger. Raises ConfigError unless `rows` is positive.
    """

    cdef readonly Py_ssize_t rows

    def __cinit__(self, Py_ssize_t rows):
        if rows < 1:
            raise ConfigError(f"rows: {rows} is less than 1")
        self.rows = rows

    def __repr__(self):
        return f"LinearBlend({self.rows})"


cdef struct Plan:
    Py_ssize_t rows
    int64_t merges  # chunks that went into it since the ring was made
    int64_t start  # the cursor when this epoch began
    int64_t epoch  # how often open_session has set the cursor


cdef class ActionRing:
    """What is planned, by timestep: at most `capacity` rows of float32 joint units, in rising order.

    One thread executes (`pick`, or the loop) and never waits. The others change the plan: each builds the whole next
    plan from the newest, a user's aggregate included, and publishes it by one exchange; a lock keeps them apart.

    `aggregate` blends the timesteps that the plan and a new chunk both cover: (keep, take) for keep * old + take * new,
    a LinearBlend, a TemporalEnsemble, or a function of both arrays, (rows, joints) float32, that returns their blend.
    A row with a NaN or an infinity is a hole: it is never blended and never picked.
    A row is as old as the newest observation behind it; beyond `max_age_s` it is neither picked nor blended.
    Raises ConfigError for sizes, pairs and ages that cannot work.
    """

    cdef readonly Py_ssize_t capacity
    cdef readonly int joints
    cdef Places _places
    cdef Plan _plans[3]
    cdef int64_t[:, ::1] _timesteps  # (place, row)
    cdef int[:, ::1] _depths  # (place, row): chunks blended into the row
    cdef int64_t[:, ::1] _seen  # (place, row): when the newest observation behind the row was made
    cdef float[:, :, ::1] _rows  # (place, row, joint)
    cdef int64_t _max_age_ns
    # the writers'
    cdef object _lock
    cdef object _function
    cdef float[:, ::1] _pairs  # (keep, take) by the depth of the old row, or by its place; beyond, the last
    cdef bint _by_place  # among the rows that both sides cover
    cdef int _last  # the place published last: nobody writes there until the next publication but one
    cdef readonly uint64_t session
    cdef atomic_llong _merges
    cdef readonly int64_t merged_rows
    cdef readonly int64_t stale_chunks
    cdef readonly int64_t foreign_chunks
    cdef readonly int64_t dropped_rows
    # the reader's
    cdef Py_ssize_t _next
    cdef int64_t _taken_seen  # of the row that `take` gave last
    cdef int64_t _too_old_to  # timesteps before it are counted in _too_old already
    cdef atomic_llong _cursor
    cdef atomic_llong _epoch
    cdef atomic_llong _holes
    cdef atomic_llong _jumps
    cdef atomic_llong _too_old

    def __cinit__(self, Py_ssize_t capacity, int joints, aggregate=(0.3, 0.7), *, double max_age_s=INFINITY):
        if capacity < 1:
            raise ConfigError(f"capacity: {capacity} is less than 1 row")
        if not 1 <= joints <= MAX_JOINTS:
            raise ConfigError(f"joints: {joints} is not in 1..{MAX_JOINTS}")
        if not max_age_s > 0:
            raise ConfigError(f"max_age_s: {max_age_s} is not an age")
        self._max_age_ns = <int64_t> (min(max_age_s, FOREVER_S) * 1e9)
        self.capacity = capacity
        self.joints = joints
        self._timesteps = np.full((3, capacity), 0, np.int64)  # full, not zeros: touched now, not first by the loop
        self._depths = np.full((3, capacity), 0, np.intc)
        self._seen = np.full((3, capacity), 0, np.int64)
        self._rows = np.full((3, capacity, joints), 0, np.float32)
        self._function = aggregate if callable(aggregate) else None
        self._pairs = np.array(pairs((0, 1) if callable(aggregate) else aggregate, capacity), np.float32)
        self._by_place = isinstance(aggregate, LinearBlend)
        self._lock = threading.Lock()
        lay_out(&self._places)

    def merge(
        self, int64_t first_timestep, const float[:, ::1] chunk not None, uint64_t session, int64_t seen_ns=FARTHEST
    ):
        """Blend `chunk` (rows, joints), whose first row is for `first_timestep`, into the plan.

        `seen_ns` is when its observation was made, on the clock of the loop's ticks; without it the rows never age.
        Returns how many rows were taken: those not yet executed. 0 leaves the plan as it is: the chunk is wholly
        stale, or of another session than the open one. Raises ValueError for another shape or more rows than the
        ring can hold; ConfigError when the user's function returns another shape.
        """
        cdef Py_ssize_t rows = chunk.shape[0], stale, start, both
        cdef int64_t cursor
        cdef const float[:, ::1] blended
        if chunk.shape[1] != self.joints:
            raise ValueError(f"chunk has {chunk.shape[1]} joints, the ring {self.joints}")
        if not 1 <= rows <= self.capacity:
            raise ValueError(f"chunk has {rows} rows, the ring takes 1..{self.capacity}")
        if not -FARTHEST <= first_timestep <= FARTHEST:
            raise ValueError(f"first timestep {first_timestep} is not within 2**60")
        if not 0 <= seen_ns <= FARTHEST:
            raise ValueError(f"seen_ns: {seen_ns} is not a time within 2**60")
        with self._lock:
            if session != self.session:
                self.foreign_chunks += 1
                return 0
            cursor = self._writers_cursor()
            stale = min(max(cursor - first_timestep, 0), rows)
            self.dropped_rows += stale
            if stale == rows:
                self.stale_chunks += 1
                return 0
            first_timestep += stale
            rows -= stale
            start, both = self._overlap(cursor, first_timestep, rows)
            if self._plans[self._last].rows - self._left_behind(cursor) + rows - both > self.capacity:
                raise ValueError(f"timesteps {first_timestep}..{first_timestep + rows - 1} do not fit beside what is "
                                 f"planned: the ring holds {self.capacity} rows")
            if self._function is not None and both:
                blended = self._call(start, both, first_timestep, chunk[stale:])
                self._weave(cursor, first_timestep, seen_ns, &chunk[stale, 0], rows, &blended[0, 0])
            else:
                if self._by_place:
                    self._slope(both)
                self._weave(cursor, first_timestep, seen_ns, &chunk[stale, 0], rows, NULL)
            add(&self._merges, 1)
            self.merged_rows += rows
            self._publish()
        return rows

    def open_session(self, uint64_t session, *, bint clear, cursor=None):
        """From now on only chunks of `session` are merged.

        `clear` forgets the plan; `cursor` is the next timestep to execute (None: it goes on). The reader learns both
        at its next pick, by the same exchange as any plan.
        """
        cdef Plan *plan
        cdef int64_t start
        with self._lock:
            self.session = session
            if not clear and cursor is None:
                return
            start = self._writers_cursor() if cursor is None else cursor
            self._weave(start, 0, 0, NULL, 0, NULL)
            plan = &self._plans[self._places.back]
            if clear:
                plan.rows = 0
            if cursor is not None:
                plan.start = start
                plan.epoch += 1
            self._publish()

    def pick(self, float[::1] out not None):
        """Execute the next timestep: its row into `out` (joints,) and PICKED, or HOLE, or STARVED without a row.

        The reader's half, which the loop calls for itself.
        """
        if out.shape[0] != self.joints:
            raise ValueError(f"out has {out.shape[0]} joints, the ring {self.joints}")
        self.arrive(now_ns())
        return self.take(&out[0])

    @property
    def cursor(self):
        """The next timestep to execute."""
        return self._writers_cursor()

    @property
    def level(self):
        """Planned timesteps not yet executed."""
        return self._plans[self._last].rows - self._left_behind(self._writers_cursor())

    @property
    def merges(self):
        """Chunks that went into the plan since the ring was made."""
        return load(&self._merges)

    @property
    def holes(self):
        """Timesteps that passed without an action because their row was not finite."""
        return load(&self._holes)

    @property
    def jumps(self):
        """How often the plan started beyond the cursor, which then went there."""
        return load(&self._jumps)

    @property
    def too_old(self):
        """Timesteps whose row was passed over because of its age."""
        return load(&self._too_old)

    # the writers' half, the lock held

    cdef int64_t _writers_cursor(self) noexcept nogil:
        """The reader's cursor, or the one it will have once it has received the last open_session."""
        cdef Plan *plan = &self._plans[self._last]
        if atomic_load_llong(&self._epoch, memory_order_acquire) == plan.epoch:
            return load(&self._cursor)
        return plan.start

    cdef Py_ssize_t _left_behind(self, int64_t cursor) noexcept nogil:
        """How many rows of the last plan are for timesteps before `cursor`."""
        cdef Py_ssize_t row = 0
        while row < self._plans[self._last].rows and self._timesteps[self._last, row] < cursor:
            row += 1
        return row

    cdef (Py_ssize_t, Py_ssize_t) _overlap(self, int64_t cursor, int64_t first, Py_ssize_t rows) noexcept nogil:
        """The first row of the last plan that the chunk covers too, and how many there are."""
        cdef Py_ssize_t start = self._left_behind(max(first, cursor)), end = start
        while end < self._plans[self._last].rows and self._timesteps[self._last, end] < first + rows:
            end += 1
        return start, end - start

    cdef _call(self, Py_ssize_t start, Py_ssize_t both, int64_t first, const float[:, ::1] chunk):
        """The user's blend of the rows that plan and chunk share; where one side is a hole it sees the other twice."""
        cdef Py_ssize_t i
        cdef const float *planned
        cdef const float *coming
        shape = (both, self.joints)
        old, new = np.empty(shape, np.float32), np.empty(shape, np.float32)
        cdef float[:, ::1] olds = old, news = new
        for i in range(both):
            planned = &self._rows[self._last, start + i, 0]
            coming = &chunk[self._timesteps[self._last, start + i] - first, 0]
            memcpy(&olds[i, 0], planned if finite(planned, self.joints) else coming, self.joints * sizeof(float))
            memcpy(&news[i, 0], coming if finite(coming, self.joints) else planned, self.joints * sizeof(float))
        blended = np.ascontiguousarray(self._function(old, new), dtype=np.float32)
        if blended.shape != shape:
            raise ConfigError(f"aggregate_fn_name: the function returned shape {blended.shape} for two of {shape}")
        return blended

    cdef void _weave(
        self, int64_t cursor, int64_t first, int64_t seen, const float *chunk, Py_ssize_t rows, const float *blended
    ) noexcept nogil:
        """Back place <- the last plan's rows from `cursor` on and the chunk's: two rising runs woven into one."""
        cdef int last = self._last, back = self._places.back
        cdef Plan *plan = &self._plans[last]
        cdef Py_ssize_t old = self._left_behind(cursor), new = 0, row = 0, shared = 0, joints = self.joints
        while old < plan.rows or new < rows:
            if new == rows or (old < plan.rows and self._timesteps[last, old] < first + new):
                self._put(
                    row, self._timesteps[last, old], self._depths[last, old], self._seen[last, old],
                    &self._rows[last, old, 0],
                )
                old += 1
            elif old == plan.rows or self._timesteps[last, old] > first + new:
                self._put(row, first + new, 1, seen, chunk + new * joints)
                new += 1
            else:
                self._blend(row, old, seen, chunk + new * joints, blended, shared)
                if blended != NULL:
                    blended += joints
                old += 1
                new += 1
                shared += 1
            row += 1
        self._plans[back] = plan[0]
        self._plans[back].rows = row

    cdef inline void _put(
        self, Py_ssize_t row, int64_t timestep, int depth, int64_t seen, const float *values
    ) noexcept nogil:
        self._timesteps[self._places.back, row] = timestep
        self._depths[self._places.back, row] = depth
        self._seen[self._places.back, row] = seen
        memcpy(&self._rows[self._places.back, row, 0], values, self.joints * sizeof(float))

    cdef inline void _blend(
        self, Py_ssize_t row, Py_ssize_t old, int64_t seen, const float *new, const float *blended, Py_ssize_t shared
    ) noexcept nogil:
        """Row of the back place <- row `old` of the last plan with `new`: the finite side, the young one, or both."""
        cdef const float *planned = &self._rows[self._last, old, 0]
        cdef int depth = self._depths[self._last, old], joint
        cdef int64_t timestep = self._timesteps[self._last, old], before = self._seen[self._last, old]
        cdef const float *pair
        cdef float *out
        if not finite(new, self.joints) or before - seen > self._max_age_ns:
            self._put(row, timestep, depth, before, planned)
        elif not finite(planned, self.joints) or seen - before > self._max_age_ns:
            self._put(row, timestep, 1, seen, new)
        elif blended != NULL:
            self._put(row, timestep, depth + 1, max(seen, before), blended)
        else:
            self._put(row, timestep, depth + 1, max(seen, before), planned)
            pair = &self._pairs[min(shared if self._by_place else depth - 1, self._pairs.shape[0] - 1), 0]
            out = &self._rows[self._places.back, row, 0]
            for joint in range(self.joints):
                out[joint] = pair[0] * out[joint] + pair[1] * new[joint]

    cdef void _slope(self, Py_ssize_t both) noexcept nogil:
        """The pairs of a LinearBlend where `both` timesteps are shared: up in equal parts, then the chunk alone."""
        cdef Py_ssize_t place, length = min(self._pairs.shape[0] - 1, both)
        for place in range(self._pairs.shape[0]):
            self._pairs[place, 1] = (place + 1.0) / (length + 1) if place < length else 1
            self._pairs[place, 0] = 1 - self._pairs[place, 1]

    cdef void _publish(self) noexcept nogil:
        self._last = self._places.back
        self._plans[self._last].merges = load(&self._merges)
        publish(&self._places)

    # the reader's half

    cdef Py_ssize_t arrive(self, int64_t now) noexcept nogil:
        """Receive the newest plan and go to its first row that may be executed; how many there are from there."""
        cdef Plan *plan
        cdef int64_t cursor = load(&self._cursor)
        if receive(&self._places):
            self._next = 0
        plan = &self._plans[self._places.front]
        if plan.epoch != load(&self._epoch):
            cursor = plan.start
            store(&self._cursor, cursor)
            atomic_store_llong(&self._epoch, plan.epoch, memory_order_release)  # whoever sees it sees the cursor
        while self._next < plan.rows and self._is_over(self._next, cursor, now):
            self._next += 1
        if self._next < plan.rows and self._timesteps[self._places.front, self._next] > cursor:
            store(&self._cursor, self._timesteps[self._places.front, self._next])
            add(&self._jumps, 1)
        return plan.rows - self._next

    cdef inline bint _is_over(self, Py_ssize_t row, int64_t cursor, int64_t now) noexcept nogil:
        """Whether `row` of the front place is executed, or too old to be."""
        cdef int64_t timestep = self._timesteps[self._places.front, row]
        if timestep < cursor:
            return True
        if now - self._seen[self._places.front, row] <= self._max_age_ns:
            return False
        if timestep >= self._too_old_to:
            add(&self._too_old, 1)
            self._too_old_to = timestep + 1
        return True

    cdef int take(self, float *out) noexcept nogil:
        """The row `arrive` went to; the cursor moves past it."""
        cdef const float *row
        if self._next == self._plans[self._places.front].rows:
            return STARVED
        row = &self._rows[self._places.front, self._next, 0]
        self._taken_seen = self._seen[self._places.front, self._next]
        self._next += 1
        add(&self._cursor, 1)
        if not finite(row, self.joints):
            add(&self._holes, 1)
            return HOLE
        memcpy(out, row, self.joints * sizeof(float))
        return PICKED


cdef inline bint finite(const float *row, Py_ssize_t joints) noexcept nogil:
    cdef Py_ssize_t joint
    for joint in range(joints):
        if not isfinite(row[joint]):
            return False
    return True


cdef pairs(aggregate, Py_ssize_t capacity):
    """(keep, take) by the number of chunks blended into the old row so far, from 1 on."""
    if isinstance(aggregate, TemporalEnsemble):
        return (<TemporalEnsemble> aggregate).running_mean(capacity)
    if isinstance(aggregate, LinearBlend):
        return [(0, 1)] * (min((<LinearBlend> aggregate).rows, capacity) + 1)  # `_slope` fills them in
    try:
        keep, take = aggregate
    except (TypeError, ValueError) as error:
        raise ConfigError(f"aggregate: {aggregate!r} is not a pair (keep, take)") from error
    if not (isfinite(keep) and isfinite(take)):
        raise ConfigError(f"aggregate: {aggregate!r} is not finite")
    return [(keep, take)]


# -- the ports ------------------------------------------------------------------------------------------------------

cdef class Port:
    """What the loop asks of a robot: where the joints are, and to go somewhere. All in joint units."""

    cdef readonly int joints
    cdef double positions[MAX_JOINTS]  # the last known
    cdef int64_t heard_ns[MAX_JOINTS]  # when that was, by the clock of tick()
    cdef bint known[MAX_JOINTS]  # heard at least once
    cdef atomic_llong missed[MAX_JOINTS]  # reads in a row without an answer
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

    cdef void _heard(self, int joint, double position, int64_t now) noexcept nogil:
        self.positions[joint] = position
        self.heard_ns[joint] = now
        self.known[joint] = True
        store(&self.missed[joint], 0)

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
    STATUS_BYTES = 8  # of a status with two bytes of data
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

cdef enum:  # `gone`, where it is not an errno
    HUNG_UP = -1
    RESTARTED = -2
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
    Health is read with `expects_torque`, where a servo whose torque is off has restarted, or a `stop_temperature`
    (degrees Celsius), from which on one is too hot; either ends the loop.
    Raises ConfigError for lists that do not fit, OSError for a bad `fd`.
    """

    cdef int _fd
    cdef bint _echo
    cdef int64_t _timeout_ns
    cdef int64_t _patience_ns
    cdef uint8_t _ids[MAX_JOINTS]
    cdef int _modes[MAX_JOINTS]
    cdef double _min[MAX_JOINTS]
    cdef double _max[MAX_JOINTS]
    cdef bint _reversed[MAX_JOINTS]
    # the answer that is being received; bit j stands for joint j
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
        self._echo = echo
        self._timeout_ns = timeout_ns
        self._patience_ns = max(timeout_ns // 4, PATIENCE_NS)
        self._expects_torque, self._stop_temperature = expects_torque, stop_temperature
        self._fd = -1
        if fd is not None:
            self.reopen(fd)

    def reopen(self, int fd):
        """Go on over another open serial port, the loop at rest; counts go on. OSError for a bad `fd`."""
        cdef int joint
        os.set_blocking(fd, False)
        self._fd = fd
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
        if code == RESTARTED:
            return f"{who} restarted: its torque is off; did its supply break down?"
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
        return f"{', '.join(who)}: no reply {times} times in a row"

    def _deafness(self, int times):
        return f"goals could not be written {times} times in a row: the port takes no more bytes"

    # read

    cdef int read(self, int64_t now) noexcept nogil:
        cdef int64_t deadline = now_ns() + self._timeout_ns, began
        cdef uint64_t everyone = ~<uint64_t> 0 >> (64 - self.joints)
        cdef int tries, joint, answered = 0
        add(&self._reads, 1)
        self._flush()
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
                self._heard(joint, self._to_units(joint, self._raw[joint]), now)
                store(&self._last_errors[joint], self._flags[joint])
                store(&self._all_errors[joint], load(&self._all_errors[joint]) | self._flags[joint])
                answered += 1
        return answered

    cdef void _flush(self) noexcept nogil:
        """Drop what is left from before: a late answer must not answer this request."""
        cdef int count, _turn
        cdef int64_t dropped = 0
        for _turn in range(FRAME):  # bounded, should bytes come without end
            count = os_read(self._fd, self._buffer, FRAME)
            if count > 0:
                dropped += count
            elif count == 0 or errno != EINTR:
                break  # nothing there; a port that is gone will say so to the request
        add(&self._junk_bytes, max(dropped - self._owed + self._repeated, 0))
        self._owed = self._repeated = 0

    cdef void _ask(self, int64_t deadline) noexcept nogil:
        """One sync read of the servos still missing; what answers is no longer missing.

        Answers come in the order asked. After the last one's only a moment of quiet is left to wait for the rest.
        """
        cdef uint64_t last
        cdef int64_t until
        cdef int count
        self._asked = self._missing
        last = <uint64_t> 1 << (63 - clz(self._asked))
        self._have = 0
        if not self._send(self._pack_read(), deadline):
            return
        while self._missing:
            until = now_ns() + (self._patience_ns if self._missing & last else QUIET_NS)
            if not self._wait(POLLIN, min(until, deadline)):
                break
            count = os_read(self._fd, self._buffer + self._have, FRAME - self._have)
            if count > 0:
                self._have += count
                self._drop_echo()
                self._decode()
            elif count == 0:
                store(&self.gone, HUNG_UP)  # poll promised a byte
            elif errno != EAGAIN and errno != EINTR:
                store(&self.gone, errno)
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
        while self._have - at >= STATUS_BYTES:
            if self._accept(self._buffer + at):
                at += STATUS_BYTES
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
        if joint == self.joints or frame[3] != 4 or frame[4] > 0x7F or frame[7] != checksum(frame + 2, 5):
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
        return self._seal(SYNC_READ, PRESENT_POSITION, at)

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
        return at == 7 or self._send(self._seal(SYNC_WRITE, GOAL_POSITION, at), now_ns() + self._timeout_ns)

    cdef int _seal(self, uint8_t instruction, uint8_t address, int end) noexcept nogil:
        """Close the frame whose parameters end at `end`; its length in all."""
        self._frame[0] = self._frame[1] = 0xFF
        self._frame[2] = BROADCAST
        self._frame[3] = end - 3
        self._frame[4] = instruction
        self._frame[5] = address
        self._frame[6] = 2
        self._frame[end] = checksum(self._frame + 2, end - 2)
        return end + 1

    cdef bint _send(self, int size, int64_t deadline) noexcept nogil:
        cdef int sent = 0, count
        self._owed = size if self._echo else 0
        self._repeated = 0
        while sent < size:
            count = os_write(self._fd, self._frame + sent, size - sent)
            if count > 0:
                sent += count
            elif count < 0 and errno != EAGAIN and errno != EINTR:
                store(&self.gone, errno)
                return False
            elif not self._wait(POLLOUT, deadline):
                return False
        return True

    cdef bint _wait(self, short events, int64_t until) noexcept nogil:
        """Until the port is ready (True) or the time has come; what is there at that time still counts."""
        cdef short ready = 0
        cdef int count = -1
        while count < 0:
            count = poll_ns(self._fd, events, max(until - now_ns(), 0), &ready)
            if count < 0 and errno != EINTR:
                store(&self.gone, errno)
                return False
        if ready & (POLLHUP | POLLERR | POLLNVAL):
            store(&self.gone, HUNG_UP)
            return False
        return count > 0

    # health

    cdef void check(self) noexcept nogil:
        cdef int64_t deadline = now_ns() + self._timeout_ns
        cdef int count, joint = self._patient, _turn
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
        if not self._send(self._pack_check(joint), deadline):
            return
        while self._wait(POLLIN, min(now_ns() + self._patience_ns, deadline)):
            count = os_read(self._fd, self._buffer + self._have, FRAME - self._have)
            if count == 0 or (count < 0 and errno != EAGAIN and errno != EINTR):
                break  # the next read tells why
            self._have += max(count, 0)
            self._drop_echo()
            while self._have >= HEALTH_FRAME:
                if self._accept_health(joint, self._buffer):
                    return
                self._consume(1)
                add(&self._junk_bytes, 1)
        add(&self._junk_bytes, self._have)

    cdef void _await_echo(self, int64_t deadline) noexcept nogil:
        """Let the line repeat what was sent last, or it would come in between."""
        cdef int count
        self._have = 0
        while self._repeated < self._owed and self._wait(POLLIN, deadline):
            count = os_read(self._fd, self._buffer, self._owed - self._repeated)
            if count <= 0:
                break
            self._have = count
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
            unwell = RESTARTED
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


# -- the loop -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, eq=False)
class Record:
    """What the loop saw and did at the first tick of a timestep; arrays are (joints,) in joint units.

    `time_ns` is the tick's time, `timestep` and `level` (rows left) are those before its pick, `ages_s` says how old
    each position is (infinite: never heard), `merges` how many chunks are in the plan it executed from.
    `sequence` counts records from 1; 0 means that there was none yet.
    """

    sequence: int
    time_ns: int
    timestep: int
    level: int
    positions: np.ndarray
    ages_s: np.ndarray
    goal: np.ndarray
    merges: int
    paused: bool


cdef struct Snapshot:
    int64_t sequence
    int64_t time_ns
    int64_t timestep
    int64_t level
    int64_t merges
    bint paused
    double positions[MAX_JOINTS]
    double ages_s[MAX_JOINTS]
    double goal[MAX_JOINTS]

cdef struct Counts:  # a histogram of durations in the buckets of timing.bucket
    atomic_llong buckets[BUCKETS]
    atomic_llong total_ns
    atomic_llong longest_ns

cdef enum:  # the counters, named in COUNTED and STAGES
    TICKS
    EXECUTED
    STARVED_TICKS
    LATE
    MISSED
    HOST_STALLS  # missed, and not on the bus, while the loop's thread was given less than a period
    CLAMPED_RANGE
    CLAMPED_SPEED
    CLAMPED_RELATIVE
    HELD_NONFINITE
    READ_ERRORS
    WRITE_ERRORS
    MISSED_BY_STAGE  # and one for each stage from here on
    COUNTERS = MISSED_BY_STAGE + 4

cdef enum:  # faults
    NO_FAULT
    GONE  # the port said that asking again is of no use
    SILENT  # a joint did not answer for too long
    DEAF  # goals could not be written for too long
    FENCED  # the supervisor has taken the arm

cdef enum:  # STAGES
    BUS
    PICK
    GUARD
    OTHER

cdef enum:
    MARGIN = 8  # recent ticks that may be overwritten while Python copies the rest
    FOREVER_S = 1_000_000_000
    CHECK_NS = 100_000_000  # between two looks at a servo's health

cdef enum:  # the page that a supervisor shares, in 64-bit words
    PATIENT_UNTIL  # on the monotonic clock: later without a sign of life, the supervisor stops the arm
    IS_FENCED  # not 0 once it does, and then for good
    PAGE_WORDS

# of a recent tick; action_age_ns is 0 where nothing was picked
TRACE = ("time_ns", "timestep", "outcome", "answered", "late_ns", "read_ns", "write_ns", "action_age_ns")
OUTCOMES = ("starved", "picked", "hole", "paused", "failed")
COUNTED = (
    "ticks", "executed", "starved", "late", "missed", "host_stalls", "clamped_range", "clamped_speed",
    "clamped_relative", "held_nonfinite", "read_errors", "write_errors",
)
STAGES = ("bus", "pick", "guard", "other")


cdef class ActuatorLoop:
    """Read, pick, guard, write, at control_hz = fps * substeps, until an absolute deadline each time.

    A timestep is picked at its first tick and reached over its `substeps` ticks; without a row the last goal is held
    and sent again, so that a servo that lost it gets it back. Goals are kept finite, then inside `lower`..`upper`,
    then within `max_speed` (units/s; 0 = off) of the last goal, then within `max_relative_target` of the present
    position. `dry_run` writes nothing.
    A joint that misses `max_missed_replies` reads in a row is a fault, and so is a port that is gone; `prime` makes a
    loop that failed run again. `page` is memory shared with a supervisor, two int64: every tick says in it that the
    next is due within a period and `patience_s`, and leaves the bus alone once the supervisor has taken the arm.
    `realtime` asks for SCHED_FIFO at `priority` while `run` lasts: 'enforce' raises AccessError where that is refused,
    'try' goes on. `names` are the joints' names in messages; `history` ticks are remembered.
    Raises ConfigError for settings that cannot work.
    """

    cdef readonly int joints
    cdef readonly str realtime_outcome
    cdef ActionRing _ring
    cdef Port _port
    cdef object _names
    cdef str _realtime
    cdef int _priority
    cdef int _substeps
    cdef int64_t _period_ns
    cdef double _lower[MAX_JOINTS]
    cdef double _upper[MAX_JOINTS]
    cdef double _reach[MAX_JOINTS]  # max_relative_target
    cdef double _step  # max_speed, a tick
    cdef int _max_missed
    cdef bint _dry
    cdef int _check_every  # ticks
    cdef int64_t[::1] _page_words
    cdef atomic_llong *_page
    cdef int64_t _patience_ns
    # from other threads
    cdef atomic_uint _stopping
    cdef atomic_int _running
    cdef atomic_int _turn_wanted  # counts pauses and resumes: odd = paused
    cdef atomic_int _turn_taken  # the one that the last tick followed
    # the loop's own
    cdef bint _primed
    cdef int _turn
    cdef int _sub  # the tick within its timestep
    cdef int _outcome  # of the timestep's pick
    cdef int64_t _action_age_ns
    cdef int64_t _began_cpu_ns
    cdef float _action[MAX_JOINTS]
    cdef double _from[MAX_JOINTS]  # the goal at the end of the last timestep
    cdef double _goal[MAX_JOINTS]  # the last one sent
    cdef int64_t _timestep
    cdef int64_t _level
    cdef int64_t _late_ns
    cdef int64_t _spent_ns[OTHER + 1]  # of this tick, by stage
    cdef int _writes_failed  # in a row
    cdef int _fault
    # what Python reads
    cdef atomic_llong _counters[COUNTERS]
    cdef Counts _lateness
    cdef Counts _bus
    cdef Counts _ages
    cdef Places _places
    cdef Snapshot _snapshots[3]
    cdef atomic_llong _sequence
    cdef atomic_uint _news  # changes whenever a sleeper should look again
    cdef int64_t[:, ::1] _traces  # (tick, TRACE)
    cdef float[:, :, ::1] _trails  # (tick, positions | goal, joint)
    cdef atomic_llong _traced

    def __cinit__(
        self,
        ActionRing ring not None,
        Port port not None,
        *,
        double fps,
        int substeps=1,
        lower=None,
        upper=None,
        double max_speed=0.0,
        max_relative_target=None,
        int max_missed_replies=15,
        bint dry_run=False,
        str realtime="off",
        int priority=80,
        int history=600,
        names=None,
        int64_t[::1] page=None,
        double patience_s=0.3,
    ):
        cdef int joint
        if page is not None and page.shape[0] < PAGE_WORDS:
            raise ConfigError(f"page: {page.shape[0]} words are less than {PAGE_WORDS}")
        if port.joints != ring.joints:
            raise ConfigError(f"joints: the port has {port.joints}, the ring {ring.joints}")
        if not 0 < fps <= 10_000 or substeps < 1:
            raise ConfigError(f"fps: {fps:g} with {substeps} ticks a timestep is not a rate")
        if not 0 <= max_speed < float("inf"):
            raise ConfigError(f"max_speed: {max_speed} is not a speed in units/s (0 turns the limit off)")
        if max_missed_replies < 1:
            raise ConfigError(f"max_missed_replies: {max_missed_replies} is less than 1")
        if realtime not in ("enforce", "try", "off"):
            raise ConfigError(f"realtime: {realtime!r} is not enforce, try or off")
        if not 1 <= priority <= 99:
            raise ConfigError(f"priority: {priority} is not in 1..99")
        if history < 1:
            raise ConfigError(f"history: {history} is less than 1 tick")
        if names and len(names) != ring.joints:
            raise ConfigError(f"names: {len(names)} for {ring.joints} joints")
        self.joints = ring.joints
        self._ring, self._port = ring, port
        self._names = tuple(names or ())
        self._realtime, self._priority = realtime, priority
        self.realtime_outcome = "not asked for" if realtime == "off" else "not started"
        self._substeps = substeps
        self._period_ns = round(1e9 / (fps * substeps))
        self._step = max_speed / (fps * substeps) if max_speed else float("inf")
        self._max_missed = max_missed_replies
        self._dry = dry_run
        self._check_every = max(CHECK_NS // self._period_ns, 1)
        self._page_words = page
        self._page = NULL if page is None else <atomic_llong *> &page[PATIENT_UNTIL]
        self._patience_ns = <int64_t> (patience_s * 1e9) + self._period_ns
        lowest = self._per_joint("lower", lower, -float("inf"))
        highest = self._per_joint("upper", upper, float("inf"))
        reach = self._per_joint("max_relative_target", max_relative_target, float("inf"))
        for joint in range(self.joints):
            if not lowest[joint] <= highest[joint]:
                raise ConfigError(f"lower: {lowest[joint]} of joint {joint} is not below upper, {highest[joint]}")
            if not reach[joint] > 0:
                raise ConfigError(f"max_relative_target: {reach[joint]} of joint {joint} is not a distance")
            self._lower[joint], self._upper[joint], self._reach[joint] = lowest[joint], highest[joint], reach[joint]
        self._traces = np.full((history + MARGIN, len(TRACE)), 0, np.int64)
        self._trails = np.full((history + MARGIN, 2, self.joints), 0, np.float32)
        lay_out(&self._places)

    cdef _per_joint(self, str name, values, double default):
        if values is None:
            return [default] * self.joints
        values = [float(value) for value in values]
        if len(values) != self.joints:
            raise ConfigError(f"{name}: {len(values)} values for {self.joints} joints")
        return values

    def prime(self, goal):
        """Make `goal` (joints,), the present position, the last goal: before the first tick, and after a fault."""
        cdef int joint
        values = self._per_joint("goal", goal, 0.0)
        if not np.isfinite(values).all():
            raise ConfigError(f"goal: {values} is not finite")
        if atomic_load_int(&self._running, memory_order_acquire):
            raise DeviceError("the loop runs: it cannot be primed")
        self._fault = NO_FAULT
        self._writes_failed = self._sub = 0
        self._port._begin()
        for joint in range(self.joints):
            self._goal[joint] = self._from[joint] = self._port.positions[joint] = values[joint]
        self._primed = True

    def tick(self, int64_t now_ns):
        """One turn at the time `now_ns`: `run` without the sleep, for a simulator's clock. Raises ActuatorFault."""
        self._must_be_primed()
        with nogil:
            self._tick(now_ns)
        self._raise_fault()

    def run(self):
        """Tick at every deadline until `stop`, in the calling thread. Raises ActuatorFault, AccessError."""
        self._must_be_primed()
        before = self._enter_realtime()
        atomic_store_int(&self._running, 1, memory_order_release)
        try:
            with nogil:
                self._run()
        finally:
            atomic_store_int(&self._running, 0, memory_order_release)
            announce(&self._news)
            self._leave_realtime(before)
        self._raise_fault()

    def stop(self):
        """End `run`, now and for good, from any thread. Twice is harmless."""
        atomic_store_uint(&self._stopping, 1, memory_order_release)
        wake_all(&self._stopping)
        announce(&self._news)

    def pause(self, double timeout_s=1.0):
        """Stop picking and writing; reads go on. Returns when nothing more is written.

        Raises DeviceError when a running loop has not come to that in `timeout_s`. One that does not run yet will
        begin paused.
        """
        cdef int64_t until = now_ns() + <int64_t> (min(timeout_s, FOREVER_S) * 1e9)
        cdef int turn = atomic_load_int(&self._turn_wanted, memory_order_relaxed) | 1
        cdef unsigned news
        atomic_store_int(&self._turn_wanted, turn, memory_order_release)
        while atomic_load_int(&self._running, memory_order_acquire):
            news = atomic_load_uint(&self._news, memory_order_acquire)
            if atomic_load_int(&self._turn_taken, memory_order_acquire) == turn:
                break
            if now_ns() >= until:
                raise DeviceError(f"the loop did not pause within {timeout_s:g} s")
            self._sleep(news, until)

    def resume(self):
        """Go on from where the arm is: at the next tick the present position becomes the goal."""
        cdef int turn = atomic_load_int(&self._turn_wanted, memory_order_relaxed)
        atomic_store_int(&self._turn_wanted, turn + (turn & 1), memory_order_release)

    def wait(self, int64_t after, double timeout_s):
        """The newest record once there is one beyond sequence `after`; None after `timeout_s`, `stop` or a fault.

        After a fault that has been told it waits for the loop to run again.
        """
        cdef int64_t until = now_ns() + <int64_t> (min(timeout_s, FOREVER_S) * 1e9)
        cdef unsigned news
        cdef bint failed = self._fault != NO_FAULT
        while True:
            news = atomic_load_uint(&self._news, memory_order_acquire)
            if load(&self._sequence) > after:
                return self.record
            if now_ns() >= until or atomic_load_uint(&self._stopping, memory_order_acquire):
                return None
            if self._fault != NO_FAULT and not failed:
                return None
            self._sleep(news, until)

    @property
    def record(self):
        """The newest record, consistent in itself."""
        receive(&self._places)  # the GIL makes all Python threads one reader, if nothing lets go of it before the copy
        cdef Snapshot seen = self._snapshots[self._places.front]
        return Record(
            sequence=seen.sequence,
            time_ns=seen.time_ns,
            timestep=seen.timestep,
            level=seen.level,
            positions=to_array(seen.positions, self.joints, np.float32),
            ages_s=to_array(seen.ages_s, self.joints, np.float64),
            goal=to_array(seen.goal, self.joints, np.float32),
            merges=seen.merges,
            paused=seen.paused != 0,
        )

    def counters(self):
        """What happened since the loop was made; those of clamping, holding, starving and errors count ticks."""
        cdef int i
        counts = [load(&self._counters[i]) for i in range(COUNTERS)]
        return {
            **dict(zip(COUNTED, counts)),
            "missed_by_stage": dict(zip(STAGES, counts[MISSED_BY_STAGE:], strict=True)),
            "holes": self._ring.holes,
            "jumps": self._ring.jumps,
            "too_old": self._ring.too_old,
        }

    def lateness(self):
        """Wake-up minus deadline, of every tick of `run`."""
        return to_histogram(&self._lateness)

    def bus_time(self):
        """What read and write took together, of every tick."""
        return to_histogram(&self._bus)

    def action_age(self):
        """From the newest observation behind an action to its execution, of every action whose chunk told its time."""
        return to_histogram(&self._ages)

    def recent_ticks(self):
        """The last ticks, oldest first, as dictionaries; durations in nanoseconds, arrays as lists."""
        cdef int64_t size = self._traces.shape[0], first, end, tick
        end = atomic_load_llong(&self._traced, memory_order_acquire)
        traces, trails = np.array(self._traces).tolist(), np.array(self._trails).tolist()
        # The loop went on meanwhile: what it may have overwritten by now is left out.
        first = max(load(&self._traced) + MARGIN - size, 0)
        ticks = []
        for tick in range(first, end):
            entry = dict(zip(TRACE, traces[tick % size], strict=True))
            entry["outcome"] = OUTCOMES[entry["outcome"]]
            entry["positions"], entry["goal"] = trails[tick % size]
            ticks.append(entry)
        return ticks

    def _must_be_primed(self):
        if not self._primed:
            raise ActuatorFault("the loop has no goal: prime it with the present position first")

    cdef _sleep(self, unsigned news, int64_t until):
        with nogil:
            sleep_on(&self._news, news, until)
        PyErr_CheckSignals()

    def _raise_fault(self):
        if self._fault == NO_FAULT:
            return
        if self._fault == GONE:
            message = self._port._lost(self._names)
        elif self._fault == FENCED:
            message = "the supervisor took the arm: no tick had come in time"
        elif self._fault == SILENT:
            message = self._port._silence(self._max_missed, self._names)
        else:
            message = self._port._deafness(self._max_missed)
        raise ActuatorFault(message, ticks=self.recent_ticks())

    # real-time setup, in one place

    cdef _enter_realtime(self):
        """Ask for SCHED_FIFO, and for memory that stays; what the thread was before, or None where nothing changed."""
        cdef sched_param before, wanted
        cdef int policy, refused
        if self._realtime == "off":
            return None
        pthread_getschedparam(pthread_self(), &policy, &before)
        wanted.sched_priority = self._priority
        refused = pthread_setschedparam(pthread_self(), SCHED_FIFO, &wanted)
        if refused:
            reason = "needs CAP_SYS_NICE or an rtprio limit" if refused == EPERM else os.strerror(refused)
            self.realtime_outcome = f"no SCHED_FIFO {self._priority}: {reason}"
            if self._realtime == "enforce":
                raise AccessError(f"realtime: enforce, but SCHED_FIFO {self._priority} was refused ({reason})")
            return None
        self.realtime_outcome = f"SCHED_FIFO {self._priority}"
        # Only the pages in use: keeping all that are mapped would take several times the memory.
        if mlockall(MCL_CURRENT | MCL_ONFAULT) == 0:
            self.realtime_outcome += ", memory locked"
        return policy, before.sched_priority

    cdef _leave_realtime(self, before):
        cdef sched_param param
        if before is not None:
            policy, param.sched_priority = before
            pthread_setschedparam(pthread_self(), policy, &param)

    # the work

    cdef void _run(self) noexcept nogil:
        cdef int64_t deadline = now_ns(), woke
        while not atomic_load_uint(&self._stopping, memory_order_acquire):
            woke, self._began_cpu_ns = now_ns(), thread_ns()
            self._late_ns = max(woke - deadline, 0)
            count(&self._lateness, self._late_ns)
            add(&self._counters[LATE], self._late_ns * 10 > self._period_ns)
            self._tick(woke)
            if self._fault != NO_FAULT:
                break
            deadline = self._next_deadline(deadline)
            while sleep_on(&self._stopping, 0, deadline) == EINTR:
                pass
        if self._page != NULL:  # from here on Python owns the bus, and takes its time
            atomic_store_llong(&self._page[PATIENT_UNTIL], FARTHEST, memory_order_release)

    cdef int64_t _next_deadline(self, int64_t deadline) noexcept nogil:
        """A period on; whole periods that have passed are skipped and laid to the stage that took longest."""
        cdef int64_t now = now_ns(), missed
        cdef int stage, worst = OTHER
        self._spent_ns[OTHER] = now - deadline - self._spent_ns[BUS] - self._spent_ns[PICK] - self._spent_ns[GUARD]
        deadline += self._period_ns
        if now <= deadline:
            return deadline
        for stage in range(OTHER):
            if self._spent_ns[stage] > self._spent_ns[worst]:
                worst = stage
        missed = (now - deadline) // self._period_ns + 1
        add(&self._counters[MISSED], missed)
        add(&self._counters[MISSED_BY_STAGE + worst], missed)
        if worst != BUS and thread_ns() - self._began_cpu_ns < self._period_ns:
            add(&self._counters[HOST_STALLS], missed)
        return deadline + missed * self._period_ns

    cdef void _tick(self, int64_t now) noexcept nogil:
        """Read, pick, guard, write, and tell."""
        cdef int64_t began, heard, picked, guarded, written
        cdef int answered
        if self._fault != NO_FAULT or not self._may_go_on(now):
            return
        began = now_ns()
        answered = self._port.read(now)
        heard = now_ns()
        self._turn_over()
        self._judge()
        if self._sub == 0 and self._fault == NO_FAULT:
            self._pick(now)
        picked = now_ns()
        if self._outcome == PICKED:
            self._guard()
        guarded = now_ns()
        if self._outcome < PAUSED and not self._dry:
            self._write(now)
        written = now_ns()
        if load(&self._counters[TICKS]) % self._check_every == 0 and self._fault == NO_FAULT:
            self._port.check()
        self._spent_ns[BUS] = heard - began + now_ns() - guarded
        self._spent_ns[PICK] = picked - heard
        self._spent_ns[GUARD] = guarded - picked
        self._count(answered)
        self._trace(now, answered, heard - began, written - guarded)
        if self._sub == 0:
            self._tell(now)
        self._sub = (self._sub + 1) % self._substeps

    cdef bint _may_go_on(self, int64_t now) noexcept nogil:
        """Show the supervisor that we live; False when the arm is its own."""
        if self._page == NULL:
            return True
        if atomic_load_llong(&self._page[IS_FENCED], memory_order_acquire):
            self._fail(FENCED)
            return False
        atomic_store_llong(&self._page[PATIENT_UNTIL], now + self._patience_ns, memory_order_release)
        return True

    cdef void _turn_over(self) noexcept nogil:
        """Follow pause and resume: both begin a timestep, and a resume begins it where the arm is."""
        cdef int turn = atomic_load_int(&self._turn_wanted, memory_order_acquire)
        if turn == self._turn:
            return
        self._turn = turn
        self._sub = 0
        if not self._paused():
            memcpy(self._goal, self._port.positions, self.joints * sizeof(double))

    cdef bint _paused(self) noexcept nogil:
        return self._turn & 1

    cdef void _pick(self, int64_t now) noexcept nogil:
        self._level = self._ring.arrive(now)
        self._timestep = load(&self._ring._cursor)
        memcpy(self._from, self._goal, self.joints * sizeof(double))
        self._outcome = PAUSED if self._paused() else self._ring.take(self._action)
        self._action_age_ns = 0
        if self._outcome == PICKED:
            add(&self._counters[EXECUTED], 1)
            if self._ring._taken_seen < FARTHEST:
                self._action_age_ns = max(now - self._ring._taken_seen, 0)
                count(&self._ages, self._action_age_ns)

    cdef void _guard(self) noexcept nogil:
        """Goal <- this tick's part of the way to the action, within every limit; finite, as the ring's rows are."""
        cdef double part = (self._sub + 1.0) / self._substeps, asked, present
        cdef bint ranged = False, slowed = False, reined = False
        cdef int joint
        for joint in range(self.joints):
            asked = self._action[joint]
            if self._sub + 1 < self._substeps:
                asked = self._from[joint] + part * (asked - self._from[joint])
            ranged |= clamp(&asked, self._lower[joint], self._upper[joint])
            slowed |= clamp(&asked, self._goal[joint] - self._step, self._goal[joint] + self._step)
            present = self._port.positions[joint]
            reined |= clamp(&asked, present - self._reach[joint], present + self._reach[joint])
            self._goal[joint] = asked
        add(&self._counters[CLAMPED_RANGE], ranged)
        add(&self._counters[CLAMPED_SPEED], slowed)
        add(&self._counters[CLAMPED_RELATIVE], reined)

    cdef void _judge(self) noexcept nogil:
        """Is there still a robot to command?"""
        cdef int joint
        if load(&self._port.gone):
            self._fail(GONE)
        for joint in range(self.joints):
            if load(&self._port.missed[joint]) >= self._max_missed:
                self._fail(SILENT)

    cdef void _write(self, int64_t now) noexcept nogil:
        if not self._may_go_on(now):
            return
        if self._port.write(self._goal):
            self._writes_failed = 0
            return
        self._writes_failed += 1
        add(&self._counters[WRITE_ERRORS], 1)
        if load(&self._port.gone):
            self._fail(GONE)
        elif self._writes_failed >= self._max_missed:
            self._fail(DEAF)

    cdef void _fail(self, int fault) noexcept nogil:
        """Stop until primed again; the first reason is kept."""
        if self._fault == NO_FAULT:
            self._fault, self._outcome = fault, FAILED
            announce(&self._news)

    cdef void _count(self, int answered) noexcept nogil:
        add(&self._counters[TICKS], 1)
        add(&self._counters[READ_ERRORS], answered < self.joints)
        add(&self._counters[STARVED_TICKS], self._outcome == STARVED)
        add(&self._counters[HELD_NONFINITE], self._outcome == HOLE)
        count(&self._bus, self._spent_ns[BUS])

    cdef void _trace(self, int64_t now, int answered, int64_t read_ns, int64_t write_ns) noexcept nogil:
        cdef int64_t traced = load(&self._traced)
        cdef Py_ssize_t at = traced % self._traces.shape[0]
        cdef int64_t *trace = &self._traces[at, 0]
        cdef int joint
        trace[0], trace[1], trace[2], trace[3] = now, self._timestep, self._outcome, answered
        trace[4], trace[5], trace[6], trace[7] = self._late_ns, read_ns, write_ns, self._action_age_ns
        for joint in range(self.joints):
            self._trails[at, 0, joint] = self._port.positions[joint]
            self._trails[at, 1, joint] = self._goal[joint]
        atomic_store_llong(&self._traced, traced + 1, memory_order_release)

    cdef void _tell(self, int64_t now) noexcept nogil:
        """Publish this timestep's record and wake who waits for it."""
        cdef Snapshot *place = &self._snapshots[self._places.back]
        cdef int joint
        place.sequence, place.time_ns = load(&self._sequence) + 1, now
        place.timestep, place.level = self._timestep, self._level
        place.merges = self._ring._plans[self._ring._places.front].merges
        place.paused = self._paused()
        for joint in range(self.joints):
            place.positions[joint] = self._port.positions[joint]
            place.goal[joint] = self._goal[joint]
            place.ages_s[joint] = INFINITY
            if self._port.known[joint]:
                place.ages_s[joint] = (now - self._port.heard_ns[joint]) / 1e9
        publish(&self._places)
        add(&self._sequence, 1)
        atomic_store_int(&self._turn_taken, self._turn, memory_order_release)
        announce(&self._news)


cdef inline void announce(atomic_uint *news) noexcept nogil:
    """Wake everyone who sleeps on `news`; who is about to will see that it changed."""
    atomic_fetch_add_explicit(news, 1, memory_order_acq_rel)
    wake_all(news)


cdef inline bint clamp(double *value, double low, double high) noexcept nogil:
    """Whether `value` had to be moved into low..high."""
    cdef double inside = min(max(value[0], low), high)
    cdef bint moved = inside != value[0]
    value[0] = inside
    return moved


cdef inline int bucket_of(int64_t ns) noexcept nogil:
    cdef int octave
    if ns < 32:
        return max(ns, 0)
    octave = 58 - clz(ns)
    return min((octave + 1) * 32 + (ns >> octave) - 32, BUCKETS - 1)


cdef void count(Counts *counts, int64_t ns) noexcept nogil:
    add(&counts.buckets[bucket_of(ns)], 1)
    add(&counts.total_ns, ns)
    store(&counts.longest_ns, max(load(&counts.longest_ns), ns))


cdef to_histogram(Counts *counts):
    cdef int i
    buckets = [load(&counts.buckets[i]) for i in range(BUCKETS)]
    return Histogram.from_counts(buckets, load(&counts.total_ns), load(&counts.longest_ns))


def bucket(int64_t ns):
    """`timing.bucket`, as the loop computes it."""
    return bucket_of(ns)


# -- for the tests --------------------------------------------------------------------------------------------------

def race(ActionRing ring not None, int64_t rows):
    """Execute `rows` rows without the GIL, as fast as they come; each must hold nothing but its timestep modulo 4096.

    Returns (picks, torn, back): how often a row or a plan in hand was not whole, and how often a timestep was not
    beyond the last. While other threads merge such rows, both must stay 0.
    """
    cdef float[MAX_JOINTS] row
    cdef int64_t picks = 0, executed = 0, torn = 0, back = 0, before = -1, timestep
    with nogil:
        while executed < rows:
            picks += 1
            ring.arrive(now_ns())
            if picks % 1024 == 0:
                torn += not is_left_alone(ring)
            timestep = load(&ring._cursor)
            if ring.take(row) != PICKED:
                sched_yield()
                continue
            executed += 1
            torn += not holds(row, ring.joints, timestep)
            back += timestep <= before
            before = timestep
    return picks, torn, back


cdef bint is_left_alone(ActionRing ring) noexcept nogil:
    """Whether the reader's plan stays what it is, and whole, while three more are published."""
    cdef int place = ring._places.front
    cdef int64_t merges = ring._plans[place].merges, until = load(&ring._merges) + 3
    cdef Py_ssize_t i
    while load(&ring._merges) < until:
        sched_yield()
    for i in range(ring._next, ring._plans[place].rows):
        if not holds(&ring._rows[place, i, 0], ring.joints, ring._timesteps[place, i]):
            return False
    return ring._plans[place].merges == merges


cdef bint holds(const float *row, int joints, int64_t timestep) noexcept nogil:
    cdef int joint
    for joint in range(joints):
        if abs(row[joint] - timestep % 4096) > 0.5:  # a blend rounds
            return False
    return True
