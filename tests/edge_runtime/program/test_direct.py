"""A shell's `http_proxy` is not the way to what a robot speaks to, and only one module asks for URLs."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

import edge_runtime
from edge_runtime.episodes import Episodes
from edge_runtime.tools.top.reading import read


class Judge(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer(b'edge_runtime_state{state="running"} 1\n')

    def do_POST(self) -> None:
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_the_judge_and_the_metrics_are_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # it knows the proxies of its first use
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        Episodes(url).reset(1)
        assert read(url).state == "running"
        server.shutdown()


def test_one_module_asks_for_urls() -> None:
    package = Path(edge_runtime.__file__).parent
    asking = [path.name for path in package.rglob("*.py") if "request.urlopen(" in path.read_text()]
    assert asking == []
