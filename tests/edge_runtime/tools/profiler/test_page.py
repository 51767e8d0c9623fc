"""The page of a profile: whole, self-contained, and nobody's text becomes markup."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from edge_runtime.tools.profiler import page, text
from edge_runtime.tools.profiler.stage_log import PARTS
from tests.edge_runtime.tools.profiler.findings import findings


def body_of(content: str) -> ElementTree.Element:
    return ElementTree.fromstring(content[content.index("<body>") : content.index("</html>")])


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    content = page.render(findings(infer=0.1, network=0.01))
    assert len(body_of(content).findall("svg")) == 5
    assert not any(word in content for word in ("http", "src=", "<script", "@import", "url("))


def test_text_from_elsewhere_is_escaped() -> None:
    numbers = findings(infer=0.1)
    evil = replace(numbers, setting=replace(numbers.setting, policy="<script>alert(1)</script>"))
    assert "<script" not in page.render(evil)


def test_extremes_can_be_drawn() -> None:
    for numbers in (
        findings(trips=1, infer=1e-6),
        findings(trips=2000, infer=3.0),
        replace(findings(infer=0.1), levels=[(0.0, 0)], lateness=[(0.0, 1)]),
    ):
        assert len(body_of(page.render(numbers)).findall("svg")) == 5


def test_the_text_has_every_stage_and_fits_a_terminal() -> None:
    report = text.report(findings(**dict.fromkeys(PARTS, 0.1), other_s=0.1, cold_s=1.0))
    assert max(map(len, report.splitlines())) <= 160
    for stage in ("capture", "infer", "network", "other", "round_trip"):
        assert f"\n{stage} " in report
    row = next(line for line in report.splitlines() if line.startswith("infer"))
    assert row.split()[1:4] == ["1100.00", "20", "100.00"]


def test_what_took_no_time_and_what_so_few_cannot_tell_is_left_out() -> None:
    few, more = (text.report(findings(trips=trips, infer=0.1)) for trips in (6, 100))
    assert "\ninject " not in few
    (row,) = (line.split() for line in few.splitlines() if line.startswith("infer"))
    assert row[4:] == ["100.00", "–", "–", "100.00"]
    (row,) = (line.split() for line in more.splitlines() if line.startswith("infer"))
    assert row[4:] == ["100.00"] * 4
    drawn = page.render(findings(trips=6, infer=0.1))
    assert "p95 " not in drawn
    assert "<td>inject</td>" not in drawn
