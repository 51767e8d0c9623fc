"""What TLS costs a round trip on loopback: a server with it and one without, asked in turns.

python -m scripts.benches.tls
python -m scripts.benches.tls --quick

Mutual TLS and a token against plain text. A ping is the network alone; the observations are a state, and one camera of
640x480 as JPEG and raw, with a policy that does next to nothing.
"""

from __future__ import annotations

import datetime
import secrets
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import cv2
import numpy as np

from edge_runtime.config import TlsConfig
from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.link.channel import Access
from edge_runtime.link.connection import ACT
from edge_runtime.link.stream import PolicyStream
from edge_runtime.wire import codec, policy_pb2
from edge_runtime.wire.messages import (
    Answer,
    Chunk,
    Frame,
    Hello,
    Observation,
    Pace,
    Ping,
    Pixels,
    Policy,
    ServerMessage,
    Welcome,
)
from policy_server.door import certificates
from scripts.rig.bench import reach, start
from scripts.rig.bundles import write_bundle
from scripts.rig.program import Server

PROMISED_MS = 1.0  # more than plain text, p50
TURNS = {"ping": 2000, "state": 1000, "jpeg": 500, "raw": 300}
SERVER = ("--providers=cpu", "--threads=1", "--limits.observations_per_second=0")


@dataclass
class TlsBench:
    """What TLS costs a round trip."""

    quick: bool = False  # a tenth of the round trips


class Line:
    """One stream, asked and answered in turn."""

    def __init__(self, access: Access, policy: Policy) -> None:
        self._channel = access.open()
        self._say: SimpleQueue[bytes | None] = SimpleQueue()
        hello = Hello(policy.joints, policy.cameras, policy.extra_state, policy.fps, policy.name)
        self._say.put(codec.encode_hello(hello).SerializeToString())
        self._call = self._channel.stream_stream(ACT)(iter(self._say.get, None), metadata=access.metadata)
        self._policy = policy
        self._hear(Welcome)

    def round_trip_s(self, messages: list[bytes], expected: type[Answer | Ping]) -> float:
        began_s = time.perf_counter()
        for message in messages:
            self._say.put(message)
        return self._hear(expected) - began_s

    def _hear(self, expected: type[ServerMessage]) -> float:
        """When an answer came that is no Pace; EdgeRuntimeError for another one than `expected`."""
        while True:
            data = next(self._call)
            heard_s = time.perf_counter()
            answer = codec.decode_server_message(policy_pb2.ServerMessage.FromString(data), self._policy)
            if isinstance(answer, expected):
                return heard_s
            if not isinstance(answer, Pace):  # asked as fast as it answers, it may say what it can carry
                raise EdgeRuntimeError(f"answered {answer}, not with a {expected.__name__}")

    def close(self) -> None:
        self._say.put(None)
        self._channel.close()


def main(config: TlsBench) -> None:
    turns = {what: count // 10 if config.quick else count for what, count in TURNS.items()}
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as name, ExitStack() as stack:
        folder = Path(name)
        certificates.write(folder, certificates.make(["127.0.0.1"], datetime.timedelta(days=1)))
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        secured = (
            *(f"--tls.cert={folder}/server.crt", f"--tls.key={folder}/server.key"),
            *(f"--tls.client_ca={folder}/ca.crt", f"--token_file={token}"),
        )
        tls = TlsConfig(folder / "ca.crt", folder / "robot.crt", folder / "robot.key")
        worst_ms = 0.0
        print(f"{'round trip, p50':<16} {'plain':>9} {'TLS':>9} {'TLS costs':>10}   n")
        for cameras in ([], [("front", 480, 640)]):
            bundle = write_bundle(folder / f"bundle{len(cameras)}", cameras=cameras)
            plain, tight = (stack.enter_context(Server(folder, str(bundle), *SERVER, *more)) for more in ((), secured))
            accesses = [Access(plain.address), Access(tight.address, tls=tls, token_file=token)]
            description = PolicyStream(accesses[0]).describe(threading.Event())
            assert description is not None
            lines = [Line(access, description.policies[0]) for access in accesses]
            for what in ("jpeg", "raw") if cameras else ("ping", "state"):
                worst_ms = max(worst_ms, compare(what, turns[what], lines))
            for line in lines:
                line.close()
    reach(f"TLS costs at most {worst_ms:.2f} ms of a round trip (p50; reach {PROMISED_MS:g})", worst_ms <= PROMISED_MS)


def compare(what: str, turns: int, lines: list[Line]) -> float:
    """Ask both in turns; print both medians and give their difference in milliseconds."""
    took: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + turns // 10):
        messages = say(what, turn + 1 if what != "raw" else turn + 1_000_000)
        for which in (0, 1) if turn % 2 else (1, 0):
            seconds = lines[which].round_trip_s(messages, Ping if what == "ping" else Chunk)
            if turn >= turns // 10:  # the first tenth is to get warm
                took[which].append(seconds * 1e3)
    plain, tls = statistics.median(took[0]), statistics.median(took[1])
    print(f"{what:<16} {plain:>6.2f} ms {tls:>6.2f} ms {tls - plain:>+7.2f} ms   {turns}")
    return tls - plain


def say(what: str, id: int) -> list[bytes]:
    if what == "ping":
        return [codec.encode_ping(Ping(id)).SerializeToString()]
    frames = (Frame.raw("front", PICTURE),) if what != "state" else ()
    seen = Observation(id, session=1, timestep=id, must_go=True, state=np.zeros(3, np.float32), frames=frames)
    return [message.SerializeToString() for message in codec.encode_observation(seen, 90 if what == "jpeg" else 0)]


def picture() -> Pixels:
    """A scene with some texture: 640x480, some 60 KB as JPEG."""
    chance = np.random.default_rng(1)
    coarse = chance.integers(0, 256, (30, 40, 3), np.uint8)
    smooth = cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC).astype(np.int16)
    return np.asarray(np.clip(smooth + chance.integers(-12, 13, smooth.shape), 0, 255), np.uint8)


PICTURE = picture()

if __name__ == "__main__":
    start(TlsBench, main)
