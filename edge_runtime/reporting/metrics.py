"""The run's stats for Prometheus, under the summary's names: read when it asks, on a port of this machine only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edge_runtime.reporting.run_stats import RunStats
from edge_runtime.timing import Histogram

PREFIX = "edge_runtime_"
SECONDS = (1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STATES = ("starting", "running", "draining", "holding", "fault", "stopping")
_HEALTH = {"load": "percent of the duty", "voltage": "V", "temperature": "degrees Celsius", "current": "A"}


class RunCollector(Collector):
    """A view of the stats: nothing is counted here."""

    def __init__(self, stats: RunStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        report = stats.report()
        yield from self._now(stats)
        for group in ("loop", "observations", "chunks", "traffic"):
            for name, value in report[group].items():
                yield _counter(f"{group}_{name}", value)
        yield _counter("reconnects", report["reconnects"])
        yield _counter("faults", stats.reporter.count)
        yield _histograms("lateness", {"": stats.loop.lateness()})
        yield _histograms("action_age", {"": stats.loop.action_age()})
        yield _histograms("bus_time", {"": stats.loop.bus_time()})
        yield _histograms("stage", stats.planner.stages.histograms, label="stage")
        yield from _bus(report["bus"])

    def _now(self, stats: RunStats) -> Iterator[Metric]:
        now = stats.now()
        yield _gauge("queue_level", "Actions left.", now["queue_level"])
        yield _gauge("threshold_rows", "A chunk is asked for when no more are left.", now["threshold_rows"])
        yield _gauge("round_trip_seconds", "The last one.", now["round_trip_s"])
        yield _gauge("control_hz", "The rate that is kept.", now["control_hz"])
        yield _gauge("jpeg_quality", "Of the pictures that are sent; 0 = raw.", now["jpeg_quality"])
        states = GaugeMetricFamily(f"{PREFIX}state", "1 = the present one.", labels=["state"])
        for state in STATES:
            states.add_metric([state], state == now["state"])
        yield states


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, what, value=value)


def _counter(name: str, value: float | Mapping[str, float]) -> Metric:
    """A count since the start; one that is split has a label `kind`."""
    if not isinstance(value, Mapping):
        return CounterMetricFamily(PREFIX + name, "As in the summary.", value=value)
    family = CounterMetricFamily(PREFIX + name, "As in the summary.", labels=["kind"])
    for kind, count in value.items():
        family.add_metric([kind], count)
    return family


def _histograms(name: str, histograms: Mapping[str, Histogram], label: str | None = None) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}{name}_seconds", "As in the summary.", labels=[label] if label else None)
    for value, histogram in histograms.items():
        counts = histogram.cumulative(SECONDS)
        buckets: list[tuple[str, float]] = [(str(bound), n) for bound, n in zip(SECONDS, counts, strict=True)]
        family.add_metric([value] if label else [], [*buckets, ("+Inf", histogram.n)], histogram.sum_s)
    return family


def _bus(report: Mapping[str, Any]) -> Iterable[Metric]:
    joints: Mapping[str, Mapping[str, Any]] = report["joints"]
    misses = CounterMetricFamily(f"{PREFIX}bus_misses", "Replies that did not come.", labels=["joint"])
    errors = GaugeMetricFamily(f"{PREFIX}bus_errors", "1 = the servo reported it.", labels=["joint", "error"])
    for joint, counts in joints.items():
        misses.add_metric([joint], counts["misses"])
        if counts["errors"]:
            errors.add_metric([joint, counts["errors"]], 1)
    yield misses
    yield errors
    for name, unit in _HEALTH.items():
        family = GaugeMetricFamily(f"{PREFIX}bus_{name}", f"The last reading, {unit}.", labels=["joint"])
        for joint, counts in joints.items():
            if name in counts:
                family.add_metric([joint], counts[name])
        yield family
    for name, count in report.items():
        if name != "joints":
            yield _counter(f"bus_{name}", count)
