"""The judge of episodes: what it says when one is done, and answers that are none."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from edge_runtime.episodes import Episodes, Outcome
from edge_runtime.errors import DeviceError
from tests.edge_runtime.planning.test_extra_state import Answer, saying, serving

DONE = {"seed": 3, "success": True, "lifted": True, "time_s": 4.5, "done": True}


def wait(answer: Answer) -> Outcome | None:
    with serving(answer) as (url, _):
        return Episodes(url).wait(threading.Event())


def test_an_outcome_is_waited_for() -> None:
    answers = [{"done": False}, {"done": False}, DONE]
    assert wait(lambda handler: saying(json.dumps(answers.pop(0)).encode())(handler)) == Outcome(3, True, True, 4.5)


def hanging_up(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"no HTTP at all\r\n\r\n")
    handler.close_connection = True


ANSWERS: list[tuple[Answer, str]] = [
    (saying(json.dumps({"done": True}).encode()), "answers no outcome with seed and time_s"),
    (saying(json.dumps(DONE | {"seed": [1]}).encode()), "answers no outcome with seed and time_s"),
    (saying(json.dumps(DONE | {"time_s": "soon"}).encode()), "answers no outcome with seed and time_s"),
    (saying(json.dumps(DONE | {"time_s": 10**400}).encode()), "answers no outcome with seed and time_s"),
    (saying(b"[" * 50_000), "failed: maximum recursion depth"),
    (saying(b" " * 100_000 + b"{}"), "failed: Expecting value"),
    (saying(b"[]"), "answered no JSON object"),
    (saying(b"{}", 500), "failed: HTTP Error 500"),
    (hanging_up, "failed: "),
]


@pytest.mark.parametrize(("answer", "said"), ANSWERS)
def test_what_is_no_outcome_is_said(answer: Answer, said: str) -> None:
    with pytest.raises(DeviceError, match=f"reset_url: GET http://.*/state {said}"):
        wait(answer)
