"""A bad network: a TCP proxy that delays, slows down, swallows and cuts what passes through it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

_PIECE = 4096  # bytes at a time, so that a slow line is slow evenly
_LINGER_NOT = struct.pack("ii", 1, 0)  # close by reset, what is under way is lost


@dataclass(frozen=True)
class Link:
    """What the line is like in each direction. Zero is no limit; a black hole takes everything and gives nothing."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # added to the delay, evenly from 0
    bytes_per_s: float = 0.0
    black_hole: bool = False


class Proxy:
    """Listens on loopback and passes on to `target`, a HOST:PORT. A context manager; `link` may be set at any time."""

    def __init__(self, target: str, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._link = Link()
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.connections = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def link(self) -> Link:
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        """From now on, also for what waits in a black hole."""
        self._do(self._set, link)

    def reset(self) -> None:
        """Every connection ends with a reset."""
        self._do(self._cut)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        for writer in self._writers:
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _do(self, act: Callable[..., None], *arguments: object) -> None:
        done = threading.Event()

        def run() -> None:
            act(*arguments)
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def _set(self, link: Link) -> None:
        self._link = link
        self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """One direction: a queue of pieces and when each is due."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        pump = self._loop.create_task(self._deliver(line, sink))
        free_s = 0.0
        try:
            with contextlib.suppress(OSError):
                while piece := await source.read(_PIECE):
                    link, now_s = self._link, self._loop.time()
                    took_s = len(piece) / link.bytes_per_s if link.bytes_per_s else 0.0
                    free_s = max(free_s, now_s) + took_s
                    due_s = free_s + link.delay_s + self._random.uniform(0, link.jitter_s)
                    line.put_nowait((due_s, piece))
            line.put_nowait((0.0, b""))
            await pump
        finally:
            pump.cancel()

    async def _deliver(self, line: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, piece = await line.get()
                await asyncio.sleep(due_s - self._loop.time())
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._link.black_hole)
                if not piece:
                    sink.close()
                    return
                sink.write(piece)
                await sink.drain()
