"""SmolVLA: the prefix once for an observation, then the denoising steps; what they share stays on the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_runtime.errors import ModelError
from edge_runtime.wire.messages import Floats
from policy_server.bundle import SEED, TASK, Bundle, features
from policy_server.engines import Batch
from policy_server.engines.fixed import device_of, filled, run_options
from policy_server.engines.guidance import gains
from policy_server.engines.options import BATCH
from policy_server.engines.providers import NAMES, Runtime, import_onnxruntime, open_session
from policy_server.engines.tokens import Tokenizer

NOISE = "noise"  # in a batch, (B, chunk, width), instead of `seed`, (B, n) whole numbers to draw it from
PREVIOUS, WEIGHTS = "previous", "weights"  # in a batch, both or neither: what `Step` in export/smolvla.py is guided by
MAX_TOKENS = 48  # LeRobot's, for a graph that leaves their number free
FREE_WIDTHS = range(16, MAX_TOKENS + 1, 16)  # such a graph runs in these: buffers for every length would fill a GPU
INPUTS = {
    "prefix": {"tokens", "token_mask"},
    "step": {"x", "step", "keys", "values", "mask", PREVIOUS, WEIGHTS, "gain"},
}


def open_engine(bundle: Bundle, runtime: Runtime) -> SmolVLAEngine:
    return SmolVLAEngine(bundle, runtime)


@dataclass(frozen=True)
class _Plan:
    """Buffers on the device for one batch size, and a binding over them for every run."""

    prefix: Any
    steps: Sequence[tuple[Any, Any]]  # and the options of each; x goes from one of two buffers to the other and back
    buffers: Mapping[str, Any]


class SmolVLAEngine:
    """Runs `prefix.onnx` and `step.onnx`. The same noise and batch size give the same chunk, bit for bit."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        self._path = bundle.path
        self._policy = bundle.policy
        self._features = features(bundle.policy)
        self._prefix, self._step = (self._open(bundle, role, runtime) for role in ("prefix", "step"))
        shapes = {node.name: node.shape for node in (*self._prefix.get_inputs(), *self._step.get_inputs())}
        self._noise_shape = tuple(shapes["x"][1:])
        self._step_count = int(shapes["gain"][1])
        tokens = shapes["tokens"][1]
        self._widths: Sequence[int] = (tokens,) if isinstance(tokens, int) else FREE_WIDTHS
        self._tokenizer = Tokenizer(bundle.path / "tokenizer.json", self._widths[-1])
        self._captured = runtime.cuda_graphs and self.provider != NAMES["cpu"]
        self._graphs = itertools.count(1)  # a captured CUDA graph for each step of each plan
        self._plans: dict[tuple[int, int], _Plan] = {}  # by batch size and width
        self._sizes: list[int] = []  # what was captured, in the warm-up

    @property
    def provider(self) -> str:
        return str(self._step.get_providers()[0])

    def infer(self, batch: Batch) -> Floats:
        """As `Engine.infer`, from `noise` in the batch, or drawn by its `seed`; `previous` and `weights` guide it."""
        have = len(batch[TASK])
        size = min((size for size in self._sizes if size >= have), default=have)
        return self._infer(filled(batch, size), self._widths)[:have]

    def _infer(self, batch: Batch, widths: Sequence[int]) -> Floats:
        tokens, mask = self._tokenizer([str(task) for task in batch[TASK]], widths)
        observation = {name: np.ascontiguousarray(batch[name]) for name in self._features}
        observation |= {"tokens": tokens, "token_mask": mask}
        plan = self._plan(observation)
        for name, array in observation.items():
            plan.prefix.bind_cpu_input(name, array)
        self._prefix.run_with_iobinding(plan.prefix)
        plan.buffers["x"].update_inplace(self._noise(batch))
        for name in (PREVIOUS, WEIGHTS):
            nothing = np.zeros(plan.buffers[name].shape(), np.float32)
            plan.buffers[name].update_inplace(np.ascontiguousarray(batch.get(name, nothing), np.float32))
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
            batch |= {TASK: np.array([""] * size), NOISE: np.zeros((size, *self._noise_shape), np.float32)}
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
        expected = INPUTS[role] | (self._features.keys() if role == "prefix" else set())
        if got != expected:
            raise ModelError(f"{bundle.graphs[role]}: inputs: {sorted(got)} are not {sorted(expected)}")
        return session

    def _noise(self, batch: Batch) -> Floats:
        if NOISE in batch:
            return np.ascontiguousarray(batch[NOISE], np.float32)
        rows = [np.random.default_rng(seed).standard_normal(self._noise_shape, np.float32) for seed in batch[SEED]]
        return np.stack(rows)

    def _plan(self, observation: Mapping[str, npt.NDArray[Any]]) -> _Plan:
        """The buffers for a batch of this shape, made when it is first seen."""
        key = observation["tokens"].shape
        if key not in self._plans:
            self._plans[key] = self._lay_out(observation)
        return self._plans[key]

    def _lay_out(self, observation: Mapping[str, npt.NDArray[Any]]) -> _Plan:
        size = len(observation["tokens"])
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
        buffers |= {
            "x": self._zeros((size, *self._noise_shape)),
            PREVIOUS: self._zeros((size, rows, joints)),
            WEIGHTS: self._zeros((size, rows)),
            "gain": self._on_device(np.tile(gains(self._step_count), (size, 1))),
            "action": self._zeros((size, rows, joints)),
        }
        here, there = buffers["x"], self._zeros((size, *self._noise_shape))
        steps = []
        for index in range(self._step_count):
            binding = self._step.io_binding()
            binding.bind_ortvalue_input("x", here)
            binding.bind_ortvalue_input("step", self._on_device(np.array([index], np.int64)))
            for name in INPUTS["step"] - {"x", "step"}:
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
