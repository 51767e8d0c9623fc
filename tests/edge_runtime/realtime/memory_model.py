"""Every execution of a few threads under C11's release and acquire, explored to the end, with its data races.

Each location keeps all that was ever written to it, in order; each message carries the view of its writer (how much of
each location, and how many plain accesses of each thread, that writer knew of) when the write releases. A relaxed load
may return any message that the thread's view does not rule out; an acquiring one also takes over the message's view; an
exchange always reads the newest message, as the standard demands, and hands on what that message released. A plain
access that is not ordered after the other thread's conflicting access is a race. (Kang et al., "A promising semantics
for relaxed-memory concurrency", 2017, without promises: a store is never seen before it is executed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

RELAXED, ACQUIRE, RELEASE, ACQ_REL = "relaxed", "acquire", "release", "acq_rel"
_ACQUIRES, _RELEASES = (ACQUIRE, ACQ_REL), (RELEASE, ACQ_REL)

Registers = Mapping[str, int]
View = tuple[tuple[str, int], ...]  # location, or thread -> how far; sorted


class Op(NamedTuple):
    """`kind`: read, write (both plain), load, store, exchange; the result goes to register `to`."""

    kind: str
    location: str
    value: int = 0
    order: str = RELAXED
    to: str = ""


Step = Callable[[dict[str, int]], Op | int | None]  # an operation; or the number of the next step; or the next one


class Violation(Exception):
    """An execution that the algorithm must not have."""


class Thread(NamedTuple):
    step: int
    registers: tuple[tuple[str, int], ...]
    view: View


class State(NamedTuple):
    threads: tuple[Thread, ...]
    memory: tuple[tuple[str, tuple[tuple[int, View], ...]], ...]
    accesses: tuple[tuple[str, tuple[tuple[int, bool, int], ...]], ...]  # location -> (thread, writes, its count)


def explore(programs: Sequence[Sequence[Step]], memory: Mapping[str, int], registers: Sequence[Registers]) -> int:
    """How many states the programs can come into. Violation, where a step raises it or two accesses race."""
    first = State(
        tuple(Thread(0, _packed(each), ()) for each in registers),
        tuple(sorted((name, ((value, ()),)) for name, value in memory.items())),
        (),
    )
    seen, waiting = {first}, [first]
    while waiting:
        for following in _after(waiting.pop(), programs):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen)


def _after(state: State, programs: Sequence[Sequence[Step]]) -> Iterator[State]:
    for number, (thread, program) in enumerate(zip(state.threads, programs, strict=True)):
        if thread.step < len(program):
            yield from _steps(state, number, program)


def _steps(state: State, number: int, program: Sequence[Step]) -> Iterator[State]:
    thread = state.threads[number]
    registers = dict(thread.registers)
    op = program[thread.step](registers)
    if not isinstance(op, Op):
        yield _moved(state, number, Thread(thread.step + 1 if op is None else op, _packed(registers), thread.view))
        return
    memory, view = dict(state.memory), dict(thread.view)
    messages = memory[op.location]
    newest = len(messages) - 1
    accesses = dict(state.accesses)
    if op.kind in ("read", "write"):
        known = view[f"thread {number}"] = view.get(f"thread {number}", 0) + 1
        accesses[op.location] = _accessed(accesses.get(op.location, ()), number, op.kind == "write", known, view, op)
    places = range(view.get(op.location, 0), newest + 1) if op.kind == "load" else (newest,)
    for place in places:
        value, released = messages[place]
        mine, kept = dict(view), messages
        mine[op.location] = place
        if op.order in _ACQUIRES:
            mine = _joined(mine, released)
        if op.kind in ("write", "store", "exchange"):
            mine[op.location] = newest + 1
            carried = mine if op.order in _RELEASES else {op.location: newest + 1}
            kept = (*messages, (op.value, _packed(_joined(carried, released if op.kind == "exchange" else ()))))
        after = {**registers, op.to: value} if op.to else registers
        moved = _moved(state, number, Thread(thread.step + 1, _packed(after), _packed(mine)))
        yield moved._replace(memory=tuple(sorted({**memory, op.location: kept}.items())), accesses=_packed(accesses))


def _accessed(before: Any, number: int, writes: bool, count: int, view: Mapping[str, int], op: Op) -> Any:
    for other, wrote, theirs in before:
        if other != number and (wrote or writes) and view.get(f"thread {other}", 0) < theirs:
            raise Violation(f"a race for {op.location}")
    mine = (number, writes, count)
    return tuple(sorted({*(each for each in before if each[:2] != mine[:2]), mine}))


def _joined(view: Mapping[str, int], other: View) -> dict[str, int]:
    return {**view, **{name: max(far, view.get(name, 0)) for name, far in other}}


def _moved(state: State, number: int, thread: Thread) -> State:
    threads = list(state.threads)
    threads[number] = thread
    return state._replace(threads=tuple(threads))


def _packed(mapping: Mapping[str, Any]) -> Any:
    return tuple(sorted(mapping.items()))
