"""The page that Prometheus reads a meter's numbers from: `GET /metrics`, on this machine only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from secure_fl.errors import RunError
from secure_fl.pilot.metrics import FAMILIES, Meter

HERE = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")  # a web page that lets its name lead here is not answered
PATIENCE = 2.0  # seconds that a request may say nothing

Answer = Callable[..., Any]  # WSGI's start_response


class Numbers(Collector):
    """A meter, as `prometheus_client` asks for its numbers."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        """Every family that has a number now."""
        found = self._meter.numbers()
        for name, (kind, what) in FAMILIES.items():
            rows = sorted((labels, value) for (n, labels), value in found.items() if n == name)
            if rows:
                made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                family = made(f"secure_fl_{name}", what, labels=[key for key, _ in rows[0][0]])
                for labels, value in rows:
                    family.add_metric([text for _, text in labels], value)
                yield family


def registry_of(meter: Meter) -> CollectorRegistry:
    """A registry of this meter alone: nothing of the process or the machine."""
    registry = CollectorRegistry()
    registry.register(Numbers(meter))
    return registry


@contextmanager
def listening(meter: Meter, port: int) -> Iterator[int]:
    """Answer requests on a port of this machine, 0 for a free one."""
    page = _guarded(make_wsgi_app(registry_of(meter)))
    try:
        server = make_server(HERE, port, page, _Server, _Handler)
    except OSError as error:
        raise RunError(
            f"cannot show metrics on port {port}: {error.strerror}",
            fix="take another port for --metrics",
            reason="unusable-address",
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _guarded(page: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """One path, read only, for this machine's own names: whatever else is asked is not there."""

    def answer(asked: dict[str, Any], start: Answer) -> Iterable[bytes]:
        name, _, port = asked.get("HTTP_HOST", "").rpartition(":")
        what = asked["REQUEST_METHOD"], asked["PATH_INFO"], asked.get("QUERY_STRING", "")
        if what == ("GET", "/metrics", "") and (name or port) in HOSTS:
            return page(asked, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"not found\n"]

    return answer


class _Server(ThreadingWSGIServer):
    """A thread for each request, so that who is slow holds up nobody."""

    def handle_error(self, request: object, address: object) -> None:
        """Say nothing: who asked has gone away."""


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: the run has one."""
