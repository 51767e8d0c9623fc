"""What each provider is told, where what it built is kept, and runs at fixed addresses."""

from __future__ import annotations

import ctypes
import json
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edge_runtime.errors import ConfigError, ModelError
from edge_runtime.program import flags
from policy_server import bundle
from policy_server.bundle import ACTION, features
from policy_server.config import ServerConfig
from policy_server.engines import cache, one_graph, open_engine, options
from policy_server.engines.cache import BuiltFor
from policy_server.engines.fixed import FixedBatch, device_of
from policy_server.engines.one_graph import OneGraphEngine
from policy_server.engines.providers import Runtime
from scripts.rig.bundles import write_bundle

CPU = Runtime("cpu", threads=1)


@dataclass
class Node:
    name: str
    shape: list[Any]


STATE, FRONT = Node("observation.state", ["batch", 6]), Node("observation.images.front", ["batch", 96, 128, 3])


def tensorrt(given: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    settings: dict[str, Any] = {"inputs": [STATE, FRONT], "max_batch": 8, "graphs": False, "cache": None} | changes
    return options.tensorrt(given or {}, **settings)


# Options.


def test_cuda_keeps_parity_and_the_user_has_the_last_word() -> None:
    assert options.cuda({}, graphs=False) == {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    told = options.cuda({"use_tf32": True, "device_id": 1, "arena_extend_strategy": "kSameAsRequested"}, graphs=True)
    assert told == {
        "use_tf32": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
        "enable_cuda_graph": "1",
        "device_id": "1",
        "arena_extend_strategy": "kSameAsRequested",
    }


def test_tensorrt_gets_a_profile_over_all_batch_sizes() -> None:
    told = tensorrt()
    assert told["trt_profile_min_shapes"] == "observation.state:1x6,observation.images.front:1x96x128x3"
    assert told["trt_profile_opt_shapes"] == "observation.state:8x6,observation.images.front:8x96x128x3"
    assert told["trt_profile_max_shapes"] == told["trt_profile_opt_shapes"]
    assert not any("profile" in name for name in tensorrt(inputs=[Node("x", [1, 6])]))


def test_the_batch_need_not_be_the_first_extent() -> None:
    keys, mask = Node("keys", [16, "batch", 5, 177, 64]), Node("mask", ["batch", 177])
    told = tensorrt(inputs=[keys, mask, Node("step", [1])])
    assert told["trt_profile_min_shapes"] == "keys:16x1x5x177x64,mask:1x177"
    assert told["trt_profile_max_shapes"] == "keys:16x8x5x177x64,mask:8x177"


def test_a_free_length_has_no_profile() -> None:
    with pytest.raises(ConfigError, match=r"tensorrt needs fixed shapes, and tokens is \['batch', 'length'\]"):
        tensorrt(inputs=[Node("tokens", ["batch", "length"])])


def test_tensorrt_keeps_what_it_built(tmp_path: Path) -> None:
    assert not any("cache" in name for name in tensorrt())
    told = tensorrt(cache=tmp_path)
    assert (told["trt_engine_cache_enable"], told["trt_timing_cache_enable"]) == ("1", "1")
    assert told["trt_engine_cache_path"] == told["trt_timing_cache_path"] == str(tmp_path)


def test_half_precision_spares_the_layer_norms_unless_told_otherwise() -> None:
    assert tensorrt({"trt_fp16_enable": True})["trt_layer_norm_fp32_fallback"] == "1"
    assert (
        tensorrt({"trt_fp16_enable": True, "trt_layer_norm_fp32_fallback": False})["trt_layer_norm_fp32_fallback"]
        == "0"
    )
    assert "trt_layer_norm_fp32_fallback" not in tensorrt()


def test_tensorrt_captures_one_shape_only() -> None:
    assert tensorrt(graphs=True, max_batch=1)["trt_cuda_graph_enable"] == "1"
    with pytest.raises(ConfigError, match="cuda_graphs: TensorRT has them for one shape only; max_batch is 8, not 1"):
        tensorrt(graphs=True)


def test_options_come_from_yaml_and_from_flags(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("provider_options:\n  tensorrt: {trt_fp16_enable: true, trt_max_workspace_size: 2147483648}\n")
    config = flags.parse(
        ServerConfig, [f"--config_path={file}", "--provider_options.cuda.use_tf32=1"], prog="policy-server start"
    )
    assert options.as_text(config.provider_options["tensorrt"]) == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "2147483648",
    }
    assert options.as_text(config.provider_options["cuda"]) == {"use_tf32": "1"}


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("cpu", r"provider_options\.cpu: takes no options; expected one of cuda, tensorrt"),
        ("tensorr", "did you mean tensorrt?"),
    ],
)
def test_options_for_a_provider_that_takes_none_are_refused(provider: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ServerConfig(provider_options={provider: {"x": 1}})


@pytest.mark.parametrize("device", ["x", -1, 1.5, True])
def test_a_device_that_is_no_number_is_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"provider_options\.cuda\.device_id: .* is not the number of a GPU"):
        ServerConfig(provider_options={"cuda": {"device_id": device}})


def test_one_policy_runs_on_one_device() -> None:
    with pytest.raises(ConfigError, match=r"provider_options: device_id: 0 and 1; a policy runs on one GPU"):
        ServerConfig(provider_options={"cuda": {"device_id": 1}, "tensorrt": {"device_id": 0}})
    ServerConfig(provider_options={"cuda": {"device_id": 1}, "tensorrt": {"device_id": 1}})


# The cache.

BUILT_FOR = BuiltFor("weights", "1.32.0", "tensorrt 101200", "NVIDIA H200 sm_90")


@pytest.mark.parametrize(
    "change", [{"weights": "w"}, {"onnxruntime": "1.33.0"}, {"library": "tensorrt 11"}, {"device": "Orin sm_87"}]
)
def test_whatever_an_engine_depends_on_is_in_its_key(change: dict[str, str]) -> None:
    assert replace(BUILT_FOR, **change).key != BUILT_FOR.key
    assert replace(BUILT_FOR).key == BUILT_FOR.key


def test_other_weights_of_a_bundle_are_another_digest(tiny: Path, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", bias=1.0)
    renamed = write_bundle(tmp_path / "renamed", name="renamed")
    assert bundle.load(other).weights != bundle.load(tiny).weights
    assert bundle.load(renamed).weights == bundle.load(tiny).weights


def test_the_folder_says_what_it_was_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "tensorrt_version", lambda: "tensorrt 101200")
    monkeypatch.setattr(cache, "device_name", lambda device_id: f"GPU {device_id}")
    folder = cache.folder(tmp_path / "engines", onnxruntime, "w", 1)
    assert folder is not None
    assert json.loads((folder / "built_for.json").read_text()) == {
        "weights": "w",
        "onnxruntime": onnxruntime.__version__,
        "library": "tensorrt 101200",
        "device": "GPU 1",
    }
    assert cache.folder(tmp_path / "engines", onnxruntime, "w", 1) == folder
    assert cache.folder(tmp_path / "engines", onnxruntime, "w", 0) != folder


@pytest.mark.parametrize(("library", "device", "said"), [("", "GPU", "TensorRT"), ("tensorrt 1", "", "device")])
def test_what_cannot_be_told_is_not_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    library: str,
    device: str,
    said: str,
) -> None:
    monkeypatch.setattr(cache, "tensorrt_version", lambda: library)
    monkeypatch.setattr(cache, "device_name", lambda device_id: device)
    assert cache.folder(tmp_path, onnxruntime, "w", 0) is None
    assert f"no telling which {said} this is" in caplog.text


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "tensorrt_version", lambda: "tensorrt 1")
    monkeypatch.setattr(cache, "device_name", lambda device_id: "GPU")
    (tmp_path / "file").write_text("")
    assert cache.folder(tmp_path / "file", onnxruntime, "w", 0) is None
    assert "cannot be written" in caplog.text


def library(**functions: Callable[..., int]) -> types.SimpleNamespace:
    return types.SimpleNamespace(**functions)


def test_versions_and_devices_are_asked_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_name(name: Any, length: int, device: Any) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def get_attribute(out: Any, attribute: int, device: Any) -> int:
        out._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    libraries = {
        "libnvinfer.so.10": library(getInferLibVersion=lambda: 101200),
        "libcuda.so.1": library(
            cuInit=lambda flags: 0,
            cuDeviceGet=lambda device, number: 0,
            cuDeviceGetName=get_name,
            cuDeviceGetAttribute=get_attribute,
        ),
    }

    def load(name: str) -> Any:
        if name not in libraries:
            raise OSError(name)
        return libraries[name]

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert cache.tensorrt_version() == "tensorrt 101200"
    assert cache.device_name(0) == "NVIDIA H200 sm_90"
    libraries["libcuda.so.1"] = library(cuInit=lambda flags: 100)  # CUDA_ERROR_NO_DEVICE
    assert cache.device_name(0) == ""
    libraries.clear()
    assert (cache.tensorrt_version(), cache.device_name(0)) == ("", "")


# Fixed addresses.


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "TensorrtExecutionProvider"])
def test_memory_is_on_the_device_that_the_session_runs_on(provider: str) -> None:
    told = {provider: {"device_id": "1"}, "CPUExecutionProvider": {}}
    session = types.SimpleNamespace(get_providers=lambda: list(told), get_provider_options=lambda: told)
    assert device_of(session) == ("cuda", 1)
    del told[provider]
    assert device_of(session) == ("cpu", 0)


@pytest.mark.parametrize("have", [1, 2, 3])
def test_a_fixed_batch_gives_what_a_free_one_gives_padded_or_not(seeing: Path, have: int) -> None:
    loaded = bundle.load(seeing)
    session = onnxruntime.InferenceSession(str(loaded.graphs["policy"]), providers=["CPUExecutionProvider"])
    inputs = features(loaded.policy)
    fixed = FixedBatch(onnxruntime, session, 3, inputs, (ACTION, bundle.Feature((4, 3), np.dtype(np.float32))))
    random = np.random.default_rng(have)
    for _ in range(2):  # the memory is used again, and what it gave before stays
        batch = {name: random.integers(0, 99, (have, *f.shape)).astype(f.dtype) for name, f in inputs.items()}
        got = fixed.run(batch)
        np.testing.assert_array_equal(got, session.run([ACTION], batch)[0])
        before, kept = got.copy(), got
        fixed.run({name: array[::-1] + 1 for name, array in batch.items()})
        np.testing.assert_array_equal(kept, before)


def test_an_engine_that_captures_runs_each_batch_in_the_next_size_it_was_warmed_for(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []

    class Watched(FixedBatch):
        def run(self, batch: Any) -> Any:
            ran.append((len(batch["observation.state"]), self.size))
            return super().run(batch)

    monkeypatch.setattr(one_graph, "FixedBatch", Watched)
    monkeypatch.setattr(OneGraphEngine, "provider", "CUDAExecutionProvider")
    engine = OneGraphEngine(bundle.load(tiny), replace(CPU, cuda_graphs=True))
    engine.warm_up([1, 2, 4], lambda progress: None)
    ran.clear()
    for size in (1, 2, 3, 4, 5):
        states = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
        np.testing.assert_array_equal(engine.infer({"observation.state": states})[:, 0], states)
    assert ran == [(1, 1), (2, 2), (3, 4), (4, 4)]


# What was loaded is what was checked.


def test_a_bundle_damaged_between_check_and_load_is_noticed(tmp_path: Path) -> None:
    loaded = bundle.load(write_bundle(tmp_path / "was"))
    other = write_bundle(tmp_path / "other", bias=9.0)  # a good graph, but not the one that was checked
    (loaded.path / "policy.onnx").write_bytes((other / "policy.onnx").read_bytes())
    with pytest.raises(ModelError, match=r"policy\.onnx: is damaged"):
        open_engine(loaded, CPU)
    (loaded.path / "policy.onnx").unlink()
    with pytest.raises(ModelError, match=r"policy\.onnx"):
        open_engine(loaded, CPU)
