"""Old mistakes put back into a copy of the product, one after another: the harness must fail with each.

python -m scripts.rig.steps.mutations --only="ramp from full force"    # minutes for each
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edge_runtime.errors import ConfigError
from scripts.rig.bench import reach, start

ROOT = Path(__file__).resolve().parents[3]

Change = tuple[str, str, str]  # file, what is there, what comes in its place

_FORCE = """        bus.sync_write("Torque_Limit", {servo: limits[servo] for servo in left})
        bus.sync_write("Torque_Enable", dict.fromkeys(left, 1))
"""
_READ = """        present = steady_positions(bus, left)
"""
_GOAL = """        bus.establish("Goal_Position", present)
"""
_MEMORY = """        if self._write_memory(energised):
"""
_SETTLED = "ramp.attempt(nothing, _settle, bus, torque_limits) or ramp.attempt(nothing, _settle, bus, torque_limits)"
_PASSED_OVER = "if not self._bus.is_open or self._in_a_row >= self._most:"
_RELATIVE = """            reined |= clamp(&asked, present - self._reach[joint], present + self._reach[joint])
"""
_PACE = """            self._pace[joint] = asked - before
"""

MUTATIONS: dict[str, tuple[Change, ...]] = {
    "force before goal": (
        ("edge_runtime/robots/so_follower.py", _GOAL + _MEMORY, _MEMORY),
        ("edge_runtime/robots/so_servos.py", _READ, _FORCE + _READ),
    ),
    "ramp from full force": (("edge_runtime/motors/stopping.py", _SETTLED, "dict(torque_limits)"),),
    "errors end the ramp": (("edge_runtime/motors/stopping.py", _PASSED_OVER, "if True:"),),
    "relative clamp last": (
        ("edge_runtime/loop.pxi", _RELATIVE, ""),
        ("edge_runtime/loop.pxi", _PACE, _RELATIVE + _PACE),
    ),
}


@dataclass
class MutationsConfig:
    """Puts each of the mistakes back and runs the short harness; exit 1 when it passes with one."""

    only: str = ""  # mistakes whose name contains it
    debug: bool = False

    def __post_init__(self) -> None:
        if not any(self.only in name for name in MUTATIONS):
            raise ConfigError(f"only: no mistake is called {self.only!r}; there are {', '.join(MUTATIONS)}")


def main(config: MutationsConfig) -> int:
    seen = [convicts(name) for name in MUTATIONS if config.only in name]
    return 0 if all(seen) else 1


def convicts(name: str) -> bool:
    """Whether the harness finds the mistake; what it says about it is printed."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        make(name, Path(folder))
        done = run(Path(folder), "-m", "scripts.soak", "--steps=true", "--quick=true")
    *violations, total = done.stdout.splitlines()
    print("\n".join([f"{name}:", *violations[:3], total]))
    return reach(f"{name} makes the harness fail", done.returncode == 1 and bool(violations))


def make(name: str, folder: Path) -> None:
    """A copy of product and scripts in `folder`, with that mistake; compiled anew where it is in compiled code."""
    for package in ("edge_runtime", "scripts"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (ROOT / "cython_ext").glob("*.p*"):
        shutil.copy(source, folder / "edge_runtime")
    for file, there, instead in MUTATIONS[name]:
        text = (folder / file).read_text()
        if text.count(there) != 1:
            raise ConfigError(f"{file}: has {text.count(there)} times what {name!r} changes, and not once")
        (folder / file).write_text(text.replace(there, instead))
    if any(file.endswith(".pxi") for file, _, _ in MUTATIONS[name]):
        for built in (folder / "edge_runtime").glob("_realtime*.so"):
            built.unlink()
        flags = {"CFLAGS": "-O2 -ffp-contract=off", "PYTHONWARNINGS": "ignore"}  # as in pyproject.toml
        source = folder / "edge_runtime" / "_realtime.pyx"
        cythonize = [sys.executable, "-m", "Cython.Build.Cythonize", "--quiet", "--inplace", str(source)]
        subprocess.run(cythonize, check=True, cwd=folder, env=os.environ | flags)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the copy in `folder` in place of the product."""
    environ = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ, check=False, stdout=subprocess.PIPE, text=True
    )


if __name__ == "__main__":
    start(MutationsConfig, main)
