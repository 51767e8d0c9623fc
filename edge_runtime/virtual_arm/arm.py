"""The scene in real time behind its servos: what their registers ask for moves it, and they feel where it is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import mujoco

from edge_runtime.errors import ConfigError
from edge_runtime.virtual_arm.bus import VirtualBus
from edge_runtime.virtual_arm.calibration import to_ticks, to_units
from edge_runtime.virtual_arm.model import SUBSTEP_S
from edge_runtime.virtual_arm.scene import STATE_NAMES, Scene
from edge_runtime.virtual_arm.servos import Felt

_STRIDE = 2  # substeps at a time: 240 wake-ups a second
STRIDE_S = _STRIDE * SUBSTEP_S

_CATCH_UP_S = 0.1  # what this machine falls behind beyond it is lost
_KEPT_FRAMES = 20_000  # of the bus, over a minute at 30 Hz
_TOLD_FRAMES = 2_000
_TICKS_PER_RADIAN = 4095 / math.tau


class VirtualArm:
    """Advances `scene` by the monotonic clock in a thread of its own, driven by the servos of its `bus`.

    `goal` (x, y; metres) is where every episode has its goal; None: each draws its own. `link`, `wire_time` and
    `return_delay_s` are the bus's. A context manager; outside of it `advance` is the only thing that moves the arm.
    """

    def __init__(
        self,
        scene: Scene,
        goal: tuple[float, float] | None = None,
        *,
        seed: int = 0,
        link: Path | None = None,
        wire_time: bool = False,
        return_delay_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scene = scene
        self._goal = goal
        self._clock = clock
        self._lock = threading.Lock()  # the scene's; taken before the bus's own, never the other way round
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="virtual-physics", daemon=True)
        self._open = ExitStack()
        self._felt: list[Felt] = [Felt(0.0, 0.0, 0.0)] * 6
        self.lost_s = 0.0  # of real time that was not simulated
        self.bus = VirtualBus(
            link=link,
            plant=self,
            wire_time=wire_time,
            return_delay_s=return_delay_s,
            clock=clock,
            seed=seed,
            log_size=_KEPT_FRAMES,
        )
        self._place(seed)

    def felt(self) -> list[Felt]:
        """What the servos feel of the scene after its last step; waits for no thread."""
        return self._felt

    def advance(self) -> None:
        """Simulate a stride: the servos drive the arm, then feel where it has come to."""
        with self._lock:
            targets = self.bus.targets()
            self._scene.drive(self._scene.to_radians(to_units(targets.setpoints)))
            self._scene.limit_force(targets.forces)
            self._scene.push(targets.pushes)
            self._scene.advance(_STRIDE)
            self._feel()

    def snapshot(self, data: Any) -> None:
        """Copy the scene's state into `data` (mujoco.MjData), for who draws it."""
        with self._lock:
            mujoco.mj_copyData(data, self._scene.model, self._scene.data)

    def state(self) -> dict[str, Any]:
        """Where block and goal are, in metres."""
        with self._lock:
            values = self._scene.environment_state()
        return {"values": values.tolist(), "names": STATE_NAMES}

    def episode(self) -> dict[str, Any]:
        """How the episode goes; `lost_s` counts since the start."""
        with self._lock:
            return {**self._scene.episode.as_dict(), "lost_s": round(self.lost_s, 3)}

    def reset(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Place the scene of {"seed": n}: servos and their goals at its start pose, torque as it was."""
        seed = order.get("seed")
        if type(seed) is not int or seed < 0:
            raise ConfigError(f"seed: {seed!r} is not a whole number from 0")
        self._place(seed)
        return self.episode()

    def inject(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Let something go wrong on the bus; see `faults`."""
        self.bus.inject(order)
        return {"injected": dict(order)}

    def frames(self) -> list[dict[str, Any]]:
        """The newest frames on the bus, oldest first."""
        return [
            {
                "time_s": entry.time_s,
                "instruction": entry.instruction,
                "id": entry.frame.servo,
                "registers": entry.registers,
                "values": entry.values,
                "flags": entry.flags,
            }
            for entry in list(self.bus.log)[-_TOLD_FRAMES:]
        ]

    def __enter__(self) -> VirtualArm:
        self._open.enter_context(self.bus)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._open.close()

    def _place(self, seed: int) -> None:
        with self._lock:
            self._scene.reset(seed, self._goal)
            self._feel()
            self.bus.place([each.shaft for each in self._felt])

    def _feel(self) -> None:
        ticks = to_ticks(self._scene.joint_state())
        velocities = self._scene.velocities() * _TICKS_PER_RADIAN
        self._felt = list(map(Felt, ticks.tolist(), velocities.tolist(), self._scene.forces().tolist()))

    def _run(self) -> None:
        """Keep the scene at the clock, a stride at a time."""
        simulated_to = self._clock()
        while not self._stop.wait(simulated_to + STRIDE_S - self._clock()):
            behind = self._clock() - simulated_to - _CATCH_UP_S
            if behind > 0:
                self.lost_s += behind
                simulated_to += behind
            self.advance()
            simulated_to += STRIDE_S
