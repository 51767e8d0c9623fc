"""A profile without a robot: joints, cameras and extra state of the policy's own making."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from edge_runtime.config import CameraConfig, NoRobotConfig, OpenCVCameraConfig, StartConfig, SyntheticCameraConfig
from edge_runtime.wire.messages import Camera, Policy

SYNTHETIC = "synthetic"
C = TypeVar("C", bound=StartConfig)


def fill_in(config: C, policy: Policy, frames: str) -> C:
    """`config` with what `policy` takes; `frames` is SYNTHETIC or a video file for all cameras.

    What the configuration names itself stays.
    """
    assert isinstance(config.robot, NoRobotConfig)
    joints = config.robot.joints or {joint.name: joint.unit for joint in policy.joints}
    cameras = {camera.name: _camera(camera, frames) for camera in policy.cameras} | config.robot.cameras
    zeros = {vector.name: "constant:" + ",".join("0" * vector.dimension) for vector in policy.extra_state}
    given = {f"observation.{name.removeprefix('observation.')}": source for name, source in config.extra_state.items()}
    return replace(
        config,
        robot=replace(config.robot, joints=joints, cameras=cameras),
        extra_state=zeros | given,
        fps=policy.fps,
    )


def _camera(camera: Camera, frames: str) -> CameraConfig:
    if frames == SYNTHETIC:
        return SyntheticCameraConfig(width=camera.width, height=camera.height)
    return OpenCVCameraConfig(index_or_path=frames)
