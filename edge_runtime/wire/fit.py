"""Do this robot and this policy fit? Every difference, in one sentence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from edge_runtime.program.schema import nearest
from edge_runtime.wire.messages import PROTOCOL_VERSION, Camera, ExtraState, Hello, Policy

MAY_LACK_CAMERAS = ("smolvla", "pi0", "pi05")  # their networks mask a camera that is not there
_USE_DEGREES = {"degrees": " (--robot.use_degrees=true)", "normalized": " (--robot.use_degrees=false)"}


def differences(robot: Hello, policy: Policy) -> list[str]:
    """What keeps `robot` from running `policy`, one clause each, with the flag that mends it where one does.

    Empty when they fit.

    Compared: protocol version, ordered joint names, units, cameras and their shapes, extra state and its dimensions,
    fps, rows per chunk, and (after a reconnect) the policy's digest. A camera that the policy does not know is not a
    difference: it is not sent (`extra_cameras`).
    """
    found: list[str] = []
    if robot.protocol_version != PROTOCOL_VERSION:
        found.append(f"protocol version: robot {robot.protocol_version}, server {PROTOCOL_VERSION}")
    mine, theirs = [j.name for j in robot.joints], [j.name for j in policy.joints]
    if mine != theirs:
        found.append(f"joints: robot {_list(mine)}, policy {_list(theirs)}")
    else:
        found += [
            f"unit of {have.name}: robot {have.unit}, policy {want.unit}{_USE_DEGREES.get(want.unit, '')}"
            for have, want in zip(robot.joints, policy.joints, strict=True)
            if have.unit != want.unit
        ]
    found += _cameras(robot.cameras, policy)
    found += _extra_state(robot.extra_state, policy.extra_state)
    if robot.fps != policy.fps:
        found.append(f"fps: robot {robot.fps:g}, policy {policy.fps:g} (--fps={policy.fps:g})")
    most = policy.chunk_size
    if robot.actions_per_chunk > most:
        asked = f"actions_per_chunk: robot {robot.actions_per_chunk}"
        found.append(f"{asked}, policy at most {most} (--actions_per_chunk={most})")
    if robot.digest and robot.digest != policy.digest:
        found.append(f"policy: robot started with {robot.digest.hex()[:12]}, server has {policy.digest.hex()[:12]}")
    return found


def successor_differences(old: Policy, new: Policy, rows: int) -> list[str]:
    """What keeps a robot that runs `rows` of each chunk of `old` from going on with `new` within its stream.

    What it sends stays as it is: `new` has to take exactly that, whatever else it may be.
    """
    robot = Hello(old.joints, old.cameras, old.extra_state, old.fps, actions_per_chunk=rows)
    found = differences(robot, new)
    sent, taken = _inputs(old), _inputs(new)
    if not found and sent != taken:
        found.append(f"inputs: robot {_list(sorted(sent))}, policy {_list(sorted(taken))}")
    return found


def extra_cameras(robot: Iterable[str], policy: Policy) -> list[str]:
    """The robot's cameras that the policy does not use."""
    known = {camera.name for camera in policy.cameras}
    return [name for name in robot if name not in known]


def _inputs(policy: Policy) -> set[str]:
    named = {camera.name for camera in policy.cameras} | {vector.name for vector in policy.extra_state}
    return named | {"task"} if policy.uses_task else named


def squash(sent: Camera, taken: Camera) -> float:
    """By which factor the proportions change when a picture of the size `sent` is resized to `taken`; 1 = not at all.

    What rounding to whole pixels does counts as nothing.
    """
    factor = (sent.width / sent.height) / (taken.width / taken.height)
    factor = max(factor, 1 / factor)
    return factor if factor > 1 + 1 / min(taken.width, taken.height, 100) else 1.0


def squashed(name: str, factor: float) -> str:
    return f"camera {name} is squashed by {factor:.2f} (--resize=true); export-onnx --image_size keeps its proportions"


def _cameras(robot: tuple[Camera, ...], policy: Policy) -> list[str]:
    mine = {camera.name: camera for camera in robot}
    theirs = {camera.name: camera for camera in policy.cameras}
    if not theirs.keys() <= mine.keys():
        remedy = _how_to_name(
            [name for name in theirs if name not in mine], [name for name in mine if name not in theirs]
        )
        if policy.type in MAY_LACK_CAMERAS and (both := [name for name in theirs if name in mine]):
            left_out = shlex.quote(f"--cameras={','.join(both)}")
            remedy = f"export-onnx {left_out}, if it was trained without the others; else {remedy}"
        return [f"cameras: robot {_list(mine)}, policy {_list(theirs)} ({remedy})"]
    return [
        f"camera {name}: robot sends {mine[name].width}x{mine[name].height}, policy takes {want.width}x{want.height}"
        f" ({_how_to_size(mine[name], want)})"
        for name, want in theirs.items()
        if (mine[name].height, mine[name].width) != (want.height, want.width)
    ]


def _how_to_name(missing: list[str], unused: list[str]) -> str:
    """The flags that give `unused` cameras the names that are `missing`, as far as that can be told."""
    alone = unused[0] if len(unused) == len(missing) == 1 else ""
    ours = {name: nearest(name, unused) or alone for name in missing}
    if all(ours.values()):
        return ", ".join(_keyed("rename_map", mine, name) for name, mine in ours.items())
    if unused:
        return "--rename_map.OURS=THEIRS"
    name = missing[0]
    if "." in name or "=" in name:  # it would read as a setting of a camera
        return shlex.quote(f"--robot.cameras={{{json.dumps(name)}: {{type: opencv}}}}") + " and so on"
    return shlex.quote(f"--robot.cameras.{name}.type=opencv") + " and so on"


def _keyed(flag: str, name: str, value: str) -> str:
    """The flag that sets `name` of a mapping, as a shell takes it."""
    if "=" in name:
        return shlex.quote(f"--{flag}={{{json.dumps(name)}: {json.dumps(value)}}}")
    return shlex.quote(f"--{flag}.{name}={value}")


def _how_to_size(sent: Camera, taken: Camera) -> str:
    """The flag that makes the policy take pictures of that size; resizing is named first where it changes no shape."""
    factor = squash(sent, taken)
    if factor == 1:
        return "--resize=true fits it"
    exported = _keyed("image_size", taken.name, f"{sent.width}x{sent.height}")
    return f"export-onnx {exported} takes it as it is, --resize=true squashes it by {factor:.2f}"


def _extra_state(robot: tuple[ExtraState, ...], policy: tuple[ExtraState, ...]) -> list[str]:
    mine = {vector.name: vector.dimension for vector in robot}
    return [
        f"{want.name}: robot has {mine.get(want.name, 'none')}, policy takes {want.dimension} numbers "
        f"(--extra_state.{want.name.removeprefix('observation.')}=URL)"
        for want in policy
        if mine.get(want.name) != want.dimension
    ]


def _list(names: Iterable[str]) -> str:
    return "[" + ", ".join(names) + "]"
