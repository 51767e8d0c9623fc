# -- a real-time thread ----------------------------------------------------------------------------------------------

import os

from libc.errno cimport EPERM

cdef extern from "<sys/prctl.h>" nogil:
    int PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
    int prctl(int, unsigned long, unsigned long, unsigned long, unsigned long)


cdef enter_realtime(int priority):
    """Ask for SCHED_FIFO, and for memory that stays: what this thread was before, None if refused, and the outcome."""
    cdef sched_param before, wanted
    cdef int policy, refused
    pthread_getschedparam(pthread_self(), &policy, &before)
    wanted.sched_priority = priority
    refused = pthread_setschedparam(pthread_self(), SCHED_FIFO, &wanted)
    if refused:
        reason = "needs CAP_SYS_NICE or an rtprio limit" if refused == EPERM else os.strerror(refused)
        return None, f"no SCHED_FIFO {priority}: {reason}"
    # Only the pages in use: keeping all that are mapped would take several times the memory.
    locked = mlockall(MCL_CURRENT | MCL_ONFAULT) == 0
    return (policy, before.sched_priority), f"SCHED_FIFO {priority}" + (", memory locked" if locked else "")


cdef leave_realtime(before):
    """Back to what `enter_realtime` gave; None = nothing was changed."""
    cdef sched_param param
    if before is not None:
        policy, param.sched_priority = before
        pthread_setschedparam(pthread_self(), policy, &param)


cdef unsigned long allow_timer_slack(unsigned long slack_ns):
    """How late this thread's timers may be, so that wake-ups coincide; returns what it was. SCHED_FIFO has none."""
    cdef unsigned long before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(PR_SET_TIMERSLACK, slack_ns, 0, 0, 0)
    return before
