"""A policy behind a server, for a program that has a control loop of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from edge_runtime._realtime import PICKED, Record
from edge_runtime.cameras import CameraFrame
from edge_runtime.config import NoRobotConfig, StartConfig, TlsConfig
from edge_runtime.errors import EdgeRuntimeError, StreamError
from edge_runtime.link.channel import Access
from edge_runtime.link.handshake import choose, introduce
from edge_runtime.link.stream import PolicyStream
from edge_runtime.planning.planner import Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.robots import make_robot
from edge_runtime.wire import messages
from edge_runtime.wire.messages import Floats, Hello, Joint, Pixels, Policy

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_NONE: Mapping[str, Any] = MappingProxyType({})
_EXTRA = "observation."


class PolicyClient:
    """Asks the server for chunks in time, merges them, and hands out one action for each period of the caller's loop.

        with PolicyClient("127.0.0.1:8080") as client:
            while True:
                client.observe(state, {"front": pixels})
                action = client.next_action()
                ...                                      # obey, then wait for the next period of 1 / client.fps

    Connects when it is made. `joints` are the caller's, in its order; by default the policy's names and units are taken
    on trust. All other settings are those of `StartConfig` with the same names. `observe` and `next_action` are for one
    thread. No action is limited in range or speed: that is left to the caller.

    Raises StreamError without a server for `give_up_after_s`, ProtocolError where robot and policy do not fit,
    AccessError when the server refuses the token or the certificate, ConfigError for a setting that cannot work.
    """

    def __init__(
        self,
        server_address: str = StartConfig.server_address,
        *,
        joints: Sequence[Joint] | None = None,
        model: str = StartConfig.model,
        task: str = StartConfig.task,
        actions_per_chunk: int | None = StartConfig.actions_per_chunk,
        chunk_size_threshold: float | Literal["auto"] = StartConfig.chunk_size_threshold,
        aggregate_fn_name: str | None = StartConfig.aggregate_fn_name,
        similarity_tolerance: float | None = StartConfig.similarity_tolerance,
        jpeg_quality: int | Literal["auto"] = StartConfig.jpeg_quality,
        resize: bool = StartConfig.resize,
        give_up_after_s: float = StartConfig.give_up_after_s,
        tls: TlsConfig | None = None,
        token_file: Path | None = StartConfig.token_file,
        insecure: bool = StartConfig.insecure,
    ) -> None:
        access = Access(server_address, tls=tls, token_file=token_file, insecure=insecure)
        self._stream = PolicyStream(access, jpeg_quality=jpeg_quality, lead=1.0, give_up_after_s=give_up_after_s)
        description = self._stream.describe(threading.Event())
        assert description is not None  # it is not cancelled
        self.policy: Policy = choose(description, model)
        robot = NoRobotConfig(joints={joint.name: joint.unit for joint in joints or self.policy.joints})
        config = StartConfig(
            robot,
            server_address=server_address,
            task=task,
            fps=self.policy.fps,
            actions_per_chunk=actions_per_chunk,
            chunk_size_threshold=chunk_size_threshold,
            aggregate_fn_name=aggregate_fn_name,
            similarity_tolerance=similarity_tolerance,
            jpeg_quality=jpeg_quality,
            resize=resize,
            give_up_after_s=give_up_after_s,
        )
        self._pictures = {camera.name: _Picture(camera, resize) for camera in self.policy.cameras}
        self._vectors = {vector.name: _Numbers(vector) for vector in self.policy.extra_state}
        hello = introduce(config, self.policy, make_robot(robot), self._pictures, self._vectors, task)
        self._planner = Planner(
            Sensors(self.policy, self._pictures, self._vectors, resize, config.max_frame_age_s, Task(task)),
            PlannerSettings.of(config, filtered=hello.similarity_tolerance > 0),
            self._stream,
        )
        self._observed = 0
        self._held: npt.NDArray[np.float64] | None = None  # by the caller's robot where there is no action
        self._ended: list[EdgeRuntimeError] = []
        self._thread = threading.Thread(target=self._converse, args=(hello,), name="stream", daemon=True)
        self._thread.start()

    @property
    def fps(self) -> float:
        """Actions per second, as the policy was trained: `observe` and `next_action` are called once in 1 / fps."""
        return self.policy.fps

    def observe(
        self, state: npt.ArrayLike, images: Mapping[str, Pixels] = _NONE, extra_state: Mapping[str, Any] = _NONE
    ) -> None:
        """Show what the robot sees now; it is sent if it is time to ask for a chunk.

        `state`: (joints,) in joint units. `images`: the policy's camera -> (height, width, 3) uint8 RGB of the policy's
        shape, any with `resize`; copied if sent. `extra_state`: name (`environment_state`) -> numbers.

        Raises ValueError for what the policy does not take, and the StreamError, ProtocolError or AccessError that
        ended the stream.
        """
        if self._ended:
            raise self._ended[0]
        positions = _finite("state", state, len(self.policy.joints))
        numbers = {f"{_EXTRA}{name.removeprefix(_EXTRA)}": values for name, values in extra_state.items()}
        _same_names("images", images, self._pictures)
        _same_names("extra_state", numbers, self._vectors)
        now_ns = time.monotonic_ns()
        for name, picture in self._pictures.items():
            picture.show(images[name], now_ns)
        for name, vector in self._vectors.items():
            vector.show(numbers[name])
        self._observed += 1
        ring = self._planner.ring
        if self._held is None:
            self._held = positions.astype(np.float64)
            ring.hold(self._held)
        self._planner.observe(
            Record(
                sequence=self._observed,
                time_ns=now_ns,
                timestep=ring.cursor,
                level=ring.level,
                positions=positions,
                ages_s=np.zeros(len(positions)),
                goal=positions,
                merges=ring.merges,
                paused=False,
            )
        )

    def next_action(self) -> Floats | None:
        """The action of this period, (joints,) float32 in joint units; None = there is none: stay at the last one.

        A chunk that comes too late is blended with that one; the first of all, with the state that was observed.
        """
        row = np.empty(len(self.policy.joints), np.float32)
        if self._planner.ring.pick(row) == PICKED:
            self._held = row.astype(np.float64)
            return row
        if self._held is not None:
            self._planner.ring.hold(self._held)
        return None

    def new_episode(self) -> None:
        """The scene was placed anew: what is planned, and what is on its way, is forgotten."""
        self._planner.new_episode()
        self._held = None

    def close(self) -> None:
        """End the conversation. Twice is harmless."""
        self._stream.stop()
        self._thread.join()
        self._ended.append(StreamError("the client is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _converse(self, hello: Hello) -> None:
        try:
            self._stream.run(hello, self._planner)
        except EdgeRuntimeError as error:
            self._ended.append(error)
        except Exception as error:  # a bug: the caller's thread must hear of it
            log.debug("stream", exc_info=True)
            failure = EdgeRuntimeError(f"internal error in thread stream: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._ended.append(failure)


class _Picture:
    """The picture of a camera that the caller showed last."""

    def __init__(self, camera: messages.Camera, resize: bool) -> None:
        self.shape = (camera.height, camera.width)
        self._name = camera.name
        self._any_shape = resize
        self._shown: list[CameraFrame] = []

    def show(self, pixels: Pixels, now_ns: int) -> None:
        height, width = self.shape
        right = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3
        if not right or pixels.shape[2] != 3 or (not self._any_shape and pixels.shape[:2] != self.shape):
            given = f"{pixels.shape} {pixels.dtype}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            expected = "(height, width, 3)" if self._any_shape else f"({height}, {width}, 3)"
            raise ValueError(f"images: {self._name} is {given}, expected {expected} uint8")
        number = self._shown[0].number + 1 if self._shown else 1
        self._shown[:] = [CameraFrame(pixels, now_ns, number, now_ns)]  # whether it is frozen is the caller's to see

    def latest(self) -> CameraFrame | None:
        """A copy, for the caller may use its buffer again while the picture is on its way."""
        return next((replace(shown, pixels=shown.pixels.copy()) for shown in self._shown), None)


class _Numbers:
    """The vector that the caller showed last; zeros before that."""

    def __init__(self, vector: messages.ExtraState) -> None:
        self._name = vector.name.removeprefix(_EXTRA)
        self._values: Floats = np.zeros(vector.dimension, np.float32)

    def show(self, values: npt.ArrayLike) -> None:
        self._values = _finite(f"extra_state: {self._name}", values, len(self._values))

    def read(self) -> Floats:
        return self._values


def _finite(what: str, values: npt.ArrayLike, count: int) -> Floats:
    """A copy as (count,) float32. ValueError for another shape, and for what is not finite."""
    array = np.array(values, np.float32)
    if array.shape != (count,):
        raise ValueError(f"{what} has the shape {array.shape}, expected ({count},)")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} holds a number that is not finite")
    return array


def _same_names(what: str, given: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    if given.keys() != wanted.keys():
        mine, theirs = (", ".join(sorted(names)) or "none" for names in (given, wanted))
        raise ValueError(f"{what}: given {mine}, the policy takes {theirs}")
