"""A policy written in Python: a function, or a class with `infer`, that a decorator describes.

    @policy(joints={"shoulder_pan.pos": "degrees", "gripper.pos": "percent"}, chunk_size=50, fps=30)
    def stand_still(batch):
        return np.repeat(batch["observation.state"][:, None], 50, axis=1)

It is named on the command line, `policy-server start my_file:stand_still`, and never in a file.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Annotated, Any, TypeVar

import numpy as np

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import code, schema
from edge_runtime.program.schema import Range
from edge_runtime.wire import limits
from edge_runtime.wire.messages import Camera, ExtraState, Floats, Joint, Name, Policy
from policy_server.bundle import SEED, TASK, features
from policy_server.engines import Batch, check_actions
from policy_server.engines.providers import Runtime

T = TypeVar("T", bound=Callable[..., Any])
ANSWER_S = 60.0  # a batch that takes longer is given up
SETTING = "policy"
_MARK = "_edge_runtime_policy"


@dataclass(frozen=True)
class Description:
    """What a server and a robot must know of a policy: as in a bundle's manifest, by the same names."""

    joints: dict[Name, Name]  # name -> unit, in the order of observation.state and of the actions
    chunk_size: Annotated[int, Range(1, limits.CHUNK)]  # rows of actions
    fps: Annotated[float, Range(0.1, 1000)]  # rows a second
    cameras: dict[Name, tuple[int, int]] = field(default_factory=dict)  # name -> (height, width)
    extra_state: dict[Name, int] = field(default_factory=dict)  # name -> dimension
    uses_task: bool = False  # whether it reads the task's text

    def __post_init__(self) -> None:
        if not self.joints:
            raise ConfigError("joints: {} is not a mapping of one joint or more to its unit")
        schema.build(tuple[Camera, ...], [asdict(camera) for camera in self._cameras], "cameras", document=True)
        schema.build(tuple[ExtraState, ...], [asdict(each) for each in self._extra], "extra_state", document=True)

    @property
    def _cameras(self) -> tuple[Camera, ...]:
        return tuple(Camera(name, *size) for name, size in self.cameras.items())

    @property
    def _extra(self) -> tuple[ExtraState, ...]:
        return tuple(ExtraState(name, dimension) for name, dimension in self.extra_state.items())

    def policy(self, name: str, source: str) -> Policy:
        """What is offered under `name`; its digest is that of the description and the code."""
        return Policy(
            name=name,
            type="python",
            digest=hashlib.sha256(f"{self}\n{source}".encode()).digest(),
            joints=tuple(Joint(joint, unit) for joint, unit in self.joints.items()),
            cameras=self._cameras,
            extra_state=self._extra,
            chunk_size=self.chunk_size,
            fps=self.fps,
            uses_task=self.uses_task,
        )


def policy(**described: Any) -> Callable[[T], T]:
    """Describe the function or class that follows, by the fields of `Description`.

    A function takes a batch and gives actions; a class is made once, without arguments, and its `infer` does. A batch
    maps each feature's name to an array, batch first: `observation.state` (batch, joints) float32 in joint units,
    `observation.images.NAME` (batch, height, width, 3) uint8 RGB, `task` the texts. Actions are (batch, chunk_size,
    joints) in joint units. Raises ConfigError for a field that cannot be.
    """
    description: Description = schema.build(Description, described, SETTING)

    def mark(target: T) -> T:
        setattr(target, _MARK, description)
        return target

    return mark


class PythonPolicy:
    """What `module:name` means: described, and not yet made."""

    n_obs_steps = 1
    batched = True

    def __init__(self, name: str, *, again: bool = False) -> None:
        """Raises ConfigError for what cannot be loaded, called or is not described; `again` reads its file anew."""
        self.path = name
        self._target = code.load(name, SETTING, again=again)
        description = getattr(self._target, _MARK, None)
        if not isinstance(description, Description):
            raise ConfigError(f"{SETTING}: {name} is not described by @policy(joints=…, chunk_size=…, fps=…)")
        self.policy = description.policy(name.rpartition(":")[2], _source(self._target))

    def open(self, runtime: Runtime) -> PythonEngine:
        return PythonEngine(self.path, self.policy, self._target)


def _source(target: Any) -> str:
    try:
        return inspect.getsource(inspect.getmodule(target) or target)
    except (OSError, TypeError):  # typed in, or compiled
        return repr(target)


class PythonEngine:
    """Calls the user's code on a thread of its own, so that what never ends does not end the server's."""

    provider = "Python"

    def __init__(self, name: str, policy: Policy, target: Any) -> None:
        self._name = name
        self._policy = policy
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._under_way: Future[Any] | None = None
        threading.Thread(target=_work, args=(self._calls,), name=f"policy {name}", daemon=True).start()
        made = self._call(target if inspect.isclass(target) else lambda: target)
        self._infer: Callable[[Batch], Any] = made.infer if inspect.isclass(target) else made

    def __del__(self) -> None:
        self._calls.put(None)

    def infer(self, batch: Batch) -> Floats:
        """Raises ModelError when the code raises, gives another shape, or nothing within `ANSWER_S`."""
        given = {name: array for name, array in batch.items() if name != SEED}
        actions = self._call(lambda: np.asarray(self._infer(given), np.float32))
        check_actions(self._name, self._policy, len(next(iter(batch.values()))), actions)
        return np.asarray(actions, np.float32)

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Run once in each batch size, on zeros. Raises ModelError as `infer` does."""
        for size in batch_sizes:
            progress(f"batch of {size}")
            batch: dict[str, Any] = {
                name: np.zeros((size, *feature.shape), feature.dtype)
                for name, feature in features(self._policy).items()
            }
            self.infer(batch | ({TASK: np.array([""] * size)} if self._policy.uses_task else {}))

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._under_way is not None and not self._under_way.done():
            raise ModelError(f"{self._name}: is still busy with a batch that was given up")
        self._under_way = future = Future[Any]()
        self._calls.put((future, function))
        try:
            return future.result(ANSWER_S)
        except (TimeoutError, FutureTimeout) as error:  # one and the same from Python 3.11 on
            if future.done():  # the code's own
                raise ModelError(f"{self._name}: TimeoutError: {error}") from error
            raise ModelError(f"{self._name}: no answer within {ANSWER_S:g} s") from error
        except (Exception, SystemExit) as error:  # whatever a user's own code may raise
            raise ModelError(f"{self._name}: {type(error).__name__}: {error}") from error


def _work(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """Call what comes until a None does."""
    while (call := calls.get()) is not None:
        future, function = call
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del call, future, function  # else the last batch is kept
