"""An exported policy on disk: a folder with a manifest, graphs and a stored input-output pair, checked on load."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, BinaryIO, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ConfigError, ModelError, UsageError
from edge_runtime.program import files, schema
from edge_runtime.program.schema import Distinct, Items, Printable, Range, Rule, nearest, shown
from edge_runtime.wire import limits
from edge_runtime.wire.messages import Camera, ExtraState, Floats, Joint, Name, Policy

FORMAT: Literal[2] = 2  # that is written; 1, which is read too, has no `action_scaling` and what stands after it
STATE = "observation.state"
ACTION = "action"
IMAGES = "observation.images."
TASK = "task"
SEED = "seed"
SHIPPED = Path(__file__).parent / "bundles"
MANIFEST = "manifest.json"
REFERENCE = "reference.npz"
_MANIFEST_BYTES = 1 << 20  # far more than a manifest needs
Format = Literal[1, 2]


class PlainName(Printable):
    """Text that can name a folder."""

    def allows(self, value: str) -> bool:
        return super().allows(value) and "/" not in value and not value.startswith(".")

    def expected(self, kind: str) -> str:
        return f"{super().expected(kind)}, without / and not beginning with a dot"


class Inside(Rule):
    """A path that does not leave the bundle's folder."""

    def allows(self, value: str) -> bool:
        pure = PurePosixPath(value)
        return value.isprintable() and not pure.is_absolute() and ".." not in pure.parts

    def expected(self, kind: str) -> str:
        return "a path inside the bundle"


@dataclass(frozen=True)
class Digest:
    """What a file must be."""

    bytes: Annotated[int, Range(0, 1 << 40)]
    sha256: Name  # in hexadecimal digits


@dataclass(frozen=True)
class ActionScaling:
    """How the last thing in the graph makes joint units: `normalised * scale + offset`, a number for each joint."""

    scale: list[float]
    offset: list[float]


@dataclass(frozen=True)
class StateText:
    """How a state becomes the numbers in PI0.5's prompt: `(state - centre) / divisor + offset`, in steps of 1/128.

    Of the `numbers` those behind the joints are the step of 0: LeRobot 0.4 wrote 32, later releases one for each joint.
    """

    centre: list[float]
    divisor: list[float]
    offset: list[float]
    numbers: Annotated[int, Range(1, 4096)]


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`: all that a policy server and a robot must know of a policy. Built whole or a ConfigError."""

    format: Format
    name: Annotated[str, PlainName(limits.NAME)]  # under which it is offered
    type: Name  # of engine: act, graph, smolvla, flow, or one that is installed
    precision: Literal["fp32", "fp16"]  # of the stored weights
    joints: Annotated[tuple[Joint, ...], Items(1), Distinct("name")]  # of observation.state and of the actions
    cameras: Annotated[tuple[Camera, ...], Distinct("name")]
    extra_state: Annotated[tuple[ExtraState, ...], Distinct("name")]
    chunk_size: Annotated[int, Range(1, limits.CHUNK)]  # rows of actions
    action_dim: Annotated[int, Range(1, 4096)]  # the number of joints
    fps: Annotated[float, Range(0.1, 1000)]  # rows a second
    uses_task: bool  # whether it reads the task's text
    temporal_ensemble_coeff: Annotated[float, Range(-10, 10)] | None  # LeRobot's, which the robot averages by
    robot_type: Name | None  # in LeRobot's words
    graphs: dict[str, Name]  # role -> file
    files: dict[Annotated[str, Inside()], Digest]  # every file but this one
    provenance: dict[str, Any]  # where it comes from, for people
    parity: dict[str, Any]  # what was compared when it was made
    action_scaling: ActionScaling | None = None  # needed to guide it: a plan in joint units goes back through it
    guided: bool = False  # whether the step graph can be guided by a plan
    trained_delay: Annotated[int, Range(0, limits.CHUNK)] = 0  # rows of clean prefix it was trained with; 0 = none
    state_offset: bool = False  # whether it was trained on the state expected when the chunk arrives
    n_obs_steps: Annotated[int, Range(1, 64)] = 1  # how many of the last observations it looks at
    steps: Annotated[int, Range(0, 1000)] = 0  # of denoising; 0 = as many as the step graph's gain has
    state_text: StateText | None = None  # how the state becomes part of the text

    def __post_init__(self) -> None:
        if self.action_dim != len(self.joints):
            raise ConfigError(f"action_dim: {self.action_dim} is not {len(self.joints)}, the number of joints")
        for role, name in self.graphs.items():
            if name not in self.files:
                raise ConfigError(f"graphs.{role}: {shown(name)} is not a file that the manifest lists")
        if self.guided and self.action_scaling is None:
            raise ConfigError("action_scaling: is missing, and guided needs it")
        if self.trained_delay >= self.chunk_size:
            raise ConfigError(f"trained_delay: {self.trained_delay} is not less than chunk_size {self.chunk_size}")
        if self.action_scaling is not None:
            self._check_numbers("action_scaling", self.action_scaling, "scale")
        if self.state_text is not None:
            self._check_numbers("state_text", self.state_text, "divisor")
            if self.state_text.numbers < len(self.joints):
                raise ConfigError(f"state_text.numbers: {self.state_text.numbers} is less than one for each joint")

    def _check_numbers(self, path: str, scaling: ActionScaling | StateText, divides: str) -> None:
        for name, numbers in vars(scaling).items():
            if isinstance(numbers, list) and len(numbers) != len(self.joints):
                raise ConfigError(f"{path}.{name}: {shown(numbers)} is not a number for each joint")
        if 0 in getattr(scaling, divides):
            raise ConfigError(
                f"{path}.{divides}: {shown(getattr(scaling, divides))} holds a 0, which nothing divides by"
            )


ADDED = (
    "action_scaling",
    "guided",
    "trained_delay",
    "state_offset",
    "n_obs_steps",
    "steps",
    "state_text",
)  # by format 2


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. `graphs`: a graph's role (`policy`, `prefix`, …) -> its file."""

    path: Path
    policy: Policy
    graphs: Mapping[str, Path]
    manifest: Manifest

    @property
    def batched(self) -> bool:
        return True

    @property
    def n_obs_steps(self) -> int:
        return self.manifest.n_obs_steps

    @property
    def features(self) -> dict[str, Feature]:
        """What the engine takes."""
        return features(self.policy, self.n_obs_steps)

    @property
    def weights(self) -> str:
        """A digest over all files: what is built from the graphs and kept belongs to these."""
        files = {name: asdict(digest) for name, digest in self.manifest.files.items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    def recheck(self) -> None:
        """Raises ModelError when a file is no longer what it was when the bundle was loaded."""
        _check_files(self.path, self.manifest.files)
        check_nothing_else(self.path, self.manifest.files, self.graphs.values())

    def reference(self) -> dict[str, npt.NDArray[Any]]:
        """The stored pair: inputs by feature name, batch first, and the `action` they gave when exported.

        Raises ModelError when there is none, a pickle included.
        """
        path = self.path / REFERENCE
        try:
            with files.open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
                pair = {name: stored[name] for name in stored.files}
        except (OSError, EOFError, ValueError, BadZipFile) as error:
            raise ModelError(f"{path}: holds no stored pair ({error})") from error
        if ACTION not in pair:
            raise ModelError(f"{path}: holds no {ACTION!r} for its inputs {', '.join(pair)}")
        return pair


@dataclass(frozen=True)
class Feature:
    """One input of a policy, without the batch dimension."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def features(policy: Policy, observations: int = 1) -> dict[str, Feature]:
    """Every array that `policy` takes, by feature name; the task text, where it takes one, is not an array.

    Where it looks at several `observations` their axis is in front.
    """
    axis = (observations,) if observations > 1 else ()
    return {
        STATE: Feature((*axis, len(policy.joints)), np.dtype(np.float32)),
        **{vector.name: Feature((*axis, vector.dimension), np.dtype(np.float32)) for vector in policy.extra_state},
        **{IMAGES + c.name: Feature((*axis, c.height, c.width, 3), np.dtype(np.uint8)) for c in policy.cameras},
    }


def locate(name: str) -> Path:
    """The folder that `name` means: a path, or a bundle that is shipped with this package. Raises UsageError."""
    if Path(name).is_dir():
        return Path(name)
    shipped = sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir()) if SHIPPED.is_dir() else []
    if not shipped:
        raise UsageError(
            f"bundle: {name} is not a folder, and this installation has no bundles of its own: the demo's policies "
            "are not in the published wheel but in its repository, in policy_server/bundles (pip install . brings them)"
        )
    if name in shipped:
        return SHIPPED / name
    near = nearest(name, shipped)
    others = f"did you mean {near}?" if near else f"shipped are [{', '.join(shipped)}]"
    raise UsageError(f"bundle: {name} is neither a folder nor a shipped bundle ({others})")


def inside(folder: Path) -> list[Path]:
    """The bundles in `folder`, by name: every folder with a manifest. Raises UsageError when there is none."""
    if not folder.is_dir():
        raise UsageError(f"model_dir: {folder} is not a folder")
    found = sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    if not found:
        raise UsageError(f"model_dir: {folder} has no folder with a {MANIFEST}")
    return found


def load(path: Path) -> Bundle:
    """Read and check the bundle in `path`: every field of its manifest, size and sha256 of every file.

    Raises ModelError with the file, the field, its value and what was expected.
    """
    raw = _read(path / MANIFEST)
    try:
        manifest = _parse(raw)
    except ConfigError as error:
        raise ModelError(f"{path / MANIFEST}: {error}") from error
    _check_files(path, manifest.files)
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    policy = Policy(
        name=manifest.name,
        type=manifest.type,
        digest=hashlib.sha256(canonical).digest(),
        joints=manifest.joints,
        cameras=manifest.cameras,
        extra_state=manifest.extra_state,
        chunk_size=manifest.chunk_size,
        fps=manifest.fps,
        uses_task=manifest.uses_task,
        temporal_ensemble_coeff=manifest.temporal_ensemble_coeff or 0.0,
        guided=manifest.guided,
        trained_delay=manifest.trained_delay,
    )
    graphs = {role: path / name for role, name in manifest.graphs.items()}
    check_nothing_else(path, manifest.files, graphs.values())
    return Bundle(path, policy, graphs, manifest)


def check_nothing_else(path: Path, listed: Collection[str], graphs: Iterable[Path]) -> None:
    """Raises ModelError for a file in the bundle that its manifest does not list: the digest says nothing of it.

    Also for a graph that reads one which is not listed, wherever that is.
    """
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if name != MANIFEST and name not in listed and (file.is_symlink() or not file.is_dir()):
            raise ModelError(f"{path / MANIFEST}: files: does not list {name}, which is in the folder; remove it")
    for graph in graphs:
        try:
            locations = _external_files(memoryview(graph.read_bytes()))
        except ValueError as error:
            raise ModelError(f"{graph}: is not an ONNX graph ({error})") from error
        for location in sorted(locations):
            if (graph.parent.relative_to(path) / location).as_posix() not in listed:
                raise ModelError(f"{graph}: reads {shown(location)}, which the manifest does not list")


def write(folder: Path, manifest: Manifest) -> None:
    """`manifest.json`, last of all: its `files` are the `digests` of what else is in `folder`."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def write_reference(folder: Path, observation: Mapping[str, npt.NDArray[Any]], actions: Floats) -> None:
    """The stored pair, which `export-onnx --check` repeats: an engine's inputs by name, and `action`."""
    arrays: dict[str, Any] = {ACTION: actions, **observation}
    np.savez_compressed(folder / REFERENCE, **arrays)


def digests(folder: Path) -> dict[str, Digest]:
    """Of every file in `folder` but the manifest, by name."""
    return {path.name: _digest(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}


def _digest(path: Path) -> Digest:
    with path.open("rb") as file:
        return Digest(path.stat().st_size, _sha256(file))


def _sha256(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while block := file.read(1 << 18):
        found.update(block)
    return found.hexdigest()


def _parse(raw: dict[str, Any]) -> Manifest:
    version = schema.build(Format, raw["format"], "format", document=True) if "format" in raw else FORMAT
    for name in ADDED if version == 1 else ():
        if name in raw:
            raise ConfigError(f"{name}: belongs to format 2, and this is format 1")
    manifest: Manifest = schema.build_document(Manifest, raw)
    return manifest


def _read(file: Path) -> dict[str, Any]:
    if file.parent.is_dir() and not file.exists():
        raise ModelError(f"bundle: {file.parent} is not a bundle, it has no {MANIFEST}")
    try:
        manifest = files.read_json(file, _MANIFEST_BYTES)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from error
    if not isinstance(manifest, dict):
        raise ModelError(f"{file}: is not a manifest, which is a JSON object")
    return manifest


def _check_files(path: Path, listed: Mapping[str, Digest]) -> None:
    for name, expected in listed.items():
        try:
            with files.open_regular(path / name) as stream:
                if (have := os.fstat(stream.fileno()).st_size) != expected.bytes:
                    raise ModelError(f"{path / name}: has {have} bytes, the manifest says {expected.bytes}")
                found = _sha256(stream)
        except OSError as error:
            raise ModelError(f"{path / name}: cannot be read ({error.strerror})") from error
        if found != expected.sha256:
            raise ModelError(
                f"{path / name}: is damaged (sha256 {found[:12]}, the manifest says {expected.sha256[:12]})"
            )


# Of an ONNX graph, the fields that lead to tensors (onnx.proto): kind of message -> number -> kind of message.
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_DEEPEST = 64
_FIXED = {1: 8, 5: 4}  # wire type -> bytes


def _external_files(graph: memoryview) -> set[str]:
    """The `location` of every tensor in `graph` whose data is in another file.

    Raises ValueError for what is no graph.
    """
    return set(_locations(graph, "model", 0))


def _locations(data: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("is nested too deeply")
    for number, content in _fields(data):
        below = _MESSAGES[kind].get(number)
        if below == "entry":
            entry = dict(_fields(content))
            if bytes(entry.get(1, b"")) == b"location":
                yield bytes(entry.get(2, b"")).decode("utf-8")
        elif below is not None:
            yield from _locations(content, below, depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that have a length, each with what is in it."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("is cut off")
            yield number, data[at : at + length]
            at += length
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError(f"has a field of wire type {wire}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("is cut off")
