"""The virtual arm over HTTP: pages of JSON, orders, camera streams (MJPEG) and a page for people."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from edge_runtime.errors import ConfigError, OutputError
from edge_runtime.program.loopback_http import refusal
from edge_runtime.virtual_arm.cameras import Cameras
from edge_runtime.virtual_arm.page import human_page

HOST = "127.0.0.1"

_MOST_BYTES = 64 * 1024
_BOUNDARY = "frame"


class WebServer:
    """Serves JSON from `pages` (path -> answer), orders to `actions` (path -> order to answer) and `cameras`, if any.

    And a page for people, which asks for /joints, /state and /episode and orders at /fault and /episode. What a web
    page of another origin sends is answered 403. On loopback only; port 0 takes a free one. An action says what is
    wrong with its order by a ConfigError, which is answered 400. A context manager. Raises OutputError where the port
    is in use.
    """

    def __init__(
        self,
        pages: dict[str, Callable[[], Any]],
        actions: dict[str, Callable[[dict[str, Any]], Any]],
        cameras: Cameras | None,
        port: int = 0,
    ) -> None:
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            raise OutputError(f"http_port: cannot listen on {HOST}:{port}: {error.strerror or error}") from error
        self._server.pages, self._server.actions, self._server.cameras = pages, actions, cameras
        self.url = f"http://{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="virtual-http", daemon=True)

    def __enter__(self) -> WebServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a watcher that never leaves does not keep us
    pages: dict[str, Callable[[], Any]]
    actions: dict[str, Callable[[dict[str, Any]], Any]]
    cameras: Cameras | None

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client may leave in the middle of an answer
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"  # connections are kept: a state is read 30 times a second
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        if self.path == "/":
            names = self.server.cameras.views if self.server.cameras else ()
            self._answer("text/html; charset=utf-8", human_page(list(names)).encode())
        elif self.path.startswith("/cameras/"):
            self._stream(self.path.removeprefix("/cameras/"))
        elif page := self.server.pages.get(self.path):
            self._answer_json(page())
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")

    def do_POST(self) -> None:
        if not self._is_for_us():
            self.close_connection = True  # the body stays unread
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > _MOST_BYTES:
            self.close_connection = True  # the body stays unread
            self._refuse(HTTPStatus.BAD_REQUEST, f"Content-Length: {length!r} is not in 0..{_MOST_BYTES}")
            return
        body = self.rfile.read(int(length))
        action = self.server.actions.get(self.path)
        if action is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
            return
        try:
            answer = action(_decode(body))
        except ConfigError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._answer_json(answer)

    def _is_for_us(self) -> bool:
        """Whether a program or our own page asks; what a page of another origin sends is refused."""
        reason = refusal(self.headers.get("Host", ""), self.headers.get("Origin"))
        if reason:
            self._refuse(HTTPStatus.FORBIDDEN, reason)
        return not reason

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: requests come at the rate of the policy."""

    def _stream(self, name: str) -> None:
        cameras = self.server.cameras
        if cameras is None or name not in cameras.views:
            names = ", ".join(cameras.views) if cameras else "none"
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no camera {name!r}; cameras: {names}")
            return
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.closing(cameras.watch(name)) as frames, contextlib.suppress(OSError):  # OSError: they left
            for jpeg in frames:
                head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                self.wfile.write(head.encode() + jpeg + b"\r\n")

    def _answer_json(self, value: Any) -> None:
        self._answer("application/json", json.dumps(value).encode())

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._answer("application/json", json.dumps({"error": reason}).encode(), status)

    def _answer(self, kind: str, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        order = json.loads(body)
    except ValueError as error:
        raise ConfigError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError("the body is not JSON: it is nested too deeply") from error
    if not isinstance(order, dict):
        raise ConfigError("the body is not a JSON object")
    return order
