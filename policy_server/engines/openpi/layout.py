"""Where an openpi observation holds what a policy takes: a map file, in the form of the message itself.

    observation:
      state: observation.state
      images:
        cam_high: observation.images.cam_high
      prompt: task
    pictures: chw

Each leaf is an input by the name that it has in a bundle, or a list of joints, whose part of the state it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError, ProtocolError
from edge_runtime.program import flags, schema
from edge_runtime.program.schema import Range
from edge_runtime.wire import limits
from edge_runtime.wire.messages import Floats, Name, Pixels, Policy
from policy_server.bundle import IMAGES, STATE, TASK, features
from policy_server.engines.python import Description

SETTING = "map"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class MapFile:
    """`--map`: the layout of the messages, and, for a policy behind an openpi server, what the policy is."""

    observation: dict[str, Any] = field(default_factory=dict)
    pictures: Literal["hwc", "chw"] = "hwc"  # the order of a picture's axes
    actions: Name = "actions"  # the key of the answer's chunk
    name: Name = "openpi"  # under which the policy is offered
    joints: dict[Name, Name] = field(default_factory=dict)  # name -> unit, in the order of the actions
    cameras: dict[Name, tuple[int, int]] = field(default_factory=dict)  # name -> (height, width)
    extra_state: dict[Name, int] = field(default_factory=dict)  # name -> dimension
    chunk_size: Annotated[int, Range(1, limits.CHUNK)] | None = None  # rows of actions
    fps: Annotated[float, Range(0.1, 1000)] | None = None  # rows a second

    def policy(self) -> Policy:
        """What is behind the server. Raises ConfigError for what is not said."""
        for setting in ("observation", "joints", "chunk_size", "fps"):
            if not getattr(self, setting):
                raise ConfigError(f"{setting}: is missing; a policy behind an openpi server is described by its map")
        assert self.chunk_size is not None
        assert self.fps is not None
        uses_task = any(place.what == TASK for place in places(self.observation))
        described = Description(self.joints, self.chunk_size, self.fps, self.cameras, self.extra_state, uses_task)
        return replace(described.policy(self.name, repr(self)), type="openpi")


@dataclass(frozen=True)
class Place:
    """The keys that lead to a value, and the input that it is, or the joints."""

    keys: tuple[str, ...]
    what: str | tuple[str, ...]

    def __str__(self) -> str:
        return " -> ".join(self.keys)


def read(path: Path) -> MapFile:
    """Raises ConfigError, which names the file and the field."""
    raw = flags.read_file(path, SETTING)
    try:
        found: MapFile = schema.build_document(MapFile, raw)
        tuple(places(found.observation))
    except ConfigError as error:
        raise ConfigError(f"{SETTING}: {path}: {error}") from error
    return found


def places(observation: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Place]:
    """Every leaf. Raises ConfigError for one that is neither a name nor a list of names."""
    for key, value in observation.items():
        keys = (*above, str(key))
        if isinstance(value, Mapping) and value:
            yield from places(value, keys)
        elif isinstance(value, str) and value:
            yield Place(keys, value)
        elif isinstance(value, list) and value and all(isinstance(name, str) for name in value):
            yield Place(keys, tuple(value))
        else:
            where = ".".join(("observation", *keys))
            raise ConfigError(f"{where}: {schema.shown(value)} is neither an input's name nor a list of joints")


def natural(policy: Policy) -> MapFile:
    """The layout without a map file: every input under its own name, the task as `prompt`."""
    return MapFile({name: name for name in features(policy)} | ({"prompt": TASK} if policy.uses_task else {}))


class Layout:
    """A map file's observation, fitted to a policy: writes what the policy takes into a message, or reads it there."""

    def __init__(self, file: MapFile, policy: Policy, *, writes: bool = False) -> None:
        """Raises ConfigError when the map does not say where an input of the policy is.

        Where it `writes` every leaf has to be an input, and the state, which each robot has, need not be sent.
        """
        self._policy = policy
        self._chw = file.pictures == "chw"
        self._features = features(policy)
        self._joints = {joint.name: index for index, joint in enumerate(policy.joints)}
        self._places = tuple(places(file.observation))
        if writes:
            self._check_known()
        missing = [name for name in self._missing() if not (writes and name in (STATE, *self._joints))]
        if missing:
            raise ConfigError(f"{SETTING}: does not say where policy {policy.name} finds [{', '.join(missing)}]")

    def write(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One observation's inputs, without the batch dimension, as a message."""
        message: dict[str, Any] = {}
        for place in self._places:
            inside = message
            for key in place.keys[:-1]:
                inside = inside.setdefault(key, {})
            inside[place.keys[-1]] = self._written(place.what, inputs)
        return message

    def read(self, message: Any) -> tuple[dict[str, npt.NDArray[Any]], str]:
        """The inputs by name, and the task. Raises ProtocolError, which names the key."""
        inputs: dict[str, npt.NDArray[Any]] = {STATE: np.zeros(len(self._joints), np.float32)}
        task = ""
        for place in self._places:
            if not self._is_taken(place.what):
                continue
            value = _at(message, place)
            if place.what == TASK:
                task = _text(value, place)
            elif not isinstance(place.what, str):
                inputs[STATE][[self._joints[name] for name in place.what]] = _vector(value, len(place.what), place)
            elif place.what.startswith(IMAGES):
                inputs[place.what] = self._picture(value, place)
            else:
                inputs[place.what] = _vector(value, self._features[place.what].shape[0], place)
        return inputs, task

    def _check_known(self) -> None:
        for place in self._places:
            names = (place.what,) if isinstance(place.what, str) else place.what
            known = [*self._features, TASK] if isinstance(place.what, str) else list(self._joints)
            for name in names:
                if name not in known:
                    where = ".".join(("observation", *place.keys))
                    raise ConfigError(
                        f"{SETTING}: {where}: {schema.shown(name)} is not known; {schema.hint(name, known)}"
                    )

    def _missing(self) -> list[str]:
        said = {place.what for place in self._places if isinstance(place.what, str)}
        joints = {name for place in self._places if not isinstance(place.what, str) for name in place.what}
        wanted = [*self._features, *([TASK] if self._policy.uses_task else [])]
        missing = [name for name in wanted if name not in said]
        if STATE in missing and joints:
            missing[missing.index(STATE) : missing.index(STATE) + 1] = [n for n in self._joints if n not in joints]
        return missing

    def _is_taken(self, what: str | tuple[str, ...]) -> bool:
        if isinstance(what, str):
            return what in self._features or (what == TASK and self._policy.uses_task)
        return all(name in self._joints for name in what)

    def _written(self, what: str | tuple[str, ...], inputs: Mapping[str, Any]) -> Any:
        if what == TASK:
            return str(inputs[TASK])
        if not isinstance(what, str):
            return inputs[STATE][[self._joints[name] for name in what]]
        if self._chw and what.startswith(IMAGES):
            return np.ascontiguousarray(inputs[what].transpose(2, 0, 1))
        return inputs[what]

    def _picture(self, value: Any, place: Place) -> Pixels:
        assert isinstance(place.what, str)
        height, width, _ = self._features[place.what].shape
        expected = (3, height, width) if self._chw else (height, width, 3)
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.shape != expected:
            raise ProtocolError(f"{place}: {_kind(value)} is not the policy's picture, uint8 {expected}")
        return np.ascontiguousarray(value.transpose(1, 2, 0)) if self._chw else value


def _at(message: Any, place: Place) -> Any:
    value = message
    for depth, key in enumerate(place.keys):
        if not isinstance(value, dict):
            raise ProtocolError(f"{' -> '.join(place.keys[:depth]) or 'observation'}: {_kind(value)} is not a map")
        if key not in value:
            has = limits.listing(name for name in value if isinstance(name, str))
            raise ProtocolError(f"observation: has no {place}; it has {has}")
        value = value[key]
    return value


def _vector(value: Any, size: int, place: Place) -> Floats:
    """`size` finite numbers: an array, a list, or one number."""
    if isinstance(value, Sequence) and all(type(number) in (int, float) for number in value):
        value = np.array(value, np.float64)
    elif type(value) in (int, float):
        value = np.array([value], np.float64)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.ndim > 1 or value.size != size:
        raise ProtocolError(f"{place}: {_kind(value)} is not {size} number{'s' * (size != 1)}")
    value = value.reshape(size).astype(np.float64)
    if not (np.abs(value) <= _LARGEST).all():
        raise ProtocolError(f"{place}: has a number that is not finite in single precision")
    narrow: Floats = value.astype(np.float32)
    return narrow


def _text(value: Any, place: Place) -> str:
    if type(value) is not str:
        raise ProtocolError(f"{place}: {_kind(value)} is not a text")
    return limits.text(str(place), value, limits.TASK)


def _kind(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
