"""Policies that flow from noise to actions: a prefix once for an observation, then the same step some times over.

What both share stays on the device. SmolVLA, PI0, PI0.5 and Diffusion Policy are such policies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import SEED, STATE, TASK, Bundle
from policy_server.engines import Batch
from policy_server.engines.fixed import device_of, filled, run_options
from policy_server.engines.guidance import gains
from policy_server.engines.options import BATCH
from policy_server.engines.providers import NAMES, Runtime, import_onnxruntime, open_session
from policy_server.engines.tokens import Tokenizer, prompts

# In a batch, instead of `seed`, (B, n) whole numbers to draw them from: (B, rows, width), and where the step graph
# takes one, the noise that each step adds, (B, steps, rows, width).
NOISE, STEP_NOISE = "noise", "step_noise"
PREVIOUS, WEIGHTS = "previous", "weights"  # in a batch, both or neither: what guides `EulerStep` in export/flow.py
GAIN = "gain"
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
    """Runs `prefix.onnx` and `step.onnx`. The same noise and batch size give the same chunk, bit for bit.

    The prefix takes what the policy observes, and `tokens` and `token_mask` where the policy reads text. The step takes
    `x`, `step` and all that the prefix gives; `previous`, `weights` and `gain` where it can be guided; `step_noise`
    where each step adds noise. It gives the `next` x and the `action` that x stands for.
    """

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self._path = bundle.path
        self._policy = bundle.policy
        self._features = bundle.features
        self._prefix = self._open(bundle, "prefix", runtime)
        self._step = self._open(bundle, "step", runtime)
        takes = {node.name: node.shape for node in self._step.get_inputs()}
        self._noise_shape = tuple(takes["x"][1:])
        self._guided, self._noisy = GAIN in takes, STEP_NOISE in takes
        self._step_count = bundle.steps or int(takes[GAIN][1])
        text = {node.name: node.shape for node in self._prefix.get_inputs()}
        self._observed = [name for name in self._features if name in text]  # PI0.5 reads its state as text alone
        self._tokenizer: Tokenizer | None = None
        self._widths: Sequence[int] = (0,)
        if TEXT[0] in text:
            width = text[TEXT[0]][1]
            self._widths = (width,) if isinstance(width, int) else FREE_WIDTHS
            self._tokenizer = Tokenizer(bundle.path / "tokenizer.json", self._widths[-1])
        self._state_text = bundle.state_text
        self._captured = runtime.cuda_graphs and self.provider != NAMES["cpu"]
        self._graphs = itertools.count(1)  # a captured CUDA graph for each step of each plan
        self._plans: dict[tuple[int, int], _Plan] = {}  # by batch size and width
        self._sizes: list[int] = []  # what was captured, in the warm-up

    @property
    def provider(self) -> str:
        return str(self._step.get_providers()[0])

    def infer(self, batch: Batch) -> Floats:
        """As `Engine.infer`, from `noise` in the batch, or drawn by its `seed`; `previous` and `weights` guide it."""
        have = len(batch[STATE])
        size = min((size for size in self._sizes if size >= have), default=have)
        return self._infer(filled(batch, size), self._widths)[:have]

    def _infer(self, batch: Batch, widths: Sequence[int]) -> Floats:
        observation = {name: np.ascontiguousarray(batch[name]) for name in self._observed}
        if self._tokenizer is not None:
            texts = prompts(batch[TASK], batch[STATE], self._state_text)
            observation |= dict(zip(TEXT, self._tokenizer(texts, widths), strict=True))
        plan = self._plan(observation, len(batch[STATE]))
        for name, array in observation.items():
            plan.prefix.bind_cpu_input(name, array)
        self._prefix.run_with_iobinding(plan.prefix)
        for name, array in (self._noise(batch) | self._guidance(batch, plan)).items():
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
            expected = (size, self._policy.chunk_size, len(self._policy.joints))
            if actions.shape != expected:
                raise ModelError(f"{self._path}: action: {actions.shape} is not {expected}")
            if self._captured:
                self._sizes.append(size)

    def _open(self, bundle: Bundle, role: str, runtime: Runtime) -> Any:
        """The session of one graph, its inputs held against the manifest."""
        if role not in bundle.graphs:
            raise ModelError(f"{bundle.path / 'manifest.json'}: graphs: {role}: is missing")
        session = open_session(bundle.graphs[role], runtime, weights=bundle.weights, static=role == "step")
        got = {node.name for node in session.get_inputs()}
        if role == "prefix":
            expected = self._features.keys() | (set(TEXT) if bundle.policy.uses_task else set())
            expected -= {STATE} if bundle.state_text is not None else set()
        else:
            expected = {"x", "step"} | {node.name for node in self._prefix.get_outputs()}
            for optional in ({PREVIOUS, WEIGHTS, GAIN}, {STEP_NOISE}):
                expected |= optional if optional & got else set()
        if got != expected:
            raise ModelError(f"{bundle.graphs[role]}: inputs: {sorted(got)} are not {sorted(expected)}")
        return session

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
        return {
            name: np.ascontiguousarray(batch[name], np.float32)
            if name in batch
            else np.zeros(plan.buffers[name].shape(), np.float32)
            for name in (PREVIOUS, WEIGHTS)
        }

    def _plan(self, observation: Mapping[str, npt.NDArray[Any]], size: int) -> _Plan:
        """The buffers for a batch of this shape, made when it is first seen."""
        key = (size, observation[TEXT[0]].shape[1] if self._tokenizer is not None else 0)
        if key not in self._plans:
            self._plans[key] = self._lay_out(observation, size)
        return self._plans[key]

    def _lay_out(self, observation: Mapping[str, npt.NDArray[Any]], size: int) -> _Plan:
        outputs = self._prefix.get_outputs()
        shapes = [[size if extent == BATCH else extent for extent in node.shape] for node in outputs]
        if not all(isinstance(extent, int) for shape in shapes for extent in shape):  # a free number of tokens
            shapes = [array.shape for array in self._prefix.run(None, dict(observation))]
        prefix = self._prefix.io_binding()
        buffers: dict[str, Any] = {}
        for node, shape in zip(outputs, shapes, strict=True):
            buffers[node.name] = self._zeros(shape, np.bool_ if node.type == "tensor(bool)" else np.float32)
            prefix.bind_ortvalue_output(node.name, buffers[node.name])
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
        steps = []
        for index in range(self._step_count):
            binding = self._step.io_binding()
            binding.bind_ortvalue_input("x", here)
            binding.bind_ortvalue_input("step", self._on_device(np.array([index], np.int64)))
            for name in buffers.keys() - {"x", "action"}:
                binding.bind_ortvalue_input(name, buffers[name])
            binding.bind_ortvalue_output("next", there)
            binding.bind_ortvalue_output("action", buffers["action"])
            steps.append((binding, run_options(import_onnxruntime(), next(self._graphs))))
            here, there = there, here
        return _Plan(prefix, steps, buffers)

    def _zeros(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> Any:
        return self._on_device(np.zeros(shape, dtype))

    def _on_device(self, array: npt.NDArray[Any]) -> Any:
        return import_onnxruntime().OrtValue.ortvalue_from_numpy(array, *device_of(self._step))
