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
