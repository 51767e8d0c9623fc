"""One LeRobot client on the server: its session, the chunk that waits for it, and how full its queue is."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import numpy as np

from edge_runtime.errors import ProtocolError
from edge_runtime.slot import Closed, LatestSlot
from edge_runtime.wire.messages import Chunk, Failure, Frame, Observation, Policy, ServerMessage
from policy_server.serving.lerobot.said import Seen
from policy_server.serving.outbox import Outbox, Outgoing

SIMILAR = 1.0  # L2 over the joints, as LeRobot's own server filters
LOW = 0.5  # of a chunk: with less in its queue, a client is answered however similar the observation is
STALLED_S = 0.5  # the same timestep for so long: the chunk never arrived
_REMEMBERED = 64  # observations under way


class Answers(Outbox):
    """An outbox of one place: a client that polls wants the newest chunk alone."""

    def __init__(self) -> None:
        super().__init__(limit=1, on_overflow=lambda: None)
        self._slot: LatestSlot[Outgoing] = LatestSlot()
        self._order = 0
        self._ordering = threading.Lock()

    def put(self, message: ServerMessage, since_s: float | None = None) -> None:
        if not isinstance(message, Chunk | Failure):
            return  # there is no word for it on this wire
        with self._ordering:
            self._order += 1
            self._slot.put(Outgoing(message, time.monotonic() if since_s is None else since_s), self._order)

    def take(self, timeout_s: float) -> Outgoing | None:
        """The newest answer, or None once `timeout_s` brought none. Raises the fault that the session ended with."""
        try:
            return self._slot.take(timeout_s)
        except Closed:
            if self.fault is not None:
                raise self.fault from None
            return None

    def close(self, fault: Exception | None = None) -> None:
        super().close(fault)
        self._slot.close()


class QueueLevel:
    """How many actions a client still has, told from the chunks that it took and the timestep that it is at."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._end = 0  # the timestep after the last row that was sent
        self._timestep, self._since_s = -1, 0.0

    def must_go(self, timestep: int, now_s: float) -> bool:
        """Whether an observation at `timestep` is to be answered however similar it is.

        The client says so once, when its queue runs empty; if that message or its chunk is lost, it waits for ever.
        """
        with self._lock:
            if timestep != self._timestep:
                self._timestep, self._since_s = timestep, now_s
            return self._end - timestep <= LOW * self._rows or now_s - self._since_s >= STALLED_S

    def sent(self, first_timestep: int, rows: int, now_s: float) -> None:
        with self._lock:
            self._end, self._since_s = first_timestep + rows, now_s

    def forget(self) -> None:
        """The client begins anew, or did not get what was sent."""
        with self._lock:
            self._end, self._timestep = 0, -1


class Timestamps:
    """The client's clock at each observation under way: its actions are stamped by it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[int, float] = OrderedDict()

    def note(self, observation: int, timestamp: float) -> None:
        with self._lock:
            self._times[observation] = timestamp
            while len(self._times) > _REMEMBERED:
                self._times.popitem(last=False)

    def of(self, observation: int) -> float:
        with self._lock:
            return self._times.get(observation, 0.0)


def observe(seen: Seen, policy: Policy, rename: dict[str, str], *, id: int, session: int, must_go: bool) -> Observation:
    """`seen` in the policy's names, order and shapes. Raises ProtocolError, which names what is missing."""
    missing = [joint.name for joint in policy.joints if joint.name not in seen.numbers]
    if missing:
        raise ProtocolError(f"observation: has no [{', '.join(missing)}]; it has [{', '.join(seen.numbers)}]")
    pictures = {rename.get(name, name): picture for name, picture in seen.pictures.items()}
    absent = [camera.name for camera in policy.cameras if camera.name not in pictures]
    if absent:
        raise ProtocolError(f"observation: has no camera [{', '.join(absent)}]; it has [{', '.join(pictures)}]")
    sizes = {name: picture.shape[:2] for name, picture in pictures.items()}
    wrong = wrong_sizes(sizes, policy)
    if wrong:
        raise ProtocolError("; ".join(wrong))
    return Observation(
        id=id,
        session=session,
        timestep=seen.timestep,
        must_go=must_go,
        state=np.array([seen.numbers[joint.name] for joint in policy.joints], np.float32),
        frames=tuple(Frame.raw(camera.name, pictures[camera.name]) for camera in policy.cameras),
        task=seen.task,
        runs_dry_in_s=0.0,
    )


def wrong_sizes(sizes: dict[str, tuple[int, ...]], policy: Policy) -> list[str]:
    """A clause for each camera of `policy` whose pictures (height, width) have another size."""
    return [
        f"camera {camera.name}: the client sends {sizes[camera.name][1]}x{sizes[camera.name][0]}, the policy takes "
        f"{camera.width}x{camera.height} (width and height in --robot.cameras, or the policy exported with "
        f"--image_size={sizes[camera.name][1]}x{sizes[camera.name][0]})"
        for camera in policy.cameras
        if camera.name in sizes and sizes[camera.name] != (camera.height, camera.width)
    ]
