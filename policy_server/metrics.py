"""What the server has done and is doing, for Prometheus: read when it asks, on a port of this machine only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edge_runtime.timing import Histogram
from policy_server.door.refusals import Refusals
from policy_server.serving.models import Models

SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MODEL = ["model"]


class ServerCollector(Collector):
    """A view of the models: nothing is counted here, and what was unloaded is gone."""

    def __init__(self, models: Models, refused: Refusals, version: str) -> None:
        self._models = models
        self._refused = refused
        self._version = version

    def collect(self) -> Iterable[Metric]:
        build = InfoMetricFamily("policy_server_build", "The server's version.")
        build.add_metric([], {"version": self._version})
        refused = CounterMetricFamily("policy_server_refused_streams", "Streams refused or ended with an error.")
        refused.add_metric([], self._refused.count)
        info = InfoMetricFamily("policy_server_model", "What runs under a model's name, and on what.", labels=MODEL)
        sessions = GaugeMetricFamily("policy_server_sessions", "Robots connected.", labels=MODEL)
        queue = GaugeMetricFamily(
            "policy_server_queue_age_seconds", "Age of the observation that waits longest.", labels=MODEL
        )
        overloaded = GaugeMetricFamily(
            "policy_server_overloaded", "1 = more is asked than the engine can carry.", labels=MODEL
        )
        answers = CounterMetricFamily(
            "policy_server_answers",
            "Answers to observations: chunk, failure, or why skipped.",
            labels=[*MODEL, "answer"],
        )
        stages = HistogramMetricFamily(
            "policy_server_stage_seconds", "Time of an observation's chunk in each stage.", labels=[*MODEL, "stage"]
        )
        batches = HistogramMetricFamily(
            "policy_server_batch_size", "Observations that shared an inference.", labels=MODEL
        )
        halved = CounterMetricFamily(
            "policy_server_halved_batches", "Batches that failed and were halved.", labels=MODEL
        )
        busy = CounterMetricFamily("policy_server_engine_busy_seconds", "Time the engine was at work.", labels=MODEL)
        for model in self._models:
            name, stats = [model.name], model.stats
            facts = {"type": model.policy.type, "digest": model.policy.digest.hex()[:12]}
            info.add_metric(name, {**facts, "provider": model.scheduler.provider})
            wires = model.wires
            sessions.add_metric(name, wires.pop("", 0))
            for wire, number in wires.items():
                sessions.add_sample(sessions.name, {"model": model.name, "wire": wire}, number)
            queue.add_metric(name, model.waiting_s)
            overloaded.add_metric(name, model.overloaded)
            for answer, count in dict(stats.answers).items():
                answers.add_metric([*name, answer], count)
            for (wire, answer), count in dict(stats.foreign).items():
                labels = {"model": model.name, "answer": answer, "wire": wire}
                answers.add_sample(f"{answers.name}_total", labels, count)
            for stage, histogram in stats.stages.histograms.items():
                stages.add_metric([*name, stage], _seconds(histogram), histogram.sum_s)
            batches.add_metric(name, *_sizes(dict(stats.batches)))
            halved.add_metric(name, stats.halved)
            busy.add_metric(name, stats.busy_s)
        return (build, refused, info, sessions, queue, overloaded, answers, stages, batches, halved, busy)


def _seconds(histogram: Histogram) -> list[tuple[str, float]]:
    counts = histogram.cumulative(SECONDS)
    return [*((str(bound), count) for bound, count in zip(SECONDS, counts, strict=True)), ("+Inf", histogram.n)]


def _sizes(batches: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets of batch sizes (powers of two), and how many observations that were."""
    bounds = [1 << power for power in range(8)]
    buckets = [(str(bound), sum(n for size, n in batches.items() if size <= bound)) for bound in bounds]
    return [*buckets, ("+Inf", sum(batches.values()))], sum(size * n for size, n in batches.items())
