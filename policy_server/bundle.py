"""An exported policy on disk: a folder with a manifest, graphs and a stored input-output pair, checked on load."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError, UsageError
from edge_runtime.program import files
from edge_runtime.program.schema import hint, nearest, shown
from edge_runtime.wire.messages import Camera, ExtraState, Joint, Policy

FORMAT = 1
STATE = "observation.state"
ACTION = "action"
IMAGES = "observation.images."
TASK = "task"
SEED = "seed"
SHIPPED = Path(__file__).parent / "bundles"
MANIFEST = "manifest.json"
_MANIFEST_BYTES = 1 << 20  # far more than a manifest needs
PRECISIONS = ("fp32", "fp16")
KEYS = (  # of format 1
    *("format", "name", "type", "precision", "joints", "cameras", "extra_state", "chunk_size", "action_dim", "fps"),
    *("uses_task", "temporal_ensemble_coeff", "robot_type", "graphs", "files", "provenance", "parity"),
    *("n_obs_steps", "steps", "state_text"),
)


@dataclass(frozen=True)
class StateText:
    """How a state becomes the numbers in PI0.5's prompt: `(state - centre) / divisor + offset`, in steps of 1/128.

    Of the `numbers` those behind the joints are the step of 0: LeRobot 0.4 wrote 32, later releases one for each joint.
    """

    centre: list[float]
    divisor: list[float]
    offset: list[float]
    numbers: int


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. `graphs`: a graph's role (`policy`, `prefix`, …) -> its file; `manifest`: the JSON as it is."""

    path: Path
    policy: Policy
    graphs: Mapping[str, Path]
    manifest: Mapping[str, Any]

    @property
    def n_obs_steps(self) -> int:
        return int(self.manifest.get("n_obs_steps", 1))

    @property
    def steps(self) -> int:
        return int(self.manifest.get("steps", 0))

    @property
    def state_text(self) -> Any:
        told = self.manifest.get("state_text")
        return None if told is None else StateText(**told)

    @property
    def features(self) -> dict[str, Feature]:
        """What the engine takes: as `features`, with the axis of the observations in front where there are several."""
        axis = (self.n_obs_steps,) if self.n_obs_steps > 1 else ()
        return {name: Feature((*axis, *each.shape), each.dtype) for name, each in features(self.policy).items()}

    @property
    def weights(self) -> str:
        """A digest over all files: what is built from the graphs and kept belongs to these."""
        return hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()

    def recheck(self) -> None:
        """Raises ModelError when a file is no longer what it was when the bundle was loaded."""
        _check_files(self.path, _Fields(str(self.path / MANIFEST), self.manifest).table("files"))

    def reference(self) -> dict[str, npt.NDArray[Any]]:
        """The stored pair: inputs by feature name, batch first, and the `action` they gave when exported.

        Raises ModelError when there is none, a pickle included.
        """
        path = self.path / "reference.npz"
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


def features(policy: Policy) -> dict[str, Feature]:
    """Every array that `policy` takes, by feature name; the task text, where it takes one, is not an array."""
    return {
        STATE: Feature((len(policy.joints),), np.dtype(np.float32)),
        **{vector.name: Feature((vector.dimension,), np.dtype(np.float32)) for vector in policy.extra_state},
        **{IMAGES + c.name: Feature((c.height, c.width, 3), np.dtype(np.uint8)) for c in policy.cameras},
    }


def locate(name: str) -> Path:
    """The folder that `name` means: a path, or a bundle that is shipped with this package. Raises UsageError."""
    if Path(name).is_dir():
        return Path(name)
    shipped = sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir()) if SHIPPED.is_dir() else []
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
    manifest = _read(path / MANIFEST)
    fields = _Fields(str(path / MANIFEST), manifest)
    version = fields.whole("format", 0, 1 << 31)
    if version != FORMAT:
        raise fields.wrong("format", version, f"{FORMAT}, which is what this version reads")
    fields.nothing_but(*KEYS)
    fields.one_of("precision", PRECISIONS)
    if manifest.get("robot_type", "") is not None:
        fields.text("robot_type")
    for name in ("provenance", "parity"):
        fields.table(name)
    for name, low, high in (("n_obs_steps", 1, 64), ("steps", 0, 1000)):
        if name in manifest:
            fields.whole(name, low, high)
    if manifest.get("state_text") is not None:
        _check_state_text(fields.table("state_text"), len(fields.rows("joints", "unit", least=1)))
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    ensembled = manifest.get("temporal_ensemble_coeff", "") is not None
    policy = Policy(
        name=fields.plain_name("name"),
        type=fields.text("type"),
        digest=hashlib.sha256(canonical).digest(),
        joints=tuple(Joint(row.text("name"), row.text("unit")) for row in fields.rows("joints", "unit", least=1)),
        cameras=tuple(
            Camera(camera.text("name"), camera.whole("height", 1, 8192), camera.whole("width", 1, 8192))
            for camera in fields.rows("cameras", "height", "width")
        ),
        extra_state=tuple(
            ExtraState(vector.text("name"), vector.whole("dimension", 1, 65536))
            for vector in fields.rows("extra_state", "dimension")
        ),
        chunk_size=fields.whole("chunk_size", 1, 4096),
        fps=fields.number("fps", 0.1, 1000),
        uses_task=fields.flag("uses_task"),
        temporal_ensemble_coeff=fields.number("temporal_ensemble_coeff", -10, 10) if ensembled else 0.0,
    )
    if fields.whole("action_dim", 1, 4096) != len(policy.joints):
        raise fields.wrong("action_dim", manifest["action_dim"], f"{len(policy.joints)}, the number of joints")
    files = _check_files(path, fields.table("files"))
    return Bundle(path, policy, _graphs(path, fields.table("graphs"), files), manifest)


def _read(file: Path) -> dict[str, Any]:
    if file.parent.is_dir() and not file.exists():
        raise ModelError(f"bundle: {file.parent} is none, it has no {MANIFEST}")
    try:
        manifest = files.read_json(file, _MANIFEST_BYTES)
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from error
    if not isinstance(manifest, dict):
        raise ModelError(f"{file}: is not a manifest, which is a JSON object")
    return manifest


def _check_files(path: Path, listed: _Fields) -> set[str]:
    for name in listed.data:
        pure = PurePosixPath(name)
        if not name.isprintable() or pure.is_absolute() or ".." in pure.parts:
            raise listed.wrong(name, name, "a path inside the bundle")
        entry = listed.table(name)
        entry.nothing_but("bytes", "sha256")
        size, digest = entry.whole("bytes", 0, 1 << 40), entry.text("sha256")
        try:
            with files.open_regular(path / name) as stream:
                if (have := os.fstat(stream.fileno()).st_size) != size:
                    raise ModelError(f"{path / name}: has {have} bytes, the manifest says {size}")
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"{path / name}: cannot be read ({error.strerror})") from error
        if found != digest:
            raise ModelError(f"{path / name}: is damaged (sha256 {found[:12]}, the manifest says {digest[:12]})")
    return set(listed.data)


def _check_state_text(told: _Fields, joints: int) -> None:
    told.nothing_but("centre", "divisor", "offset", "numbers")
    told.whole("numbers", joints, 4096)
    for name in ("centre", "divisor", "offset"):
        value: Any = told.data.get(name)
        numbers = isinstance(value, list) and all(isinstance(each, int | float) for each in value)
        if not numbers or len(value) != joints or not np.isfinite(value).all() or (name == "divisor" and 0 in value):
            raise told.wrong(name, value, "a number for each joint")


def _graphs(path: Path, graphs: _Fields, files: set[str]) -> dict[str, Path]:
    for role in graphs.data:
        if graphs.text(role) not in files:
            raise graphs.wrong(role, graphs.data[role], "a file that the manifest lists")
    return {role: path / name for role, name in graphs.data.items()}


class _Fields:
    """A JSON object whose fields are read by type and range; anything else is a ModelError."""

    def __init__(self, where: str, data: Mapping[str, Any]) -> None:
        self._where = where
        self.data = data

    def wrong(self, field: str, value: object, expected: str) -> ModelError:
        return ModelError(f"{self._where}: {field}: {shown(value)} is not {expected}")

    def nothing_but(self, *known: str) -> None:
        for field in self.data:
            if field not in known:
                raise ModelError(f"{self._where}: {field}: is not known; {hint(field, known)}")

    def one_of(self, field: str, words: Sequence[str]) -> None:
        value = self._get(field)
        if value not in words:
            raise self.wrong(field, value, f"one of {', '.join(words)}")

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isprintable():
            raise self.wrong(field, value, "a text of 1 to 128 printable characters")
        return value

    def plain_name(self, field: str) -> str:
        value = self.text(field)
        if "/" in value or value.startswith("."):
            raise self.wrong(field, value, "a plain name, without / and not beginning with a dot")
        return value

    def whole(self, field: str, low: int, high: int) -> int:
        value = self._get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(field, value, f"a whole number in {low}..{high}")
        return value

    def number(self, field: str, low: float, high: float) -> float:
        value = self._get(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(field, value, f"a number in {low:g}..{high:g}")
        return float(value)

    def flag(self, field: str) -> bool:
        value = self._get(field)
        if not isinstance(value, bool):
            raise self.wrong(field, value, "true or false")
        return value

    def table(self, field: str) -> _Fields:
        value = self._get(field)
        if not isinstance(value, dict):
            raise self.wrong(field, value, "an object")
        return _Fields(f"{self._where}: {field}", value)

    def rows(self, field: str, *known: str, least: int = 0) -> list[_Fields]:
        """A list of objects, each with a `name` that no other has and with what else is `known`."""
        value = self._get(field)
        if not isinstance(value, list) or len(value) < least or not all(isinstance(row, dict) for row in value):
            raise self.wrong(field, value, f"a list of at least {least} objects")
        rows = [_Fields(f"{self._where}: {field}[{index}]", row) for index, row in enumerate(value)]
        for row in rows:
            row.nothing_but("name", *known)
        names = [row.text("name") for row in rows]
        if len(set(names)) < len(names):
            raise self.wrong(field, names, "a list of distinct names")
        return rows

    def _get(self, field: str) -> Any:
        if field not in self.data:
            raise ModelError(f"{self._where}: {field}: is missing")
        return self.data[field]
