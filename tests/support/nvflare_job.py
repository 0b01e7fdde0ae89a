"""A job of NVFLARE in this process: its contexts, messages, filters and events, without sockets.

Each machine has an engine with NVFLARE's own context manager and runner of auxiliary messages. The
engines hand messages over as serialized bytes, and the server keeps everything that it receives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.aux_runner import AuxRunner

from secure_fl.integrations.nvflare import SealedAggregator, SealedResult, SealedServer, SealedTask
from secure_fl.pilot.plan import write_plan
from secure_fl.policy.plan import Plan

SERVER = "server"
Trains = Callable[[str, int, Mapping[str, Any]], FLModel]


class LocalEngine:
    """The engine of one machine; `alter` may change or drop messages to the server."""

    def __init__(self, job: LocalJob, name: str) -> None:
        self._job, self.name = job, name
        self.components: dict[str, Any] = {}
        self._runner = AuxRunner(self)
        self._contexts = FLContextManager(self, name, job.id)

    def new_context(self) -> FLContext:
        return self._contexts.new_context()

    def get_component(self, name: str) -> Any:
        return self.components[name]

    def register_aux_message_handler(self, topic: str, message_handle_func: Any) -> None:
        self._runner.register_aux_message_handler(topic, message_handle_func)

    def send_aux_request(
        self, targets: list[str], topic: str, request: Shareable, timeout: float,
        fl_ctx: FLContext, optional: bool = False,
    ) -> dict[str, Shareable]:  # fmt: skip
        (target,) = targets
        request.set_peer_props(fl_ctx.get_all_public_props())
        reply = self._job.engines[target].take(topic, _copied(request))
        if self.name == SERVER:
            reply = self._job.alter(target, _copied(request), reply)
            self._job.seen.setdefault(target, []).append(fobs.dumps(reply))
        return {target: _copied(reply)}

    def take(self, topic: str, request: Shareable) -> Shareable:
        if self.name in self._job.gone:
            return make_reply(ReturnCode.TIMEOUT)
        return self._runner.dispatch(topic, request, self.new_context())

    def fire_event(self, event: str, context: FLContext) -> None:
        if event == EventType.FATAL_SYSTEM_ERROR:
            self._job.panics.append(str(context.get_prop(FLContextKey.EVENT_DATA)))


@dataclass
class LocalJob:
    """A job with a server and sites, and the FedAvg workflow's use of its components."""

    names: tuple[str, ...]
    plan: Plan
    train: Trains
    id: str = "job"
    enough: int = 3  # results that the workflow needs
    alter: Callable[[str, Shareable, Shareable], Shareable] = lambda name, request, reply: reply
    seen: dict[str, list[bytes]] = field(default_factory=dict)  # by the server, from each site
    gone: set[str] = field(default_factory=set)  # sites without an answer
    panics: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)  # of filters
    means: list[FLModel] = field(default_factory=list)  # what the aggregator returned

    def __post_init__(self) -> None:
        flare_decomposers.register()
        common_decomposers.register()
        self.engines = {name: LocalEngine(self, name) for name in (SERVER, *self.names)}
        self.server = SealedServer(write_plan(self.plan))
        self.aggregator = SealedAggregator(["loss"])
        self.engines[SERVER].components["secure_fl"] = self.server

    def run(self, model: Mapping[str, Any], rounds: int | None = None) -> Mapping[str, Any]:
        """Run the workflow: broadcast, train, filter, aggregate; return the server's model."""
        context = self.engines[SERVER].new_context()
        self.aggregator.fl_ctx = context
        self.server.handle_event(EventType.START_RUN, context)
        try:
            for round in range(1, 1 + (rounds or self.plan.rounds)):
                with ThreadPoolExecutor(len(self.names)) as pool:
                    list(pool.map(partial(self._site, round=round, model=model), self.names))
                if len(self.errors.keys() | self.gone) > len(self.names) - self.enough:
                    break  # as FedAvg does with fewer results than min_clients
                found = self.aggregator.aggregate_model()
                self.means.append(found)
                if found.params_type is ParamsType.FULL:
                    model = found.params
        finally:
            self.server.handle_event(EventType.END_RUN, context)
        return model

    def task(self, name: str, round: int, model: Mapping[str, Any], kind: str = "train") -> Any:
        """Make a task and its context at a site."""
        context = self.engines[name].new_context()
        context.set_prop(FLContextKey.TASK_NAME, kind, private=True, sticky=False)
        context.set_prop(FLContextKey.TASK_ID, f"{name}-{round}", private=True, sticky=False)
        return FLModelUtils.to_shareable(FLModel(params=dict(model), current_round=round)), context

    def _site(self, name: str, round: int, model: Mapping[str, Any]) -> None:
        if name in self.gone or name in self.errors:
            return
        try:
            task, context = self.task(name, round, copy.deepcopy(model))
            given = FLModelUtils.from_shareable(SealedTask().process(task, context))
            result = FLModelUtils.to_shareable(self.train(name, round, given.params))
            sent = SealedResult().process(result, context)
            self.seen.setdefault(name, []).append(fobs.dumps(sent))
        except Exception as error:
            self.errors[name] = error


def trained(params: Mapping[str, Any], steps: float, loss: float = 0.0, **given: Any) -> FLModel:
    """Make a script's result."""
    meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: steps}
    return FLModel(params=dict(params), metrics={"loss": loss, "secret": 1.0}, meta=meta, **given)


def _copied(message: Shareable) -> Shareable:
    found: Shareable = fobs.loads(fobs.dumps(message))
    return found
