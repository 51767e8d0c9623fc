"""A failure at every step: each bus transaction of a start, a run and a stop fails once, and the servos judge it."""
