"""gRPC alone: a server of two threads a stream that answers each message with another, and what that takes."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import grpc

from scripts.benches.server import fleet
from scripts.rig.usage import cpu_s

METHOD = "Echo"


@dataclass(frozen=True)
class Cost:
    """Processor time of one message there and one back, in seconds, and how many pairs a second there were."""

    server_s: float
    robot_s: float
    rate: float


def measure(streams: int, seconds: float, sent: int, answered: int) -> Cost:
    """`streams` at once, each sending `sent` bytes as soon as its `answered` bytes are there."""
    with tempfile.TemporaryDirectory(prefix="serverbench-") as folder:
        address = f"unix:{folder}/echo.sock"
        command = [sys.executable, "-m", "scripts.benches.server.echo", address, str(answered)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            before_s, mine_s = cpu_s(process.pid), time.process_time()
            pairs = asyncio.run(_ask(address, streams, seconds, bytes(sent)))
            mine_s, server_s = time.process_time() - mine_s, cpu_s(process.pid) - before_s
            process.stdin.close()
    return Cost(server_s / pairs, mine_s / pairs, pairs / seconds)


async def _ask(address: str, streams: int, seconds: float, message: bytes) -> int:
    until_s = time.monotonic() + seconds

    async def one() -> int:
        pairs = 0
        async with grpc.aio.insecure_channel(address, fleet.OPTIONS) as channel:
            call = channel.stream_stream(f"/{METHOD}/{METHOD}")()
            while time.monotonic() < until_s:
                await call.write(message)
                await call.read()
                pairs += 1
            call.cancel()
        return pairs

    return sum(await asyncio.gather(*(one() for _ in range(streams))))


def _serve(address: str, answer: bytes) -> None:
    def echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

        def read() -> None:
            with suppress(grpc.RpcError):
                for _ in requests:
                    answers.put(answer)
            answers.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(answers.get, None)

    server = grpc.server(ThreadPoolExecutor(64))
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD, handlers),))
    server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    _serve(sys.argv[1], bytes(int(sys.argv[2])))
