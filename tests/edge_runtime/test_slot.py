"""The one-place slot: the greatest order wins, whoever puts and however fast."""

from __future__ import annotations

import threading

import pytest

from edge_runtime.slot import Closed, LatestSlot


def test_the_greater_order_wins_and_the_others_are_counted() -> None:
    slot: LatestSlot[str] = LatestSlot()
    assert [slot.put("a", 1), slot.put("c", 3), slot.put("b", 2), slot.put("C", 3)] == [True, True, False, True]
    assert slot.take() == "C"
    assert slot.dropped == 3  # a and c were displaced, b came too late
    assert not slot.put("b", 2)  # order never goes back, a take included
    assert slot.take(0) is None


def test_who_waits_is_woken_by_an_item_and_by_the_end() -> None:
    slot: LatestSlot[int] = LatestSlot()
    taken: list[int | None] = []
    has_taken = threading.Event()

    def consume() -> None:
        try:
            while True:
                taken.append(slot.take(60))
                has_taken.set()
        except Closed:
            taken.append(None)

    thread = threading.Thread(target=consume)
    thread.start()
    slot.put(7, 1)
    assert has_taken.wait(60)
    slot.close()
    slot.close()
    thread.join(60)
    assert taken == [7, None]
    with pytest.raises(Closed):
        slot.take()


def test_four_producers_and_one_consumer() -> None:
    """20 000 items: nobody raises, no put waits, and what is taken never goes back."""
    slot: LatestSlot[int] = LatestSlot()
    orders = iter(range(1, 20_001))
    lock = threading.Lock()
    refused = [0] * 4
    taken: list[int] = []

    def produce(number: int) -> None:
        while True:
            with lock:
                order = next(orders, None)
            if order is None:
                return
            refused[number] += not slot.put(order, order)

    def consume() -> None:
        while (item := slot.take(60)) is not None:
            taken.append(item)
            if item == 20_000:
                return

    consumer = threading.Thread(target=consume)
    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in (consumer, *producers):
        thread.start()
    for thread in (*producers, consumer):
        thread.join(60)
    assert taken == sorted(set(taken))
    assert taken[-1] == 20_000
    assert len(taken) + slot.dropped == 20_000
    assert sum(refused) <= slot.dropped
