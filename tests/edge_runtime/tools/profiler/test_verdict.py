"""What a profile says of its numbers: what bounds the loop, what fits, what to change first."""

from __future__ import annotations

import math

import pytest

from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.tools.profiler.verdict import sentences
from tests.edge_runtime.tools.profiler.findings import RAW_PAIR, findings


def said(**numbers: object) -> str:
    return "\n".join(sentences(findings(**numbers)))  # type: ignore[arg-type]


def test_raw_frames_on_a_slow_link_sending_bounds_and_jpeg_or_resize_is_the_way() -> None:
    raw = sum(picture.raw_bytes for picture in RAW_PAIR)
    text = said(
        receive=raw * 8 / 20e6, network=0.004, infer=0.02, pictures=RAW_PAIR, jpeg_quality=0, observation_bytes=raw
    )
    assert "Sending bounds the loop: 741 ms of it, 97%" in text
    assert "An observation is 1.84 MB, and the link carries 20.0 Mbit/s" in text
    assert f"Change first: send JPEG instead of raw frames: --jpeg_quality={BEST_QUALITY} makes" in text
    assert "makes 1.84 MB of pixels 170 kB" in text
    assert "a round trip of about 92.0 ms" in text
    assert "a policy exported for 320x240 with --resize=true needs 461 kB raw" in text


def test_jpeg_that_still_is_too_much() -> None:
    text = said(receive=0.5, infer=0.02, pictures=RAW_PAIR, observation_bytes=170_000)
    assert "a lower --jpeg_quality, fewer cameras, or resize here" in text
    assert "instead of raw" not in text


def test_a_server_far_away_is_not_a_matter_of_bytes() -> None:
    text = said(network=0.3, receive=0.01, infer=0.02, pictures=RAW_PAIR, jpeg_quality=0, observation_bytes=1_843_200)
    assert "the distance: an empty message takes 300 ms both ways" in text


def test_a_slow_policy_says_which_chunk_fps_and_round_trip_would_fit() -> None:
    text = said(infer=1.2)
    assert "The policy bounds the loop: 1.20 s of it, 100%" in text
    assert "No threshold is safe: a round trip is 36 actions long, and a chunk of 50" in text
    assert "the arm stops and goes" in text
    assert "chunks of 73 actions, or 20.4 fps, or a round trip of 0.82 s" in text
    assert "the server carries 1 robot like this one" in text


@pytest.mark.parametrize(("rows", "fps"), [(73, 30.0), (50, 20.0)])
def test_what_is_said_to_fit_fits(rows: int, fps: float) -> None:
    assert findings(infer=1.2, rows=rows, fps=fps).fits
    assert not findings(infer=1.2, rows=rows - 2, fps=fps).fits


def test_a_fast_policy_says_its_threshold_and_what_it_could_carry() -> None:
    numbers = findings(infer=0.1, network=0.05)
    text = said(infer=0.1, network=0.05)
    assert numbers.safe_rows == math.ceil(0.15 * 30) + 1
    assert "g* is 0.12: ask when 6 of 50 actions are left" in text
    assert "auto, once it knows 10 round trips, asks at 25, and at 25 with the similarity filter" in " ".join(
        text.split()
    )
    assert "up to 163 fps with chunks of 50, or chunks from 11 actions at 30 fps" in text
    assert "the server carries 14 robots" in text
    assert "Change first: nothing has to be" in text


def test_a_round_trip_within_a_tick_leaves_nothing_to_change() -> None:
    text = said(infer=0.002)
    assert "Change first: nothing; a round trip is shorter than a tick." in text
    assert "carry any fps (1000 is the most that can be set) with chunks of 50" in text


def test_a_percentile_needs_as_many_round_trips() -> None:
    assert "p95" in said(infer=0.1, trips=20)
    assert "p95" not in said(infer=0.1, trips=19)


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        ("capture", "extra_state or a camera"),
        ("wait", "inferences of others"),
        ("prepare", "an accelerator"),
        ("inject", "--inject_latency_ms"),
        ("merge", "the aggregate"),
    ],
)
def test_each_bound_has_an_advice(stage: str, advice: str) -> None:
    assert advice in said(**{stage: 0.5})


def test_when_nothing_accounts_for_it_it_is_other() -> None:
    assert "Other bounds the loop" in said(infer=0.05, other_s=0.6)
    assert "threads wait for a processor" in said(infer=0.05, other_s=0.6)


def test_cold_bus_and_lateness_are_mentioned_only_when_they_matter() -> None:
    calm = said(infer=0.1)
    assert not any(word in calm for word in ("first round trip", "latency timer", "no processor"))
    assert "The first round trip took 2.10 s" in said(infer=0.1, cold_s=2.0)
    assert "The bus takes 12.0 ms of each period of 33.3 ms" in said(infer=0.1, bus_p95_s=0.012)
    assert "60 of 600 ticks were late" in said(infer=0.1, late=60)
