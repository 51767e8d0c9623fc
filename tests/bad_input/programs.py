"""Every word of every program, with its settings and a command line that is right as far as it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from edge_runtime import cli as edge_runtime_cli
from edge_runtime.config import StartConfig
from edge_runtime.program import flags, schema
from edge_runtime.program.systemd import ServiceConfig
from edge_runtime.tools.bringup.calibrate import CalibrateConfig
from edge_runtime.tools.bringup.setup_motors import SetupMotorsConfig
from edge_runtime.tools.demo.cli import DemoConfig
from edge_runtime.tools.doctor.cli import DoctorConfig
from edge_runtime.tools.profiler.cli import ProfileConfig
from edge_runtime.tools.replay import ReplayConfig
from edge_runtime.tools.top.cli import TopConfig
from edge_runtime.virtual_arm.cli import VirtualArmConfig
from policy_server import cli as policy_server_cli
from policy_server.admin.client import ModelsConfig
from policy_server.config import ServerConfig
from policy_server.door.certificates import MakeCertsConfig
from policy_server.export import cli as export_cli
from policy_server.export.cli import ExportConfig

MAINS: dict[str, Callable[[list[str]], int]] = {
    "edge-runtime": edge_runtime_cli.dispatch,
    "policy-server": policy_server_cli.dispatch,
    "export-onnx": export_cli.run,
}


@dataclass(frozen=True)
class Word:
    """`settings` is the class that its flags are the fields of; `fitting` goes before the flag in question."""

    settings: Any
    fitting: tuple[str, ...] = ()
    positional: str = ""

    def without(self, flag: str) -> list[str]:
        """What goes before, where `flag` is set in another way."""
        others = [each for each in self.fitting if each.startswith("--") or flag != self.positional]
        return [each for each in others if not each.startswith(f"--{flag}=")]

    @property
    def reads_files(self) -> bool:
        return schema.find(self.settings, [flags.CONFIG_PATH]) is None


SO101 = "--robot.type=so101_follower"
WORDS = {
    "edge-runtime start": Word(StartConfig, (SO101,)),
    "edge-runtime doctor": Word(DoctorConfig),
    "edge-runtime setup-motors": Word(SetupMotorsConfig, (SO101,)),
    "edge-runtime calibrate": Word(CalibrateConfig, (SO101,)),
    "edge-runtime replay-fault": Word(ReplayConfig, ("fault.json",), "file"),
    "edge-runtime service": Word(ServiceConfig, ("status",), "action"),
    "edge-runtime profile": Word(ProfileConfig),
    "edge-runtime top": Word(TopConfig),
    "edge-runtime demo": Word(DemoConfig),
    "edge-runtime virtual-arm": Word(VirtualArmConfig),
    "policy-server start": Word(ServerConfig, ("act_so101_pick_place",), "bundles"),
    "policy-server make-certs": Word(MakeCertsConfig, ("certificates",), "dir"),
    "policy-server models": Word(ModelsConfig, ("list",), "words"),
    "policy-server service": Word(ServiceConfig, ("status",), "action"),
    "export-onnx": Word(ExportConfig, ("checkpoint",), "checkpoint"),
}


@dataclass(frozen=True)
class Setting:
    """A setting of a word, and what has to be said before it exists: the types of the choices above it."""

    word: str
    name: str  # NAME is the name of a camera
    kind: Any
    context: tuple[str, ...]

    @property
    def flag(self) -> str:
        return self.name.replace("NAME", "front")


def settings() -> Iterator[Setting]:
    """Each setting once, of the first word that has it."""
    seen = set()
    for word, described in WORDS.items():
        for setting in schema.settings(described.settings):
            if (key := (setting.name, str(setting.kind))) not in seen:
                seen.add(key)
                yield Setting(word, setting.name, setting.kind, context(described.settings, setting.name))


def context(cls: Any, name: str) -> tuple[str, ...]:
    """--robot.cameras.front.type=opencv where `name` is a setting of that kind of camera, and so on."""
    said, done, keys = [], [], name.replace("NAME", "front").split(".")
    for key in keys:
        here = schema.find(cls, done)
        if hasattr(here, "get_known_choices") and key != schema.CHOICE:
            kinds = here.get_known_choices()
            chosen = next(kind for kind in kinds if key in {field.name for field in dataclasses.fields(kinds[kind])})
            said.append(f"--{'.'.join(done)}.type={chosen}")
        done.append(key)
    return tuple(said)
