"""What is measured: one function a scenario, which gives values by (row, column)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import edge_runtime
import policy_server
from scripts.benches.vs_lerobot import measures
from scripts.benches.vs_lerobot.diary import Diary
from scripts.benches.vs_lerobot.figures import SUMMED
from scripts.benches.vs_lerobot.line import Line
from scripts.benches.vs_lerobot.measures import Chunk, Pace
from scripts.benches.vs_lerobot.processes import Program, free_port, hog
from scripts.benches.vs_lerobot.sides import ROWS, Arm, Edge, LeRobot, Place, Side

SLOW = 100e6 / 8  # bytes/s
DRAINED_S = 2.5  # 50 actions are executed by then
START_S = 10.0  # of a server
GIVE_UP_S = 15.0  # a client that has not recovered by then never will

CODE = [*(Path(package.__path__[0]) for package in (edge_runtime, policy_server)), Path(__file__).parent]
BEYOND = ("receive", "admit", "wait", "prepare", "finish")  # our server's stages beside the forward

Found = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Setting:
    """Both sides, where they run, and for how long; `folder` holds the runs of this round."""

    theirs: LeRobot
    ours: Edge
    place: Place
    seconds: float
    chunks: tuple[Chunk, Chunk]  # what the policy answers to the two arms of PAIR
    reverse: bool = False  # every other round the other side goes first

    def within(self, name: str) -> Setting:
        folder = self.place.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, place=replace(self.place, folder=folder))

    @property
    def columns(self) -> dict[str, Side]:
        sides: dict[str, Side] = {"theirs": self.theirs, "ours": self.ours}
        return dict(reversed(sides.items())) if self.reverse else sides

    @property
    def columns_with_plain(self) -> dict[str, Side]:
        sides = {**self.columns, "plain": replace(self.ours, realtime="off")}
        return dict(reversed(sides.items())) if self.reverse else sides


def pace(setting: Setting, name: str) -> Found:
    """`idle` or `busy`: a moving arm, and a process that computes without end beside the client or not."""
    found: Found = {}
    with ExitStack() as stack:
        ports = {column: _serve(stack, side, setting.place) for column, side in setting.columns.items()}
        ports["plain"] = ports["ours"]
        if name == "busy":
            stack.enter_context(hog(setting.place.folder, setting.place.robot))
        for column, side in setting.columns_with_plain.items():
            diary = _run(setting, side, f"{name}-{column}", ports[column], Arm())
            seen = Pace.of(measures.window(diary, setting.seconds))
            found |= {
                (f"{name}_rate", column): seen.rate_hz,
                (f"{name}_late_p50", column): seen.late_p50,
                (f"{name}_late_p99", column): seen.late_p99,
                (f"{name}_sent_p99", column): seen.sent_p99,
                (f"{name}_jitter", column): seen.jitter_p99,
            } | _mishaps(diary, column)
            if name == "idle":
                found |= {
                    ("moving_starved", column): seen.starved,
                    ("cpu", column): 100 * diary.facts["cpu"],
                    ("rss", column): diary.facts["rss_mb"],
                }
                if column == "theirs":
                    found["merge_run", column] = 1e6 * statistics.median(diary.facts["merge_s"])
                elif column == "ours":
                    found["merge_run", column] = 1e6 * diary.facts["report"]["stages_s"]["merge"]["p50"]
                    found |= {("forward", column): _ms(diary, "infer"), ("beyond", column): _ms(diary, *BEYOND)}
        if name == "idle":
            raw = _run(setting, setting.ours, "idle-raw", ports["ours"], Arm(jpeg=False))
            found["beyond_raw", "ours"] = _ms(raw, *BEYOND)
    if name == "idle":
        found |= _their_server(setting.theirs.notes(setting.place))
    return found


def slow(setting: Setting) -> Found:
    """A moving arm behind a line of 100 Mbit/s, whose bytes are counted."""
    found: Found = {}
    for column, side in setting.columns.items():
        with ExitStack() as stack:
            line = stack.enter_context(Line(_serve(stack, side, setting.place), SLOW))
            diary = _run(setting, side, f"slow-{column}", line.port, Arm())
        facts = diary.facts
        seen = Pace.of(measures.window(diary, setting.seconds))
        span_s = (diary.woke_ns[-1] - measures.first_action_ns(diary)) / 1e9
        found |= {
            ("slow_rate", column): seen.rate_hz,
            ("slow_late_p99", column): seen.late_p99,
            ("observations_per_s", column): facts["observations"] / span_s,
            ("observation_wire", column): line.up / facts["observations"],
            ("chunk_wire", column): line.down / facts["chunks"],
        } | _mishaps(diary, column)
        if column == "ours":
            traffic = facts["report"]["traffic"]
            found["observation", column] = traffic["observation_bytes"] / traffic["observations"]
            found["chunk", column] = traffic["chunk_bytes"] / traffic["chunks"]
        else:
            notes = side.notes(setting.place)
            found["observation", column] = statistics.mean(notes["observation_bytes"])
            found["chunk", column] = statistics.mean(notes["chunk_bytes"])
    return found


def still(setting: Setting) -> Found:
    """An arm that does not move: the similarity filter of both sides is at work."""
    found: Found = {}
    for column, side in setting.columns.items():
        with ExitStack() as stack:
            diary = _run(setting, side, f"still-{column}", _serve(stack, side, setting.place), Arm(motion="still"))
        found["still_starved", column] = Pace.of(measures.window(diary, setting.seconds)).starved
        found |= _mishaps(diary, column)
    return found


def merge(setting: Setting) -> Found:
    """Each side's merge alone, as its receiver calls it."""
    found: Found = {}
    for key, executed in (("merge_half", ROWS // 2), ("merge_all", 0)):
        for column in setting.columns:
            side = setting.theirs if column == "theirs" else setting.ours
            found[key, column] = 1e6 * statistics.median(side.merges_s(setting.place, executed, 2000))
    return found


def recovery(setting: Setting) -> Found:
    """The server is killed under a moving arm and started again on the same port."""
    found: Found = {}
    for column, side in setting.columns.items():
        with ExitStack() as stack:
            port = free_port()
            first = stack.enter_context(_served(side, setting.place, port))
            seconds = 3.0 + DRAINED_S + START_S + GIVE_UP_S
            client = stack.enter_context(side.client(setting.place, f"recovery-{column}", port, Arm(), seconds))
            client.executes()
            time.sleep(3.0)
            first.end(signal.SIGKILL)
            time.sleep(DRAINED_S)
            stack.enter_context(_served(side, setting.place, port))
            serving_ns = time.monotonic_ns()
            diary = client.diary()
        found["recovery", column] = took_s = measures.recovery_s(diary, serving_ns)
        found["recovered", column] = float(np.isfinite(took_s))
    return found


def second(setting: Setting) -> Found:
    """A second robot, another picture before it, comes to the server of a first one and asks for shorter chunks."""
    found: Found = {}
    first, other = PAIR
    for column, side in setting.columns.items():
        with ExitStack() as stack:
            port = _serve(stack, side, setting.place)
            seconds = setting.seconds
            one = stack.enter_context(side.client(setting.place, f"first-{column}", port, first, 2 * seconds))
            one.executes()
            time.sleep(3.0)
            two = stack.enter_context(side.client(setting.place, f"second-{column}", port, other, seconds))
            two.executes()
            both_ns = time.monotonic_ns()
            diaries = [client.diary().between(both_ns, both_ns + 1e9 * seconds) for client in (one, two)]
        of_first, of_other = setting.chunks
        strange = measures.foreign(diaries[0], of_first, of_other), measures.foreign(diaries[1], of_other, of_first)
        found |= {
            ("second_foreign", column): max(strange),
            ("second_queue", column): float(diaries[0].level.max()),
            ("second_starved", column): 100 * float(1 - diaries[0].executed.mean()),
        }
    return found


PAIR = (
    Arm("still", picture=0, aggregate="latest_only"),
    Arm("still", offset=20.0, picture=4, rows=20, aggregate="latest_only"),
)

SCENARIOS: dict[str, Callable[[Setting], Found]] = {
    "idle": lambda setting: pace(setting, "idle"),
    "busy": lambda setting: pace(setting, "busy"),
    "slow": slow,
    "still": still,
    "merge": merge,
    "recovery": recovery,
    "second": second,
}


def measure(
    setting: Setting, names: Sequence[str], rounds: int, tell: Callable[[str], None]
) -> dict[tuple[str, str], list[float]]:
    """All rounds of the scenarios in `names`, one after the other; values by (row, column), a value a round.

    What a scenario found stays in its folder, so that a bench which was ended goes on. What was measured in another
    way, or by other code, is measured again.
    """
    way = fingerprint(setting)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(rounds):
        turned = replace(setting, reverse=number % 2 == 1).within(f"round-{number}")
        of_round: dict[tuple[str, str], float] = {}
        for name in names:
            tell(f"round {number + 1} of {rounds}: {name}")
            for key, value in _kept(name, turned.within(name), way).items():
                of_round[key] = of_round.get(key, 0.0) + value if key[0] in SUMMED else value
        for key, value in of_round.items():
            found[key].append(value)
    return found


def fingerprint(setting: Setting) -> str:
    """Of all that a value depends on: how it is measured, the bundle, and the code."""
    place = [sorted(cpus) for cpus in (setting.place.robot, setting.place.rest)]
    way = (setting.theirs, setting.ours, setting.seconds, place, os.getpriority(os.PRIO_PROCESS, 0))
    digest = hashlib.sha256(repr(way).encode())
    files = [setting.ours.bundle / "manifest.json"]
    for folder in CODE:
        files += sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".so"))
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _kept(name: str, setting: Setting, way: str) -> Found:
    path = setting.place.folder / f"found-{way}.json"
    if not path.exists():
        found = SCENARIOS[name](setting)
        path.write_text(json.dumps([[*key, value] for key, value in found.items()]))
    return {(row, column): value for row, column, value in json.loads(path.read_text())}


@contextmanager
def _served(side: Side, place: Place, port: int) -> Iterator[Program]:
    with side.server(place, port) as server:
        server.wait_for("serving")
        yield server


def _serve(stack: ExitStack, side: Side, place: Place) -> int:
    """The port of a server of `side` that serves until the stack unwinds."""
    port = free_port()
    stack.enter_context(_served(side, place, port))
    return port


def _run(setting: Setting, side: Side, name: str, port: int, arm: Arm) -> Diary:
    seconds = setting.seconds + measures.SETTLE_NS / 1e9 + 0.2
    with side.client(setting.place, name, port, arm, seconds) as client:
        return client.diary()


def _mishaps(diary: Diary, column: str) -> Found:
    return {("repeated", column): measures.repeated(diary), ("broken", column): float(bool(diary.facts["crashed"]))}


def _their_server(notes: dict[str, list[float]]) -> Found:
    """Medians, of what LeRobot logs and of what its methods took."""
    forward = statistics.median(notes["forward"])
    beyond = statistics.median(notes["deserialise"]) + statistics.median(notes["respond"]) - forward
    found = {"forward": forward, "beyond": beyond, "beyond_raw": beyond}
    return {(key, "theirs"): 1e3 * seconds for key, seconds in found.items()}


def _ms(diary: Diary, *stages: str) -> float:
    """The sum of the medians of our server's `stages`, which each chunk reports."""
    return sum(1e3 * float(diary.facts["report"]["stages_s"][stage]["p50"]) for stage in stages)
