# -- the ring -------------------------------------------------------------------------------------------------------

import numpy as np

from edge_runtime.errors import ConfigError

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport INFINITY, exp, isfinite
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, strcmp

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
    """Go over from the plan to the new chunk in equal parts, on the chunk's first `rows` timesteps.

    Row i of them takes (i + 1) / (rows + 1) of the chunk, later rows all of it: what would be one jump in the motion
    becomes rows + 1 small ones, and `rows` ticks on the arm follows the newest observation alone. Where the plan ends
    before that, or has ended, what the arm would hold stands in for it: the last planned row, or the goal that is held
    (`ActionRing.hold`). Raises ConfigError unless `rows` is positive.
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


cdef struct Held:  # the goal while there is no row
    int64_t timestep  # the cursor then
    int64_t epoch
    float row[MAX_JOINTS]


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
    cdef Held _held[3]
    cdef Places _held_places  # from the reader to the writers
    # the writers'
    cdef cython.pymutex _lock
    cdef object _function
    cdef float[:, ::1] _pairs  # (keep, take) by the depth of the old row, or by its place; beyond, the last
    cdef bint _by_place  # in the chunk
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
        lay_out(&self._places)
        lay_out(&self._held_places)
        for place in range(3):
            self._held[place].timestep = -FARTHEST - 1  # nobody's

    def merge(self, int64_t first_timestep, chunk, uint64_t session, int64_t seen_ns=FARTHEST):
        """Blend `chunk` (rows, joints) float32, whose first row is for `first_timestep`, into the plan.

        `seen_ns` is when its observation was made, on the clock of the loop's ticks; without it the rows never age.
        Returns how many rows were taken: those not yet executed. 0 leaves the plan as it is: the chunk is wholly
        stale, or of another session than the open one. Raises ValueError for another shape or more rows than the
        ring can hold; ConfigError when the user's function returns another shape.
        """
        cdef Py_buffer buffer  # a third of what a typed memoryview costs
        PyObject_GetBuffer(chunk, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        try:
            return self._merge(first_timestep, &buffer, session, seen_ns)
        finally:
            PyBuffer_Release(&buffer)

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
            self._weave(start, start, 0, NULL, 0, NULL)
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

    def hold(self, const double[::1] goal not None):
        """Say which goal (joints,) the robot holds since there was no row to pick: a late chunk is blended with it.

        The reader's half, which the loop calls for itself.
        """
        if goal.shape[0] != self.joints:
            raise ValueError(f"goal has {goal.shape[0]} joints, the ring {self.joints}")
        self.keep(&goal[0])

    def planned(self, int64_t first_timestep, Py_ssize_t rows):
        """A copy of what is planned from `first_timestep` on, (k, joints) float32: at most `rows`, up to the last one.

        A timestep without a row is a row of NaN. Raises ValueError for a number of rows below 0.
        """
        cdef Py_ssize_t row, begin, count
        cdef int64_t at
        cdef float[:, ::1] out
        if rows < 0:
            raise ValueError(f"rows: {rows} is less than 0")
        with self._lock:
            begin, count = self._row_of(first_timestep), self._plans[self._last].rows
            if begin < count:
                rows = min(rows, <Py_ssize_t> (self._timesteps[self._last, count - 1] - first_timestep + 1))
            else:
                rows = 0
            found = np.full((rows, self.joints), np.nan, np.float32)
            out = found
            for row in range(begin, count):
                at = self._timesteps[self._last, row] - first_timestep
                if at >= rows:
                    break
                memcpy(&out[at, 0], &self._rows[self._last, row, 0], self.joints * sizeof(float))
        return found

    @property
    def cursor(self):
        """The next timestep to execute."""
        return self._writers_cursor()

    @property
    def level(self):
        """Planned timesteps not yet executed."""
        return self._plans[self._last].rows - self._row_of(self._writers_cursor())

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

    # the writers' half

    cdef int64_t _writers_cursor(self) noexcept nogil:
        """The reader's cursor, or the one it will have once it has received the last open_session."""
        cdef Plan *plan = &self._plans[self._last]
        if atomic_load_llong(&self._epoch, memory_order_acquire) == plan.epoch:
            return load(&self._cursor)
        return plan.start

    cdef Py_ssize_t _merge(self, int64_t first, Py_buffer *buffer, uint64_t session, int64_t seen) except -1:
        """`merge` of what its caller holds."""
        cdef const float *chunk = <const float *> buffer.buf
        cdef const float[:, ::1] blended
        cdef const float *blend = NULL
        cdef Py_ssize_t rows, stale, start, end
        cdef int64_t cursor
        if buffer.ndim != 2 or buffer.format == NULL or strcmp(buffer.format, b"f") != 0:
            raise ValueError("chunk: expected float32 of two dimensions, (rows, joints)")
        rows = buffer.shape[0]
        if buffer.shape[1] != self.joints:
            raise ValueError(f"chunk has {buffer.shape[1]} joints, the ring {self.joints}")
        if not 1 <= rows <= self.capacity:
            raise ValueError(f"chunk has {rows} rows, the ring takes 1..{self.capacity}")
        if not -FARTHEST <= first <= FARTHEST:
            raise ValueError(f"first timestep {first} is not within 2**60")
        if not 0 <= seen <= FARTHEST:
            raise ValueError(f"seen_ns: {seen} is not a time within 2**60")
        with self._lock:
            if session != self.session:
                self.foreign_chunks += 1
                return 0
            cursor = self._writers_cursor()
            stale = min(max(cursor - first, 0), rows)
            self.dropped_rows += stale
            if stale == rows:
                self.stale_chunks += 1
                return 0
            first += stale
            chunk += stale * self.joints
            rows -= stale
            start, end = self._row_of(first), self._row_of(first + rows)
            if start - self._row_of(cursor) + rows + self._plans[self._last].rows - end > self.capacity:
                raise ValueError(f"timesteps {first}..{first + rows - 1} do not fit beside what is "
                                 f"planned: the ring holds {self.capacity} rows")
            if self._function is not None and end > start:
                blended = self._call(start, end, first, chunk)
                blend = &blended[0, 0]
            self._weave(cursor, first, seen, chunk, rows, blend)
            add(&self._merges, 1)
            self.merged_rows += rows
            self._publish()
        return rows

    cdef Py_ssize_t _row_of(self, int64_t timestep) noexcept nogil:
        """The first row of the last plan that is for `timestep` or later."""
        cdef const int64_t *timesteps = &self._timesteps[self._last, 0]
        cdef Py_ssize_t row = self._plans[self._last].rows
        if row == 0 or timestep <= timesteps[0]:
            return 0
        if timestep - timesteps[0] < row:
            row = <Py_ssize_t> (timestep - timesteps[0])  # without gaps; with some it lies before
        while timesteps[row - 1] >= timestep:
            row -= 1
        return row

    cdef _call(self, Py_ssize_t start, Py_ssize_t end, int64_t first, const float *chunk):
        """The user's blend of the rows that plan and chunk share; where one side is a hole it sees the other twice."""
        cdef Py_ssize_t i
        cdef const float *planned
        cdef const float *coming
        shape = (end - start, self.joints)
        old, new = np.empty(shape, np.float32), np.empty(shape, np.float32)
        cdef float[:, ::1] olds = old, news = new
        for i in range(end - start):
            planned = &self._rows[self._last, start + i, 0]
            coming = chunk + (self._timesteps[self._last, start + i] - first) * self.joints
            memcpy(&olds[i, 0], planned if finite(planned, self.joints) else coming, self.joints * sizeof(float))
            memcpy(&news[i, 0], coming if finite(coming, self.joints) else planned, self.joints * sizeof(float))
        blended = np.ascontiguousarray(self._function(old, new), dtype=np.float32)
        if blended.shape != shape:
            raise ConfigError(f"aggregate_fn_name: the function returned shape {blended.shape} for two of {shape}")
        return blended

    cdef void _weave(
        self, int64_t cursor, int64_t first, int64_t seen, const float *chunk, Py_ssize_t rows, const float *blended
    ) noexcept nogil:
        """Back place <- the last plan from `cursor` on, with the chunk in its place and blended where both have rows.

        The chunk's timesteps have no gap, so that plan and chunk need not be merged row by row.
        """
        cdef Plan *plan = &self._plans[self._last]
        cdef Py_ssize_t start = self._row_of(first), end = self._row_of(first + rows), row, place
        cdef Py_ssize_t before = start - self._row_of(cursor), after = plan.rows - end
        self._carry(start - before, 0, before)
        if rows:
            self._lay(before, first, seen, chunk, rows)
        if self._by_place:
            self._lead_over(before, cursor, first, seen, rows)
        for row in range(start, end):
            place = self._timesteps[self._last, row] - first
            self._blend(row, before + place, seen, blended, row - start, place)
        self._carry(end, before + rows, after)
        self._plans[self._places.back] = plan[0]
        self._plans[self._places.back].rows = before + rows + after

    cdef void _carry(self, Py_ssize_t old, Py_ssize_t row, Py_ssize_t rows) noexcept nogil:
        """So many rows of the last plan, from `old` on, to the back place, from `row` on."""
        cdef int last = self._last, back = self._places.back
        memcpy(&self._timesteps[back, row], &self._timesteps[last, old], rows * sizeof(int64_t))
        memcpy(&self._depths[back, row], &self._depths[last, old], rows * sizeof(int))
        memcpy(&self._seen[back, row], &self._seen[last, old], rows * sizeof(int64_t))
        memcpy(&self._rows[back, row, 0], &self._rows[last, old, 0], rows * self.joints * sizeof(float))

    cdef void _lay(
        self, Py_ssize_t row, int64_t first, int64_t seen, const float *values, Py_ssize_t rows
    ) noexcept nogil:
        """The chunk's rows to the back place, from `row` on, as if nothing had been planned."""
        cdef int64_t *timesteps = &self._timesteps[self._places.back, row]
        cdef int64_t *seens = &self._seen[self._places.back, row]
        cdef int *depths = &self._depths[self._places.back, row]
        cdef Py_ssize_t i
        for i in range(rows):
            timesteps[i] = first + i
            seens[i] = seen
            depths[i] = 1
        memcpy(&self._rows[self._places.back, row, 0], values, rows * self.joints * sizeof(float))

    cdef inline void _blend(
        self, Py_ssize_t old, Py_ssize_t row, int64_t seen, const float *blended, Py_ssize_t shared, Py_ssize_t place
    ) noexcept nogil:
        """Row of the back place <- row `old` of the last plan with it: the finite side, the young one, or both."""
        cdef const float *planned = &self._rows[self._last, old, 0]
        cdef float *out = &self._rows[self._places.back, row, 0]
        cdef int depth = self._depths[self._last, old]
        cdef int64_t before = self._seen[self._last, old]
        cdef Py_ssize_t joints = self.joints
        if not finite(out, joints) or before - seen > self._max_age_ns:
            self._carry(old, row, 1)
            return
        if not finite(planned, joints) or seen - before > self._max_age_ns:
            return
        self._depths[self._places.back, row] = depth + 1
        self._seen[self._places.back, row] = max(seen, before)
        if blended != NULL:
            memcpy(out, blended + shared * joints, joints * sizeof(float))
            return
        self._mix(out, planned, place if self._by_place else depth - 1)

    cdef inline void _mix(self, float *out, const float *planned, Py_ssize_t place) noexcept nogil:
        cdef Py_ssize_t joint, at = min(place, self._pairs.shape[0] - 1)
        cdef float keep = self._pairs[at, 0], take = self._pairs[at, 1]
        for joint in range(self.joints):
            out[joint] = keep * planned[joint] + take * out[joint]

    cdef void _lead_over(
        self, Py_ssize_t row, int64_t cursor, int64_t first, int64_t seen, Py_ssize_t rows
    ) noexcept nogil:
        """Blend the chunk's first rows (back place, from `row` on) where the plan has none with what would be held."""
        cdef const int64_t *timesteps = &self._timesteps[self._last, 0]
        cdef const float *held = self._held_at(cursor)
        cdef Py_ssize_t old = self._row_of(cursor), planned = self._plans[self._last].rows, i
        cdef float *out
        for i in range(min(rows, self._pairs.shape[0] - 1)):
            while old < planned and timesteps[old] < first + i:
                if self._counts(old, seen):
                    held = &self._rows[self._last, old, 0]
                old += 1
            out = &self._rows[self._places.back, row + i, 0]
            if old < planned and timesteps[old] == first + i and self._counts(old, seen):
                continue  # both cover it
            if held != NULL and finite(out, self.joints):
                self._mix(out, held, i)

    cdef inline bint _counts(self, Py_ssize_t row, int64_t seen) noexcept nogil:
        """Whether `row` of the last plan can be blended with, or held, beside what was seen then."""
        return (
            finite(&self._rows[self._last, row, 0], self.joints)
            and seen - self._seen[self._last, row] <= self._max_age_ns
        )

    cdef const float *_held_at(self, int64_t cursor) noexcept nogil:
        """The goal that the reader holds at `cursor`, or will once it comes there; NULL where that is not known."""
        cdef Py_ssize_t row = self._row_of(cursor)
        cdef const Held *held
        receive(&self._held_places)
        held = &self._held[self._held_places.front]
        if held.timestep == cursor and held.epoch == self._plans[self._last].epoch:
            return held.row
        if row > 0 and self._timesteps[self._last, row - 1] == cursor - 1:
            if finite(&self._rows[self._last, row - 1, 0], self.joints):
                return &self._rows[self._last, row - 1, 0]
        return NULL

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

    cdef void keep(self, const double *goal) noexcept nogil:
        """Tell the writers which goal is held, there being no row for the cursor."""
        cdef Held *held = &self._held[self._held_places.back]
        cdef Py_ssize_t joint
        held.timestep, held.epoch = load(&self._cursor), atomic_load_llong(&self._epoch, memory_order_relaxed)
        for joint in range(self.joints):
            held.row[joint] = goal[joint]
        publish(&self._held_places)


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
        rows = (<LinearBlend> aggregate).rows
        takes = [(place + 1) / (rows + 1) for place in range(min(rows, capacity))]
        return [*((1 - take, take) for take in takes), (0, 1)]
    try:
        keep, take = aggregate
    except (TypeError, ValueError) as error:
        raise ConfigError(f"aggregate: {aggregate!r} is not a pair (keep, take)") from error
    if not (isfinite(keep) and isfinite(take)):
        raise ConfigError(f"aggregate: {aggregate!r} is not finite")
    return [(keep, take)]
