"""A grid of Flower in this process: real messages, and a client app for each site."""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Alter = Callable[[str, Message], Message | None]


class LocalGrid(Grid):  # type: ignore[misc]
    """Runs a client app for each site in threads, one message at a time.

    `alter` changes or drops what a site sends. `seen`: all messages to and from sites.
    """

    def __init__(self, app: ClientApp, sites: Iterable[str], alter: Alter | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a ServerApp
        self.sites, self._app = dict(enumerate(sites, start=2)), app
        self._alter = alter or (lambda site, message: message)
        self._pool = ThreadPoolExecutor(8)
        self._replies: dict[str, Future[Message | None]] = {}
        self._locks = {node: threading.Lock() for node in self.sites}
        self.seen: list[tuple[str, Message]] = []
        self.down: set[str] = set()

    def get_node_ids(self) -> list[int]:
        """Return the nodes of all sites that are up."""
        return [node for node, site in self.sites.items() if site not in self.down]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start to answer messages."""
        numbers = []
        for message in messages:
            number = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = number
            self._replies[number] = self._pool.submit(self._answer, message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there."""
        done = [number for number in list(message_ids) if self._replies[number].done()]
        found = [self._replies[number].result() for number in done]
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Wait for all replies."""
        numbers = self.push_messages(messages)
        found = [self._replies[number].result(timeout) for number in numbers]
        return [reply for reply in found if reply is not None]

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        site = self.sites[node]
        partition = {"partition-id": node - 2, "site": site}
        context = Context(1, node, partition, RecordDict(), {})
        self.seen.append(("to " + site, message))
        with self._locks[node]:
            if site in self.down:
                return Message(Error(code=5, reason="node unavailable"), reply_to=message)
            try:
                reply = self._app(message, context)
            except Exception as error:
                traceback.print_exc()  # as a node does
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
        self.seen.append(("from " + site, reply))
        return self._alter(site, reply)

    @property
    def run(self) -> Any:
        """There is no run."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """There is no run."""

    def create_message(self, *args: Any, **rest: Any) -> Message:
        """Refuse: no test needs this."""
        raise NotImplementedError
