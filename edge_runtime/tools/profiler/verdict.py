"""What the numbers of a profile mean, in sentences: what bounds the loop, what fits, and what to change first."""

from __future__ import annotations

import math

from edge_runtime.link.uplink import BEST_QUALITY
from edge_runtime.timing import EARLY_SAMPLES, can_tell
from edge_runtime.tools.profiler.findings import MOST_FPS, Findings, Picture

MUCH_SENDING = 0.1  # of a round trip: then frames are worth a sentence even if something else takes more
ROOM = 2  # chunks this many times as long as they must be leave nothing to wish for
SLOW_BUS = 0.25  # of the loop's period
SLOW_START = 3.0  # times a warm round trip
LATE = 0.01  # of all ticks


def sentences(findings: Findings) -> list[str]:
    """In the order in which one would read them; each stands alone."""
    return [
        _bound(findings),
        _threshold(findings),
        _fit(findings),
        *_robots(findings),
        "Change first: " + _change(findings),
        *_cold(findings),
        *_bus(findings),
        *_lateness(findings),
    ]


def _bound(findings: Findings) -> str:
    name, trip = findings.bound_by, findings.stages["round_trip"]
    share = findings.groups[name] / trip.mean
    tail = f"p95 {_ms(trip.p95)}, " if can_tell("p95", trip.n) else ""
    said = (
        f"A round trip takes {_ms(trip.p50)} (p50; {tail}largest {_ms(trip.max)} of {trip.n}). "
        f"{name[0].upper() + name[1:]} bounds the loop: {_ms(findings.groups[name])} of it, {share:.0%}."
    )
    if name == "sending" and math.isfinite(findings.link_bytes_s):
        said += (
            f" An observation is {_bytes(findings.observation_bytes)}, and the link carries "
            f"{findings.link_bytes_s * 8 / 1e6:.1f} Mbit/s."
        )
    return said


def _threshold(findings: Findings) -> str:
    rows, chunk = findings.safe_rows, findings.setting.rows
    if not findings.fits:
        return (
            f"No threshold is safe: a round trip is {_rows(findings)} actions long, and a chunk of {chunk} does not "
            f"last for two of them."
        )
    return (
        f"The smallest safe threshold g* is {rows / chunk:.2f}: ask when {rows} of {chunk} actions are left, "
        f"a chunk every {findings.chunk_every_s:.2f} s. chunk_size_threshold=auto, once it knows {EARLY_SAMPLES} round "
        f"trips, asks at {findings.auto_rows(filtered=False)}, and at {findings.auto_rows(filtered=True)} with the "
        f"similarity filter, which start has on for joints in degrees."
    )


def _fit(findings: Findings) -> str:
    setting = findings.setting
    if findings.fits:
        most = f"up to {findings.most_fps:.0f} fps"
        if findings.most_fps >= MOST_FPS:
            most = f"any fps ({MOST_FPS:g} is the most that can be set)"
        return (
            f"This link and policy carry {most} with chunks of {setting.rows}, "
            f"or chunks from {findings.least_chunk} actions at {setting.fps:g} fps."
        )
    least_s = (setting.rows - 1) / (2 * setting.fps)
    return (
        f"At {setting.fps:g} fps with chunks of {setting.rows} the arm stops and goes. What would fit: chunks of "
        f"{findings.least_chunk} actions, or {findings.most_fps:.1f} fps, or a round trip of {least_s:.2f} s."
    )


def _robots(findings: Findings) -> list[str]:
    if findings.engine_s <= 0:
        return []
    count, busy = findings.robots, findings.engine_s / findings.chunk_every_s
    many = "over 100 robots" if count > 100 else f"{count} robot{'s' * (count != 1)}"
    return [
        f"One robot keeps the engine busy for {busy:.1%} of the time: the server carries {many} like this one, "
        f"one after the other."
    ]


def _change(findings: Findings) -> str:
    if findings.stages["round_trip"].p95 < 1 / findings.setting.fps:
        return "nothing; a round trip is shorter than a tick."
    if ROOM * findings.least_chunk <= findings.setting.rows:
        return f"nothing has to be; for actions that rest on newer observations, {_advice(findings)}"
    return _advice(findings)


def _advice(findings: Findings) -> str:
    if findings.bound_by == "sending":
        return _sending(findings)
    advice = {
        "looking": "how long it takes to look: a URL of extra_state or a camera answers slowly.",
        "waiting": "who else uses the server: observations wait for the inferences of others.",
        "the policy": "the engine: an accelerator (--providers), lower precision, or a smaller policy; "
        "JPEG decoding is in prepare.",
        "the delay asked for": "the delay that the server was asked for, --inject_latency_ms.",
        "merging": "the aggregate: a function of your own is slow.",
        "other": "what else runs on this machine: threads wait for a processor.",
    }[findings.bound_by]
    if findings.groups["sending"] > MUCH_SENDING * findings.stages["round_trip"].mean and _saves(findings) > 0.5:
        advice += f" Then {_sending(findings)}"
    return advice


def _sending(findings: Findings) -> str:
    setting, stages = findings.setting, findings.stages
    if stages["network"].mean > stages["receive"].mean + stages["encode"].mean:
        return (
            f"the distance: an empty message takes {_ms(stages['network'].p50)} both ways; a server that is nearer, "
            f"a cable instead of wireless."
        )
    if not setting.pictures:
        return "the link: the observations are as small as they get."
    if setting.jpeg_quality:
        return (
            f"what is sent: {len(setting.pictures)} frames as JPEG of quality {setting.jpeg_quality} are "
            f"{_bytes(findings.frame_bytes)}; a lower --jpeg_quality, fewer cameras, or "
            + _smaller(findings, setting.pictures, raw=False)
        )
    jpeg = sum(picture.jpeg_bytes for picture in setting.pictures)
    return (
        f"send JPEG instead of raw frames: --jpeg_quality={BEST_QUALITY} makes "
        f"{_bytes(findings.frame_bytes)} of pixels {_bytes(jpeg)}{_and_so(findings, jpeg)}. "
        f"Or {_smaller(findings, setting.pictures, raw=True)}"
    )


def _smaller(findings: Findings, pictures: tuple[Picture, ...], *, raw: bool) -> str:
    """Half as wide and half as high."""
    largest = max(pictures, key=lambda picture: picture.raw_bytes)
    quarter = findings.frame_bytes / 4
    return (
        f"resize here: a policy exported for {largest.width // 2}x{largest.height // 2} with --resize=true needs "
        f"{_bytes(quarter)}{' raw' * raw}{_and_so(findings, quarter)}."
    )


def _and_so(findings: Findings, frames: float) -> str:
    """What the round trip would be with so many bytes of frames."""
    if not math.isfinite(findings.link_bytes_s):
        return ""
    saved_s = (findings.frame_bytes - frames) / findings.link_bytes_s
    return f", a round trip of about {_ms(max(findings.stages['round_trip'].p50 - saved_s, 0))}"


def _saves(findings: Findings) -> float:
    """The part of the frames' bytes that JPEG would save."""
    if findings.setting.jpeg_quality or not findings.frame_bytes:
        return 0.0
    return 1 - sum(picture.jpeg_bytes for picture in findings.setting.pictures) / findings.frame_bytes


def _cold(findings: Findings) -> list[str]:
    warm_s = findings.stages["round_trip"].p50
    if findings.cold.round_trip_s < SLOW_START * warm_s:
        return []
    return [
        f"The first round trip took {_ms(findings.cold.round_trip_s)}, {findings.cold.round_trip_s / warm_s:.1f} times "
        f"a warm one: the arm waits for it once."
    ]


def _bus(findings: Findings) -> list[str]:
    bus, period_s = findings.report["bus_time_s"], 1 / findings.setting.control_hz
    if bus["p95"] <= SLOW_BUS * period_s:
        return []
    return [
        f"The bus takes {_ms(bus['p95'])} of each period of {_ms(period_s)} (p95): look at the adapter's latency timer "
        f"and at the servos' return delay."
    ]


def _lateness(findings: Findings) -> list[str]:
    loop = findings.report["loop"]
    if loop["late"] + loop["missed"] <= LATE * loop["ticks"]:
        return []
    return [
        f"{loop['late']} of {loop['ticks']} ticks were late and {loop['missed']} missed: the loop has no processor in "
        f"time ({findings.report['realtime']})."
    ]


def _rows(findings: Findings) -> int:
    return math.ceil(findings.quantile_s * findings.setting.fps)


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    if ms >= 1000:
        return f"{seconds:.2f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def _bytes(count: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"
