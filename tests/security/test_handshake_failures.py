"""Who knocked and did not get in, from the kernel's table of connections."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from policy_server.door import handshake_failures
from policy_server.door.handshake_failures import HandshakeFailures

Said = queue.SimpleQueue[tuple[str, str]]


@contextmanager
def listening(family: int = socket.AF_INET, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        yield listener


@pytest.fixture
def said() -> Said:
    return queue.SimpleQueue()


def test_who_knocks_and_leaves_is_told_and_who_was_heard_is_not(said: Said) -> None:
    doorman = HandshakeFailures(lambda peer, reason: said.put((peer, reason)))
    with listening() as listener:
        doorman.start(listener.getsockname()[1])
        friend, stranger = (socket.create_connection(listener.getsockname()) for _ in range(2))
        accepted = [listener.accept()[0] for _ in range(2)]
        doorman.begins()
        doorman.heard(f"ipv4:127.0.0.1:{friend.getsockname()[1]}")
        name = f"ipv4:127.0.0.1:{stranger.getsockname()[1]}"
        for each in (friend, stranger, *accepted):
            each.close()
        assert said.get(timeout=20) == (name, "the TLS handshake failed")
        doorman.stop()
    assert said.empty()


def test_a_peer_of_ipv6_has_the_name_that_grpc_gives_it(said: Said) -> None:
    doorman = HandshakeFailures(lambda peer, reason: said.put((peer, reason)))
    with listening(socket.AF_INET6, "::1") as listener:
        doorman.start(listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()[:2]) as stranger, listener.accept()[0]:
            doorman.begins()
            name = f"ipv6:%5B::1%5D:{stranger.getsockname()[1]}"
        assert said.get(timeout=20)[0] == name
        doorman.stop()


def test_who_is_still_at_it_is_not_judged_yet(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_failures, "_SETTLED_S", 0.01)
    doorman = HandshakeFailures(lambda peer, reason: said.put((peer, reason)))
    with listening() as listener:
        doorman.start(listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()), listener.accept()[0]:
            doorman.begins()
            with pytest.raises(queue.Empty):
                said.get(timeout=0.2)
        assert said.get(timeout=20)[1] == "the TLS handshake failed"
        doorman.stop()


def test_a_look_that_fails_is_not_the_last(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is no descriptor left to open the table with."""
    monkeypatch.setattr(handshake_failures, "_SETTLED_S", 0.01)
    failed = threading.Event()
    judge = HandshakeFailures._judge

    def judge_but_once(self: HandshakeFailures) -> list[str]:
        if not failed.is_set():
            failed.set()
            raise OSError(24, "Too many open files")
        return judge(self)

    monkeypatch.setattr(HandshakeFailures, "_judge", judge_but_once)
    doorman = HandshakeFailures(lambda peer, reason: said.put((peer, reason)))
    with listening() as listener:
        doorman.start(listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()), listener.accept()[0]:
            doorman.begins()
            assert failed.wait(20)
        assert said.get(timeout=20)[1] == "the TLS handshake failed"
        doorman.stop()


def test_it_can_be_stopped_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between its look at the table and its next rest."""
    monkeypatch.setattr(handshake_failures, "_SETTLED_S", 0.0)
    for _ in range(50):
        doorman = HandshakeFailures(lambda peer, reason: None)
        doorman.start(1)
        doorman.begins()
        stopping = threading.Thread(target=doorman.stop, daemon=True)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
