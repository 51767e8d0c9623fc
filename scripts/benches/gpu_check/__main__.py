"""Is what the GPU says what the CPU says, and how fast? Parity, latency by batch size, and the floor beside it.

    python -m scripts.benches.gpu_check                   with a GPU: CUDA, CUDA with captured graphs, TensorRT
    python -m scripts.benches.gpu_check --dry_run=cpu     the same steps on the CPU, to see that they work

Exits 77 (skipped) on a machine without a GPU, 1 when a provider differs from the CPU by more than it may.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_runtime.errors import EdgeRuntimeError
from policy_server import bundle
from policy_server.engines import cache
from policy_server.engines.providers import NAMES, Runtime, import_onnxruntime
from scripts.rig.bench import reach, start

SKIPPED = 77


@dataclass
class CheckConfig:
    """One go, under five minutes."""

    bundles: list[str] = field(default_factory=lambda: ["act_so101_pick_place", "act_so101_cubes"])
    dry_run: Literal["", "cpu"] = ""  # cpu: the steps without a GPU, short
    debug: bool = False


def main(config: CheckConfig) -> int:
    ort = import_onnxruntime()
    available = ort.get_available_providers()
    device = "cpu (dry run)" if config.dry_run else cache.device_name(0)
    if not device or (NAMES["cuda"] not in available and not config.dry_run):
        print(f"skipped: {'no GPU' if not device else 'an onnxruntime without CUDA'} here ({', '.join(available)})")
        return SKIPPED
    print(f"{device}; onnxruntime {ort.__version__}; {cache.tensorrt_version() or 'no TensorRT library'}")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        wrong = sum(check(config, available, Path(work)))
    reach(f"{wrong} differ from the CPU by too much; {time.monotonic() - began_s:.0f} s", not wrong)
    return 1 if wrong else 0


def runtimes(config: CheckConfig, available: list[str], work: Path) -> Iterator[tuple[str, Runtime]]:
    if config.dry_run:
        yield "cpu", Runtime("cpu", cache_dir=work)
        return
    yield "cuda", Runtime("cuda", cache_dir=work)
    yield "cuda, graphs", Runtime("cuda", cache_dir=work, cuda_graphs=True)
    if NAMES["tensorrt"] not in available or not cache.tensorrt_version():
        print("tensorrt: skipped, its library is not installed")
    else:
        yield "tensorrt", Runtime("tensorrt", cache_dir=work)
        yield "tensorrt, again", Runtime("tensorrt", cache_dir=work)  # from the cache


def check(config: CheckConfig, available: list[str], work: Path) -> Iterator[bool]:
    """Print what each bundle does on each provider; True for one that is not what it should be."""
    from scripts.benches.gpu_check import (  # onnx is imported, which a machine without a GPU need not wait for
        floor,
        report,
    )

    effort = report.SHORT if config.dry_run else report.FULL
    for name, runtime in runtimes(config, available, work):
        rates = floor.rates(runtime, floats=effort.floats, side=effort.side)
        print(f"{name}: {rates.bytes_per_s / 1e9:.0f} GB/s, {rates.flops_per_s / 1e12:.2f} TFLOP/s in fp32, measured")
        for each in config.bundles:
            loaded = bundle.load(bundle.locate(each))
            try:
                yield report.of(loaded, runtime, rates, effort)
            except EdgeRuntimeError as error:
                print(f"  {loaded.policy.name}: {error}")
                yield True


if __name__ == "__main__":
    start(CheckConfig, main, positional="bundles")
