"""A policy for a control loop of one's own: what is asked, what is merged, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from edge_runtime import ConfigError, Joint, PolicyClient, ProtocolError, StreamError
from edge_runtime.wire.messages import Camera, ExtraState, Floats, Observation
from tests.edge_runtime.link.scripted_server import JOINTS, POLICY, ScriptedServer, chunk_for

SEEING = replace(
    POLICY, cameras=(Camera("front", 4, 6),), extra_state=(ExtraState("observation.environment_state", 2),)
)
STATE = [1.0, 2.0]
WAIT_S = 20.0


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(**settings: Any) -> ScriptedServer:
        servers.append(ScriptedServer(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def first_action(client: PolicyClient, **seen: Any) -> Floats:
    """Of a loop that turns until a chunk has come."""
    pause = threading.Event()
    for _ in range(int(WAIT_S * 1000)):
        client.observe(STATE, **seen)
        action = client.next_action()
        if action is not None:
            return action
        pause.wait(0.001)
    raise AssertionError("no action came")


def test_one_action_for_each_period_and_the_next_chunk_is_asked_for_in_time(serve: Any) -> None:
    asked: list[Observation] = []

    def answer(observation: Observation) -> Any:
        asked.append(observation)
        return chunk_for(observation, float(observation.timestep))

    server = serve(answer=answer)
    with PolicyClient(server.address, chunk_size_threshold=0.5, aggregate_fn_name="latest_only") as client:
        assert (client.fps, client.policy.joints) == (30.0, JOINTS)
        assert first_action(client).tolist() == [0.0, 0.0]
        rest = [client.next_action() for _ in range(9)]
        assert all(action is not None and action.tolist() == [0.0, 0.0] for action in rest)
        assert client.next_action() is None  # the caller did not look in the meantime
        assert first_action(client).tolist() == [10.0, 10.0]
    assert [(o.timestep, o.must_go, o.state.tolist()) for o in asked] == [(0, True, STATE), (10, True, STATE)]


def test_what_is_seen_arrives_and_the_callers_buffer_stays_its_own(serve: Any) -> None:
    asked: list[Observation] = []
    server = serve(policy=SEEING, answer=lambda observation: asked.append(observation) or chunk_for(observation))
    pixels = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)
    with PolicyClient(server.address, resize=True, jpeg_quality=0, task="pick it up") as client:
        first_action(client, images={"front": pixels}, extra_state={"environment_state": [3, 4]})
    (frame,) = asked[0].frames
    assert (frame.camera, frame.height, frame.width, len(frame.data)) == ("front", 4, 6, 4 * 6 * 3)
    assert asked[0].extra_state["observation.environment_state"].tolist() == [3.0, 4.0]
    assert asked[0].task == "pick it up"
    picture = client._pictures["front"].latest()
    assert picture is not None
    assert not np.shares_memory(picture.pixels, pixels)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"state": [1.0]}, r"state has the shape \(1,\), expected \(2,\)"),
        ({"state": [1.0, np.nan]}, "state holds a number that is not finite"),
        ({"images": {}}, "images: given none, the policy takes front"),
        ({"images": {"top": np.zeros((4, 6, 3), np.uint8)}}, "images: given top, the policy takes front"),
        ({"images": {"front": np.zeros((4, 6, 3))}}, r"front is \(4, 6, 3\) float64, expected \(4, 6, 3\) uint8"),
        ({"images": {"front": np.zeros((8, 6, 3), np.uint8)}}, r"front is \(8, 6, 3\) uint8, expected \(4, 6, 3\)"),
        ({"extra_state": {"place": [1, 2]}}, "given observation.place, the policy takes observation.environment_state"),
        ({"extra_state": {"environment_state": [1]}}, r"extra_state: environment_state has the shape \(1,\)"),
    ],
)
def test_what_the_policy_does_not_take_is_refused(seen: dict[str, Any], reason: str, serve: Any) -> None:
    right = {
        "state": STATE,
        "images": {"front": np.zeros((4, 6, 3), np.uint8)},
        "extra_state": {"environment_state": [0, 0]},
    }
    with PolicyClient(serve(policy=SEEING).address) as client:
        client.observe(**right)
        with pytest.raises(ValueError, match=reason):
            client.observe(**right | seen)


def test_other_joints_and_settings_that_cannot_work_are_refused(serve: Any) -> None:
    address = serve().address
    with pytest.raises(ProtocolError, match=r"unit of b\.pos: robot radians, policy degrees"):
        PolicyClient(address, joints=[Joint("a.pos", "degrees"), Joint("b.pos", "radians")])
    with pytest.raises(ConfigError, match=r"chunk_size_threshold: 2 is not in 0\.\.1"):
        PolicyClient(address, chunk_size_threshold=2.0)
    with pytest.raises(ProtocolError, match="the server has no 'mine'"):
        PolicyClient(address, model="mine")


def test_what_ended_the_conversation_is_raised_where_the_loop_looks(serve: Any) -> None:
    server = serve(refuse=(grpc.StatusCode.INVALID_ARGUMENT, "not you"))
    with PolicyClient(server.address) as client:
        client._thread.join(WAIT_S)
        with pytest.raises(ProtocolError, match="refused: not you"):
            client.observe(STATE)


def test_no_server_is_an_error_and_a_client_that_is_closed_says_so(serve: Any) -> None:
    server = serve()
    client = PolicyClient(server.address)
    client.close()
    client.close()
    with pytest.raises(StreamError, match="the client is closed"):
        client.observe(STATE)
    server.kill()
    with pytest.raises(StreamError, match="give_up_after_s"):
        PolicyClient(server.address, give_up_after_s=0.01)


def test_a_new_episode_forgets_the_plan(serve: Any) -> None:
    with PolicyClient(serve().address) as client:
        first_action(client)
        client.new_episode()
        assert client.next_action() is None
        first_action(client)


def test_the_first_chunk_is_blended_with_what_the_robot_holds(serve: Any) -> None:
    """With the state that was observed, also in a new episode: no step is the whole difference."""
    looked = threading.Semaphore(0)

    def answer(observation: Observation) -> Any:
        return chunk_for(observation, 8.0) if looked.acquire(timeout=WAIT_S) else None

    parts = np.arange(1, 7)[:, None] / 7  # of the new chunk in its first rows: linear_blend over 6
    with PolicyClient(serve(answer=answer).address) as client:
        for state in ([1.0, 2.0], [5.0, 6.0]):
            client.observe(state)
            assert client.next_action() is None
            looked.release()
            actions = [first_action(client), *(client.next_action() for _ in range(5))]
            np.testing.assert_allclose(actions, state + parts * (8.0 - np.array(state)), rtol=1e-6)
            client.new_episode()
