"""The composition root: bundles, schedulers, service and health behind one gRPC server, from start to stop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib import metadata
from types import TracebackType
from typing import Any

import grpc
from prometheus_client import PlatformCollector, ProcessCollector

from edge_runtime.errors import ConfigError
from edge_runtime.program.exposition import Exposition
from edge_runtime.program.notify import Notifier
from edge_runtime.wire.messages import Policy
from policy_server.admin.service import Admin
from policy_server.config import LimitsConfig, ServerConfig
from policy_server.door.access import Access
from policy_server.door.address import Address
from policy_server.door.admission import Admission
from policy_server.door.deadlines import Deadlines
from policy_server.door.health import Health
from policy_server.door.refusals import Refusals
from policy_server.door.sending import BoundedSending
from policy_server.engines import Engine, Source, open_engine
from policy_server.engines.lerobot import LeRobotPolicy
from policy_server.engines.openpi import layout
from policy_server.engines.openpi.engine import OpenpiPolicy
from policy_server.engines.providers import Runtime, check
from policy_server.engines.python import PythonPolicy
from policy_server.metrics import ServerCollector
from policy_server.serving.fairness import DecodingTurns
from policy_server.serving.lerobot.service import LeRobotService, Refuser
from policy_server.serving.model import Model
from policy_server.serving.models import PROGRESS_S, Models
from policy_server.serving.openpi.door import OpenpiDoor
from policy_server.serving.openpi.service import OpenpiService
from policy_server.serving.service import DESCRIBE_PLACES, SERVICE, PolicyService

log = logging.getLogger(__name__)

STOP_S = 1.0
STOPPED_WITHIN_S = 30.0  # as TimeoutStopSec of the service
STUCK_S = 120.0  # in one batch: no inference takes so long, and systemd may start us anew
HEALTH_PLACES = 8  # questions about health at once, watchers included
SPARE_WORKERS = 8  # beyond what one connection may begin: to refuse at once, also while it holds all that it may


class PolicyServer:
    """Listens from entering to leaving, and serves once warm. `address` is where, with the port that was got.

    `workers` is how many calls it can be at.
    """

    def __init__(self, config: ServerConfig, sources: Sequence[Source]) -> None:
        """Raises ConfigError (exposure, provider), UsageError (two policies of one name)."""
        refused = Refusals()
        self._listen = Address.parse(config.listen)
        self._group = config.socket_group
        self._access = Access(config, self._listen, refused)
        version = metadata.version("edge-runtime")
        max_batch = min(config.max_batch, config.max_sessions)
        runtime = Runtime(
            config.providers,
            config.threads,
            options=config.provider_options,
            max_batch=max_batch,
            cache_dir=config.cache_dir,
            cuda_graphs=config.cuda_graphs,
        )
        if not all(isinstance(source, PythonPolicy | LeRobotPolicy | OpenpiPolicy) for source in sources):
            check(runtime)  # before a port is taken

        def load_engine(source: Source) -> Engine:
            _check_cameras(source.policy, config.limits)
            return open_engine(source, runtime)

        self._models = Models(
            partial(
                Model,
                open_engine=load_engine,
                decoding=DecodingTurns(max(1, len(os.sched_getaffinity(0)) - 1)),  # and a core for the engine
                max_batch=max_batch,
                batch_window_s=config.batch_window_ms / 1e3,
                inject_s=config.inject_latency_ms / 1e3,
            ),
            code=[source.path for source in sources if isinstance(source, PythonPolicy)],
        )
        for source in sources:
            self._models.add(source)
        self._deadlines = Deadlines()
        admission = Admission(config.max_sessions, config.limits.sessions_per_peer, self._access.peers)
        self._service = PolicyService(
            self._models,
            admission=admission,
            peers=self._access.peers,
            limits=config.limits,
            deadlines=self._deadlines,
            refused=refused,
            version=version,
        )
        self._doors: list[AbstractContextManager[object]] = []
        if config.admin_socket is not None:
            self._doors.append(Admin(config.admin_socket, self._models))
        if config.metrics_port is not None:
            seen = ServerCollector(self._models, refused, version)
            process = (ProcessCollector(registry=None), PlatformCollector(registry=None))
            self._doors.append(Exposition(config.metrics_port, seen, *process))
        self._open = ExitStack()
        bounded = BoundedSending(self._deadlines, config.limits.unfinished_s, refused)
        self._health = Health({SERVICE}, HEALTH_PLACES, config.limits.handshake_s, self._deadlines, self._access.peers)
        streams = config.max_sessions + HEALTH_PLACES + DESCRIBE_PLACES
        self.workers = streams + SPARE_WORKERS
        self._grpc = grpc.server(
            ThreadPoolExecutor(self.workers, thread_name_prefix="grpc"),
            options=_options(config.limits, streams),
            interceptors=(bounded, *self._access.interceptors),
            maximum_concurrent_rpcs=2 * self.workers,
        )
        refuser = Refuser(refused, config.lerobot_listen)
        self._grpc.add_generic_rpc_handlers((self._service.handler(), self._health.handler(), refuser.handler()))
        self.address = str(self._listen)
        self.lerobot_address = ""
        self._lerobot: _LeRobotDoor | None = None
        if config.lerobot_listen:
            service = LeRobotService(
                self._models,
                strict=config.lerobot.strict,
                admission=admission,
                peers=self._access.peers,
                limits=config.limits,
                deadlines=self._deadlines,
                refused=refused,
            )
            self._lerobot = _LeRobotDoor(config, service, bounded)
        self.openpi_address = ""
        self._openpi: OpenpiDoor | None = None
        if config.openpi_listen:
            openpi = OpenpiService(
                self._models,
                layout.read(config.map) if config.map is not None else None,
                admission=admission,
                peers=self._access.peers,
                limits=config.limits,
                deadlines=self._deadlines,
            )
            self._openpi = OpenpiDoor(config, openpi, self._access.tokens, refused)

    def __enter__(self) -> PolicyServer:
        """Listen, and begin to load. Raises OutputError when the address cannot be had."""
        with ExitStack() as opening:
            for door in self._doors:
                opening.enter_context(door)
            if self._lerobot is not None:
                self.lerobot_address = self._lerobot.open()
            if self._openpi is not None:
                self.openpi_address = self._openpi.open()
                opening.callback(self._openpi.stop)
            bound = self._listen.bind(self._grpc, self._access.credentials, self._group)
            self._open = opening.pop_all()
        self.address = str(bound)
        if self._access.lacks:
            lacks = " and ".join(self._access.lacks)
            log.warning("%s can be reached from other machines, and lacks %s (--insecure)", self.address, lacks)
        self._deadlines.start()
        self._grpc.start()
        if self._lerobot is not None:
            self._lerobot.start()
        if self._openpi is not None:
            self._openpi.start()
        for model in self._models:
            model.scheduler.start()
        return self

    def run(self, stop: Future[None]) -> None:
        """Warm up, then serve until `stop` is done. Raises what keeps a model from being served."""
        started_s = time.monotonic()
        systemd = Notifier()
        waiting = {model.scheduler.warm: model for model in self._models}
        while waiting:
            futures: list[Future[Any]] = [stop, *waiting]
            done = wait(futures, PROGRESS_S, FIRST_COMPLETED).done
            if stop in done:
                return
            for warm in done:
                log.info("%s runs on %s", waiting.pop(warm).name, warm.result())
            if not done:
                for model in waiting.values():
                    progress = model.scheduler.progress
                    systemd.status(f"{model.name} is warming up ({progress})")
                    log.info("%s: warming up for %.0f s (%s)", model.name, time.monotonic() - started_s, progress)
        self._health.set(True)
        log.info("serving [%s] on %s", self._models.names, self.address)
        systemd.ready()
        systemd.status(f"serving [{self._models.names}] on {self.address}")
        ends = [stop, self._models.failed]
        while not (ended := wait(ends, systemd.watchdog_s / 4 or None, FIRST_COMPLETED).done):
            if all(model.scheduler.busy_s < STUCK_S for model in self._models):
                systemd.alive()
        systemd.stopping(STOPPED_WITHIN_S)
        for end in ended:
            end.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._health.set(False)
        self._open.close()
        if self._lerobot is not None:
            self._lerobot.stop()
        self._service.stop()
        self._grpc.stop(STOP_S).wait()
        self._models.stop()
        self._deadlines.stop()

    def reload(self) -> None:
        """Read certificates and tokens again, for connections and calls to come."""
        self._access.reload()


class _LeRobotDoor:
    """The port of LeRobot's clients: its own, since they have neither TLS nor token."""

    def __init__(self, config: ServerConfig, service: LeRobotService, bounded: BoundedSending) -> None:
        """Raises ConfigError beyond loopback unless `insecure`."""
        self._listen = Address.parse(config.lerobot_listen, "lerobot_listen")
        if self._listen.path is not None:
            raise ConfigError("lerobot_listen: must be HOST:PORT, which is what LeRobot's client connects to")
        if not self._listen.is_local and not config.insecure:
            raise ConfigError(
                f"lerobot_listen: {self._listen} can be reached from other machines, and LeRobot's clients have neither"
                " TLS nor a token; --insecure=true does without"
            )
        self._service = service
        calls = 2 * config.max_sessions  # of one client: it polls and sends an observation
        self._grpc = grpc.server(
            ThreadPoolExecutor(calls + SPARE_WORKERS, thread_name_prefix="lerobot"),
            options=_options(config.limits, calls),
            interceptors=(bounded,),
            maximum_concurrent_rpcs=2 * (calls + SPARE_WORKERS),
        )
        self._grpc.add_generic_rpc_handlers((service.handler(),))

    def open(self) -> str:
        """Bind; the address with the port that was got. Raises OutputError."""
        bound = self._listen.bind(self._grpc)
        remark = "" if bound.is_local else ": other machines reach it without TLS or token (--insecure)"
        log.info("LeRobot's clients are served on %s%s", bound, remark)
        return str(bound)

    def start(self) -> None:
        self._grpc.start()

    def stop(self) -> None:
        self._service.stop()
        self._grpc.stop(STOP_S).wait()


def _options(limits: LimitsConfig, streams: int) -> list[tuple[str, int]]:
    """What gRPC holds a connection to, before anything of ours hears of it."""
    handshake_ms = round(limits.handshake_s * 1e3)
    return [
        ("grpc.so_reuseport", 0),  # with it a second server would take half of the connections in silence
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", streams),  # of one connection: a proxy brings all robots on one
        ("grpc.server_handshake_timeout_ms", handshake_ms),
        ("grpc.max_connection_idle_ms", handshake_ms),  # an idle peer is not kept
        # Robots ping every 10 s, also while a long inference sends nothing; and we notice when one has vanished.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def _check_cameras(policy: Policy, limits: LimitsConfig) -> None:
    """Raises ConfigError for a policy whose frames are larger than allowed: frames always have the policy's shape."""
    for camera in policy.cameras:
        if max(camera.height, camera.width) > limits.image_side:
            raise ConfigError(
                f"limits.image_side: {limits.image_side}, and {policy.name} takes {camera.name} in "
                f"{camera.width}x{camera.height}"
            )
