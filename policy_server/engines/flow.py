"""Policies that flow from noise to actions: a prefix once for an observation, then the same step some times over.

What both share stays on the device. SmolVLA, PI0, PI0.5 and Diffusion Policy are such policies. The graphs, with the
batch as their one free extent (called `batch`):

    prefix (optional)  features of the policy, and `tokens`, `token_mask` (batch, width) where it reads a text
                       -> any arrays; their names are inputs of the step
    step               `x` (batch, rows, width) float32, `step` (1,) int64 from 0, what the prefix gave, any features
                       -> `next`, as `x`, and `action` (batch, chunk, joints) in joint units, which counts at the end
      guided           `previous` (batch, chunk, joints) normalised, `weights` (batch, chunk), `gain` (batch, steps):
                       the plan to continue, how much each of its rows is held, and how hard each step pulls
      noisy            `step_noise` (batch, steps, rows, width): what each step adds

There are as many steps as the manifest says, or as `gain` has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import MANIFEST, SEED, STATE, TASK, Bundle
from policy_server.engines import Batch, check_actions
from policy_server.engines.fixed import device_of, filled, run_options
from policy_server.engines.guidance import MAX_WEIGHT, PLAN, gains
from policy_server.engines.options import BATCH
from policy_server.engines.providers import NAMES, Runtime, import_onnxruntime, open_session
from policy_server.engines.tokens import Tokenizer, prompts

# In a batch, instead of `seed`, (B, n) whole numbers to draw them from: (B, rows, width), and where the step graph
# takes one, the noise that each step adds, (B, steps, rows, width).
NOISE, STEP_NOISE = "noise", "step_noise"
PREVIOUS, WEIGHTS = "previous", "weights"  # in a batch, both or neither: what guides `EulerStep` in export/flow.py
GAIN = "gain"
GUIDANCE = {PREVIOUS, WEIGHTS, GAIN}
TEXT = ("tokens", "token_mask")
MAX_TOKENS = 48  # LeRobot's, for a graph that leaves their number free
FREE_WIDTHS = range(16, MAX_TOKENS + 1, 16)  # such a graph runs in these: buffers for every length would fill a GPU


def open_engine(bundle: Bundle, runtime: Runtime) -> FlowEngine:
    return FlowEngine(bundle, runtime)


@dataclass(frozen=True)
class _Plan:
    """Buffers on the device for one batch size, and a binding over them for every run."""

    prefix: Any
    steps: Sequence[tuple[Any, Any]]  # and the options of each; x goes from one of two buffers to the other and back
    buffers: Mapping[str, Any]


class FlowEngine:
    """Runs `prefix.onnx` and `step.onnx`. The same noise and batch size give the same chunk, bit for bit."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self._path = bundle.path
        self._policy = bundle.policy
        self._features = bundle.features
        self._step = self._open(bundle, "step", runtime)
        self._prefix: Any = self._open(bundle, "prefix", runtime) if "prefix" in bundle.graphs else None
        takes = {node.name: node.shape for node in self._step.get_inputs()}
        text = {node.name: node.shape for node in self._prefix.get_inputs()} if self._prefix is not None else {}
        self._guided, self._noisy = takes.keys() >= GUIDANCE, STEP_NOISE in takes
        self._observed = [name for name in self._features if name in text]  # PI0.5 reads its state as text alone
        self._direct = [name for name in self._features if name in takes]
        self._check(bundle, takes, text.keys())
        self._noise_shape = tuple(takes["x"][1:])
        self._step_count = bundle.manifest.steps or int(takes[GAIN][1])
        self._tokenizer: Tokenizer | None = None
        self._widths: Sequence[int] = (0,)
        if TEXT[0] in text:
            width = text[TEXT[0]][1]
            self._widths = (width,) if isinstance(width, int) else FREE_WIDTHS
            self._tokenizer = Tokenizer(bundle.path / "tokenizer.json", self._widths[-1])
        self._scaling = bundle.manifest.action_scaling
        self._state_text = bundle.manifest.state_text
        self._captured = runtime.cuda_graphs and self.provider != NAMES["cpu"]
        self._graphs = itertools.count(1)  # a captured CUDA graph for each step of each plan
        self._plans: dict[tuple[int, int], _Plan] = {}  # by batch size and width
        self._sizes: list[int] = []  # what was captured, in the warm-up

    @property
    def provider(self) -> str:
        return str(self._step.get_providers()[0])

    def infer(self, batch: Batch) -> Floats:
        """As `Engine.infer`, from `noise` in the batch, or drawn by its `seed`; `plan` and `weights` guide it.

        `plan` is in joint units, with the `max_weight` of each member; `previous` is the same, normalised.
        """
        have = len(batch[STATE])
        size = min((size for size in self._sizes if size >= have), default=have)
        return self._infer(filled(batch, size), self._widths)[:have]

    def _infer(self, batch: Batch, widths: Sequence[int]) -> Floats:
        observation = {name: np.ascontiguousarray(batch[name]) for name in self._observed}
        if self._tokenizer is not None:
            texts = prompts(batch[TASK], batch[STATE], self._state_text)
            observation |= dict(zip(TEXT, self._tokenizer(texts, widths), strict=True))
        plan = self._plan(observation, len(batch[STATE]))
        if self._prefix is not None:
            for name, array in observation.items():
                plan.prefix.bind_cpu_input(name, array)
            self._prefix.run_with_iobinding(plan.prefix)
        direct = {name: np.ascontiguousarray(batch[name]) for name in self._direct}
        for name, array in (direct | self._noise(batch) | self._guidance(batch, plan)).items():
            plan.buffers[name].update_inplace(array)
        for binding, options in plan.steps:
            self._step.run_with_iobinding(binding, options)
        return np.array(plan.buffers["action"].numpy())  # a copy: the buffer is written again

    def warm_up(self, batch_sizes: Sequence[int], progress: Callable[[str], None]) -> None:
        """Run once in each batch size and width. Raises ModelError when the graphs fail or give another shape."""
        for size in batch_sizes:
            progress(f"batch of {size}")
            batch: dict[str, npt.NDArray[Any]] = {
                name: np.zeros((size, *feature.shape), feature.dtype) for name, feature in self._features.items()
            }
            batch |= {TASK: np.array([""] * size), SEED: np.zeros((size, 1), np.int64)}
            try:
                for width in self._widths:
                    actions = self._infer(batch, [width])
            except Exception as error:  # onnxruntime's exceptions share no base of their own
                raise ModelError(f"{self._path}: cannot run a batch of {size}: {error}") from error
            check_actions(str(self._path), self._policy, size, actions)
            if self._captured:
                self._sizes.append(size)

    def _open(self, bundle: Bundle, role: str, runtime: Runtime) -> Any:
        if role not in bundle.graphs:
            raise ModelError(f"{bundle.path / MANIFEST}: graphs.{role}: is missing")
        return open_session(bundle.graphs[role], runtime, weights=bundle.weights, static=role == "step")

    def _check(self, bundle: Bundle, takes: Mapping[str, Any], seen: Set[str]) -> None:
        """What the step `takes` and the prefix has `seen` against each other and the manifest. Raises ModelError."""
        read = self._features.keys() - ({STATE} if bundle.manifest.state_text is not None else set())
        known = {"x", "step"} | set(self._direct)
        for optional in (GUIDANCE, {STEP_NOISE}):
            known |= optional if optional & takes.keys() else set()
        if self._prefix is None:
            known |= read
        else:
            known |= {node.name for node in self._prefix.get_outputs()}
            text = set(TEXT) if bundle.policy.uses_task else set()
            _compare(bundle, "prefix", "inputs", seen, (read - set(self._direct)) | (seen & read) | text)
        _compare(bundle, "step", "inputs", takes.keys(), known)
        _compare(bundle, "step", "outputs", {node.name for node in self._step.get_outputs()}, {"next", "action"})
        if self._prefix is None and bundle.policy.uses_task:
            raise ModelError(f"{bundle.path / MANIFEST}: graphs.prefix: is missing, and uses_task needs it")
        if bundle.manifest.guided and not self._guided:
            raise ModelError(f"{bundle.graphs['step']}: guided: has no inputs {sorted(GUIDANCE - takes.keys())}")
        if not all(isinstance(extent, int) for extent in takes["x"][1:]):
            raise ModelError(f"{bundle.graphs['step']}: x: {takes['x']} is free in more than the batch")
        told, has = bundle.manifest.steps, int(takes[GAIN][1]) if self._guided else 0
        if told != has and (told == 0) == (has == 0):
            raise ModelError(f"{bundle.path / MANIFEST}: steps: {told} is not {has}, as gain has")
        if not told and not has:
            raise ModelError(
                f"{bundle.path / MANIFEST}: steps: 0 is not the number of steps of {bundle.graphs['step']}"
            )

    def _noise(self, batch: Batch) -> dict[str, Floats]:
        """What each chunk starts from, and where the steps add noise, theirs behind it from the same seed."""
        shapes = {"x": self._noise_shape} | (
            {STEP_NOISE: (self._step_count, *self._noise_shape)} if self._noisy else {}
        )
        if NOISE in batch:
            given = {"x": batch[NOISE]} | ({STEP_NOISE: batch[STEP_NOISE]} if self._noisy else {})
            return {name: np.ascontiguousarray(array, np.float32) for name, array in given.items()}
        generators = [np.random.default_rng(seed) for seed in batch[SEED]]
        return {
            name: np.stack([generator.standard_normal(shape, np.float32) for generator in generators])
            for name, shape in shapes.items()
        }

    def _guidance(self, batch: Batch, plan: _Plan) -> dict[str, Floats]:
        if not self._guided:
            return {}
        scaling = self._scaling
        if PLAN in batch and scaling is not None:
            previous = (batch[PLAN] - np.array(scaling.offset)) / np.array(scaling.scale)
            gain = np.stack([gains(self._step_count, float(most)) for most in batch[MAX_WEIGHT]])
            batch = {**batch, PREVIOUS: previous, GAIN: gain}
        else:
            batch = {**batch, GAIN: np.tile(gains(self._step_count), (len(batch[STATE]), 1))}
        return {
            name: np.ascontiguousarray(batch[name], np.float32)
            if name in batch
            else np.zeros(plan.buffers[name].shape(), np.float32)
            for name in (PREVIOUS, WEIGHTS, GAIN)
        }

    def _plan(self, observation: Mapping[str, npt.NDArray[Any]], size: int) -> _Plan:
        """The buffers for a batch of this shape, made when it is first seen."""
        key = (size, observation[TEXT[0]].shape[1] if self._tokenizer is not None else 0)
        if key not in self._plans:
            self._plans[key] = self._lay_out(observation, size)
        return self._plans[key]

    def _lay_out(self, observation: Mapping[str, npt.NDArray[Any]], size: int) -> _Plan:
        buffers: dict[str, Any] = {}
        prefix = None if self._prefix is None else self._lay_out_prefix(observation, size, buffers)
        for name in self._direct:
            feature = self._features[name]
            buffers[name] = self._zeros((size, *feature.shape), feature.dtype)
        rows, joints = self._policy.chunk_size, len(self._policy.joints)
        buffers |= {"x": self._zeros((size, *self._noise_shape)), "action": self._zeros((size, rows, joints))}
        if self._guided:
            buffers |= {
                PREVIOUS: self._zeros((size, rows, joints)),
                WEIGHTS: self._zeros((size, rows)),
                GAIN: self._on_device(np.tile(gains(self._step_count), (size, 1))),
            }
        if self._noisy:
            buffers[STEP_NOISE] = self._zeros((size, self._step_count, *self._noise_shape))
        here, there = buffers["x"], self._zeros((size, *self._noise_shape))
        takes = {node.name for node in self._step.get_inputs()}
        steps = []
        for index in range(self._step_count):
            binding = self._step.io_binding()
            binding.bind_ortvalue_input("x", here)
            binding.bind_ortvalue_input("step", self._on_device(np.array([index], np.int64)))
            for name in takes - {"x", "step"}:
                binding.bind_ortvalue_input(name, buffers[name])
            binding.bind_ortvalue_output("next", there)
            binding.bind_ortvalue_output("action", buffers["action"])
            steps.append((binding, run_options(import_onnxruntime(), next(self._graphs))))
            here, there = there, here
        return _Plan(prefix, steps, buffers)

    def _lay_out_prefix(self, observation: Mapping[str, npt.NDArray[Any]], size: int, buffers: dict[str, Any]) -> Any:
        """Its binding; what it gives is added to the `buffers`."""
        outputs = self._prefix.get_outputs()
        shapes = [[size if extent == BATCH else extent for extent in node.shape] for node in outputs]
        if not all(isinstance(extent, int) for shape in shapes for extent in shape):  # a free number of tokens
            shapes = [array.shape for array in self._prefix.run(None, dict(observation))]
        binding = self._prefix.io_binding()
        for node, shape in zip(outputs, shapes, strict=True):
            buffers[node.name] = self._zeros(shape, np.bool_ if node.type == "tensor(bool)" else np.float32)
            binding.bind_ortvalue_output(node.name, buffers[node.name])
        return binding

    def _zeros(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> Any:
        return self._on_device(np.zeros(shape, dtype))

    def _on_device(self, array: npt.NDArray[Any]) -> Any:
        return import_onnxruntime().OrtValue.ortvalue_from_numpy(array, *device_of(self._step))


def _compare(bundle: Bundle, role: str, what: str, got: Set[str], expected: Set[str]) -> None:
    if got != expected:
        raise ModelError(f"{bundle.graphs[role]}: {what}: {sorted(got)} are not {sorted(expected)}")
