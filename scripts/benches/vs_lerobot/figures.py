"""The rows of the table, in order, and what is to be reached in each."""

from __future__ import annotations

from scripts.benches.vs_lerobot.table import Row

FIGURES = {
    "idle_rate": Row("rate, idle", "Hz", more_is_worse=False, digits=3),
    "idle_late_p99": Row("lateness p99, idle", "ms", digits=3),
    "idle_jitter": Row("jitter of the period p99, idle", "ms", digits=3),
    "busy_rate": Row("rate, busy core", "Hz", more_is_worse=False, digits=3),
    "busy_late_p50": Row("lateness p50, busy core", "ms", digits=3),
    "busy_late_p99": Row("lateness p99, busy core", "ms", times_less=50, digits=3),
    "busy_sent_p99": Row("the same of the goal given to the robot", "ms", digits=3),
    "busy_jitter": Row("jitter of the period p99, busy core", "ms", digits=3),
    "slow_rate": Row("rate at 100 Mbit/s", "Hz", more_is_worse=False, digits=3),
    "slow_late_p99": Row("lateness p99 at 100 Mbit/s", "ms", digits=3),
    "observation": Row("observation, message", "bytes", times_less=16, digits=0),
    "observation_wire": Row("all bytes up, an observation", "bytes", digits=0),
    "jpeg_p99": Row("action change by JPEG, p99", "°", digits=2),
    "jpeg_largest": Row("action change by JPEG, largest of 8000", "°", at_most=1.0, digits=2),
    "observations_per_s": Row("observations sent, moving", "1/s", more_is_worse=False, digits=2),
    "chunk": Row("chunk of 50×6, message", "bytes", times_less=50, digits=0),
    "chunk_wire": Row("all bytes down, a chunk", "bytes", digits=0),
    "merge_half": Row("merge of 50×6, 25 rows of it planned", "µs", times_less=300, digits=2),
    "merge_all": Row("merge of 50×6, all planned", "µs", times_less=300, digits=2),
    "merge_run": Row("merge in a run, ours with its checks", "µs", digits=0),
    "forward": Row("server: forward (ours resizes in it)", "ms", digits=1),
    "beyond": Row("server: beyond the forward", "ms", times_less=5, digits=2),
    "beyond_raw": Row("the same, ours with raw frames too", "ms", digits=2),
    "moving_starved": Row("starved ticks, moving arm", "%", digits=2),
    "still_starved": Row("starved ticks, still arm", "%", exactly=0.0, digits=2),
    "repeated": Row("steps executed twice, all runs of a round", "", exactly=0.0, digits=0),
    "broken": Row("clients that broke off, all runs of a round", "", exactly=0.0, digits=0),
    "cpu": Row("client CPU, idle, of one core", "%", digits=1),
    "rss": Row("client RSS, 15 MB of pictures in it", "MB", times_less=6, digits=0),
    "recovery": Row("killed server serves again, until the next step", "s", digits=2),
    "recovered": Row("recovers from a killed server, 1 = yes", "", exactly=1.0, digits=0),
    "second_foreign": Row("two clients: steps of the other arm's actions", "%", exactly=0.0, digits=1),
    "second_queue": Row("two clients: longest queue of the one that asked for 50", "", more_is_worse=False, digits=0),
    "second_starved": Row("two clients: starved ticks of that one, still arm", "%", digits=1),
}

SUMMED = ("repeated", "broken")  # over the runs of a round
