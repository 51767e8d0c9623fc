# cython: language_level=3, auto_pickle=False
# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled module once more, with a reader that races the ring's writer: for tests, and in no wheel."""

include "../../cython_ext/_realtime.pyx"


def race(ActionRing ring not None, int64_t rows, bint exact=True):
    """Execute `rows` rows without the GIL, as fast as they come; each must hold one number in every joint.

    With `exact` that is its timestep modulo 4096. Returns (picks, torn, back): how often a row or a plan in hand was
    not whole, and how often a timestep was not beyond the last. While other threads merge such rows, both must stay 0.
    """
    cdef float[MAX_JOINTS] row
    cdef int64_t picks = 0, executed = 0, torn = 0, back = 0, before = -1, timestep
    with nogil:
        while executed < rows:
            picks += 1
            ring.arrive(now_ns())
            if picks % 1024 == 0:
                torn += not is_left_alone(ring, exact)
            timestep = load(&ring._cursor)
            if ring.take(row) != PICKED:
                sched_yield()
                continue
            executed += 1
            torn += not holds(row, ring.joints, timestep, exact)
            back += timestep <= before
            before = timestep
    return picks, torn, back


cdef bint is_left_alone(ActionRing ring, bint exact) noexcept nogil:
    """Whether the reader's plan stays what it is, and whole, while three more are published."""
    cdef int place = ring._places.front
    cdef int64_t merges = ring._plans[place].merges, until = load(&ring._merges) + 3
    cdef Py_ssize_t i
    while load(&ring._merges) < until:
        sched_yield()
    for i in range(ring._next, ring._plans[place].rows):
        if not holds(&ring._rows[place, i, 0], ring.joints, ring._timesteps[place, i], exact):
            return False
    return ring._plans[place].merges == merges


cdef bint holds(const float *row, int joints, int64_t timestep, bint exact) noexcept nogil:
    cdef double number = timestep % 4096 if exact else row[0]
    cdef int joint
    for joint in range(joints):
        if abs(row[joint] - number) > 0.5:  # a blend rounds
            return False
    return True
