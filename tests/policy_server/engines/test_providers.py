"""Execution providers: what was asked for is what runs, or one line says what was got instead."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from edge_runtime.errors import ConfigError
from policy_server.engines import providers
from policy_server.engines.providers import (
    Runtime,
    candidates,
    check,
    import_onnxruntime,
    open_session,
    placement,
    require,
    require_placed,
    session_options,
)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


@pytest.mark.parametrize(
    ("wanted", "available", "expected"),
    [
        ("auto", [CPU], [CPU]),
        ("auto", [TENSORRT, CUDA, CPU], [CUDA, CPU]),
        ("cpu", [TENSORRT, CUDA, CPU], [CPU]),
        ("cuda", [TENSORRT, CUDA, CPU], [CUDA]),
        ("tensorrt", [TENSORRT, CUDA, CPU], [TENSORRT]),
    ],
)
def test_candidates(wanted: str, available: list[str], expected: list[str]) -> None:
    assert candidates(wanted, available) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("wanted", "name"), [("cuda", CUDA), ("tensorrt", TENSORRT)])
def test_a_provider_that_is_not_built_in_is_refused_with_what_there_is(wanted: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"wanted {name}, got an onnxruntime with \[{CPU}\] only.*server-gpu"):
        candidates(wanted, [CPU])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "got", "said"),
    [
        ([CUDA], [CPU], f"wanted {CUDA}, got {CPU}"),
        ([CUDA], [], f"wanted {CUDA}, got none"),
        ([CUDA], [CPU, CUDA], f"wanted {CUDA}, got {CPU}, {CUDA}"),
        ([TENSORRT, CUDA], [TENSORRT, CPU], f"wanted {TENSORRT}, {CUDA}, got {TENSORRT}, {CPU}"),
        ([TENSORRT, CUDA], [CUDA, CPU], f"wanted {TENSORRT}, {CUDA}, got {CUDA}, {CPU}"),
    ],
)
def test_a_silent_fall_back_is_refused(wanted: list[str], got: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        require(wanted, got)
    require([CUDA], [CUDA, CPU])
    require([TENSORRT, CUDA], [TENSORRT, CUDA, CPU])


def test_no_thread_spins_and_their_number_is_as_asked() -> None:
    options = session_options(onnxruntime, Runtime(threads=3))
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def test_a_missing_onnxruntime_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[server\]"):
        import_onnxruntime()
    with pytest.raises(ConfigError):
        check(Runtime("auto"))


@dataclass
class Node:
    op_type: str


class GpuBuild:
    """onnxruntime-gpu on a machine of our choice.

    `got` is what a session ends up with, `fails` what it says, `placed` where its nodes are.
    """

    def __init__(self, got: dict[str, list[str]], fails: dict[str, str], placed: dict[str, list[str]] | None) -> None:
        self._got = got
        self._fails = fails
        self._placed = placed
        self.asked: list[list[tuple[str, dict[str, str]]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)

    def get_available_providers(self) -> list[str]:
        return [TENSORRT, CUDA, CPU]

    def preload_dlls(self) -> None: ...

    def InferenceSession(self, graph: str, options: Any, providers: list[Any], **more: Any) -> Any:
        first = providers[0] if isinstance(providers[0], str) else providers[0][0]
        if first != CPU:
            self.asked.append(providers)
        if first in self._fails:
            raise RuntimeError(self._fails[first])
        session = onnxruntime.InferenceSession(graph, options, [CPU])
        got = self._got.get(first, [CPU])
        session.get_providers = lambda: got
        placed = self._placed or {first: ["Add"]}
        session.get_provider_graph_assignment_info = lambda: [
            SimpleNamespace(ep_name=name, get_nodes=lambda operators=operators: list(map(Node, operators)))
            for name, operators in placed.items()
        ]
        return session


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuBuild]:
    def install(
        got: dict[str, list[str]] | None = None,
        fails: dict[str, str] | None = None,
        placed: dict[str, list[str]] | None = None,
    ) -> GpuBuild:
        build = GpuBuild(got or {}, fails or {}, placed)
        monkeypatch.setattr(providers, "import_onnxruntime", lambda: build)
        return build

    return install


def test_a_gpu_build_without_a_gpu_is_refused_unless_auto(
    tiny: Path, gpu_build: Callable[..., GpuBuild], caplog: pytest.LogCaptureFixture
) -> None:
    gpu_build()  # as it comes: a log line, and a session on the CPU
    graph = tiny / "policy.onnx"
    for wanted in ("cuda", "tensorrt"):
        with pytest.raises(ConfigError, match=f"wanted {providers.NAMES[wanted]}.*, got {CPU} "):
            open_session(graph, Runtime(wanted))  # type: ignore[arg-type]
    caplog.clear()
    assert open_session(graph, Runtime("auto")).get_providers() == [CPU]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith(f"; trying {CPU}")


BOTH = {CUDA: [CUDA, CPU], TENSORRT: [TENSORRT, CUDA, CPU]}


@pytest.mark.parametrize(
    ("wanted", "placed", "said"),
    [
        ("cuda", {CPU: ["Add", "Add"]}, rf"wanted {CUDA}, got no node of policy.onnx on it \({CPU} 2\)"),
        ("tensorrt", {CUDA: ["MatMul"]}, rf"wanted {TENSORRT}, got no node of policy.onnx on it \({CUDA} 1\)"),
        (
            "cuda",
            {CUDA: ["MatMul"], CPU: ["Shape", "Conv", "FusedMatMul", "Conv"]},
            rf"wanted {CUDA}, got 2 Conv, 1 FusedMatMul of policy.onnx on the CPU \({CUDA} 1, {CPU} 4\)",
        ),
    ],
)
def test_a_silent_fall_back_by_node_is_refused(
    tiny: Path, gpu_build: Callable[..., GpuBuild], wanted: Any, placed: dict[str, list[str]], said: str
) -> None:
    gpu_build(BOTH, placed=placed)
    with pytest.raises(ConfigError, match=said):
        open_session(tiny / "policy.onnx", Runtime(wanted))


@pytest.mark.parametrize("wanted", ["cuda", "tensorrt"])
def test_where_the_nodes_run_is_said(
    tiny: Path, gpu_build: Callable[..., GpuBuild], caplog: pytest.LogCaptureFixture, wanted: Any
) -> None:
    caplog.set_level(logging.INFO)
    name = providers.NAMES[wanted]
    gpu_build(BOTH, placed={name: ["MatMul", "Add"], CPU: ["Shape"]})
    open_session(tiny / "policy.onnx", Runtime(wanted))
    assert f"policy.onnx: nodes by provider: {name} 2, {CPU} 1" in caplog.messages


def test_an_onnxruntime_tells_where_nodes_run_or_is_too_old_to(tiny: Path) -> None:
    session = open_session(tiny / "policy.onnx", Runtime("cpu"))
    tells = hasattr(session, "get_provider_graph_assignment_info")
    assert placement(session).keys() == ({CPU} if tells else set())
    assert placement(object()) == {}
    require_placed(tiny, [CUDA], {})


def test_what_tensorrt_cannot_run_goes_to_cuda(tiny: Path, tmp_path: Path, gpu_build: Callable[..., GpuBuild]) -> None:
    build = gpu_build({TENSORRT: [TENSORRT, CUDA, CPU]})
    runtime = Runtime("tensorrt", max_batch=4, cache_dir=tmp_path, options={"cuda": {"gpu_mem_limit": 1 << 30}})
    open_session(tiny / "policy.onnx", runtime, weights="w")
    ((first, told), (second, cuda)) = build.asked[0]
    assert (first, second) == (TENSORRT, CUDA)
    assert told["trt_profile_max_shapes"] == "observation.state:4x3"
    assert cuda["gpu_mem_limit"] == "1073741824"
    assert "enable_cuda_graph" not in cuda


@pytest.mark.parametrize("named_for", ["cuda", "tensorrt"])
def test_tensorrt_and_what_it_leaves_to_cuda_are_on_one_device(
    tiny: Path, gpu_build: Callable[..., GpuBuild], monkeypatch: pytest.MonkeyPatch, named_for: str
) -> None:
    build = gpu_build({TENSORRT: [TENSORRT, CUDA, CPU]})
    kept_for: list[int] = []
    monkeypatch.setattr(providers.cache, "folder", lambda root, ort, weights, device: kept_for.append(device))
    open_session(tiny / "policy.onnx", Runtime("tensorrt", options={named_for: {"device_id": 1}}))
    assert [told["device_id"] for _, told in build.asked[0]] == ["1", "1"]
    assert kept_for == [1]


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_an_option_that_onnxruntime_rejects_is_an_error_even_for_auto(
    tiny: Path, gpu_build: Callable[..., GpuBuild], wanted: Any
) -> None:
    gpu_build(fails={CUDA: 'Unknown provider option: "use_tf23".\nand more'})
    with pytest.raises(ConfigError, match=f'^provider_options: {CUDA} says: Unknown provider option: "use_tf23".$'):
        open_session(tiny / "policy.onnx", Runtime(wanted, options={"cuda": {"use_tf23": False}}))


def test_graphs_are_captured_only_where_they_are_run_at_fixed_addresses(
    tiny: Path, gpu_build: Callable[..., GpuBuild]
) -> None:
    build = gpu_build({CUDA: [CUDA, CPU]})
    for static, captured in ((False, None), (True, "1")):
        open_session(tiny / "policy.onnx", Runtime("cuda", cuda_graphs=True), static=static)
        assert build.asked[-1][0][1].get("enable_cuda_graph") == captured
