"""Fuzz every door through which a stranger's bytes come in, and count: inputs, kinds of outcome, crashes, hangs.

python -m scripts.fuzz --seconds=600 --workers=2       all targets, by the seeded generator
python -m scripts.fuzz --engine=atheris --targets=[stream]   one target, guided by coverage (pip install atheris)
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edge_runtime.errors import ConfigError
from scripts.rig.bench import start
from scripts.rig.fuzzing.fuzzer import Defect, Fuzzer
from scripts.rig.fuzzing.targets import TARGETS

TURN = 200  # inputs of one target, then the next one's turn
STUCK_S = 120.0  # without a word from a worker: it hangs where no signal reaches it, and is not just starved
MEMORY = 4 << 30  # bytes of address space; an input that takes more is a defect
KEPT = 24  # new inputs for one target's corpus in one run
LAST = 1 << 17  # bytes: room for the input that a worker is at

Report = dict[str, dict[str, Any]]  # of a worker: what `tell` says of each target


@dataclass
class FuzzConfig:
    """`scripts.fuzz`: exit 0 when nothing crashed and nothing hung."""

    seconds: float = 600.0
    turns: int = 0  # end after so many turns of each target; 0 = when the seconds are over
    workers: int = 2
    seed: int = 1
    targets: list[str] = field(default_factory=lambda: list(TARGETS))
    engine: Literal["generator", "atheris"] = "generator"
    keep: bool = False  # write one input for each kind of outcome into tests/corpora
    worker: int = -1  # for this script's own use

    def __post_init__(self) -> None:
        for name in self.targets:
            if name not in TARGETS:
                raise ConfigError(f"targets: {name!r} is not one of [{', '.join(TARGETS)}]")
        if not self.targets or self.workers < 1 or self.seconds <= 0:
            raise ConfigError("targets, workers and seconds must not be empty, 0 or negative")


def main(config: FuzzConfig) -> int:
    if config.engine == "atheris":
        return run_atheris(config)
    if config.worker >= 0:
        work(config)
        return 0
    return supervise(config)


# The worker: fuzzes, and says how far it is, as JSON, a line a second.


def work(config: FuzzConfig) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence_libraries()
    with mmap.mmap(os.open(os.environ["FUZZ_LAST"], os.O_RDWR), LAST) as last:

        def note(data: bytes) -> None:
            last[: len(data) + 4] = len(data).to_bytes(4, "big") + data

        fuzzers = [Fuzzer(TARGETS[name], config.seed + config.worker, note) for name in config.targets]
        end_s, said_s, turns = time.monotonic() + config.seconds, 0.0, 0
        while turns < config.turns if config.turns else time.monotonic() < end_s:
            turns += 1
            for fuzzer in fuzzers:
                last[LAST - 64 :] = fuzzer.target.name.encode().ljust(64)
                fuzzer.run(TURN)
            if time.monotonic() - said_s > 1:
                said_s = time.monotonic()
                tell(fuzzers)
        tell(fuzzers)
        if config.keep:
            keep(fuzzers)


def silence_libraries() -> None:
    """libjpeg writes a line for every picture that is damaged; Python's own stderr stays."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)


def tell(fuzzers: list[Fuzzer]) -> None:
    report = {
        fuzzer.target.name: {
            "inputs": fuzzer.inputs,
            "outcomes": sorted(fuzzer.outcomes),
            "slowest_s": fuzzer.slowest_s,
            "defects": [[defect.data.hex(), defect.what] for defect in fuzzer.defects],
        }
        for fuzzer in fuzzers
    }
    print(json.dumps(report), flush=True)


def keep(fuzzers: list[Fuzzer]) -> None:
    """The shortest way to each outcome that the corpus does not lead to yet."""
    for fuzzer in fuzzers:
        known = {fuzzer.target.run(data) for data in fuzzer.target.corpus()}
        fuzzer.target.folder.mkdir(parents=True, exist_ok=True)
        fresh = [(outcome, data) for outcome, data in fuzzer.outcomes.items() if outcome not in known]
        for outcome, data in sorted(fresh, key=lambda each: len(each[1]))[:KEPT]:
            if len(data) < 4096:
                name = "".join(char if char.isalnum() else "_" for char in outcome)[:60].strip("_")
                (fuzzer.target.folder / name).write_bytes(data)


# The supervisor: starts the workers, adds up, and finds out about one that died or stands still.


def supervise(config: FuzzConfig) -> int:
    reports: dict[int, Report] = {}
    defects: list[Defect] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, selectors.DefaultSelector() as lines:
        workers = {}
        for number in range(config.workers):
            last = Path(folder) / f"last-{number}"
            last.write_bytes(bytes(LAST))
            worker = subprocess.Popen(
                [sys.executable, "-m", "scripts.fuzz", *sys.argv[1:], f"--worker={number}"],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"FUZZ_LAST": str(last)},
            )
            workers[number] = worker
            lines.register(worker.stdout, selectors.EVENT_READ, (number, last))  # type: ignore[arg-type]
        while lines.get_map():
            ready = lines.select(STUCK_S)
            for key, _ in ready or [(key, 0) for key in list(lines.get_map().values())]:
                number, last = key.data
                line = key.fileobj.readline() if ready else ""  # type: ignore[union-attr]
                if line:
                    reports[number] = json.loads(line)
                    continue
                lines.unregister(key.fileobj)
                if not ready:
                    workers[number].kill()
                if workers[number].wait() != 0:
                    how = "hangs" if not ready else f"ends the process ({workers[number].returncode})"
                    defects.append(read_last(last, how))
    for report in reports.values():
        for name, each in report.items():
            defects += [Defect(name, bytes.fromhex(data), what) for data, what in each["defects"]]
    print_table(config, list(reports.values()), defects)
    return 1 if defects else 0


def read_last(path: Path, how: str) -> Defect:
    """What a worker was at when it died."""
    content = path.read_bytes()
    length = int.from_bytes(content[:4], "big")
    return Defect(content[LAST - 64 :].decode().strip(), content[4 : 4 + length], how)


def print_table(config: FuzzConfig, reports: list[Report], defects: list[Defect]) -> None:
    inputs: Counter[str] = Counter()
    outcomes: dict[str, set[str]] = {name: set() for name in config.targets}
    for report in reports:
        for name, each in report.items():
            inputs[name] += each["inputs"]
            outcomes[name] |= set(each["outcomes"])
    print(f"{'target':<12} {'inputs':>12} {'outcomes':>9} {'defects':>8} {'slowest':>10}")
    for name in config.targets:
        found = sum(defect.target == name for defect in defects)
        slowest_ms = max((report[name]["slowest_s"] for report in reports if name in report), default=0.0) * 1e3
        print(f"{name:<12} {inputs[name]:>12,} {len(outcomes[name]):>9} {found:>8} {slowest_ms:>7.1f} ms")
    for defect in defects:
        folder = TARGETS[defect.target].folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / defect.name).write_bytes(defect.data)
        print(f"{folder / defect.name}: {defect.what}")
    hangs = sum("hang" in defect.what.lower() for defect in defects)
    print(f"{inputs.total()} inputs, {len(defects) - hangs} crashes, {hangs} hangs")


def run_atheris(config: FuzzConfig) -> int:
    """Guided by coverage; one target, since libFuzzer ends the process."""
    try:
        import atheris
    except ImportError as error:
        raise ConfigError("engine: atheris is not installed (pip install atheris)") from error
    target = TARGETS[config.targets[0]]
    target.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number, data in enumerate(target.corpus()):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.instrument_all()
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={config.seconds:.0f}", f"-artifact_prefix={target.folder}/", folder],
            lambda data: target.run(bytes(data)),
        )
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    start(FuzzConfig, main)
