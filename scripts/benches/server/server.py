"""`policy-server start` in a process of its own, and what that process takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

STARTED_WITHIN_S = 60.0


class Server:
    """Serves from entering to leaving; `address` is where, `admin` its admin socket, `log` what it has said."""

    def __init__(self, *bundles: str | Path, **settings: object) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="serverbench-")
        self.admin = Path(self._folder.name) / "admin.sock"
        flags = {"listen": f"unix:{self._folder.name}/policy.sock", "admin_socket": self.admin, "max_sessions": 1024}
        flags |= {"limits.observations_per_second": 0, "limits.connections": 4096, "until_stdin_closes": "true"}
        self._command = [sys.executable, "-m", "policy_server", "start", *map(str, bundles)]
        self._command += [f"--{name}={value}" for name, value in (flags | settings).items()]
        self.log: list[str] = []
        self.address = ""

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        guard = threading.Timer(STARTED_WITHIN_S, self.process.kill)
        guard.start()
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if "serving [" in line:
                self.address = line.split()[-1]
                break
        guard.cancel()
        if not self.address:
            raise RuntimeError("the server did not start: " + "\n".join(self.log))
        threading.Thread(target=self._follow, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(STARTED_WITHIN_S)
        self._folder.cleanup()

    @property
    def cpu_s(self) -> float:
        """Processor time so far, all threads."""
        return cpu_s(self.process.pid)

    @property
    def threads_s(self) -> dict[str, float]:
        """Processor time so far of each thread."""
        folder = Path(f"/proc/{self.process.pid}/task")
        return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in folder.iterdir()}

    @property
    def rss_mb(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _follow(self) -> None:
        assert self.process.stderr is not None
        self.log += (line.rstrip() for line in self.process.stderr)


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
