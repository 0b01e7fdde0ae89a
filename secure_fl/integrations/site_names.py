"""The names of the sites behind an engine's nodes; a node that does not answer delays nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol

from secure_fl.integrations.site_messages import Reply, Request, SiteName, Who

INTRODUCTION = 60.0  # seconds to wait for the name of a new node
OPEN = 600.0  # seconds until a node without an answer is asked again
LOOK = 1.0  # seconds to wait for the name of a node that named no site when it was last asked


Node = int | str


class Carrier(Protocol):
    """An engine's way from its server to the programs at the sites."""

    def nodes(self) -> Collection[Node]:
        """Return the nodes that are connected now."""

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        """Send requests and yield replies as they arrive.

        With a round, each message also asks for the training of that round.
        """


class SiteNames:
    """Site names by node, as the nodes state them."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.known: dict[Node, str] = {}
        self._asked: frozenset[Node] = frozenset()  # without an answer so far
        self._nameless: set[Node] = set()  # nodes that named no site, or not in time
        self._replies: SimpleQueue[tuple[Node, Reply | Exception | None]] = SimpleQueue()

    def update(self, nodes: Collection[Node]) -> dict[Node, str]:
        """Ask nodes without a name, wait for those that are new, and return all names."""
        self._receive(self._asked, 0.0)  # late answers
        self.known = {node: name for node, name in self.known.items() if node in nodes}
        self._asked &= frozenset(nodes)
        if new := frozenset(nodes) - self._asked - self.known.keys():
            self._asked |= new
            threading.Thread(target=self._ask, args=(new,), daemon=True).start()
            self._receive(new - self._nameless, INTRODUCTION)
            self._receive(new, LOOK)
            self._nameless |= new - self.known.keys()
        return self.known

    def forget(self, node: Node) -> None:
        """Ask a node for its name again, after it failed."""
        self.known.pop(node, None)

    def _ask(self, nodes: Collection[Node]) -> None:
        """Ask in another thread, until all have answered."""
        left = set(nodes)
        try:
            for node, reply in self._carrier.ask(
                {node: Who() for node in sorted(left, key=str)}, OPEN
            ):
                left.discard(node)
                self._replies.put((node, reply))
        except Exception as error:  # the thread that waits raises it
            self._replies.put((min(nodes, key=str), error))
        for node in left:
            self._replies.put((node, None))

    def _receive(self, nodes: Collection[Node], seconds: float) -> None:
        """Receive replies until all these nodes have answered, or the time is over."""
        until = time.monotonic() + seconds
        while self._asked.intersection(nodes):
            try:
                node, reply = self._replies.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return
            self._asked -= {node}
            if isinstance(reply, Exception):
                raise reply
            if isinstance(reply, SiteName):
                self.known[node] = reply.name
                self._nameless.discard(node)
