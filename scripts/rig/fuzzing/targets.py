"""What is fuzzed: each door through which a stranger's bytes come in, what it may say to them, and what must hold.

A target's `run` is given any bytes. It returns a word or a sentence about the outcome, the same for alike outcomes;
whatever it raises is a defect.
"""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from cryptography.hazmat.primitives import serialization

from edge_runtime.errors import ConfigError, ModelError, ProtocolError
from edge_runtime.motors import calibration, feetech
from edge_runtime.program import credentials
from edge_runtime.wire import codec, envelope, frames
from edge_runtime.wire import policy_pb2 as pb
from edge_runtime.wire.fit import differences
from edge_runtime.wire.messages import (
    Camera,
    Chunk,
    ExtraState,
    Failure,
    Frame,
    Hello,
    Joint,
    Observation,
    Pace,
    Ping,
    Policy,
    Replaced,
    ServerDescription,
    Skipped,
    Welcome,
)
from policy_server import bundle
from policy_server.door import certificates
from policy_server.engines.openpi import messages
from policy_server.engines.openpi.layout import Layout, natural
from policy_server.serving.cleaning import match_keys, preprocess
from policy_server.serving.lerobot import said as lerobot
from policy_server.serving.lerobot.client import observe
from scripts.rig.bundles import write_bundle

CORPORA = Path(__file__).resolve().parents[3] / "tests" / "corpora"
JOINTS = tuple(Joint(f"{name}.pos", "degrees") for name in calibration.JOINTS)
POLICY = Policy(
    "cubes",
    "act",
    bytes(range(32)),
    JOINTS,
    (Camera("front", 16, 24),),
    (ExtraState("observation.environment_state", 5),),
    chunk_size=4,
    fps=30.0,
)
HELLO = Hello(JOINTS, POLICY.cameras, POLICY.extra_state, 30.0, robot="arm", similarity_tolerance=1.0)
LEROBOT_POLICY = replace(POLICY, cameras=(Camera("front", 12, 16),), extra_state=())
LEROBOT_HELLO = replace(HELLO, cameras=LEROBOT_POLICY.cameras, extra_state=())
OPENPI_POLICY = replace(POLICY, uses_task=True)
_VARIES = re.compile(r"'.*'|\".*\"|\[.*\]|\{.*\}|\S*\d\S*|[^ -~]")  # in a sentence: quotations, lists, numbers
MOST_HELD = feetech.MAX_FRAME + 5  # bytes of a frame that a decoder may keep waiting for its end


@dataclass(frozen=True)
class Target:
    """`seeds` are good inputs; more of both kinds are in the folder of that name in tests/corpora."""

    name: str
    run: Callable[[bytes], str]
    seeds: Callable[[], list[bytes]]

    @property
    def folder(self) -> Path:
        return CORPORA / self.name

    def corpus(self) -> list[bytes]:
        return [*self.seeds(), *(path.read_bytes() for path in sorted(self.folder.glob("*")))]


# What a robot says.


def observation(id: int, quality: int = 0) -> list[bytes]:
    pixels = np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3)
    seen = Observation(
        id=id,
        session=3,
        timestep=7 + id,
        must_go=True,
        state=np.arange(6, dtype=np.float32),
        extra_state={"observation.environment_state": np.ones(5, np.float32)},
        frames=(Frame.raw("front", pixels),),
        task="put the cube into the box",
        runs_dry_in_s=0.5,
    )
    return [message.SerializeToString() for message in codec.encode_observation(seen, quality)]


def run_hello(data: bytes) -> str:
    """The first message of a stream, and whether the robot in it fits."""
    try:
        hello = codec.decode_hello(envelope.parse(pb.ClientMessage, data, envelope.FROM_ROBOT))
        found = differences(hello, POLICY)
        assert all(clause.isprintable() for clause in found), found
        match_keys(hello, POLICY)
    except ProtocolError as error:
        return said(error)
    return "welcome"


def run_stream(data: bytes) -> str:
    """Messages in any order, each with its length in two bytes before it, until one is refused."""
    assembler = codec.ObservationAssembler(POLICY)
    keys = match_keys(HELLO, POLICY)
    most = envelope.from_robot(POLICY)
    last, answers = -1, 0
    try:
        for piece in split(data):
            message = envelope.parse(pb.ClientMessage, piece, most)
            if message.WhichOneof("body") == "ping":
                codec.decode_ping(message)
            elif whole := assembler.feed(message):
                seen, seconds = whole
                assert seen.id > last
                assert seconds >= 0
                last, answers = seen.id, answers + 1
                inputs = preprocess(seen, keys)
                assert all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
    except ProtocolError as error:
        return f"{min(answers, 3)} {said(error)}"
    return f"{min(answers, 3)} whole"


def split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + length]
        at += 2 + length


def join(messages: list[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(2, "big") + message for message in messages)


def run_lerobot(data: bytes) -> str:
    """What LeRobot's client pickles: the first byte says which of its two messages it is to be."""
    try:
        if data[:1] == b"s":
            lerobot.setup(data[1:])
            return "setup"
        seen = lerobot.observation(data[1:])
        whole = observe(seen, LEROBOT_POLICY, {}, id=1, session=0, must_go=True)
        inputs = preprocess(whole, match_keys(LEROBOT_HELLO, LEROBOT_POLICY))
    except ProtocolError as error:
        return said(error)
    assert all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
    return "observation"


def lerobots() -> list[bytes]:
    """Recorded from LeRobot 0.6.1's own classes."""
    files = sorted((CORPORA.parent / "recordings" / "lerobot").glob("*.pkl"))
    return [path.name[:1].encode() + path.read_bytes() for path in files]


def run_openpi(data: bytes) -> str:
    """What an openpi client sends, in msgpack."""
    try:
        inputs, task = Layout(natural(OPENPI_POLICY), OPENPI_POLICY).read(messages.unpack(data))
    except ProtocolError as error:
        return said(error)
    assert task.isprintable()
    assert {name: (array.shape, array.dtype) for name, array in inputs.items()} == {
        name: (feature.shape, feature.dtype) for name, feature in bundle.features(OPENPI_POLICY).items()
    }
    assert all(np.isfinite(array).all() for array in inputs.values() if array.dtype.kind == "f")
    return "observation"


def openpis() -> list[bytes]:
    inputs = {name: np.ones(each.shape, each.dtype) for name, each in bundle.features(OPENPI_POLICY).items()}
    return [messages.pack({**inputs, "prompt": "pick"}), messages.pack({**inputs, "observation.state": [0.5] * 6})]


PICTURES = ((16, 24), (480, 640))  # the second is large enough for what a scan costs to show


def run_jpeg(data: bytes) -> str:
    outcome = ""
    for height, width in PICTURES:
        try:
            pixels = frames.pixels(Frame("front", height, width, "jpeg", data))
        except ProtocolError as error:
            outcome = outcome or said(error)
        else:
            assert pixels.shape == (height, width, 3)
            outcome = f"decoded {height}"
    return outcome


def jpegs() -> list[bytes]:
    picture = np.random.default_rng(6).integers(0, 256, (16, 24, 3), np.uint8)
    settings: list[list[int]] = [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 1]]
    small = [cv2.imencode(".jpg", picture, setting)[1].tobytes() for setting in settings]
    large = cv2.imencode(".jpg", np.full((480, 640, 3), 90, np.uint8))[1].tobytes()
    at = large.index(b"\xff\xda")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"  # of one component, without data: a pass all the same
    comments = small[0][:2] + b"\xff\xfe\x00\x02" * 16_000 + small[0][2:]
    return [*small, large[:at] + scan * 4000 + large[at:], comments]


# What a server says.


def run_answer(data: bytes) -> str:
    """A message of a stream that was welcomed."""
    try:
        parsed = envelope.parse(pb.ServerMessage, data, envelope.from_server(POLICY))
        message = codec.decode_server_message(parsed, POLICY)
    except ProtocolError as error:
        return said(error)
    if isinstance(message, Chunk):
        assert message.actions.shape[1] == len(JOINTS)
        assert 0 < len(message.actions) <= POLICY.chunk_size
    return type(message).__name__


def answers() -> list[bytes]:
    actions = np.arange(24, dtype=np.float32).reshape(4, 6)
    return [
        message.SerializeToString()
        for message in (
            codec.encode_welcome(Welcome(POLICY)),
            codec.encode_chunk(Chunk(1, 3, 7, actions, POLICY.digest)),
            codec.encode_skipped(Skipped(1, "similar")),
            codec.encode_failure(Failure(1, 13, "the engine is on fire", "0a1b2c3d")),
            codec.encode_pong(Ping(4)),
            codec.encode_replaced(Replaced(POLICY)),
            codec.encode_pace(Pace(0.5)),
        )
    ]


def run_description(data: bytes) -> str:
    try:
        codec.decode_description(envelope.parse_description(data))
    except ProtocolError as error:
        return said(error)
    return "description"


def descriptions() -> list[bytes]:
    return [codec.encode_description(ServerDescription(1, "0.1.0", (POLICY,) * n)).SerializeToString() for n in (1, 3)]


# What a servo says.


def run_status(data: bytes) -> str:
    """Bytes from the bus as they come, in bites whose size the first byte gives."""
    if not data:
        return "nothing"
    bite = data[0] % 16 + 1
    decoder = feetech.StatusDecoder(range(1, 7), data[0] >> 4 & 3 or None)
    taken = 0
    for at in range(1, len(data), bite):
        for frame in decoder.feed(data[at : at + bite]):
            taken += len(frame.parameters) + 6
            assert frame.servo in range(1, 7)
            if frame.code <= 0x7F and len(frame.parameters) == 2:
                feetech.decode("Present_Position", frame.parameters)
    kept = len(data) - 1 - taken - decoder.skipped
    assert 0 <= kept <= MOST_HELD, kept
    decoder.reset()
    assert taken + decoder.skipped == len(data) - 1  # nothing is lost without being counted
    return f"{min(taken // 6, 4)} frames, damaged {min(decoder.damaged, 2)}"


def statuses() -> list[bytes]:
    body = b"".join(feetech.frame(servo, 0, b"\x00\x08") for servo in range(1, 7))
    overload = bytes.fromhex("FF FF 06 04 20 00 08 CD")
    return [bytes([bite]) + body for bite in (0, 7, 15, 0x23)] + [b"\x0f" + overload]


# What lies in a file.


def run_manifest(data: bytes) -> str:
    folder = _bundle()
    (folder / bundle.MANIFEST).write_bytes(data)
    try:
        bundle.load(folder)
    except ModelError as error:
        return said(error)
    return "bundle"


def manifests() -> list[bytes]:
    return [_manifest()]


@cache
def _work() -> tempfile.TemporaryDirectory[str]:
    """Kept for as long as the process lives; in memory, where that is to be had."""
    shared = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if shared.is_dir() else None)


@cache
def _bundle() -> Path:
    return write_bundle(Path(_work().name) / "bundle", cameras=[("front", 16, 24)], extra=5)


@cache
def _manifest() -> bytes:
    return (_bundle() / bundle.MANIFEST).read_bytes()


def run_calibration(data: bytes) -> str:
    path = _bundle().parent / "arm.json"
    path.write_bytes(data)
    try:
        entries = calibration.load(path)
    except ConfigError as error:
        return said(error)
    for entry in entries.values():
        for mode in calibration.Mode:
            low, high = entry.limits(mode)
            assert low < high
            assert 0 <= entry.to_ticks(entry.to_units(entry.range_min, mode), mode) <= 4095
    return "calibration"


def calibrations() -> list[bytes]:
    joints = enumerate(calibration.JOINTS, start=1)
    entry = {"drive_mode": 0, "homing_offset": -120, "range_min": 800, "range_max": 3200}
    return [json.dumps({joint: {"id": number, **entry} for number, joint in joints}).encode()]


def run_certificate(data: bytes) -> str:
    try:
        credentials.expires(data)
    except ConfigError as error:
        return said(error)
    return "certificate"


def pems() -> list[bytes]:
    pair = certificates.make(["localhost"], datetime.timedelta(days=1))["server"]
    return [pair.certificate.public_bytes(serialization.Encoding.PEM)]


def said(error: Exception) -> str:
    """The kind of outcome that an error is: its sentence, less what varies."""
    sentence = str(error)
    assert len(sentence) < 4000, len(sentence)
    if isinstance(error, ProtocolError):
        assert sentence.isprintable(), sentence  # it goes into a status and into logs as it is
    return _VARIES.sub("", sentence.rpartition(": ")[2])[:60]


TARGETS = {
    target.name: target
    for target in (
        Target("hello", run_hello, lambda: [codec.encode_hello(HELLO).SerializeToString()]),
        Target("stream", run_stream, lambda: [join([*observation(1), *observation(2, 80)]), join(observation(1))]),
        Target("lerobot", run_lerobot, lerobots),
        *([Target("openpi", run_openpi, openpis)] if find_spec("msgpack") else []),  # the extra openpi
        Target("jpeg", run_jpeg, jpegs),
        Target("answer", run_answer, answers),
        Target("description", run_description, descriptions),
        Target("status", run_status, statuses),
        Target("manifest", run_manifest, manifests),
        Target("calibration", run_calibration, calibrations),
        Target("certificate", run_certificate, pems),
    )
}
