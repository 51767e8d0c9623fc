"""Turns at decoding, and whose share a call takes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policy_server.door.peers import Peers
from policy_server.door.refusals import Refusals
from policy_server.door.tokens import Tokens
from policy_server.serving.fairness import DecodingTurns, FairOrder, Share


def busy(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_who_decodes_little_goes_before_eight_sessions_that_decode_much() -> None:
    """One place, taken; eight of one address wait for it, and then one of another, which had less."""
    turns = DecodingTurns(1)
    liars: list[Share] = [("address 192.0.2.7", number) for number in range(8)]
    honest: Share = ("address 192.0.2.8", 9)
    mine = {share: turns.of(share) for share in (*liars, honest)}
    for share in liars:
        with mine[share]:
            busy(0.002)
    mine[liars[0]].cost_s = 0.0  # beside this one nobody is quick
    with mine[liars[0]]:
        for share in (*liars[1:], honest):
            turns.enter(mine[share])
        assert turns._decoding == [mine[liars[0]]]
        started: list[Share] = []
        start = turns._start
        turns._start = lambda turn: (started.append(turn.share), start(turn))[1]  # type: ignore[func-returns-value, method-assign]
    assert started[0] == honest


def test_who_decodes_quickly_does_not_wait_for_who_decodes_long() -> None:
    """The only place is taken by a costly picture and another costly one waits: a quick one goes at once."""
    turns = DecodingTurns(1)
    costly, other, quick, unknown = (turns.of((f"address 192.0.2.{number}", number)) for number in range(4))
    for turn, seconds in ((costly, 0.02), (other, 0.02), (quick, 0.001)):
        with turn:
            busy(seconds)
    with costly:
        turns.enter(other)
        turns.enter(unknown)
        with quick:  # else this waits for ever
            assert turns._decoding == [costly, quick]
        assert turns._decoding == [costly]
    assert len(turns._decoding) == 1


def test_what_has_no_debt_is_forgotten() -> None:
    """A robot that comes and goes a thousand times leaves nothing."""
    order = FairOrder()
    for number in range(1000):
        claimant = SimpleNamespace(share=("address 192.0.2.7", number), urgency=0.0)
        assert order.pick([claimant]) is claimant
        order.charge(claimant.share)
    assert len(order._root._below["address 192.0.2.7"]._had) <= 2


class Context:
    """A call, as gRPC shows it."""

    def __init__(self, token: str = "", name: bytes = b"") -> None:
        self._token, self._name = token, name

    def peer(self) -> str:
        return "ipv4:192.0.2.7:1000"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [self._name]} if self._name else {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._token}")] if self._token else []


def share(peers: Peers, **call: Any) -> tuple[str, ...]:
    return peers.share(Context(**call))  # type: ignore[arg-type]


def test_a_share_goes_by_what_was_proven_then_by_address(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text("a-token-of-the-lab-1\na-token-of-the-lab-2\n")
    peers = Peers(["192.0.2.0/24"], Tokens(file, Refusals()))
    first, second = (share(peers, token=f"a-token-of-the-lab-{number}") for number in (1, 2))
    assert first != second
    assert "lab" not in str(first)  # it is a secret
    assert share(Peers(), name=b"arm1") == ("certificate arm1", "address 192.0.2.7")
    assert share(Peers(["192.0.2.7"])) == ()


@pytest.mark.parametrize("sessions", [1, 8])
def test_an_address_has_one_share_however_many_sessions_it_opens(sessions: int) -> None:
    order = FairOrder()
    liars = [SimpleNamespace(share=("address 192.0.2.7", number), urgency=-1e9) for number in range(sessions)]
    honest = SimpleNamespace(share=("address 192.0.2.8", 9), urgency=0.0)
    picked = []
    for _ in range(40):
        picked.append(order.pick([*liars, honest]))
        order.charge(picked[-1].share)
    assert picked.count(honest) == 20
