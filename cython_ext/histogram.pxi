# -- a histogram that one thread counts into while others read -----------------------------------------------------

from edge_runtime.timing import Histogram

from libc.stdint cimport int64_t


cdef struct Counts:  # a histogram of durations in the buckets of timing.bucket
    atomic_llong buckets[BUCKETS]
    atomic_llong total_ns
    atomic_llong longest_ns


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
