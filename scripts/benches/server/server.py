"""`policy-server start` in a process of its own, without the limits that guard against strangers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from scripts.rig import program
from scripts.rig.usage import cpu_s, memory_mb


class Server(program.Server):
    """Serves `bundle` from its making to the context's end; `admin` is its admin socket."""

    def __init__(self, bundle: str | Path, *, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="serverbench-")
        folder = Path(self._folder.name)
        self.admin = folder / "admin.sock"
        flags = (f"--admin_socket={self.admin}", f"--threads={threads}", "--max_sessions=1024")
        limits = ("--limits.observations_per_second=0", "--limits.connections=4096")
        super().__init__(folder, str(bundle), *flags, *limits, listen=f"unix:{folder}/policy.sock")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
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
        return memory_mb(self.process.pid)
