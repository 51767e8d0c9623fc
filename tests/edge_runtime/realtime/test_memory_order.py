"""The orders of the lock-free hand-overs (exchange.pxi, ring.pxi, loop.pxi): every execution is tried, and each weaker.

x86 forgives what these orders prevent, so no run on it can show that they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.edge_runtime.realtime.memory_model import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    Op,
    Registers,
    Step,
    Violation,
    explore,
)

FRESH = 4
PUBLICATIONS = 3
LOOKS = 3
ORDERS = {  # as in the code
    "publish": ACQ_REL,
    "receive": ACQ_REL,
    "sequence stored": RELEASE,
    "sequence loaded": ACQUIRE,
    "epoch stored": RELEASE,
    "epoch loaded": ACQUIRE,
}
PLACES = {"middle": 0, "place 0": 0, "place 1": 0, "place 2": 0}


def publish(orders: Mapping[str, str]) -> list[Step]:
    """exchange.pxi: `back` becomes the newest."""

    def swapped(registers: dict[str, int]) -> None:
        registers["back"] = registers.pop("got") & ~FRESH

    return [lambda r: Op("exchange", "middle", r["back"] | FRESH, orders["publish"], "got"), swapped]


def receive(orders: Mapping[str, str], at: int) -> list[Step]:
    """exchange.pxi: `front` becomes the newest, where that is fresh. `at` is the number of its first step."""

    def swapped(registers: dict[str, int]) -> None:
        registers["front"] = registers["got"] & ~FRESH

    return [
        lambda r: Op("load", "middle", to="got"),
        lambda r: None if r["got"] & FRESH else at + 4,
        lambda r: Op("exchange", "middle", r["front"], orders["receive"], "got"),
        swapped,
    ]


def records(orders: Mapping[str, str]) -> int:
    """The loop tells its records, `ActuatorLoop.wait` receives them: whole, in order, none older than its sequence."""
    loop: list[Step] = []
    for number in range(1, PUBLICATIONS + 1):
        loop += [
            lambda r, number=number: Op("write", f"place {r['back']}", number),  # type: ignore[misc]
            *publish(orders),
            lambda r, number=number: Op("store", "sequence", number, orders["sequence stored"]),  # type: ignore[misc]
        ]
    waiter: list[Step] = []
    for _ in range(LOOKS):
        waiter.append(lambda r: Op("load", "sequence", order=orders["sequence loaded"], to="promised"))
        waiter += receive(orders, len(waiter))
        waiter += [lambda r: Op("read", f"place {r['front']}", to="record"), in_order]
    return explore([loop, waiter], PLACES | {"sequence": 0}, [{"back": 1}, {"front": 2, "last": 0}])


def in_order(registers: dict[str, int]) -> None:
    if registers["record"] < max(registers["promised"], registers["last"]):
        raise Violation(f"record {registers['record']} after {registers['promised']} was told")
    registers["last"] = registers["record"]


def cursors(orders: Mapping[str, str]) -> int:
    """`open_session` sets the reader's cursor with a plan: the writers read the old epoch or the new cursor.

    A place holds the epoch that its plan begins, and the plan of epoch n begins at timestep 100 n.
    """
    writer: list[Step] = []
    for epoch in range(1, PUBLICATIONS + 1):
        writer += [
            lambda r, epoch=epoch: Op("write", f"place {r['back']}", epoch),  # type: ignore[misc]
            *publish(orders),
            lambda r: Op("load", "epoch", order=orders["epoch loaded"], to="epoch"),
            lambda r: Op("load", "cursor", to="cursor"),
            lambda r, epoch=epoch: of_its_epoch(r, epoch),  # type: ignore[misc]
        ]
    reader: list[Step] = []
    for _ in range(LOOKS):
        reader += receive(orders, len(reader))
        at = len(reader)
        reader += [
            lambda r: Op("read", f"place {r['front']}", to="plan"),
            lambda r, at=at: None if r["plan"] != r["epoch"] else at + 5,  # type: ignore[misc]
            lambda r: Op("store", "cursor", 100 * r["plan"]),
            lambda r: Op("store", "epoch", r["plan"], orders["epoch stored"]),
            lambda r: r.update(epoch=r["plan"], cursor=100 * r["plan"]),  # type: ignore[func-returns-value]
            lambda r: Op("store", "cursor", r["cursor"] + 1),  # `take`
            lambda r: r.update(cursor=r["cursor"] + 1),  # type: ignore[func-returns-value]
        ]
    start: list[Registers] = [{"back": 1}, {"front": 2, "epoch": 0, "cursor": 0}]
    return explore([writer, reader], PLACES | {"epoch": 0, "cursor": 0}, start)


def of_its_epoch(registers: dict[str, int], epoch: int) -> None:
    """`_writers_cursor`: what it returns where the reader has come to the writer's epoch."""
    if registers["epoch"] == epoch and registers["cursor"] // 100 != epoch:
        raise Violation(f"cursor {registers['cursor']} in epoch {epoch}")


def test_a_record_is_whole_and_as_new_as_its_sequence() -> None:
    assert records(ORDERS) > 1000


def test_the_writers_never_take_the_cursor_of_another_epoch() -> None:
    assert cursors(ORDERS) > 1000


@pytest.mark.parametrize(
    ("hand_over", "place", "weaker"),
    [
        *((hand_over, "publish", weaker) for hand_over in (records, cursors) for weaker in (RELEASE, ACQUIRE, RELAXED)),
        *((hand_over, "receive", weaker) for hand_over in (records, cursors) for weaker in (RELEASE, ACQUIRE, RELAXED)),
        (records, "sequence stored", RELAXED),
        (records, "sequence loaded", RELAXED),
        (cursors, "epoch stored", RELAXED),
        (cursors, "epoch loaded", RELAXED),
    ],
)
def test_no_order_can_be_weaker(hand_over: object, place: str, weaker: str) -> None:
    with pytest.raises(Violation):
        hand_over(ORDERS | {place: weaker})  # type: ignore[operator]
