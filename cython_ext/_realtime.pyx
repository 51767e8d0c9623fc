# cython: language_level=3, auto_pickle=False
# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The plan of actions, the loop that executes it and the ports it speaks through; only the Python port takes the GIL.

Below every `def` that checks stands a `cdef ... noexcept nogil` that works: no objects, no allocation, no logging.
What happens there is counted, and Python reads the counters. From top to bottom: clock and atomics, the exchange
between two threads, the ring, the ports, the loop: each in a file of its own, all one compiled module.
"""

from edge_runtime.timing import BUCKETS as PYTHON_BUCKETS

from libc.stdint cimport int64_t

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
    short POLLIN
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
    BLOCKED = 5
    MAX_JOINTS = 64  # a bit each in a 64-bit word; a sync write of 64 goals is 200 bytes, the frame's limit 250
    BUCKETS = 1280  # timing.BUCKETS

assert BUCKETS == PYTHON_BUCKETS

cdef int64_t FARTHEST = 1 << 60  # timesteps and times beyond are refused, so that adding to one cannot overflow


include "exchange.pxi"  # a triple buffer between two threads
include "ring.pxi"      # the plan of actions, its merge and its pick
include "port.pxi"      # what the loop asks of a robot; a robot that is a Python object
include "feetech.pxi"   # six servos on a serial line
include "histogram.pxi"  # durations, counted by one thread and read by others
include "record.pxi"    # what the loop tells of a timestep
include "realtime.pxi"  # SCHED_FIFO, and memory that stays
include "loop.pxi"      # read, pick, guard, write, sleep
