"""One bundle on one provider: is it the CPU's answer, and how long does it take?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policy_server.bundle import TASK, Bundle, features
from policy_server.engines import Engine, open_engine
from policy_server.engines.providers import Runtime
from policy_server.export.parity import Difference
from scripts.benches.gpu_check import floor
from scripts.benches.gpu_check.floor import Rates

SIZES = (1, 2, 4, 8)
# Joint units. TensorRT multiplies in TF32 (10 bits) unless the driver is told not to; CUDA is told not to.
ALLOWED = {"cpu": 1e-2, "cuda": 1e-2, "tensorrt": 0.5}
Batch = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Effort:
    """Random inputs to compare, seconds for each latency, and the size of the two probes (`floor.rates`)."""

    cases: int
    for_s: float
    floats: int
    side: int


FULL = Effort(cases=16, for_s=1.5, floats=1 << 26, side=4096)
SHORT = Effort(cases=4, for_s=0.2, floats=1 << 20, side=256)


def of(bundle: Bundle, runtime: Runtime, rates: Rates, effort: Effort) -> bool:
    """Print parity and latencies of one bundle; True when it differs from the CPU by more than it may.

    Raises ModelError, ConfigError when it does not run at all.
    """
    began_s = time.monotonic()
    engine = open_engine(bundle, runtime)
    engine.warm_up(SIZES, lambda progress: None)
    ready_s = time.monotonic() - began_s
    found = difference(bundle, engine, open_engine(bundle, Runtime("cpu")), effort.cases)
    allowed = ALLOWED[runtime.providers]
    print(f"  {bundle.policy.name}: ready in {ready_s:.1f} s, differs by {found:.2g} (at most {allowed:g})")
    for size in SIZES:
        took = latency(bundle, engine, size, effort.for_s)
        least = _least(bundle, size, rates)
        print(f"    batch {size}: p50 {took.p50 * 1e3:.3f} ms, p95 {took.p95 * 1e3:.3f} ms{least}")
    return found > allowed


def _least(bundle: Bundle, size: int, rates: Rates) -> str:
    if "policy" not in bundle.graphs:  # several graphs, one of them run again and again
        return ""
    work = floor.work(bundle.graphs["policy"], size)
    return (
        f"; floor {work.bytes / rates.bytes_per_s * 1e3:.3f} ms by {work.bytes / 1e6:.0f} MB, "
        f"{work.flops / rates.flops_per_s * 1e3:.3f} ms by {work.flops / 1e9:.2f} GFLOP"
    )


@dataclass(frozen=True)
class Latency:
    """Of `n` runs with input and output in the host's memory, seconds."""

    p50: float
    p95: float
    n: int


def random_batch(bundle: Bundle, size: int, seed: int) -> Batch:
    """Every input of the policy, within what arms and cameras give; zeros would hide what is wrong."""
    draw = np.random.default_rng(seed)
    batch: dict[str, npt.NDArray[Any]] = {
        name: draw.integers(0, 256, (size, *feature.shape), np.uint8)
        if feature.dtype == np.uint8
        else draw.uniform(-60, 60, (size, *feature.shape)).astype(np.float32)
        for name, feature in features(bundle.policy).items()
    }
    if bundle.policy.uses_task:
        batch[TASK] = np.array(["put the block in the box"] * size)
    if bundle.policy.type != "act":  # it begins with noise
        batch["seed"] = np.arange(seed, seed + size).reshape(size, 1)
    return batch


def difference(bundle: Bundle, engine: Engine, reference: Engine, cases: int) -> float:
    """The largest between the two in any action, joint units, over `cases` random inputs in batches of 1 and of 3.

    Raises ModelError when an action is not finite: half precision may overflow.
    """
    batches = [random_batch(bundle, 1 if seed % 2 else 3, seed) for seed in range(cases)]
    expected = [reference.infer(batch) for batch in batches]
    return Difference.of(expected, [engine.infer(batch) for batch in batches]).max_abs


def latency(bundle: Bundle, engine: Engine, size: int, for_s: float) -> Latency:
    """As the scheduler would see it: from arrays to actions."""
    batch = random_batch(bundle, size, size)
    times: list[float] = []
    until_s = time.perf_counter() + for_s
    while time.perf_counter() < until_s or len(times) < 5:
        began_s = time.perf_counter()
        engine.infer(batch)
        times.append(time.perf_counter() - began_s)
    return Latency(float(np.percentile(times, 50)), float(np.percentile(times, 95)), len(times))
