"""Metrics of a run, and the page on which Prometheus reads them: `GET /metrics`, locally.

A coordinator's meter has no scores and no spent privacy: they are about one hospital's records, so
only that hospital's own meter has them. Metrics cannot delay a run: events only change a table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from secure_fl import events
from secure_fl.errors import RunError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HERE = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")  # other names are refused: a web page could point one here
PATIENCE = 2.0  # seconds without data after which a request is dropped

FAMILIES = {  # type and help of each
    "round": ("gauge", "The current round; one more than the last when the run has finished."),
    "members": ("gauge", "How many members take part."),
    "member_present": ("gauge", "1 while a member takes part, 0 after it was lost."),
    "connected": ("gauge", "1 while the other end is connected."),
    "gathered_total": ("counter", "How often members were gathered for a run."),
    "lost_total": ("counter", "How often a member did not answer."),
    "returned_total": ("counter", "How often a member came back between rounds."),
    "restarted_total": ("counter", "How often a member's process restarted."),
    "waiting": ("gauge", "1 while too few members are connected to begin or continue, else 0."),
    "waited_for_seconds": ("gauge", "Seconds for which the run has waited for this member."),
    "stopped_total": ("counter", "How often a run stopped early, by code."),
    "refused_total": ("counter", "Plans and frames that were refused, by code."),
    "dropped_messages_total": ("counter", "Messages refused before decoding, by reason."),
    "bytes_total": ("counter", "Bytes up, from hospitals, and down, to them."),
    "score": ("gauge", "A score of the shared model on this hospital's own records."),
    "pooled_score": ("gauge", "A score of the shared model on all hospitals' records together."),
    "epsilon": ("gauge", "Spent privacy budget (epsilon), as last reported."),
    "seconds_since_last_event": ("gauge", "Seconds since anything happened in the run."),
}
Labels = tuple[tuple[str, str], ...]


class Meter:
    """Numbers from events: of the named hospital, or of the coordinator if there is no name."""

    def __init__(
        self, party: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._party, self._clock = party, clock
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._last = clock()
        # Called at each request, because these change without an event.
        self.connected: Callable[[], Mapping[str, bool]] = dict
        self.dropped: Callable[[], Mapping[str, int]] = dict
        self.slow: Callable[[], Mapping[str, float]] = dict  # seconds; of a step's answers
        self._awaited: dict[str, float] = {}  # when the run began to wait for each

    def note(self, event: events.Event) -> None:
        """Count one event of a recorder."""
        with self._lock:
            self._last = self._clock()
            match event:
                case events.Waiting(parties=parties):
                    self._wait(parties)
                case events.RoundStarted(round=number, members=members):
                    self._round(number, members)
                case events.RoundSaved(round=number, members=members):
                    self._round(number, members)
                case events.Refused(code=code):
                    self._add("refused_total", code=code)
                case events.Stopped(
                    code=code, final=False
                ):  # a final one repeats that a round ended
                    self._add("stopped_total", code=code)
                case _ if self._party is None:
                    self._of_coordinator(event)
                case _:
                    self._of_hospital(event)

    def numbers(self) -> dict[tuple[str, Labels], float]:
        """Return all current numbers by family and labels."""
        peers, dropped, slow = self.connected(), self.dropped(), dict(self.slow())
        with self._lock:
            now, numbers = self._clock(), dict(self._values)
            numbers["seconds_since_last_event", ()] = now - self._last
            slow |= {name: now - since for name, since in self._awaited.items()}
        numbers |= {("waited_for_seconds", _labels(member=m)): t for m, t in slow.items()}
        numbers |= {("connected", _labels(member=m)): float(up) for m, up in peers.items()}
        return numbers | {
            ("dropped_messages_total", _labels(reason=reason)): float(count)
            for reason, count in dropped.items()
        }

    def _of_coordinator(self, event: events.Event) -> None:
        match event:
            case events.MembersGathered(members=members):
                self._wait(())
                self._add("gathered_total")
                self._members(members)
            case events.MembersLost(parties=parties, code=code):
                for name in parties:
                    self._add("lost_total", member=name)
                    self._set("member_present", 0, member=name)
                if code is not None:
                    self._add("refused_total", code=code)
            case events.MembersReturned(parties=parties):
                for name in parties:
                    self._add("returned_total", member=name)
            case events.MemberRestarted(parties=parties):
                for name in parties:
                    self._add("restarted_total", member=name)
            case events.MembersExcluded(parties=parties):
                for name in parties:
                    self._set("member_present", 0, member=name)
            case events.Traffic(bytes=sizes):
                for name, of_member in sizes.items():
                    for direction in ("up", "down"):
                        amount = of_member[direction]
                        self._set("bytes_total", amount, member=name, direction=direction)

    def _of_hospital(self, event: events.Event) -> None:
        match event:
            case events.PlanAccepted():
                self._add("gathered_total")
            case events.Crossing(direction=direction):
                direction = "up" if direction == "out" else "down"
                self._add("bytes_total", event.size, direction=direction)
            case events.Scored(split=split):
                family = "pooled_score" if event.pooled else "score"
                for name, value in event.numbers().items():
                    self._set(family, value, split=split, metric=name)
            case events.PrivacySpent(epsilon=float(spent)):
                self._set("epsilon", spent, of="training")
            case events.PredictionNoise(facts={"epsilon": float(spent)}):
                self._set("epsilon", spent, of="sums")

    def _round(self, number: int, members: Collection[str]) -> None:
        self._wait(())
        self._set("round", number)
        self._members(members)

    def _wait(self, names: Collection[str]) -> None:
        self._set("waiting", bool(names))
        self._awaited = {name: self._awaited.get(name, self._last) for name in names}

    def _members(self, names: Collection[str]) -> None:
        self._set("members", len(names))
        if self._party is not None:
            return
        for name, labels in list(self._values):
            if name == "member_present":
                self._values[name, labels] = 0.0
        for member in names:
            self._set("member_present", 1, member=member)

    def _set(self, name: str, value: float, **labels: object) -> None:
        self._values[name, _labels(**labels)] = float(value)

    def _add(self, name: str, amount: float = 1, **labels: object) -> None:
        key = name, _labels(**labels)
        self._values[key] = self._values.get(key, 0.0) + amount


@contextmanager
def serving(meter: Meter, port: int | None) -> Iterator[int | None]:
    """Serve `GET /metrics` on this machine only; port 0 picks a free port, None serves nothing."""
    if port is None:
        yield None
        return
    try:
        from prometheus_client import make_wsgi_app
        from prometheus_client.exposition import ThreadingWSGIServer
    except ImportError:
        raise RunError(
            "--metrics needs prometheus_client, which is not installed",
            fix="from a checkout: pip install --constraint constraints.txt '.[metrics]'; or leave "
            "--metrics out",
            reason="missing-extra",
        ) from None

    class Server(ThreadingWSGIServer):
        """A thread per request, so that a slow client delays nobody."""

        def handle_error(self, request: object, address: object) -> None:
            """Print nothing: the client has disconnected."""

    page = _guarded(make_wsgi_app(registry_of(meter)))
    try:
        server = make_server(HERE, port, page, Server, MetricsHandler)
    except OSError as error:
        what = f"cannot show metrics on port {port}: {error.strerror}"
        fix = "choose another port for --metrics"
        raise RunError(what, fix=fix, reason="unusable-address") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def registry_of(meter: Meter) -> CollectorRegistry:
    """Make a registry of this meter alone, without metrics of the process or the machine."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class Numbers(Collector):
        """The meter's numbers, as `prometheus_client` reads them."""

        def collect(self) -> Iterator[Metric]:
            """Yield every family that has a number now."""
            numbers = meter.numbers()
            for name, (kind, help) in FAMILIES.items():
                rows = sorted(
                    (labels, value) for (n, labels), value in numbers.items() if n == name
                )
                if rows:
                    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                    made = make(f"secure_fl_{name}", help, labels=[key for key, _ in rows[0][0]])
                    for labels, value in rows:
                        made.add_metric([text for _, text in labels], value)
                    yield made

    registry = CollectorRegistry()
    registry.register(Numbers())
    return registry


def _guarded(page: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Answer `GET /metrics` for this machine's own names, and 404 for anything else."""

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        name, _, port = request.get("HTTP_HOST", "").rpartition(":")
        what = request["REQUEST_METHOD"], request["PATH_INFO"], request.get("QUERY_STRING", "")
        if what == ("GET", "/metrics", "") and (name or port) in HOSTS:
            return page(request, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"not found\n"]

    return answer


class MetricsHandler(WSGIRequestHandler):
    """A handler that writes no log and gives up on silent clients."""

    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: the run has one."""


def _labels(**labels: object) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))
