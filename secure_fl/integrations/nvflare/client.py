"""A site's end in an NVFLARE job: filters around the training, and answers to the coordinator."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec.structs import replace
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from secure_fl.errors import CohortError, SecureFLError, SettingsError, TrainingError
from secure_fl.integrations import program
from secure_fl.integrations.nvflare.messages import (
    DATA,
    GREETING,
    HOLD,
    TOPIC,
    TRAINS,
    reply_of,
    send,
)
from secure_fl.integrations.site_messages import (
    Ask,
    Failure,
    Give,
    Reply,
    SiteClient,
    Turn,
    Who,
    encode,
    read_request,
    vectors,
)

TRAIN, SERVER = "train", "server"
PATIENCE = 600.0  # seconds until the server's coordinator must have begun a round
LOOK = 2.0  # seconds between two looks whether the service is there
AWAY = 120.0  # seconds for the service to be started again

Arrays = Mapping[str, Any]


class SealedPart:
    """A client's part in the sums of one job; both filters share it."""

    def __init__(self, engine: Any, site: SiteClient) -> None:
        """Begin to answer the coordinator."""
        self._site, self._engine, self._log = site, engine, logging.getLogger(__name__)
        self._changed = threading.Condition()
        self._turn: Turn | None = None  # values are due
        self._asked: Ask | None = None  # the request that they will answer
        self._given: tuple[int, Give] | None = None  # the last values, with their round
        self._error: SecureFLError | None = None  # of the last request
        self._start: dict[str, np.ndarray[Any, Any]] = {}
        self._away = 0.0  # since when the service does not answer
        self._task = ""  # id of the last task
        self._sent: Shareable | None = None  # the last result
        site.ask(Who())
        engine.register_aux_message_handler(topic=TOPIC, message_handle_func=self._handle)
        send(engine, SERVER, GREETING, Shareable())

    def begin(self, task: Shareable, context: FLContext) -> Shareable:
        """Wait until values are due, and return the task with the model to train."""
        if (task_id := context.get_prop(FLContextKey.TASK_ID)) == self._task:
            return task  # the filters of the site and of the job both come here
        self._task, name = task_id, context.get_prop(FLContextKey.TASK_NAME)
        if name != TRAIN:
            raise SettingsError(
                f"the server asks for {name!r} without a sealed sum; nothing was sent",
                fix=f"only tasks with the name {TRAIN!r} are sealed",
            )
        with self._reporting():
            turn, model = self._wait(context), from_shareable(task)
            given = {name: np.asarray(value) for name, value in (model.data or {}).items()}
            start = program.model_of(turn, given)
            self._start = {name: start[name] for name in given}  # without metrics
            model.data = {name: _like(model.data[name], v) for name, v in self._start.items()}
            model.update_shareable(task)
        return task

    def give(self, result: Shareable) -> Shareable:
        """Give the trained arrays to the site's service, and return a result without them.

        After an error this site takes no further part in the job.
        """
        if result is self._sent:
            return result
        with self._reporting():
            self._sent = self._after(result)
        return self._sent

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Keep an error for the coordinator; it gets the code alone."""
        try:
            yield
        except SecureFLError as error:
            self._fail(error)
            raise
        except Exception as error:
            failure = TrainingError(
                f"the model or result of this site's training cannot be read "
                f"({type(error).__name__}); nothing was sent",
                fix="return arrays of the model's names and shapes, and numbers as metrics",
            )
            self._fail(failure)
            raise failure from error

    def _after(self, result: Shareable) -> Shareable:
        if (code := result.get_return_code(ReturnCode.OK)) != ReturnCode.OK:
            raise CohortError(f"the training of this site failed ({code}); nothing was sent")
        found = FLModelUtils.from_shareable(result)
        if not found.params or self._turn is None or self._asked is None:
            raise SettingsError("this result has no arrays that are due; nothing was sent")
        values = {name: np.asarray(value) for name, value in found.params.items()}
        if found.params_type is ParamsType.DIFF:
            values = {n: self._start[n] + moved for n, moved in values.items()}
        numbers = {n: v for n, v in (found.metrics or {}).items() if n in self._turn.planned}
        _require_finite({**values, **numbers})
        steps = (found.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        weight = 1.0 if steps is None else float(steps)  # a site without a step weighs nothing
        everything = vectors({**values, **numbers})
        give = Give(self._asked, everything, weight, vectors(self._start))
        _require_no_failure(self._site.ask(give))
        with self._changed:
            self._given, self._turn = (self._turn.round, give), None
            self._changed.notify_all()
        empty = FLModel(params_type=ParamsType.FULL, params={}, current_round=found.current_round)
        return FLModelUtils.to_shareable(empty)

    def _fail(self, error: SecureFLError) -> None:
        with self._changed:
            if self._error is None:
                self._log.error(str(error))
                self._error = error
            self._changed.notify_all()

    def _wait(self, context: FLContext) -> Turn:
        """Wait until values are due, or the job is aborted."""
        until, aborted = time.monotonic() + PATIENCE, context.get_run_abort_signal()
        with self._changed:
            while self._turn is None:
                if self._error is not None:
                    raise self._error
                if aborted is not None and aborted.triggered:
                    raise CohortError("the job was aborted before this training")
                if time.monotonic() > until:
                    raise CohortError(
                        f"the server's coordinator began no round in {PATIENCE:g} s",
                        fix="see its log: it waits for other sites, or it has ended",
                    )
                self._changed.wait(LOOK)
                self._require_service()
            return self._turn

    def _require_service(self) -> None:
        """Refuse to wait for a service that ended and was not started again."""
        try:
            self._site.ask(Who())
            self._away = 0.0
        except CohortError:
            self._away = self._away or time.monotonic()
            if time.monotonic() - self._away > AWAY:
                raise

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answer a request of the coordinator."""
        try:
            reply = self._answer(request)
        except SecureFLError as error:
            self._fail(error)
            reply = Failure(error.code)
        return reply_of(None if reply is None else encode(reply))

    def _answer(self, message: Shareable) -> Reply | None:
        """Pass a request to the site's service; return None while training runs."""
        request = read_request(message[DATA])
        if self._error is not None:
            raise self._error
        try:
            reply = self._site.ask(request)
        except CohortError as error:  # the service may be started again
            return Failure(error.code)
        _require_no_failure(reply, "outdated")
        if not isinstance(reply, Turn) or not isinstance(request, Ask):
            return reply
        if not message[TRAINS]:
            return Turn(reply.round, mean=reply.mean)
        if self._given is not None and self._given[0] == reply.round:  # the run repeats the round
            again = self._site.ask(replace(self._given[1], ask=request))
            _require_no_failure(again, "not-due")
            return None
        with self._changed:
            self._turn, self._asked = reply, request
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn is None or self._error is not None, HOLD)
        return None


class SealedTask(Filter):  # type: ignore[misc]
    """Filter for the tasks of a site: training begins when the run waits for values."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return the task with the model to train."""
        return part_of(fl_ctx).begin(shareable, fl_ctx)


class SealedResult(Filter):  # type: ignore[misc]
    """Filter for the results of a site: they go to its service and not to the server."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return a result without arrays, weights and metrics."""
        return part_of(fl_ctx).give(shareable)


_PARTS: dict[tuple[str, str], SealedPart] = {}  # by job and client


def part_of(context: FLContext) -> SealedPart:
    """Return a client's part in a job."""
    job, name = str(context.get_job_id()), str(context.get_identity_name())
    if (job, name) not in _PARTS:
        site = program.site_client({"name": name})
        _PARTS[job, name] = SealedPart(context.get_engine(), site)
    return _PARTS[job, name]


def _require_no_failure(reply: Reply, *harmless: str) -> None:
    if isinstance(reply, Failure) and reply.code not in harmless:
        raise CohortError(reply.what or reply.code, fix="see the log of this site's service")


def _require_finite(values: Arrays) -> None:
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise TrainingError(
                f"{name} holds NaN or infinity; nothing was sent",
                fix="lower the learning rate, or check the records of this site",
            )


def _like(given: Any, array: np.ndarray[Any, Any]) -> Any:
    """Convert an array to the kind of the given value."""
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(array.copy())
    return array
