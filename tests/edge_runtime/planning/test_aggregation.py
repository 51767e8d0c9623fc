"""How chunks blend: LeRobot's numbers by name, a user's function, and the ACT paper's ensemble where it was trained."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_runtime._realtime import ActionRing, TemporalEnsemble
from edge_runtime.errors import ConfigError
from edge_runtime.planning import aggregation

OLD, NEW = np.full((4, 2), 10.0, np.float32), np.full((4, 2), 20.0, np.float32)


def blended(aggregate: object) -> float:
    """The first row after a chunk of 20 came over a plan of 10."""
    ring = ActionRing(8, 2, aggregate)  # type: ignore[arg-type]
    ring.open_session(1, clear=True, cursor=0)
    ring.merge(0, OLD, 1)
    ring.merge(0, NEW, 1)
    row = np.zeros(2, np.float32)
    ring.pick(row)
    return float(row[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("weighted_average", 17.0), ("latest_only", 20.0), ("average", 15.0), ("conservative", 13.0)],
)
def test_lerobots_names_are_lerobots_numbers(name: str, value: float) -> None:
    assert blended(aggregation.for_policy(name, 0.0)) == pytest.approx(value)


def test_the_default_spreads_a_seam_over_the_next_rows() -> None:
    first = blended(aggregation.for_policy(None, 0.0))
    assert first == blended(aggregation.NAMES["linear_blend"])
    assert 10 < first < 13  # the nearest timestep keeps most of the old plan


def test_a_policy_made_to_be_ensembled_is_ensembled_unless_told_otherwise() -> None:
    ensemble = aggregation.for_policy(None, 0.5)
    assert isinstance(ensemble, TemporalEnsemble)
    assert ensemble.coeff == 0.5
    weight = np.exp(-0.5)  # w_i = exp(-m i), the oldest first: section IV of the paper
    assert blended(ensemble) == pytest.approx((10 + 20 * weight) / (1 + weight))
    assert aggregation.for_policy("latest_only", 0.5) == (0.0, 1.0)
    assert aggregation.for_policy("temporal_ensemble", 0.0).coeff == aggregation.ENSEMBLE_COEFF


def test_the_ensemble_of_whole_trajectories_is_the_papers_formula() -> None:
    coeff, rows, random = 0.1, 6, np.random.default_rng(0)
    ring = ActionRing(2 * rows, 2, TemporalEnsemble(coeff))
    ring.open_session(1, clear=True, cursor=0)
    chunks: list[np.ndarray] = []
    row = np.zeros(2, np.float32)
    for timestep in range(40):
        chunks.append(random.normal(size=(rows, 2)).astype(np.float32))
        ring.merge(timestep, chunks[-1], 1)
        ring.pick(row)
        first = max(0, timestep - rows + 1)
        about_now = np.array([chunks[start][timestep - start] for start in range(first, timestep + 1)])
        weights = np.exp(-coeff * np.arange(len(about_now)))
        np.testing.assert_allclose(row, weights @ about_now / weights.sum(), atol=1e-5)


def test_a_function_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def larger(old, new):\n    return old.clip(new)\n")
    monkeypatch.chdir(tmp_path)
    assert blended(aggregation.resolve("mine:larger")) == 20.0


BAD = """
import sys
def raises(old, new): raise RuntimeError("boo")
def leaves(old, new): sys.exit(3)
def says(old, new): return "x"
def sums(old, new): return (old + new).sum(0)
def takes_one(old): return old
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "'bad:raises' failed: RuntimeError: boo"),
        ("leaves", "'bad:leaves' failed: SystemExit: 3"),
        ("says", "'bad:says' failed: ValueError: could not convert"),
        ("takes_one", "'bad:takes_one' failed: TypeError: takes_one() takes 1 positional argument but 2 were given"),
        ("sums", "the function returned shape (2,) for two of (4, 2)"),
    ],
)
def test_a_function_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    aggregate = aggregation.for_policy(f"bad:{function}", 0.0)
    with pytest.raises(ConfigError, match=f"aggregate_fn_name: {re.escape(said)}"):
        blended(aggregate)
    with pytest.raises(ConfigError, match="aggregate_fn_name: "):  # with a policy it is tried out at once
        aggregation.for_policy(f"bad:{function}", 0.0, (50, 2))


def test_a_function_that_works_is_tried_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.py").write_text("import numpy as np\ndef f(old, new): return old * np.ones(7) + new\n")
    monkeypatch.chdir(tmp_path)
    assert callable(aggregation.for_policy("good:f", 0.0, (50, 7)))
    with pytest.raises(ConfigError, match="failed: ValueError: operands could not be broadcast"):
        aggregation.for_policy("good:f", 0.0, (50, 6))


@pytest.mark.parametrize("cut", ["[:2]", "[:25]"])
def test_a_function_is_tried_out_on_as_many_rows_as_will_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Two rows would not show what is wrong with it."""
    (tmp_path / "short.py").write_text(f"def f(old, new): return new{cut}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "short", raising=False)
    with pytest.raises(ConfigError, match=r"the function returned shape .* for .* of \(50, 6\)"):
        aggregation.for_policy("short:f", 0.0, (50, 6))


@pytest.mark.parametrize("name", ["weighted_avrage", "no_such_module:f", "math:no_such_function", "math:pi"])
def test_what_is_no_function_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="aggregate_fn_name"):
        aggregation.for_policy(name, 0.0)


def test_a_file_beside_the_users_function_does_not_stand_in_for_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_beside_a_library.py").write_text("def blend(old, new):\n    return new\n")
    (tmp_path / "this.py").write_text("raise SystemExit('somebody else s library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "this", raising=False)
    aggregation.resolve("mine_beside_a_library:blend")
    found = importlib.util.find_spec("this")  # as whatever is imported later is looked for
    assert found is not None
    assert found.origin is not None
    assert not found.origin.startswith(str(tmp_path))
