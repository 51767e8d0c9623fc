"""When the planner looks, what must go, and that nothing a server answers, or fails to, stalls the arm."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from edge_runtime.config import Mode, NoRobotConfig, RtcConfig, StartConfig
from edge_runtime.errors import ConfigError, DeviceError, ProtocolError, StreamError
from edge_runtime.planning.planner import FAILURES_IN_A_ROW, Asking, Planner, PlannerSettings
from edge_runtime.planning.sensors import Sensors
from edge_runtime.planning.task import Task
from edge_runtime.wire.messages import (
    Answer,
    Camera,
    Chunk,
    ExtraState,
    Failure,
    Floats,
    Guidance,
    Observation,
    Pixels,
    Policy,
    Skipped,
)
from tests.edge_runtime.link.scripted_server import POLICY, chunk_for

FPS = 30.0
TICK_NS = int(1e9 / FPS)


@dataclass
class Frame:
    pixels: Pixels
    time_ns: int
    since_ns: int = 0  # 0: the first with these bytes

    def __post_init__(self) -> None:
        self.since_ns = self.since_ns or self.time_ns


@dataclass
class StillCamera:
    frame: Frame | None

    def latest(self) -> Frame | None:
        return self.frame


@dataclass
class Numbers:
    values: list[float]
    broken: bool = False

    def read(self) -> Floats:
        if self.broken:
            raise DeviceError("no answer")
        return np.array(self.values, np.float32)


@dataclass(frozen=True)
class Record:
    """What the loop publishes, made by hand."""

    sequence: int
    time_ns: int
    timestep: int
    level: int
    positions: Floats
    merges: int
    ages_s: Floats
    paused: bool = False


@dataclass
class Bench:
    """A planner on a clock of the test's own, with a link that keeps what was sent."""

    threshold: float | Literal["auto"] = 0.5
    rows: int = 10
    mode: Mode = "async"
    filtered: bool = False
    floor: float = PlannerSettings.auto_floor
    sensors: Sensors = field(default_factory=lambda: Sensors(POLICY, {}, {}, False, 0.5, Task("")))
    now_ns: int = 1_000_000_000
    positions: list[float] = field(default_factory=lambda: [0.0, 0.0])
    ages_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    link_up: bool = True
    sent: list[Observation] = field(default_factory=list)
    lost: int = 0
    is_uploading: bool = False

    def __post_init__(self) -> None:
        self.sensors = replace(self.sensors, policy=replace(self.sensors.policy, chunk_size=self.rows))
        settings = PlannerSettings(
            fps=FPS,
            mode=self.mode,
            chunk_size_threshold=self.threshold,
            auto_floor=self.floor,
            filtered=self.filtered,
            max_action_age_s=1e6,  # `pick` goes by the machine's clock
        )
        self.planner = Planner(self.sensors, settings, self, clock_ns=lambda: self.now_ns)
        self.ring, self.stages = self.planner.ring, self.planner.stages
        self.planner.connected(self.sensors.policy)

    def send(self, observation: Observation) -> bool:
        if self.link_up:
            self.sent.append(observation)
        return self.link_up

    def suspect(self) -> None:
        self.lost += 1

    def tick(self, *, paused: bool = False) -> None:
        """One turn of a loop: publish, then execute a row."""
        assert self.now_ns < 600_000_000_000, "what the test waits for has not come in ten minutes"
        record = Record(
            sequence=1,
            time_ns=self.now_ns,
            timestep=self.ring.cursor,
            level=self.ring.level,
            positions=np.array(self.positions, np.float32),
            ages_s=np.array(self.ages_s),
            merges=self.ring.merges,
            paused=paused,
        )
        self.planner.observe(record)  # type: ignore[arg-type]
        if not paused:
            self.ring.pick(np.zeros(2, np.float32))
        self.now_ns += TICK_NS

    def answer(self, value: float = 1.0, rows: int = 10) -> None:
        self.planner.answered(chunk_for(self.sent[-1], value, rows))


def test_the_first_observation_must_go() -> None:
    bench = Bench()
    bench.tick()
    assert [(o.must_go, o.timestep) for o in bench.sent] == [(True, 0)]


def test_one_in_flight_and_the_next_at_the_threshold() -> None:
    bench = Bench()
    bench.tick()
    bench.tick()
    assert len(bench.sent) == 1
    bench.answer()
    while len(bench.sent) < 2:
        bench.tick()
    assert bench.sent[1].timestep == 10 - 5  # asked for when five of ten rows were left
    assert bench.sent[1].runs_dry_in_s == pytest.approx(5 / FPS)


def test_a_chunk_of_the_threshold_is_not_early() -> None:
    bench = Bench(threshold=0)
    bench.tick()
    bench.answer()
    for _ in range(10):
        bench.tick()
        assert len(bench.sent) == 1
    bench.tick()
    assert bench.sent[1].timestep == 10


def test_a_still_arm_that_is_filtered_for_ever_never_starves() -> None:
    """The server calls every ordinary observation similar; what must go is answered, three ticks later."""
    bench = Bench(threshold=0.5, rows=50)
    starved = 0
    due: list[tuple[int, Observation]] = []
    for tick in range(600):
        known = len(bench.sent)
        starved += bench.ring.level == 0 and bench.ring.cursor > 0
        bench.tick()
        due += [(tick + 3, o) for o in bench.sent[known:]]
        while due and due[0][0] <= tick:
            _, observation = due.pop(0)
            bench.planner.answered(
                chunk_for(observation, rows=50) if observation.must_go else Skipped(observation.id, "similar")
            )
    assert starved == 0
    assert bench.planner.counts["skipped_similar"] > 10


@pytest.mark.parametrize("filtered", [False, True])
def test_auto_asks_in_time_whether_or_not_the_arm_is_still(filtered: bool) -> None:
    """Round trips of 6 ticks; with the filter on every ordinary observation is called similar, a tick later."""
    bench = Bench(threshold="auto", rows=50, filtered=filtered, floor=0.0)
    levels: list[int] = []
    due: list[tuple[int, Answer]] = []
    for tick in range(900):
        known = len(bench.sent)
        levels.append(bench.ring.level)
        bench.tick()
        for observation in bench.sent[known:]:
            if observation.must_go or not filtered:
                due.append((tick + 6, chunk_for(observation, rows=50)))
            else:
                due.append((tick + 1, Skipped(observation.id, "similar")))
        while due and due[0][0] <= tick:
            bench.planner.answered(due.pop(0)[1])
    first = next(tick for tick, level in enumerate(levels) if level)
    assert min(levels[first:]) >= 1
    assert min(levels[400:]) <= 3  # nor earlier than it must
    assert (bench.planner.counts["skipped_similar"] > 20) == filtered


def test_after_a_skipped_answer_an_ordinary_one_waits_and_an_urgent_one_does_not() -> None:
    bench = Bench(threshold=0.9)
    bench.tick()
    bench.answer()
    bench.tick()
    bench.tick()
    assert len(bench.sent) == 2
    assert not bench.sent[1].must_go
    bench.planner.answered(Skipped(bench.sent[1].id, "similar"))
    bench.tick()
    assert len(bench.sent) == 2  # 0.2 s are six ticks
    while len(bench.sent) < 3:
        bench.tick()
    waited = bench.sent[2].timestep - bench.sent[1].timestep
    assert bench.sent[2].must_go or waited >= 6


def test_one_inference_that_raises_with_an_empty_ring_starts_the_arm_all_the_same() -> None:
    bench = Bench()
    bench.tick()
    bench.planner.answered(Failure(bench.sent[0].id, 13, "boom", "e1"))
    for _ in range(10):
        bench.tick()
    assert len(bench.sent) == 2
    assert bench.sent[1].must_go
    bench.answer()
    bench.tick()
    assert bench.ring.cursor == 1


def test_failures_in_a_row_end_the_run_and_a_chunk_in_between_forgives() -> None:
    bench = Bench(threshold=0.9)

    def fail() -> None:
        known = len(bench.sent)
        while len(bench.sent) == known:
            bench.tick()
        bench.planner.answered(Failure(bench.sent[-1].id, 13, "boom", "e1"))

    for _ in range(FAILURES_IN_A_ROW - 1):
        fail()
    known = len(bench.sent)
    while len(bench.sent) == known:
        bench.tick()
    bench.answer()
    for _ in range(FAILURES_IN_A_ROW - 1):
        fail()
    with pytest.raises(StreamError, match="boom"):
        fail()


def test_a_lost_answer_frees_the_place_and_is_still_merged_when_it_comes() -> None:
    bench = Bench()
    bench.tick()
    bench.now_ns += 1_100_000_000
    bench.tick()
    assert bench.lost == 1
    assert len(bench.sent) == 2
    assert bench.sent[1].must_go
    bench.planner.answered(chunk_for(bench.sent[0]))
    assert bench.ring.level == 10


def test_time_for_an_answer_runs_from_the_end_of_the_upload() -> None:
    bench = Bench()
    bench.tick()
    bench.is_uploading = True
    for _ in range(15):  # seconds, for one observation
        bench.now_ns += 1_000_000_000
        bench.tick()
    assert bench.lost == 0
    bench.is_uploading = False
    bench.now_ns += 1_100_000_000
    bench.tick()
    assert bench.lost == 1


def test_one_very_late_answer_changes_nothing_of_what_counts_as_lost() -> None:
    bench = Bench()
    for _ in range(2):
        known = len(bench.sent)
        while len(bench.sent) == known:
            bench.tick()
        bench.answer()
    known, before_s = len(bench.sent), bench.planner.lost_after_s
    while len(bench.sent) == known:
        bench.tick()
    bench.now_ns += 20_000_000_000
    bench.tick()
    assert bench.lost == 1
    bench.planner.answered(chunk_for(bench.sent[known]))
    assert bench.planner.lost_after_s == before_s


def test_an_answer_is_lost_later_when_round_trips_are_long_but_never_later_than_its_chunk_is_of_use() -> None:
    bench = Bench()
    for _ in range(2):  # the first, cold one does not count
        known = len(bench.sent)
        while len(bench.sent) == known:
            bench.tick()
        bench.now_ns += 600_000_000
        bench.answer()
    assert bench.planner.lost_after_s == pytest.approx(10 / 30 + 1)  # 3 * 0.6 s are more


def test_a_new_stream_is_a_new_session_and_the_plan_goes_on() -> None:
    bench = Bench()
    bench.tick()
    bench.answer()
    bench.tick()
    first = bench.sent[0].session
    bench.planner.disconnected()
    bench.planner.connected(POLICY)
    assert bench.ring.level == 9
    while len(bench.sent) < 2:
        bench.tick()
    assert bench.sent[1].session > first


def test_a_chunk_of_the_last_episode_is_dropped() -> None:
    bench = Bench()
    bench.tick()
    bench.planner.new_episode()
    bench.answer()
    assert bench.ring.level == 0
    assert bench.planner.counts["chunks_foreign"] == 1
    bench.tick()
    assert bench.sent[1].timestep == 0


def test_nothing_is_sent_while_paused_or_without_a_stream() -> None:
    bench = Bench()
    bench.tick(paused=True)
    bench.planner.disconnected()
    bench.tick()
    assert bench.sent == []
    bench.planner.connected(POLICY)
    bench.link_up = False
    bench.tick()
    bench.link_up = True
    bench.tick()
    assert len(bench.sent) == 1


@pytest.mark.parametrize(
    "lie",
    [
        lambda chunk: replace(chunk, observation=99),
        lambda chunk: replace(chunk, first_timestep=chunk.first_timestep + 1),
        lambda chunk: replace(chunk, session=chunk.session + 1),
        lambda chunk: replace(chunk, digest=bytes(32)),
        lambda chunk: replace(chunk, actions=np.zeros((11, 2), np.float32)),
        lambda chunk: replace(chunk, actions=np.zeros((10, 3), np.float32)),
        lambda chunk: replace(chunk, actions=np.zeros((0, 2), np.float32)),
    ],
)
def test_a_chunk_that_cannot_be_the_answer_is_refused(lie: object) -> None:
    bench = Bench()
    bench.tick()
    chunk = chunk_for(bench.sent[0])
    with pytest.raises(ProtocolError):
        bench.planner.answered(lie(chunk))  # type: ignore[operator]
    assert bench.ring.level == 0


def test_a_replaced_policy_is_the_one_whose_chunks_are_due() -> None:
    bench = Bench()
    new = replace(POLICY, digest=bytes(32))
    bench.tick()
    bench.planner.replaced(new)
    with pytest.raises(ProtocolError, match="chunk comes from policy 000102030405, not 000000000000"):
        bench.answer()
    bench.planner.connected(new)
    bench.tick()
    bench.planner.answered(replace(chunk_for(bench.sent[-1]), digest=new.digest))
    assert bench.ring.merges == 1


def test_the_floor_of_auto_rests_while_the_server_is_overloaded_and_a_minute_longer() -> None:
    bench = Bench(threshold="auto", rows=40)
    assert bench.planner.threshold.rows == 20
    bench.planner.paced(0.5)
    late = bench.planner.threshold.rows
    assert late < 20
    bench.now_ns += 50_000_000_000
    bench.planner.paced(0.0)
    bench.now_ns += 59_000_000_000
    assert bench.planner.threshold.rows == late
    bench.now_ns += 2_000_000_000
    assert bench.planner.threshold.rows == 20


def test_an_overload_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = Bench()
    for interval_s in (0.0, 0.5, 0.7, 0.0, 0.0):
        bench.planner.paced(interval_s)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the server is overloaded: a chunk every 0.50 s is what this robot gets",
        "the server keeps up again",
    ]
    assert bench.planner.counts["overloads"] == 1


def test_an_answer_given_twice_is_refused() -> None:
    bench = Bench()
    bench.tick()
    bench.answer()
    with pytest.raises(ProtocolError):
        bench.answer()


NUMBERS = "observation.environment_state"
SEEING = replace(
    POLICY,
    cameras=(Camera("static", 4, 6),),
    extra_state=(ExtraState(NUMBERS, 2),),
)


def test_frames_and_numbers_go_where_their_names_say() -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    camera, numbers = StillCamera(Frame(pixels, 1_000_000_000)), Numbers([1.0, 2.0])
    sensors = Sensors(SEEING, {"static": camera}, {NUMBERS: numbers}, False, 0.5, Task("pick it up"))
    bench = Bench(sensors=sensors)
    bench.tick()
    observation = bench.sent[0]
    assert bytes(observation.frames[0].data) == pixels.tobytes()
    assert observation.extra_state[NUMBERS].tolist() == [1.0, 2.0]
    assert observation.task == "pick it up"


def test_a_frame_that_is_too_old_is_not_sent_until_it_is_new_again() -> None:
    camera = StillCamera(Frame(np.zeros((4, 6, 3), np.uint8), 1_000_000_000))
    numbers = Numbers([1.0, 2.0])
    bench = Bench(sensors=Sensors(SEEING, {"static": camera}, {NUMBERS: numbers}, False, 0.5, Task("")))
    bench.now_ns += 600_000_000
    bench.tick()
    assert bench.sent == []
    assert bench.planner.counts["unsent_stale_frame"] == 1
    camera.frame = replace_time(camera.frame, bench.now_ns)
    bench.tick()
    assert len(bench.sent) == 1


def seen_frozen(*, may_stand_still: bool = False) -> tuple[Bench, StillCamera]:
    """A camera that goes on delivering what it showed first, at 1 s."""
    camera = StillCamera(Frame(np.zeros((4, 6, 3), np.uint8), 1_000_000_000))
    sensors = Sensors(
        replace(SEEING, extra_state=()),
        {"static": camera},
        {},
        False,
        0.5,
        Task(""),
        may_stand_still={"static"} if may_stand_still else set(),
    )
    return Bench(sensors=sensors, link_up=False), camera


def look(bench: Bench, camera: StillCamera, after_s: float, at: float, *, frozen: bool = True) -> bool:
    """Whether an observation goes out; the frame is a new one, with the same bytes if `frozen`."""
    bench.now_ns += round(after_s * 1e9)
    since_ns = camera.frame.since_ns if frozen and camera.frame else 0
    camera.frame = Frame(np.zeros((4, 6, 3), np.uint8), bench.now_ns, since_ns)
    bench.positions[1] = at
    unsent = bench.planner.counts["unsent_frozen_frame"]
    bench.tick()
    return bench.planner.counts["unsent_frozen_frame"] == unsent


def test_a_picture_that_stands_while_the_arm_moves_is_as_old_as_its_first_copy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench, camera = seen_frozen()
    assert look(bench, camera, 0.1, at=0.0)
    assert look(bench, camera, 0.1, at=5.0)  # it is not old yet
    assert not look(bench, camera, 0.5, at=5.0)
    assert not look(bench, camera, 60.0, at=5.0)  # the arm holds: that makes the picture no younger
    assert "observations pause: camera static is frozen: the same picture for 0." in caplog.text
    assert look(bench, camera, 0.1, at=5.0, frozen=False)


def test_a_picture_that_stands_before_an_arm_that_stands_is_sent() -> None:
    bench, camera = seen_frozen()
    for tick in range(30):
        assert look(bench, camera, 0.3, at=0.9 * (tick % 3))
    moving, camera = seen_frozen(may_stand_still=True)
    assert all(look(moving, camera, 0.3, at=9.0 * tick) for tick in range(9))


def test_a_position_that_is_too_old_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(sensors=Sensors(POLICY, {}, {}, False, 0.5, Task(""), max_joint_age_s=0.25))
    for age_s in (0.26, math.inf):
        bench.ages_s[1] = age_s
        bench.tick()
    assert bench.sent == []
    assert bench.planner.counts["unsent_stale_joint"] == 2
    assert "observations pause: b.pos: the position is 0.26 s old" in caplog.text
    bench.ages_s[1] = 0.2
    bench.tick()
    assert len(bench.sent) == 1


def test_numbers_that_cannot_be_read_pause_the_observations() -> None:
    camera = StillCamera(Frame(np.zeros((4, 6, 3), np.uint8), 1_000_000_000))
    numbers = Numbers([1.0, 2.0], broken=True)
    bench = Bench(sensors=Sensors(SEEING, {"static": camera}, {NUMBERS: numbers}, False, 0.5, Task("")))
    bench.tick()
    assert bench.sent == []
    numbers.broken = False
    bench.tick()
    assert len(bench.sent) == 1


def test_resize_gives_the_shape_that_the_policy_takes() -> None:
    camera = StillCamera(Frame(np.full((8, 12, 3), 77, np.uint8), 1_000_000_000))
    numbers = Numbers([1.0, 2.0])
    bench = Bench(sensors=Sensors(SEEING, {"static": camera}, {NUMBERS: numbers}, True, 0.5, Task("")))
    bench.tick()
    frame = bench.sent[0].frames[0]
    assert (frame.height, frame.width, len(frame.data)) == (4, 6, 4 * 6 * 3)


def test_an_inference_as_long_as_the_chunk_is_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(2):
        known = len(bench.sent)
        while len(bench.sent) == known:
            bench.tick()
        bench.now_ns += 400_000_000
        bench.answer()
    assert bench.planner.counts["slower_than_chunk"] == 2
    assert sum("as long as the chunk" in message for message in caplog.messages) == 1


def test_stages_are_measured() -> None:
    bench = Bench()
    bench.tick()
    bench.answer()
    bench.tick()
    assert {"capture", "merge", "round_trip", "actuate", "infer"} <= bench.stages.summaries().keys()
    assert isinstance(chunk_for(bench.sent[0]), Chunk)


def replace_time(frame: Frame | None, time_ns: int) -> Frame:
    assert frame is not None
    return Frame(frame.pixels, time_ns)


def test_the_task_of_a_file_may_change_while_the_robot_works(tmp_path: Path) -> None:
    file = tmp_path / "task"
    file.write_text("pick up the cube\nnot this\n")
    bench = Bench(sensors=Sensors(POLICY, {}, {}, False, 0.5, Task("", file)))
    bench.tick()
    bench.answer()
    file.write_text("put it down\n")
    os.utime(file, ns=(1, 1))
    while len(bench.sent) < 2:
        bench.tick()
    assert [observation.task for observation in bench.sent] == ["pick up the cube", "put it down"]
    file.unlink()
    assert bench.sensors.task.text() == "put it down"
    with pytest.raises(ConfigError, match="task_file"):
        Task("", file)


@pytest.mark.parametrize(
    ("told", "rows", "level"),
    [
        ({}, 50, "auto"),
        ({"actions_per_chunk": 30, "chunk_size_threshold": 0.5}, 30, 15),
        ({"mode": "sequential"}, 25, 0),
        ({"mode": "sequential", "chunk_size_threshold": 0.2}, 40, 0),
        ({"mode": "sequential", "chunk_size_threshold": 0.0}, 50, 0),
        ({"mode": "sequential", "actions_per_chunk": 30}, 30, 0),
        ({"mode": "sequential", "actions_per_chunk": 30, "chunk_size_threshold": 1.0}, 30, 0),
    ],
)
def test_sequential_takes_the_rows_that_it_is_told(told: dict[str, Any], rows: int, level: int | str) -> None:
    assert PlannerSettings(**told).asking(replace(POLICY, chunk_size=50)) == Asking(rows, level)


def test_sequential_with_nothing_to_execute_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_size_threshold: 1 leaves mode=sequential nothing to execute"):
        PlannerSettings(mode="sequential", chunk_size_threshold=1.0).asking(POLICY)


def test_sequential_asks_with_nothing_left() -> None:
    bench = Bench(mode="sequential", rows=10)
    bench.tick()
    bench.answer(rows=5)
    for _ in range(5):
        bench.tick()
    assert len(bench.sent) == 1
    bench.tick()
    assert [(o.timestep, o.must_go) for o in bench.sent] == [(0, True), (5, True)]
    with pytest.raises(ProtocolError, match="chunk is 10x2, asked for at most 5x2"):
        bench.answer(rows=10)


def test_a_planner_takes_the_settings_of_a_run_by_their_names() -> None:
    config = StartConfig(NoRobotConfig(), fps=20.0, starve_risk=0.1, aggregate_fn_name="average", mode="sequential")
    assert PlannerSettings.of(config, filtered=True) == PlannerSettings(
        fps=20.0, starve_risk=0.1, aggregate_fn_name="average", mode="sequential", filtered=True
    )


GUIDED = replace(POLICY, guided=True)


def test_a_guided_observation_brings_the_plan_and_its_chunk_leaves_the_rows_before_the_delay() -> None:
    bench = Bench(rows=10, sensors=Sensors(GUIDED, {}, {}, False, 0.5, Task("")))
    bench.tick()
    assert bench.sent[0].plan is None  # nothing is planned yet
    bench.tick()
    bench.tick()
    bench.answer(value=1.0)  # 3 ticks later: so many rows will have run
    while len(bench.sent) < 2:
        bench.tick()
    asked = bench.sent[1]
    assert asked.plan is not None
    np.testing.assert_array_equal(asked.plan, np.ones((5, 2)))
    assert asked.delay == 3
    bench.answer(value=9.0)
    planned = bench.ring.planned(asked.timestep, 10)[:, 0]
    np.testing.assert_array_equal(planned[1:3], [1, 1])
    assert 1 < planned[3] < 9
    assert planned[9] == 9
    bench.planner.replaced(POLICY)  # by one that cannot be guided
    while len(bench.sent) < 3:
        bench.tick()
    assert bench.sent[2].plan is None


def test_guidance_is_as_the_settings_say_or_refused() -> None:
    def guidance(policy: Policy, mode: Mode = "async", **rtc: Any) -> Guidance | None:
        return PlannerSettings(mode=mode, rtc=RtcConfig(**rtc)).guidance(policy)

    assert guidance(GUIDED) == Guidance("linear", 0, 10.0)
    assert guidance(POLICY) is None
    assert guidance(GUIDED, enabled=False) is None
    assert guidance(GUIDED, "sequential") is None
    with pytest.raises(ConfigError, match=r"rtc\.enabled: true, but policy scripted cannot be guided"):
        guidance(POLICY, enabled=True)
    with pytest.raises(ConfigError, match=r"rtc\.execution_horizon: 11 is more than the 10 rows of a chunk"):
        guidance(GUIDED, execution_horizon=11)
