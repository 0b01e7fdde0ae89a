"""A site's end in an NVFLARE job: filters around the training, and answers to the coordinator.

1. The coordinator sends an `Ask`. `SealedPart._handle` passes it to the site's service.
2. The service replies with a `Turn` if values are due. `_handle` keeps it, and holds the request.
3. `SealedTask` waits for the turn, and puts the model of the round into NVFLARE's task.
4. NVFLARE trains by the user's script, which needs no change.
5. `SealedResult` sends the trained arrays to the service as a `Give`, and none to the server.
6. `_handle` returns without a reply. The coordinator asks again, and the service seals the values.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from secure_fl.features.scripts.cohort import digest
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
RESULT = "return arrays of the model's names and shapes, and numbers as metrics"
VERSIONS = "install equal versions of secure-fl at the server and all sites"
PATIENCE = 600.0  # seconds until the server's coordinator must have begun a round
CHECK_EVERY = 2.0  # seconds between two checks of the service during a wait
RESTART = 120.0  # seconds in which a service that has ended must be started again

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GivenValues:
    """The values of a round, which are given again if the run repeats the round."""

    round: int
    give: Give


class SealedPart:
    """A client's part in the sums of one job; both filters share it.

    NVFLARE calls `_handle` in other threads than `begin` and `give`. After an error this site takes
    no further part in the job, and the coordinator gets the error's code.
    """

    def __init__(self, engine: Any, site: SiteClient) -> None:
        self._site, self._engine, self._log = site, engine, logging.getLogger(__name__)
        self._changed = threading.Condition()  # protects the next four fields
        self._turn: Turn | None = None  # values are due
        self._asked: Ask | None = None  # the request that they will answer
        self._given: GivenValues | None = None  # the last ones
        self._error: SecureFLError | None = None  # the first one
        self._start_model: dict[str, np.ndarray[Any, Any]] = {}
        self._settings = b""  # digest of the rest of the task
        self._unreachable_since: float | None = None  # the service
        self._task_id = ""  # of the last task with a model to train
        self._result: Shareable | None = None  # the last one for the server

    def start(self) -> None:
        """Register with the coordinator, if the site's service answers."""
        self._site.ask(Who())
        self._engine.register_aux_message_handler(topic=TOPIC, message_handle_func=self._handle)
        send(self._engine, SERVER, GREETING, Shareable())

    def begin(self, task: Shareable, context: FLContext) -> Shareable:
        """Wait until values are due, and return the task with the model to train."""
        if (task_id := context.get_prop(FLContextKey.TASK_ID)) == self._task_id:
            return task  # the filters of the site and of the job both come here
        with self._reporting("the server's task", "send a model of arrays by name"):
            if (name := context.get_prop(FLContextKey.TASK_NAME)) != TRAIN:
                raise SettingsError(
                    f"the server asks for {name!r} without a sealed sum; nothing was sent",
                    fix=f"only tasks with the name {TRAIN!r} are sealed",
                )
            turn, model = self._wait(context), from_shareable(task)
            self._settings = _settings(FLModelUtils.from_shareable(task))
            given = {name: np.asarray(value) for name, value in (model.data or {}).items()}
            start = program.model_of(turn, given)
            self._start_model = {name: start[name] for name in given}  # without metrics
            model.data = {n: _like(model.data[n], v) for n, v in self._start_model.items()}
            model.update_shareable(task)
        self._task_id = task_id
        return task

    def give(self, result: Shareable) -> Shareable:
        """Give the trained arrays to the site's service, and return a result without them."""
        if result is self._result:
            return result
        with self._reporting("the result of the training", RESULT):
            self._result = self._hand_over(result)
        return self._result

    def _hand_over(self, result: Shareable) -> Shareable:
        """Send a result's values to the service, and return a result without values."""
        if (code := result.get_return_code(ReturnCode.OK)) != ReturnCode.OK:
            raise CohortError(f"the training of this site failed ({code}); nothing was sent")
        trained = FLModelUtils.from_shareable(result)
        if not trained.params or self._turn is None or self._asked is None:
            raise SettingsError("this result has no arrays that are due; nothing was sent")
        values = {name: np.asarray(value) for name, value in trained.params.items()}
        if trained.params_type is ParamsType.DIFF:
            values = {n: self._start_model[n] + change for n, change in values.items()}
        metrics = {n: v for n, v in (trained.metrics or {}).items() if n in self._turn.planned}
        _require_finite({**values, **metrics})
        steps = (trained.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        if steps is None and self._given is None:
            self._log.warning("the training reports no number of steps, so this site weighs 1")
        weight = 1.0 if steps is None else float(steps)
        start = vectors(self._start_model)
        sums = vectors({**values, **metrics})
        give = Give(self._asked, sums, weight, start, self._settings)
        _require_no_failure(self._site.ask(give))
        with self._changed:
            self._given, self._turn = GivenValues(self._turn.round, give), None
            self._changed.notify_all()
        empty = FLModel(params_type=ParamsType.FULL, params={}, current_round=trained.current_round)
        return FLModelUtils.to_shareable(empty)

    @contextmanager
    def _reporting(self, part: str, fix: str) -> Iterator[None]:
        """Keep any error for the coordinator's next request; `part`: read in the block."""
        try:
            yield
        except SecureFLError as error:
            self._fail(error)
            raise
        except Exception as error:
            what = f"{part} cannot be read ({type(error).__name__}); nothing was sent"
            failure = TrainingError(what, fix=fix)
            self._fail(failure)
            raise failure from error

    def _fail(self, error: SecureFLError) -> None:
        with self._changed:
            if self._error is None:
                self._log.error(str(error))
                self._error = error
            self._changed.notify_all()

    def _wait(self, context: FLContext) -> Turn:
        """Wait until values are due, or the job is aborted."""
        until, aborted = time.monotonic() + PATIENCE, context.get_run_abort_signal()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._turn or self._error, CHECK_EVERY)
                if self._error is not None:
                    raise self._error
                if self._turn is not None:
                    return self._turn
            if aborted is not None and aborted.triggered:
                raise CohortError("the job was aborted before this training")
            if time.monotonic() > until:
                raise CohortError(
                    f"the server's coordinator began no round in {PATIENCE:g} s",
                    fix="see its log: it waits for other sites, or it has ended",
                )
            self._require_service()

    def _require_service(self) -> None:
        """Refuse to wait for a service that ended and was not started again."""
        try:
            self._site.ask(Who())
            self._unreachable_since = None
        except CohortError:
            now = time.monotonic()
            self._unreachable_since = self._unreachable_since or now
            if now - self._unreachable_since > RESTART:
                raise

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answer a request of the coordinator; NVFLARE calls it."""
        try:
            with self._reporting("a request of the coordinator", VERSIONS):
                reply = self._answer(request)
        except SecureFLError as error:
            reply = Failure(error.code)
        return reply_of(None if reply is None else encode(reply))

    def _answer(self, message: Shareable) -> Reply | None:
        """Pass a request to the site's service; None lets the coordinator ask again."""
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
        if (given := self._given) is not None and given.round == reply.round:  # it is repeated
            _require_no_failure(self._site.ask(replace(given.give, ask=request)), "not-due")
            return None
        self._hold_during_training(reply, request)
        return None

    def _hold_during_training(self, turn: Turn, request: Ask) -> None:
        """Let training begin, and wait for its end, at most `HOLD` seconds."""
        with self._changed:
            self._turn, self._asked = turn, request
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn is None or self._error is not None, HOLD)


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


_PARTS: dict[tuple[str, str], SealedPart] = {}  # by job and client, which has one task at a time


def part_of(context: FLContext) -> SealedPart:
    """Return a client's part in a job; start it at the first call."""
    job, name = str(context.get_job_id()), str(context.get_identity_name())
    if (job, name) not in _PARTS:
        part = SealedPart(context.get_engine(), program.site_client({"name": name}))
        part.start()
        _PARTS[job, name] = part
    return _PARTS[job, name]


def _settings(task: FLModel) -> bytes:
    """Compute a digest of everything but the model that the server sent to the training."""
    rounds = [task.start_round, task.current_round, task.total_rounds]
    return digest([str(task.params_type), rounds, task.metrics, task.meta])


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
