"""Robot and policy introduce themselves before torque is on: which policy, and who we are in its names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from edge_runtime.config import StartConfig
from edge_runtime.errors import ConfigError, ProtocolError
from edge_runtime.planning.planner import PlannerSettings
from edge_runtime.planning.sensors import VectorSource
from edge_runtime.robots import Robot
from edge_runtime.wire import messages
from edge_runtime.wire.fit import differences, extra_cameras, squash, squashed

log = logging.getLogger(__name__)

SIMILAR_DEGREES = 1.0  # LeRobot's tolerance; it was chosen for degrees


class Shaped(Protocol):
    """A camera, as far as the handshake goes."""

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of its frames."""


def choose(description: messages.ServerDescription, model: str) -> messages.Policy:
    """The server's policy of that name, its first for an empty one. Raises ProtocolError."""
    for policy in description.policies:
        if model in ("", policy.name):
            return policy
    offered = ", ".join(policy.name for policy in description.policies) or "none"
    raise ProtocolError(f"model: the server has no {model!r} (it offers {offered})")


def introduce(
    config: StartConfig,
    policy: messages.Policy,
    robot: Robot,
    views: Mapping[str, Shaped],
    vectors: Mapping[str, VectorSource],
    task: str,
) -> messages.Hello:
    """Who we are, in the policy's names. Raises ProtocolError with every difference in one sentence.

    `task` is what the first observation will say; a policy that listens needs one.
    """
    wanted = {camera.name: camera for camera in policy.cameras}
    for name in extra_cameras(views, policy):
        log.warning("camera %s is not used by policy %s", name, policy.name)
    settings = PlannerSettings.of(config)
    rows = settings.asking(policy).rows
    tolerance = config.similarity_tolerance
    units = sorted({joint.unit for joint in robot.joints})
    if tolerance is None:
        tolerance = SIMILAR_DEGREES if "degrees" in units else 0.0
    sees = config.similarity == "joint+image"
    if sees and not policy.cameras:
        raise ConfigError(f"similarity: joint+image, but policy {policy.name} has no camera")
    cameras = tuple(
        wanted[name] if config.resize and name in wanted else messages.Camera(name, *camera.shape)
        for name, camera in views.items()
    )
    hello = messages.Hello(
        joints=robot.joints,
        cameras=tuple(camera for camera in cameras if camera.name in wanted),
        extra_state=tuple(
            messages.ExtraState(vector.name, len(vectors[vector.name].read()))
            for vector in policy.extra_state
            if vector.name in vectors
        ),
        fps=config.fps,
        model=policy.name,
        actions_per_chunk=rows,
        similarity_tolerance=tolerance,
        image_tolerance=config.image_tolerance if sees else 0.0,
        robot=config.robot.id or "",
        guidance=settings.guidance(policy),
    )
    found = differences(replace(hello, cameras=cameras), policy)  # so that the message lists all names
    if policy.uses_task and not task.strip():
        found.append("task: robot has none, and the policy does what it is told in words (--task='pick up the cube')")
    if found:
        raise ProtocolError(f"robot and policy {policy.name} do not fit: " + "; ".join(found))
    for said in squashes(policy, views):
        log.warning("%s", said)
    unseen = f" and no picture by {config.image_tolerance:g} levels" if sees else ""
    log.info(
        "policy %s (%s), %d of %d actions per chunk at %g Hz; %s",
        policy.name,
        policy.digest.hex()[:12],
        rows,
        policy.chunk_size,
        config.fps,
        f"skipped as similar: where all joints together moved by less than {tolerance:g} ({', '.join(units)}){unseen}"
        if tolerance
        else "nothing is skipped as similar",
    )
    return hello


def squashes(policy: messages.Policy, views: Mapping[str, Shaped]) -> list[str]:
    """A sentence for each camera whose picture would change its proportions."""
    taken = {camera.name: camera for camera in policy.cameras}
    factors = {
        name: squash(messages.Camera(name, *view.shape), taken[name]) for name, view in views.items() if name in taken
    }
    return [squashed(name, factor) for name, factor in factors.items() if factor > 1]
