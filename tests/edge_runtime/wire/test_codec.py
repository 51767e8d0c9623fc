"""What is sent is what arrives, and what lies is refused: by a ProtocolError, before anything is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_runtime.errors import ProtocolError
from edge_runtime.wire import codec, envelope, limits
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.messages import (
    Camera,
    Chunk,
    ExtraState,
    Failure,
    Frame,
    Guidance,
    Hello,
    Joint,
    Observation,
    Pace,
    Ping,
    Policy,
    Replaced,
    Schedule,
    ServerDescription,
    ServerTimes,
    Skipped,
    Welcome,
)

DIGEST = bytes(range(32))
JOINTS = tuple(Joint(f"{name}.pos", "degrees") for name in ("pan", "lift", "elbow", "flex", "roll", "gripper"))
ENVIRONMENT = ExtraState("observation.environment_state", 5)
POLICY = Policy(
    "cubes",
    "act",
    DIGEST,
    JOINTS,
    (Camera("static", 48, 64), Camera("wrist", 32, 32)),
    (ENVIRONMENT,),
    chunk_size=50,
    fps=30.0,
)

# Strategies: anything that may be said.

names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=12)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
digests = st.binary(min_size=32, max_size=32)
counters = st.integers(0, 2**64 - 1)
seconds = st.floats(0, 1e6, width=32)
joints = st.lists(st.builds(Joint, names, names), min_size=1, max_size=8, unique_by=lambda joint: joint.name).map(tuple)
cameras = st.lists(
    st.builds(Camera, names, st.integers(1, 64), st.integers(1, 64)), max_size=3, unique_by=lambda camera: camera.name
).map(tuple)
extra_states = st.lists(
    st.builds(ExtraState, names, st.integers(1, 8)), max_size=3, unique_by=lambda vector: vector.name
).map(tuple)
policies = st.builds(
    Policy,
    name=names,
    type=names,
    digest=digests,
    joints=joints,
    cameras=cameras,
    extra_state=extra_states,
    chunk_size=st.integers(1, 100),
    fps=st.floats(1, 1000),
    uses_task=st.booleans(),
    temporal_ensemble_coeff=st.floats(-1, 1),
    guided=st.booleans(),
    trained_delay=st.integers(0, 50),
)
hellos = st.builds(
    Hello,
    joints=joints,
    cameras=cameras,
    extra_state=extra_states,
    fps=st.floats(1, 1000),
    model=st.just("") | names,
    actions_per_chunk=st.integers(0, 100),
    similarity_tolerance=st.floats(0, 1e6),
    robot=st.just("") | names,
    digest=st.just(b"") | digests,
    image_tolerance=st.floats(0, 255),
    protocol_version=st.integers(0, 2**32 - 1),
)


@st.composite
def observations(draw: st.DrawFn, policy: Policy) -> Observation:
    return Observation(
        id=draw(counters),
        session=draw(counters),
        timestep=draw(st.integers(0, limits.TIMESTEP)),
        must_go=draw(st.booleans()),
        state=draw(hnp.arrays(np.float32, len(policy.joints), elements=floats)),
        extra_state={
            vector.name: draw(hnp.arrays(np.float32, vector.dimension, elements=floats))
            for vector in policy.extra_state
        },
        frames=tuple(
            Frame.raw(camera.name, draw(hnp.arrays(np.uint8, (camera.height, camera.width, 3))))
            for camera in policy.cameras
        ),
        task=draw(st.text(max_size=20)),
        runs_dry_in_s=draw(seconds),
    )


@st.composite
def chunks(draw: st.DrawFn, policy: Policy) -> Chunk:
    shape = (draw(st.integers(1, policy.chunk_size)), len(policy.joints))
    return Chunk(
        observation=draw(counters),
        session=draw(counters),
        first_timestep=draw(st.integers(0, limits.TIMESTEP)),
        actions=draw(hnp.arrays(np.float32, shape)),
        digest=draw(digests),
        times=ServerTimes(*draw(st.tuples(*[seconds] * 7))),
        batch=draw(st.integers(1, 64)),
    )


def observation(id: int = 1, **changes: Any) -> Observation:
    rng = np.random.default_rng(id)
    values: dict[str, Any] = {
        "session": 1,
        "timestep": 10,
        "must_go": False,
        "state": rng.normal(size=6).astype(np.float32),
        "extra_state": {ENVIRONMENT.name: rng.normal(size=5).astype(np.float32)},
        "frames": tuple(
            Frame.raw(camera.name, rng.integers(0, 256, (camera.height, camera.width, 3), np.uint8))
            for camera in POLICY.cameras
        ),
    }
    return Observation(id, **(values | changes))


def chunk(rows: int = 50) -> Chunk:
    actions = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    return Chunk(2**40, 2**30, 2**40, actions, DIGEST, ServerTimes(*[0.123] * 7), batch=8)


def feed_all(assembler: codec.ObservationAssembler, messages: list[pb.ClientMessage]) -> tuple[Observation, float]:
    answers = [assembler.feed(pb.ClientMessage.FromString(message.SerializeToString())) for message in messages]
    assert answers[:-1] == [None] * (len(messages) - 1)
    assert answers[-1] is not None
    return answers[-1]


def assert_same(got: Observation, sent: Observation) -> None:
    plain: dict[str, Any] = {"state": np.zeros(0), "extra_state": {}, "frames": ()}
    assert vars(replace(got, **plain)) == vars(replace(sent, **plain))
    np.testing.assert_array_equal(got.state, sent.state)
    assert got.state.dtype == np.float32
    assert got.extra_state.keys() == sent.extra_state.keys()
    for name, vector in sent.extra_state.items():
        np.testing.assert_array_equal(got.extra_state[name], vector)
    assert [(f.camera, f.height, f.width, f.encoding, bytes(f.data)) for f in got.frames] == [
        (f.camera, f.height, f.width, f.encoding, bytes(f.data)) for f in sent.frames
    ]


def test_messages_with_arrays_can_be_compared_on_every_python() -> None:
    chunk = Chunk(1, 2, 3, np.zeros((2, 2), np.float32), bytes(32))
    assert chunk == chunk
    assert chunk != replace(chunk)
    assert len({chunk, replace(chunk)}) == 2


# Round trips.


@given(st.builds(ServerDescription, st.just(1), names, st.lists(policies, min_size=1, max_size=3).map(tuple)))
def test_description_arrives_as_sent(description: ServerDescription) -> None:
    message = codec.encode_description(description).SerializeToString()
    assert codec.decode_description(pb.ServerDescription.FromString(message)) == description


@given(hellos)
def test_hello_arrives_as_sent(hello: Hello) -> None:
    message = codec.encode_hello(hello).SerializeToString()
    assert codec.decode_hello(pb.ClientMessage.FromString(message)) == hello


@given(policies)
def test_welcome_arrives_as_sent(policy: Policy) -> None:
    message = codec.encode_welcome(Welcome(policy)).SerializeToString()
    assert codec.decode_server_message(pb.ServerMessage.FromString(message)) == Welcome(policy)


@settings(max_examples=50)
@given(st.data(), policies)
def test_observation_arrives_as_sent(data: st.DataObject, policy: Policy) -> None:
    sent = data.draw(observations(policy))
    got, _ = feed_all(codec.ObservationAssembler(policy), codec.encode_observation(sent))
    assert_same(got, sent)


@given(st.data(), policies)
def test_chunk_arrives_as_sent(data: st.DataObject, policy: Policy) -> None:
    sent = data.draw(chunks(policy))
    message = codec.encode_chunk(sent).SerializeToString()
    got = codec.decode_server_message(pb.ServerMessage.FromString(message), policy)
    assert isinstance(got, Chunk)
    np.testing.assert_array_equal(got.actions, sent.actions)  # NaN and infinity included: the ring makes holes
    assert got.actions.dtype == np.float32
    assert vars(replace(got, actions=sent.actions)) == vars(sent)


@given(counters)
def test_small_answers_arrive_as_sent(id: int) -> None:
    sent = [
        (codec.encode_skipped, Skipped(id, "similar")),
        (codec.encode_skipped, Skipped(id, "already_predicted")),
        (codec.encode_skipped, Skipped(id, "superseded")),
        (codec.encode_failure, Failure(id, 13, "the engine failed", "e-1")),
        (codec.encode_pong, Ping(id)),
        (codec.encode_replaced, Replaced(POLICY)),
        (codec.encode_pace, Pace(0.5)),
        (codec.encode_pace, Pace(0.0)),
    ]
    for encode, message in sent:
        encoded = encode(message).SerializeToString()  # type: ignore[operator]
        assert codec.decode_server_message(pb.ServerMessage.FromString(encoded), POLICY) == message
    assert codec.decode_ping(codec.encode_ping(Ping(id))) == Ping(id)


def test_failure_is_one_bounded_printable_line() -> None:
    long = Failure(1, 13, "first\nsecond \x1b[31m red " + "x" * 10_000, "e-1")
    got = codec.decode_failure(codec.encode_failure(long))
    assert got.message.startswith("first second [31m red xxx")
    assert len(got.message) == limits.SENTENCE
    hostile = pb.ServerMessage(failure=pb.Failure(code=13, message=long.message))
    assert codec.decode_failure(hostile).message == got.message


# Sizes.


def test_chunk_of_50_by_6_is_at_most_1400_bytes() -> None:
    assert len(codec.encode_chunk(chunk(50)).SerializeToString()) <= 1400


def test_no_message_comes_near_the_4_mb_of_grpc() -> None:
    policy = replace(POLICY, cameras=(Camera("static", 1080, 1920),))
    pixels = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
    messages = codec.encode_observation(observation(frames=(Frame.raw("static", pixels),)))
    assert len(messages) == 1 + -(-pixels.nbytes // limits.PIECE)
    assert max(message.ByteSize() for message in messages) <= limits.PIECE + 64
    got, _ = feed_all(codec.ObservationAssembler(policy), messages)
    assert bytes(got.frames[0].data) == pixels.tobytes()


# The assembler.


def test_receive_time_runs_from_the_header_to_the_last_piece() -> None:
    now = [10.0]
    assembler = codec.ObservationAssembler(POLICY, clock=lambda: now[0])
    header, first, last = codec.encode_observation(observation())
    assert assembler.feed(header) is None
    now[0] = 10.25
    assert assembler.feed(first) is None
    now[0] = 10.5
    answer = assembler.feed(last)
    assert answer is not None
    assert answer[1] == 0.5


def test_observation_without_cameras_is_whole_with_its_header() -> None:
    assembler = codec.ObservationAssembler(replace(POLICY, cameras=()))
    (header,) = codec.encode_observation(observation(frames=()))
    answer = assembler.feed(header)
    assert answer is not None
    assert answer[0].id == 1


def test_jpeg_frames_arrive_too() -> None:
    flat = np.full((48, 64, 3), (200, 100, 50), np.uint8)
    policy = replace(POLICY, cameras=POLICY.cameras[:1])
    messages = codec.encode_observation(observation(frames=(Frame.raw("static", flat),)), jpeg_quality=90)
    got, _ = feed_all(codec.ObservationAssembler(policy), messages)
    assert got.frames[0].encoding == "jpeg"
    assert len(got.frames[0].data) < flat.nbytes


def test_a_plan_arrives_as_sent_and_without_one_nothing_is_sent() -> None:
    plain = observation(id=7)
    plan = np.array([[1, 2, 3, 4, 5, 6], [np.nan] * 6], np.float32)
    message = codec.encode_observation(replace(plain, delay=1, plan=plan))[0]
    most = envelope.from_robot(POLICY)["observation"]
    assert len(message.SerializeToString()) < most - 4 * 48 * 6  # there is room for a whole chunk
    header = codec.encode_observation(plain)[0].observation
    assert {field.name for field, _ in header.ListFields()}.isdisjoint({"plan", "delay"})
    got, _ = feed_all(codec.ObservationAssembler(POLICY), codec.encode_observation(replace(plain, delay=1, plan=plan)))
    assert got.delay == 1
    assert got.plan is not None
    np.testing.assert_array_equal(got.plan, plan)


@pytest.mark.parametrize("schedule", ["zeros", "ones", "linear", "exp"])
def test_guidance_arrives_as_sent(schedule: Schedule) -> None:
    hello = Hello(JOINTS, (), (), 30.0, guidance=Guidance(schedule, 20, 5.0, trained=True))
    message = codec.encode_hello(hello)
    assert codec.decode_hello(message) == hello
    message.hello.guidance.schedule = 9  # type: ignore[assignment]
    with pytest.raises(ProtocolError, match=r"guidance: schedule 9 is not one of \[zeros, ones, linear, exp\]"):
        codec.decode_hello(message)


def messages() -> list[pb.ClientMessage]:
    return codec.encode_observation(observation(id=7))


BAD_HEADERS: dict[str, tuple[Callable[[pb.ObservationHeader], object], str]] = {
    "state too short": (lambda h: h.state.pop(), "state: 5 numbers, expected 6"),
    "state too long": (lambda h: h.state.append(1), "state: 7 numbers, expected 6"),
    "state huge": (lambda h: h.state.extend([0.0] * 100_000), "state: 100006 numbers, expected 6"),
    "plan of another width": (lambda h: h.plan.extend([0.0] * 7), "plan: 7 numbers are not rows of 6 joints"),
    "plan beyond the chunk": (lambda h: h.plan.extend([0.0] * 306), "plan: rows: 51 is not in 0..50"),
    "delay beyond any chunk": (lambda h: setattr(h, "delay", 5000), "delay: 5000 is not in 0..4096"),
    "state NaN": (lambda h: h.state.__setitem__(3, np.nan), "state: number 3: nan is not a finite number"),
    "state infinite": (lambda h: h.state.__setitem__(0, -np.inf), "state: number 0: -inf is not a finite number"),
    "extra state missing": (lambda h: h.extra_state.clear(), r"extra state: got \[\], expected \[observation.env"),
    "extra state foreign": (lambda h: h.extra_state["x"].values.append(1), r"extra state: got \[.*x.*\], expected"),
    "extra state short": (
        lambda h: h.extra_state[ENVIRONMENT.name].values.pop(),
        "observation.environment_state: 4 numbers, expected 5",
    ),
    "extra state NaN": (
        lambda h: h.extra_state[ENVIRONMENT.name].values.__setitem__(0, np.nan),
        "observation.environment_state: number 0: nan",
    ),
    "timestep before the first": (lambda h: setattr(h, "timestep", -1), "timestep: -1 is not in 0.."),
    "timestep beyond counting": (lambda h: setattr(h, "timestep", 2**63 - 1), "timestep: 9223372036854775807"),
    "runs dry at NaN": (lambda h: setattr(h, "runs_dry_in_s", np.nan), "runs_dry_in_s: nan"),
    "runs dry in the past": (lambda h: setattr(h, "runs_dry_in_s", -1), "runs_dry_in_s: -1.0"),
    "task endless": (lambda h: setattr(h, "task", "x" * 5000), "task: 5000 characters are more than 4096"),
    "no frames": (lambda h: h.ClearField("frames"), r"frames: got 0, expected \[static, wrist\]"),
    "a frame too many": (lambda h: h.frames.add(camera="third"), "frames: got 3"),
    "a frame twice": (lambda h: h.frames[1].CopyFrom(h.frames[0]), "frames: 'static' is there twice"),
    "unknown camera": (lambda h: setattr(h.frames[0], "camera", "top"), "frame 'top': expected one of"),
    "another shape": (
        lambda h: h.frames[0].MergeFrom(pb.FrameHeader(width=48, height=64)),
        "frame static: is 48x64, the policy takes 64x48",
    ),
    "a bomb's shape": (
        lambda h: h.frames[0].MergeFrom(pb.FrameHeader(width=20000, height=20000)),
        "frame static: is 20000x20000, the policy takes 64x48",
    ),
    "raw size lies": (lambda h: setattr(h.frames[0], "size", 9215), "frame static: size: 9215 is not in 9216..9216"),
    "jpeg of nothing": (
        lambda h: h.frames[0].CopyFrom(pb.FrameHeader(camera="static", height=48, width=64, encoding=pb.JPEG)),
        "frame static: size: 0 is not in 1..",
    ),
    "jpeg larger than raw": (
        lambda h: h.frames[0].MergeFrom(pb.FrameHeader(encoding=pb.JPEG, size=2**40)),
        "frame static: size: 1099511627776 is not in 1..",
    ),
    "unknown encoding": (lambda h: setattr(h.frames[0], "encoding", 7), "frame static: encoding 7"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_header_that_does_not_fit_is_refused(name: str) -> None:
    spoil, sentence = BAD_HEADERS[name]
    header = messages()[0]
    spoil(header.observation)
    with pytest.raises(ProtocolError, match=sentence):
        codec.ObservationAssembler(POLICY).feed(header)


BAD_PIECES: dict[str, tuple[Callable[[pb.FramePiece], object], str]] = {
    "of another observation": (lambda p: setattr(p, "observation", 6), "piece of observation 6: its header"),
    "of a later frame": (lambda p: setattr(p, "frame", 1), "piece of frame 1: expected frame 0"),
    "of no frame": (lambda p: setattr(p, "frame", 2**32 - 1), "piece of frame 4294967295: expected frame 0"),
    "with a gap": (lambda p: setattr(p, "offset", 1), "offset 1, expected 0"),
    "far away": (lambda p: setattr(p, "offset", 2**64 - 1), "offset 18446744073709551615, expected 0"),
    "empty": (lambda p: setattr(p, "data", b""), "size: 0 is not in 1..9216"),
    "overrun": (lambda p: setattr(p, "data", bytes(9217)), "size: 9217 is not in 1..9216"),
}


@pytest.mark.parametrize("name", BAD_PIECES)
def test_piece_that_does_not_follow_is_refused(name: str) -> None:
    spoil, sentence = BAD_PIECES[name]
    assembler = codec.ObservationAssembler(POLICY)
    header, piece, _ = messages()
    assembler.feed(header)
    spoil(piece.piece)
    with pytest.raises(ProtocolError, match=sentence):
        assembler.feed(piece)


def test_overlapping_and_repeated_pieces_are_refused() -> None:
    header, piece, _ = messages()
    half = pb.ClientMessage(piece=pb.FramePiece(observation=7, data=piece.piece.data[:5000]))
    for offset in (0, 4999, 5001):
        assembler = codec.ObservationAssembler(POLICY)
        assembler.feed(header)
        assembler.feed(half)
        again = pb.ClientMessage(piece=pb.FramePiece(observation=7, offset=offset, data=b"x"))
        with pytest.raises(ProtocolError, match=f"offset {offset}, expected 5000"):
            assembler.feed(again)


def test_piece_above_1_mib_is_refused() -> None:
    policy = replace(POLICY, cameras=(Camera("static", 1080, 1920),))
    pixels = np.zeros((1080, 1920, 3), np.uint8)
    header = codec.encode_observation(observation(frames=(Frame.raw("static", pixels),)))[0]
    assembler = codec.ObservationAssembler(policy)
    assembler.feed(header)
    big = pb.ClientMessage(piece=pb.FramePiece(observation=1, data=bytes(limits.PIECE + 1)))
    with pytest.raises(ProtocolError, match="size: 1048577 is not in"):
        assembler.feed(big)


def test_order_of_headers() -> None:
    assembler = codec.ObservationAssembler(POLICY)
    feed_all(assembler, codec.encode_observation(observation(7, session=3)))
    for id in (7, 6):
        with pytest.raises(ProtocolError, match=f"observation {id}: does not come after 7"):
            assembler.feed(codec.encode_observation(observation(id, session=3))[0])
    with pytest.raises(ProtocolError, match="session 2: does not come after 3"):
        assembler.feed(codec.encode_observation(observation(8, session=2))[0])
    assembler.feed(codec.encode_observation(observation(8, session=3))[0])
    with pytest.raises(ProtocolError, match="observation 9: 8 before it is unfinished"):
        assembler.feed(codec.encode_observation(observation(9, session=3))[0])


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (pb.ClientMessage(), "got nothing"),
        (pb.ClientMessage(hello=pb.Hello()), "got hello"),
        (pb.ClientMessage(ping=pb.Ping()), "got ping"),
        (pb.ClientMessage(piece=pb.FramePiece()), "its header did not come before it"),
    ],
)
def test_assembler_takes_nothing_else(message: pb.ClientMessage, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        codec.ObservationAssembler(POLICY).feed(message)


def test_lies_are_refused_before_memory_is_taken() -> None:
    assembler = codec.ObservationAssembler(replace(POLICY, cameras=(Camera("static", 8000, 8000),)))
    header = messages()[0].observation
    del header.frames[1]
    header.frames[0].height = header.frames[0].width = 8000
    tracemalloc.start()
    try:
        for size in (8000 * 8000 * 3 + 1, 2**63):
            header.frames[0].size = size
            with pytest.raises(ProtocolError, match="size"):
                assembler.feed(pb.ClientMessage(observation=header))
        header.frames[0].size = 8000 * 8000 * 3
        assembler.feed(pb.ClientMessage(observation=header))  # true, and still nothing has come
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


# What the edge refuses of a server.

BAD_CHUNKS: dict[str, tuple[Callable[[pb.Chunk], object], str]] = {
    "other joints": (lambda c: setattr(c, "joints", 7), "chunk: 300 actions of 7 joints, the policy has 6"),
    "half a row": (lambda c: c.actions.append(1), "chunk: 301 actions of 6 joints"),
    "no rows": (lambda c: c.ClearField("actions"), "chunk: rows: 0 is not in 1..50"),
    "too many rows": (lambda c: c.actions.extend([0.0] * 6), "chunk: rows: 51 is not in 1..50"),
    "timestep before the first": (lambda c: setattr(c, "first_timestep", -1), "chunk: first timestep: -1"),
    "timestep beyond counting": (lambda c: setattr(c, "first_timestep", 2**63 - 1), "chunk: first timestep"),
    "no digest": (lambda c: setattr(c, "digest", b""), "digest: bytes: 0 is not in 32..32"),
    "long digest": (lambda c: setattr(c, "digest", bytes(10_000)), "digest: bytes: 10000"),
    "time runs backwards": (lambda c: setattr(c.times, "infer", -1), "chunk: infer seconds: -1"),
    "time is no number": (lambda c: setattr(c.times, "wait", np.nan), "chunk: wait seconds: nan"),
    "nobody's batch": (lambda c: setattr(c, "batch", 0), "chunk: batch: 0"),
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_chunk_that_does_not_fit_is_refused(name: str) -> None:
    spoil, sentence = BAD_CHUNKS[name]
    message = codec.encode_chunk(chunk())
    spoil(message.chunk)
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_server_message(message, POLICY)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (pb.ServerMessage(), "a kind that this version does not know"),
        (pb.ServerMessage(skipped=pb.Skipped.FromString(b"\x10\x09")), r"reason 9 is not one of \[similar"),
        (pb.ServerMessage(failure=pb.Failure(code=0)), "failure: code: 0 is not in 1..16"),
        (pb.ServerMessage(failure=pb.Failure(code=13, error_id="\x1b[2J")), "failure: error id: .* is not printable"),
        (pb.ServerMessage(welcome=pb.Welcome()), "policy: name: is empty"),
        (pb.ServerMessage(replaced=pb.Replaced()), "policy: name: is empty"),
        (pb.ServerMessage(pace=pb.Pace(interval_s=-1)), "pace: interval_s: -1"),
        (pb.ServerMessage(pace=pb.Pace(interval_s=np.inf)), "pace: interval_s: inf"),
    ],
)
def test_answer_that_makes_no_sense_is_refused(message: pb.ServerMessage, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_server_message(message, POLICY)


def test_answers_before_the_welcome_are_refused() -> None:
    with pytest.raises(ProtocolError, match="expected welcome, got chunk"):
        codec.decode_server_message(codec.encode_chunk(chunk()))


BAD_POLICIES: dict[str, tuple[dict[str, Any], str]] = {
    "no joints": ({"joints": ()}, "joints: 0 is not in 1..128"),
    "joints without end": ({"joints": tuple(Joint(str(i), "") for i in range(1000))}, "joints: 1000"),
    "a joint twice": ({"joints": JOINTS + JOINTS[:1]}, "joints: 'pan.pos' is there twice"),
    "a joint without a name": ({"joints": (Joint("", "degrees"),)}, "joint: is empty"),
    "a name that paints the terminal": ({"name": "\x1b[31m"}, "policy: name: .* is not printable text"),
    "a name without end": ({"name": "x" * 129}, "policy: name: 'x{40}' is not printable text of at most 128"),
    "a camera without height": ({"cameras": (Camera("c", 0, 1),)}, "camera height: 0"),
    "a camera too wide": ({"cameras": (Camera("c", 1, 20000),)}, "camera width: 20000 is not in 1..8192"),
    "a vector of nothing": ({"extra_state": (ExtraState("e", 0),)}, "extra state dimension: 0"),
    "chunks of nothing": ({"chunk_size": 0}, "chunk_size: 0 is not in 1..4096"),
    "chunks without end": ({"chunk_size": 1_000_000}, "chunk_size: 1000000"),
    "no rate": ({"fps": np.nan}, "fps: nan"),
    "short digest": ({"digest": b"x"}, "digest: bytes: 1"),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_policy_that_cannot_be_is_refused(name: str) -> None:
    changes, sentence = BAD_POLICIES[name]
    policy = replace(POLICY, **changes)
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_welcome(codec.encode_welcome(Welcome(policy)))
    with pytest.raises(ProtocolError, match=sentence):
        codec.decode_description(codec.encode_description(ServerDescription(1, "0.1", (policy,))))


def test_description_of_another_version_is_refused_before_the_rest() -> None:
    with pytest.raises(ProtocolError, match="protocol version: robot 1, server 2"):
        codec.decode_description(pb.ServerDescription(protocol_version=2))


# Any bytes at all: a ProtocolError or a valid message, never another exception.


def refusal(decode: Callable[..., object], *arguments: object) -> str:
    """What the ProtocolError said, or nothing when the message was valid."""
    try:
        decode(*arguments)
    except ProtocolError as error:
        return str(error)
    return ""


def assert_one_line(sentence: str) -> None:
    assert sentence.isprintable()
    assert len(sentence) < 3000


def _mutate(message: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, insert in edits:
        at %= len(message) + 1
        message = message[:at] + insert + message[at + length :]
    return message


mutations = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=4)), max_size=4)
CLIENT = [
    codec.encode_hello(Hello(JOINTS, POLICY.cameras, (ENVIRONMENT,), 30.0)).SerializeToString(),
    codec.encode_ping(Ping(1)).SerializeToString(),
    *(message.SerializeToString() for message in messages()),
]
SERVER = [
    codec.encode_welcome(Welcome(POLICY)).SerializeToString(),
    codec.encode_chunk(chunk(3)).SerializeToString(),
    codec.encode_skipped(Skipped(1, "similar")).SerializeToString(),
    codec.encode_failure(Failure(1, 13, "message", "id")).SerializeToString(),
    codec.encode_replaced(Replaced(POLICY)).SerializeToString(),
    codec.encode_pace(Pace(0.5)).SerializeToString(),
]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(CLIENT) | st.binary(max_size=200), mutations), max_size=4))
def test_any_bytes_from_a_client(stream: list[tuple[bytes, list[tuple[int, int, bytes]]]]) -> None:
    assembler = codec.ObservationAssembler(POLICY)
    for original, edits in stream:
        try:
            message = pb.ClientMessage.FromString(_mutate(original, edits))
        except DecodeError:  # gRPC's own answer
            continue
        for decode in (codec.decode_hello, codec.decode_ping, assembler.feed):
            assert_one_line(refusal(decode, message))


@settings(max_examples=400)
@given(st.sampled_from(SERVER) | st.binary(max_size=200), mutations, st.sampled_from([None, POLICY]))
def test_any_bytes_from_a_server(original: bytes, edits: list[tuple[int, int, bytes]], policy: Policy | None) -> None:
    data = _mutate(original, edits)
    for decode in (
        lambda: codec.decode_server_message(pb.ServerMessage.FromString(data), policy),
        lambda: codec.decode_description(pb.ServerDescription.FromString(data)),
    ):
        with suppress(DecodeError):
            assert_one_line(refusal(decode))
