"""What the benches say of their own figures: none of them may be met because nothing was measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_runtime.errors import EdgeRuntimeError
from edge_runtime.timing import Histogram
from edge_runtime.wire import codec
from edge_runtime.wire.messages import Chunk, Failure
from policy_server import bundle
from scripts.benches import loop, ring, tls
from scripts.benches.server import reach


def of(*lateness_s: float) -> Histogram:
    found = Histogram()
    for each_s in lateness_s:
        found.record(each_s)
    return found


def test_lateness_is_compared_median_with_median(capsys: pytest.CaptureFixture[str]) -> None:
    ours = [of(1e-4), of(2e-4), of(8e-4)]
    theirs = [of(1e-2), of(2e-2), of(9e-2)]
    assert loop.judge(ours, theirs)
    assert not loop.judge(theirs, ours)
    said = capsys.readouterr().out
    median, least, most = (1e3 * run.percentile(0.99) for run in (ours[1], ours[0], ours[2]))
    assert f"p99 {median:.3f} ms ({least:.3f}–{most:.3f};" in said
    assert f"p50 {theirs[1].percentile(0.5) / ours[1].percentile(0.5):.0f} x below" in said
    assert loop.middle(ours) is ours[1]


@pytest.mark.parametrize(("torn", "back", "well"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_a_torn_row_is_a_failure(monkeypatch: pytest.MonkeyPatch, torn: int, back: int, well: bool) -> None:
    monkeypatch.setattr(ring, "race", lambda _, rows: (rows, torn, back))
    assert ring.stress(1000) is well


def test_memory_is_compared_with_a_later_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first one is all that was asked for."""
    server = SimpleNamespace(address="", rss_mb=100.0)

    def flood(*arguments: object, **settings: object) -> SimpleNamespace:
        server.rss_mb += 10
        return SimpleNamespace(chunks=5_048)

    monkeypatch.setattr(reach.fleet, "run", flood)
    line = reach._soak(server, None, 5_000)
    assert "+10.0 MB since 5048, when it was 110 MB" in line.measured
    assert line.met is False


def test_an_error_is_no_answer() -> None:
    line = object.__new__(tls.Line)
    line._policy = bundle.load(bundle.locate("act_so101_pick_place")).policy
    line._call = iter([codec.encode_failure(Failure(1, 13, "no memory", "e1")).SerializeToString()])
    with pytest.raises(EdgeRuntimeError, match="no memory"):
        line._hear(Chunk)
