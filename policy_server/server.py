"""The composition root: bundles, schedulers, service and health behind one gRPC server, from start to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from importlib import metadata
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from edge_runtime.errors import ConfigError, UsageError
from edge_runtime.notify import Notifier
from policy_server.address import Address
from policy_server.bundle import Bundle
from policy_server.config import ServerConfig
from policy_server.engines import open_engine
from policy_server.engines.providers import Runtime, check
from policy_server.scheduler import Scheduler
from policy_server.service import SERVICE, SPARE_WORKERS, Model, PolicyService

log = logging.getLogger(__name__)

PROGRESS_S = 10.0
STOP_S = 1.0
STOPPED_WITHIN_S = 30.0  # as TimeoutStopSec of the service
STUCK_S = 120.0  # in one batch: no inference takes so long, and systemd may start us anew
WATCHERS = 8  # of health at once; any number may ask without watching

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # with it a second server would take half of the connections in silence
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.max_send_message_length", 4 * 1024 * 1024),
    # Robots ping every 10 s, also while a long inference sends nothing; and we find out about one that has vanished.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class PolicyServer:
    """Listens from entering to leaving, and serves once warm. `address` is where, with the port that was got."""

    def __init__(self, config: ServerConfig, bundles: Sequence[Bundle]) -> None:
        """Raises ConfigError (exposure, provider), UsageError (two bundles of one name)."""
        self._listen = Address.parse(config.listen)
        if not self._listen.is_local and not config.insecure:
            raise ConfigError(
                f"listen: {self._listen} can be reached from other machines, without TLS or a token; "
                "--insecure=true allows that"
            )
        runtime = Runtime(config.providers, config.threads)
        check(runtime)  # before a port is taken
        max_batch = min(config.max_batch, config.max_sessions)
        self._models: dict[str, Model] = {}
        for bundle in bundles:
            name = bundle.policy.name
            if name in self._models:
                raise UsageError(f"bundle: {bundle.path} is named {name!r}, as is another bundle")
            scheduler = Scheduler(
                name,
                partial(open_engine, bundle, runtime),
                max_batch=max_batch,
                batch_window_s=config.batch_window_ms / 1e3,
                inject_s=config.inject_latency_ms / 1e3,
            )
            self._models[name] = Model(bundle.policy, scheduler)
        self._service = PolicyService(
            self._models, max_sessions=config.max_sessions, version=metadata.version("edge-runtime")
        )
        self._health = health_servicer()
        self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._insecure = config.insecure
        workers = config.max_sessions + SPARE_WORKERS
        self._grpc = grpc.server(
            ThreadPoolExecutor(workers, thread_name_prefix="grpc"),
            options=_OPTIONS,
            maximum_concurrent_rpcs=workers + WATCHERS,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        self._grpc.add_generic_rpc_handlers((self._service.handler(),))
        self.address = str(self._listen)

    def __enter__(self) -> PolicyServer:
        """Listen, and begin to load. Raises OutputError when the address cannot be had."""
        self.address = str(self._listen.bind(self._grpc))
        if not self._listen.is_local:
            log.warning("%s can be reached from other machines, without TLS or a token (--insecure)", self.address)
        self._grpc.start()
        for model in self._models.values():
            model.scheduler.start()
        return self

    def run(self, stop: Future[None]) -> None:
        """Warm up, then serve until `stop` is done. Raises what keeps a model from being served."""
        started_s = time.monotonic()
        systemd = Notifier()
        waiting = {model.scheduler.warm: name for name, model in self._models.items()}
        while waiting:
            futures: list[Future[Any]] = [stop, *waiting]
            done = wait(futures, PROGRESS_S, FIRST_COMPLETED).done
            if stop in done:
                return
            for warm in done:
                log.info("%s runs on %s", waiting.pop(warm), warm.result())
            if not done:
                for name in waiting.values():
                    progress = self._models[name].scheduler.progress
                    systemd.status(f"{name} is warming up ({progress})")
                    log.info("%s: warming up for %.0f s (%s)", name, time.monotonic() - started_s, progress)
        self._report(health_pb2.HealthCheckResponse.SERVING)
        log.info("serving [%s] on %s", ", ".join(self._models), self.address)
        systemd.ready()
        systemd.status(f"serving [{', '.join(self._models)}] on {self.address}")
        schedulers = [model.scheduler for model in self._models.values()]
        ends = [stop, *(scheduler.over for scheduler in schedulers)]
        while not (ended := wait(ends, systemd.watchdog_s / 4 or None, FIRST_COMPLETED).done):
            if all(scheduler.busy_s < STUCK_S for scheduler in schedulers):
                systemd.alive()
        systemd.stopping(STOPPED_WITHIN_S)
        for end in ended:
            end.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._report(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._service.stop()
        self._grpc.stop(STOP_S).wait()
        for model in self._models.values():
            model.scheduler.stop()

    def _report(self, status: int) -> None:
        for service in (health.OVERALL_HEALTH, SERVICE):
            self._health.set(service, status)


def health_servicer() -> health.HealthServicer:
    """Health whose watchers wait on threads of their own.

    By default `set` would send to them under the servicer's lock, for which gRPC's one serving thread waits when a
    watcher leaves at that moment: the whole server would stand still for ever (seen with 1.81).
    """
    watchers = ThreadPoolExecutor(WATCHERS, thread_name_prefix="health")
    return health.HealthServicer(experimental_non_blocking=False, experimental_thread_pool=watchers)
