"""What stands around the runtime: virtual arm and policy server as processes, and a proxy on each line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from scripts.rig.program import Arm, Server
from scripts.rig.proxy import Proxy


class Stage:
    """Arm, cameras, server and links; a context manager. Without a headless GL the policy sees the state alone."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._stack = ExitStack()
        self._address = f"127.0.0.1:{_free_port()}"  # known before it listens, and the same after a restart

    def __enter__(self) -> Stage:
        self.arm = Arm(self._folder, "--camera_fps=15", f"--seed={self._seed}")
        self._stack.enter_context(self.arm)
        with contextlib.suppress(PermissionError):  # servos have processors of their own
            os.setpriority(os.PRIO_PROCESS, self.arm.process.pid, -15)
        self.cameras: dict[str, str] = self.arm.ready["cameras"]
        self._bundle = "act_so101_cubes" if self.cameras else "act_so101_pick_place"
        self._serve()
        self.link = self._stack.enter_context(Proxy(self._address, self._seed))
        self.view = self._stack.enter_context(Proxy(self.arm.ready["http"].removeprefix("http://"), self._seed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.__exit__(None, None, None)
        self._stack.close()

    @property
    def flags(self) -> list[str]:
        """Of `edge-runtime start`, over the proxies."""
        http = f"http://{self.view.address}"
        cameras = {
            name: {"type": "opencv", "index_or_path": url.replace(self.arm.ready["http"], http)}
            for name, url in self.cameras.items()
        }
        sees = [f"--robot.cameras={json.dumps(cameras)}"] if cameras else []
        return [
            *(*self.arm.robot, *sees, f"--extra_state={{environment_state: {http}/state}}"),
            *(f"--server_address={self.link.address}", f"--fault_folder={self._folder}/faults", "--give_up_after_s=0"),
            "--robot.bus_timeout_ms=20",  # these servos are a program, and share two cores with all the rest
        ]

    def kill_server(self) -> None:
        self.server.__exit__(None, None, None)

    def restart_server(self) -> None:
        """Returns when it serves again, on the same port."""
        self._serve()

    def stop_server(self) -> None:
        self.server.process.send_signal(signal.SIGSTOP)

    def wake_server(self) -> None:
        self.server.process.send_signal(signal.SIGCONT)

    def bus(self, order: dict[str, Any]) -> None:
        """A fault of the bus; the words are in `virtual_arm/faults.py`."""
        self.arm.post("/fault", order)

    def _serve(self) -> None:
        self.server = Server(self._folder, self._bundle, listen=self._address)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
