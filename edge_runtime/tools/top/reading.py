"""One look at a robot's metrics."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from edge_runtime.errors import StreamError
from edge_runtime.program import direct

PREFIX = "edge_runtime_"
ANSWER_S = 2.0


@dataclass(frozen=True)
class Reading:
    """`numbers` are the metrics without labels, `joints` those of the bus by joint; names without the prefix."""

    at_s: float  # monotonic
    state: str
    numbers: Mapping[str, float]
    joints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)  # joint -> what its servo reports

    def __getitem__(self, name: str) -> float:
        return self.numbers.get(name, 0.0)


def read(url: str) -> Reading:
    """Ask once. Raises StreamError when there is no answer, or one that is not a robot's."""
    try:
        with direct.urlopen(url, ANSWER_S) as answer:
            body = answer.read().decode()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        reason = getattr(reason, "strerror", None) or reason
        port = urlsplit(url).port or 80
        raise StreamError(
            f"url: {url} does not answer ({reason}); start the robot with --metrics_port={port}"
        ) from error
    return parse(body, url)


def parse(body: str, url: str) -> Reading:
    """The reading in a page of Prometheus text. Raises StreamError when it is not an edge runtime's."""
    state, numbers = "", {}
    joints: dict[str, dict[str, float]] = {}
    errors: dict[str, str] = {}
    try:
        families = list(text_string_to_metric_families(body))
    except (ValueError, KeyError, IndexError) as error:
        raise StreamError(f"url: {url} answers something that is not Prometheus' text") from error
    for sample in (sample for family in families for sample in family.samples):
        name = sample.name.removeprefix(PREFIX)
        if name == "state":
            state = sample.labels["state"] if sample.value else state
        elif name == "bus_errors":
            errors[sample.labels["joint"]] = sample.labels["error"]
        elif "joint" in sample.labels:
            joints.setdefault(sample.labels["joint"], {})[name.removeprefix("bus_")] = sample.value
        elif not sample.labels:
            numbers[name] = sample.value
    if not state:
        raise StreamError(f"url: {url} is not an edge runtime's metrics port")
    return Reading(time.monotonic(), state, numbers, joints, errors)
