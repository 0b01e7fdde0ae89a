"""The server's end in an NVFLARE job: the coordinator, in a thread next to the job's workflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from secure_fl.errors import CohortError, SecureFLError
from secure_fl.integrations.hub import Folder, MessageHub, coordinator_path
from secure_fl.integrations.nvflare.messages import DATA, GREETING, TOPIC, packed, reply_of, send
from secure_fl.integrations.site_messages import Failure, Reply, Request, encode, read_reply
from secure_fl.integrations.site_names import Node

COMPONENT = "secure_fl"
GRACE = 30.0  # seconds without any reply after which a site counts as silent
PAUSE = 0.5
PATIENCE = 300.0  # seconds to wait for missing sites: a client of a job does not come back
ENDING = 30.0  # seconds for the run to end after the workflow

Arrays = Mapping[str, Any]


class NvflareCarrier:
    """Requests as auxiliary messages of the job; each site is asked until it replies."""

    def __init__(self, engine: Any) -> None:
        """Begin to take greetings of clients."""
        self._engine, self.over = engine, False
        self._present: frozenset[Node] = frozenset()
        engine.register_aux_message_handler(topic=GREETING, message_handle_func=self._greeted)

    def nodes(self) -> Collection[Node]:
        """Return the clients that can be asked."""
        if self.over:
            raise CohortError("the job ended before the run", fix="see the log of the job")
        return self._present

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        """Send requests and yield replies as they arrive; with a round, those after training."""
        until, over = time.monotonic() + timeout, threading.Event()
        replies: SimpleQueue[tuple[Node, Reply | None]] = SimpleQueue()

        def follow(node: Node, request: Request) -> None:
            replies.put((node, self._reply(node, request, round > 0, over)))

        for node, request in requests.items():
            threading.Thread(target=follow, args=(node, request), daemon=True).start()
        try:
            for _ in requests:
                node, reply = replies.get(timeout=max(0.0, until - time.monotonic()))
                if reply is None:
                    return  # the job ended
                yield node, reply
        except Empty:
            return
        finally:
            over.set()

    def _reply(
        self, node: Node, request: Request, trains: bool, over: threading.Event
    ) -> Reply | None:
        """Ask a client until it replies, or is silent for too long."""
        heard, data = time.monotonic(), encode(request)
        while not over.is_set() and not self.over:
            found = send(self._engine, str(node), TOPIC, packed(data, trains=trains))
            if found is None:
                if time.monotonic() - heard > GRACE:
                    self._present -= {node}
                    return Failure("silent")
                over.wait(PAUSE)
                continue
            heard = time.monotonic()
            if isinstance(found.get(DATA), bytes):
                try:
                    return read_reply(found[DATA])
                except SecureFLError as error:
                    return Failure(error.code)
        return None

    def _greeted(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        self._present |= {request.get_peer_prop(ReservedKey.IDENTITY_NAME, "")}
        return reply_of(None)


class SealedServer(FLComponent):  # type: ignore[misc]
    """The coordinator of a job's sums, and the reader of the means that its plan opens."""

    def __init__(self, plan: str) -> None:
        """`plan`: the job's plan as TOML, which each site checks by its own rules."""
        super().__init__()
        self.plan = plan
        self._changed = threading.Condition()
        self._mean: tuple[int, Arrays] = 0, {}
        self._over, self._error = False, ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin with the job, and end with it."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            self._folder = coordinator_folder(self.plan, str(fl_ctx.get_job_id()))
            self._carrier = NvflareCarrier(engine)
            threading.Thread(target=self._lead, args=(engine,), daemon=True).start()
        elif event_type == EventType.END_RUN:
            self._carrier.over = True
            with self._changed:
                self._changed.wait_for(lambda: self._over, ENDING)

    def take(self, round: int, mean: Arrays) -> None:
        """Keep the mean of a round for the workflow."""
        with self._changed:
            self._mean = round, mean
            self._changed.notify_all()

    def mean(self, round: int) -> Arrays | None:
        """Wait for the mean of a round; None: it is not for the server."""
        algorithm = self._folder.algorithm
        opened, last = algorithm.means_to_coordinator, round == algorithm.rounds

        def known() -> bool:
            return self._over or (opened and self._mean[0] == round) or not (opened or last)

        with self._changed:
            self._changed.wait_for(known)
            if self._error:
                raise CohortError(f"the sealed sum stopped: {self._error}")
            if opened and self._mean[0] != round:
                raise CohortError(f"the coordinator ended without the mean of round {round}")
            return self._mean[1] if opened else None

    def _lead(self, engine: Any) -> None:
        try:
            hub = MessageHub(self._carrier, self._folder.algorithm, self)
            self._folder.lead(hub, PATIENCE)
        except Exception as error:
            self._error = str(error)
            if not self._carrier.over:
                with engine.new_context() as context:
                    self.system_panic(f"the sealed sum stopped: {error}", context)
        with self._changed:
            self._over = True
            self._changed.notify_all()


class SealedAggregator(ModelAggregator):  # type: ignore[misc]
    """Aggregator that returns the mean, if the sites open it to the server."""

    def __init__(self, metrics: Sequence[str] = ()) -> None:
        """`metrics`: the names among the values of the plan that are no parameters."""
        super().__init__()
        self.metrics, self._round = tuple(metrics), 0

    def accept_model(self, model: FLModel) -> None:
        """Refuse a result with arrays."""
        raise CohortError(
            "a site sent a result that is not sealed", fix="its filters are missing at that site"
        )

    def aggregate_model(self) -> FLModel:
        """Return the mean of the round; without opened means, no change."""
        self._round += 1
        server: SealedServer = self.fl_ctx.get_engine().get_component(COMPONENT)
        mean = server.mean(self._round)
        if mean is None:
            return FLModel(params_type=ParamsType.DIFF, params={})
        numbers = {name: float(v) for name, v in mean.items() if name in self.metrics}
        params = {name: v for name, v in mean.items() if name not in numbers}
        return FLModel(params_type=ParamsType.FULL, params=params, metrics=numbers or None)

    def reset_stats(self) -> None:
        """Do nothing: no result is kept."""


def coordinator_folder(plan: str, job: str) -> Folder:
    """Return the coordinator's folder on this server, for a job's plan."""
    from secure_fl.pilot.plan import read_plan

    asked = read_plan(plan)
    named = asked.run.model_copy(update={"name": job})
    return Folder(coordinator_path(), asked.model_copy(update={"run": named}))
