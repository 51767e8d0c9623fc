# -- the loop -------------------------------------------------------------------------------------------------------

import numpy as np

from edge_runtime.errors import AccessError, ActuatorFault, ConfigError, DeviceError, FollowingFault

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR
from libc.math cimport INFINITY, fabs
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy


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
    CLAMPED_ACCELERATION
    FOLLOWING_ERROR
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
    BEHIND  # a joint was too far from its goal for too long, and that is to end the run

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
    REST_NS  # how long the runtime may take to bring the arm to rest once the loop has ended
    PAGE_WORDS

# of a recent tick; action_age_ns is 0 where nothing was picked
TRACE = ("time_ns", "timestep", "outcome", "answered", "late_ns", "read_ns", "write_ns", "action_age_ns")
OUTCOMES = ("starved", "picked", "hole", "paused", "failed", "blocked")
COUNTED = (
    "ticks", "executed", "starved", "late", "missed", "host_stalls", "clamped_range", "clamped_speed",
    "clamped_relative", "clamped_acceleration", "following_error", "held_nonfinite", "read_errors", "write_errors",
)
STAGES = ("bus", "pick", "guard", "other")


cdef class ActuatorLoop:
    """Read, pick, guard, write, at control_hz = fps * substeps, until an absolute deadline each time.

    A timestep is picked at its first tick and reached over its `substeps` ticks; without a row the last goal is held
    and sent again, so that a servo that lost it gets it back. An action is moved into `lower`..`upper`, then within
    `max_relative_target` of the present position, then within `max_speed` (units/s; 0 = off) of the last goal, then to
    where the goal gains no more speed than `max_acceleration` (units/s^2, per joint; a reversal begins at a
    standstill, to slow down or to stop is free), and last into the range again: a goal never leaves it, and one that
    began outside only moves inwards. `dry_run` writes nothing.
    A joint that is more than `following_limit` (units, per joint) from its goal for `following_s` has a following
    error, which is counted; `following_error` is what comes of it: 'warn' no more, 'hold' no row is picked until it is
    over, 'stop' a fault.
    A joint that misses `max_missed_replies` reads in a row is a fault, and so is a port that is gone; `prime` makes a
    loop that failed run again. `page` is memory shared with a supervisor, three int64: every tick says in it that
    the next is due within a period and `patience_s`, and leaves the bus alone once the supervisor has taken the arm.
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
    cdef double _gain[MAX_JOINTS]  # max_acceleration, in units a tick, a tick
    cdef double _following_limit[MAX_JOINTS]
    cdef int64_t _following_ns
    cdef bint _holds_behind
    cdef bint _stops_behind
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
    cdef double _pace[MAX_JOINTS]  # by how much it was moved
    cdef int64_t _behind_since[MAX_JOINTS]  # when a joint was first too far from its goal
    cdef bint _is_far[MAX_JOINTS]
    cdef uint64_t _behind  # who has a following error; bit j stands for joint j
    cdef int64_t _timestep
    cdef int64_t _level
    cdef int64_t _late_ns
    cdef int64_t _spent_ns[OTHER + 1]  # of this tick, by stage
    cdef int _writes_failed  # in a row
    cdef int _fault
    # what Python reads
    cdef atomic_llong _counters[COUNTERS]
    cdef atomic_llong _behind_told
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
        max_acceleration=None,
        str following_error="warn",
        following_limit=None,
        double following_s=1.0,
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
        if following_error not in ("warn", "hold", "stop"):
            raise ConfigError(f"following_error: {following_error!r} is not warn, hold or stop")
        if not 0 <= following_s < float("inf"):
            raise ConfigError(f"following_s: {following_s} is not a duration")
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
        self._following_ns = <int64_t> (min(following_s, FOREVER_S) * 1e9)
        self._holds_behind, self._stops_behind = following_error == "hold", following_error == "stop"
        self._max_missed = max_missed_replies
        self._dry = dry_run
        self._check_every = max(CHECK_NS // self._period_ns, 1)
        self._page_words = page
        self._page = NULL if page is None else <atomic_llong *> &page[PATIENT_UNTIL]
        self._patience_ns = <int64_t> (patience_s * 1e9) + self._period_ns
        lowest = self._per_joint("lower", lower, -float("inf"))
        highest = self._per_joint("upper", upper, float("inf"))
        reach = self._per_joint("max_relative_target", max_relative_target, float("inf"))
        gain = self._per_joint("max_acceleration", max_acceleration, float("inf"))
        far = self._per_joint("following_limit", following_limit, float("inf"))
        for joint in range(self.joints):
            if not gain[joint] > 0:
                raise ConfigError(f"max_acceleration: {gain[joint]} of joint {joint} is not an acceleration, above 0")
            if not far[joint] > 0:
                raise ConfigError(f"following_limit: {far[joint]} of joint {joint} is not a distance")
            self._gain[joint], self._following_limit[joint] = gain[joint] / (fps * substeps) ** 2, far[joint]
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
            self._pace[joint] = self._is_far[joint] = 0
        self._behind = 0
        store(&self._behind_told, 0)
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
        before = self._become_realtime()
        slack_ns = allow_timer_slack(1)
        atomic_store_int(&self._running, 1, memory_order_release)
        try:
            with nogil:
                self._run()
        finally:
            atomic_store_int(&self._running, 0, memory_order_release)
            announce(&self._news)
            allow_timer_slack(slack_ns)
            leave_realtime(before)
        self._raise_fault()

    def check_realtime(self):
        """Raises AccessError when `realtime` is 'enforce' and this thread would be refused it: before torque is on."""
        leave_realtime(self._become_realtime())

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
            if atomic_load_llong(&self._sequence, memory_order_acquire) > after:
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
            outcome=OUTCOMES[seen.outcome],
        )

    @property
    def behind(self):
        """Joints, by number, that have a following error now."""
        cdef uint64_t behind = load(&self._behind_told)
        cdef int joint
        return tuple(joint for joint in range(self.joints) if behind >> joint & 1)

    @property
    def impossible_readings(self):
        """Of each joint, readings that were not believed: it could not have come there since the last."""
        return self._port.impossible

    def counters(self):
        """What happened since the loop was made; those of clamping, holding, starving and errors count ticks."""
        cdef int i
        counts = [load(&self._counters[i]) for i in range(COUNTERS)]
        return {
            **dict(zip(COUNTED, counts)),
            "missed_by_stage": dict(zip(STAGES, counts[MISSED_BY_STAGE:], strict=True)),
            "impossible_readings": sum(self.impossible_readings),
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
        elif self._fault == BEHIND:
            raise FollowingFault(self._how_far_behind(), ticks=self.recent_ticks())
        elif self._fault == SILENT:
            message = self._port._silence(self._max_missed, self._names)
        else:
            message = self._port._deafness(self._max_missed)
        raise ActuatorFault(message, ticks=self.recent_ticks())

    cdef _how_far_behind(self):
        """`shoulder_pan is 62.1 from its goal`, and who else."""
        cdef int joint
        who = [self._names[joint] if self._names else f"joint {joint}" for joint in self.behind]
        far = [abs(self._goal[joint] - self._port.positions[joint]) for joint in self.behind]
        said = ", ".join(f"{name} is {distance:.1f} from its goal" for name, distance in zip(who, far, strict=True))
        return f"following error: {said} for {self._following_ns / 1e9:g} s: is something in the way?"

    cdef _become_realtime(self):
        """What the thread was before, for `leave_realtime`."""
        if self._realtime == "off":
            return None
        before, self.realtime_outcome = enter_realtime(self._priority)
        if before is None and self._realtime == "enforce":
            raise AccessError(f"realtime: enforce, but {self.realtime_outcome}")
        return before

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
        if self._page != NULL:  # from here on Python owns the bus, for as long as it takes to bring the arm to rest
            woke = now_ns() + atomic_load_llong(&self._page[REST_NS], memory_order_relaxed)
            atomic_store_llong(&self._page[PATIENT_UNTIL], woke, memory_order_release)

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
        self._compare(now)
        if self._sub == 0 and self._fault == NO_FAULT:
            self._pick(now)
        picked = now_ns()
        if self._outcome == PICKED:
            self._guard()
        else:
            self._rest()
        guarded = now_ns()
        if self._outcome != PAUSED and self._outcome != FAILED and not self._dry:
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
            self._hold_here()

    cdef void _hold_here(self) noexcept nogil:
        """The present position becomes the goal; where it is beyond the range, the goal comes no nearer to it."""
        cdef double low, high
        cdef int joint
        for joint in range(self.joints):
            low, high = min(self._lower[joint], self._goal[joint]), max(self._upper[joint], self._goal[joint])
            self._goal[joint] = min(max(self._port.positions[joint], low), high)

    cdef bint _paused(self) noexcept nogil:
        return self._turn & 1

    cdef void _pick(self, int64_t now) noexcept nogil:
        self._level = self._ring.arrive(now)
        self._timestep = load(&self._ring._cursor)
        memcpy(self._from, self._goal, self.joints * sizeof(double))
        self._action_age_ns = 0
        if self._paused():
            self._outcome = PAUSED
        elif self._behind and self._holds_behind:
            self._outcome = BLOCKED
        else:
            self._outcome = self._ring.take(self._action)
        if self._outcome == STARVED or self._outcome == HOLE:
            self._ring.keep(self._goal)
        if self._outcome == PICKED:
            add(&self._counters[EXECUTED], 1)
            if self._ring._taken_seen < FARTHEST:
                self._action_age_ns = max(now - self._ring._taken_seen, 0)
                count(&self._ages, self._action_age_ns)

    cdef void _guard(self) noexcept nogil:
        """Goal <- this tick's part of the way to the action, within every limit; finite, as the ring's rows are."""
        cdef double part = (self._sub + 1.0) / self._substeps, asked, present, before, pace, gain
        cdef bint ranged = False, reined = False, slowed = False, eased = False
        cdef int joint
        for joint in range(self.joints):
            asked = self._action[joint]
            if self._sub + 1 < self._substeps:
                asked = self._from[joint] + part * (asked - self._from[joint])
            before, pace, gain = self._goal[joint], self._pace[joint], self._gain[joint]
            present = self._port.positions[joint]
            ranged |= clamp(&asked, self._lower[joint], self._upper[joint])
            reined |= clamp(&asked, present - self._reach[joint], present + self._reach[joint])
            slowed |= clamp(&asked, before - self._step, before + self._step)
            eased |= clamp(&asked, before + min(pace, 0) - gain, before + max(pace, 0) + gain)
            ranged |= clamp(&asked, min(self._lower[joint], before), max(self._upper[joint], before))
            self._pace[joint] = asked - before
            self._goal[joint] = asked
        add(&self._counters[CLAMPED_RANGE], ranged)
        add(&self._counters[CLAMPED_SPEED], slowed)
        add(&self._counters[CLAMPED_RELATIVE], reined)
        add(&self._counters[CLAMPED_ACCELERATION], eased)

    cdef void _rest(self) noexcept nogil:
        """The goal stays: from here it gains speed anew."""
        cdef int joint
        for joint in range(self.joints):
            self._pace[joint] = 0

    cdef void _compare(self, int64_t now) noexcept nogil:
        """Is each joint where it was sent? One that was not heard now is neither nearer nor farther than before."""
        cdef uint64_t behind = 0
        cdef int joint
        for joint in range(self.joints):
            if self._dry or self._paused() or self._outcome == PAUSED:
                self._is_far[joint] = False
            elif load(&self._port.missed[joint]) == 0:
                if not fabs(self._goal[joint] - self._port.positions[joint]) > self._following_limit[joint]:
                    self._is_far[joint] = False
                elif not self._is_far[joint]:
                    self._is_far[joint], self._behind_since[joint] = True, now
            if self._is_far[joint] and now - self._behind_since[joint] >= self._following_ns:
                behind |= <uint64_t> 1 << joint
        self._behind = behind
        store(&self._behind_told, <int64_t> behind)
        if behind and self._stops_behind:
            self._fail(BEHIND)

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
        add(&self._counters[FOLLOWING_ERROR], self._behind != 0)
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
        place.paused, place.outcome = self._paused(), self._outcome
        for joint in range(self.joints):
            place.positions[joint] = self._port.positions[joint]
            place.goal[joint] = self._goal[joint]
            place.ages_s[joint] = INFINITY
            if self._port.known[joint]:
                place.ages_s[joint] = (now - self._port.heard_ns[joint]) / 1e9
        publish(&self._places)
        # released after its record, so that a reader who sees the number receives the record
        atomic_store_llong(&self._sequence, load(&self._sequence) + 1, memory_order_release)
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
