"""Execution providers: what was asked for is what runs, or one line says what was got instead."""

from __future__ import annotations

import sys

import onnxruntime
import pytest

from edge_runtime.errors import ConfigError
from policy_server.engines.providers import (
    Runtime,
    candidates,
    check,
    import_onnxruntime,
    provider_options,
    require,
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


@pytest.mark.parametrize(("got", "named"), [([CPU], CPU), ([], "none"), ([CPU, CUDA], CPU)])
def test_a_silent_fall_back_is_refused(got: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=f"wanted {CUDA}, got {named}"):
        require(CUDA, got)
    require(CUDA, [CUDA, CPU])


def test_no_thread_spins_and_their_number_is_as_asked() -> None:
    options = session_options(onnxruntime, Runtime(threads=3))
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def test_cuda_keeps_parity() -> None:
    assert provider_options(CUDA)["use_tf32"] == "0"
    assert provider_options(CPU) == {}


def test_a_missing_onnxruntime_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"install edge-runtime\[server\]"):
        import_onnxruntime()
    with pytest.raises(ConfigError):
        check(Runtime("auto"))
