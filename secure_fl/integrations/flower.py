"""Flower with our sum: their training code and transport, and no readable update at the server.

At a site, `SealedClientApp` (or `sealed_mod`) gives trained arrays to the site's service
(`secure-fl serve`) and sends only sealed frames. At the server, `SealedStrategy` leads the run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secure_fl.errors import SecureFLError, SettingsError
from secure_fl.features.scripts.cohort import digest
from secure_fl.integrations import program
from secure_fl.integrations.site_messages import (
    Failure,
    Reply,
    Request,
    Turn,
    encode,
    read_reply,
    read_request,
)

if TYPE_CHECKING:
    from secure_fl.integrations.site_names import Node

SUPPORTED = ((1, 40), (1, 43))  # from, and below
RECORD, BYTES = "secure_fl", "message"
WEIGHT = "num-examples"
MEAN_ONLY = ("FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi")
POLL = 0.2  # seconds between two looks for replies


def require_flower() -> None:
    """Refuse a missing or untested version of Flower."""
    first, end = SUPPORTED
    tested = f"{first[0]}.{first[1]} to {end[0]}.{end[1] - 1}"
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise SettingsError(
            "Flower is not installed",
            fix="from a checkout: pip install --constraint constraints.txt '.[flower]'",
        ) from None
    number = tuple(int(part) for part in found.split(".")[:2])
    if not first <= number < end:
        raise SettingsError(
            f"Flower {found} is not supported; tested versions are {tested}",
            fix="install one of them; nothing was sent",
        )


require_flower()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import FedAvg, Result, Strategy  # noqa: E402

TRAIN = "train"


def sealed_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer one message of the coordinator; the server gets no arrays, weights or metrics."""
    try:
        request = _request(message)
    except SecureFLError as error:
        print(f"secure_fl: {error}", file=sys.stderr, flush=True)
        reply: Reply = Failure(error.code)
    else:
        find = partial(program.site_client, context.node_config)
        reply = program.answer(find, request, _training(message, context, call_next))
    record = ConfigRecord({BYTES: encode(reply)})
    return Message(RecordDict({RECORD: record}), reply_to=message)


class SealedClientApp(ClientApp):  # type: ignore[misc]
    """A `ClientApp` whose training replies are sealed, after all other mods."""

    def __init__(self, client_fn: Any = None, mods: list[Any] | None = None) -> None:
        super().__init__(client_fn, mods=[sealed_mod, *(mods or [])])


def _request(message: Message) -> Request:
    record = message.content.config_records.get(RECORD)
    if message.metadata.message_type != TRAIN or record is None:
        raise SettingsError(
            f"the server asks for {message.metadata.message_type} without a sealed sum; "
            "nothing was sent",
            fix="wrap the server's strategy in SealedStrategy, without evaluation at the sites",
        )
    return read_request(record[BYTES])


def _training(message: Message, context: Context, call_next: Any) -> program.Train | None:
    """Return the function that trains by the app's own code, if the message asks for it."""
    names = list(message.content.array_records)
    if not names:
        return None
    record = names[0]

    def train(turn: Turn) -> program.Trained:
        given = _arrays(message.content[record])
        start = program.model_of(turn, given)
        inner = RecordDict({n: r for n, r in message.content.items() if n != RECORD})
        inner[record] = _record(start)
        settings = _settings(message, context, record)
        message.content = inner
        return _trained(call_next(message, context), start)._replace(settings=settings)

    return train


def _settings(message: Message, context: Context, model: str) -> bytes:
    """Compute a digest of everything but the model that the server sent to the training."""
    records = {
        name: _arrays(record) if isinstance(record, ArrayRecord) else dict(record)
        for name, record in message.content.items()
        if name not in (RECORD, model)
    }
    group = message.metadata.group_id
    return digest([model, group, records, dict(context.run_config)])


def _trained(reply: Message, start: Mapping[str, Any]) -> program.Trained:
    """Read the reply of the app's training function."""
    found = [_arrays(record) for record in reply.content.array_records.values()]
    numbers = {n: v for one in reply.content.metric_records.values() for n, v in one.items()}
    if len(found) != 1 or WEIGHT not in numbers:
        raise SettingsError(
            f"a training reply needs one ArrayRecord and the metric {WEIGHT!r}; nothing was sent",
            fix="return both from the function with @app.train()",
        )
    weight = numbers.pop(WEIGHT)
    return program.Trained(found[0], weight, start, numbers)


def _arrays(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array.numpy() for name, array in record.items()}


def _record(arrays: Mapping[str, Any]) -> ArrayRecord:
    from flwr.app import Array

    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


class SealedStrategy:
    """A strategy of Flower over sealed sums: it leads the coordinator's run.

    Sites average by themselves, and the server reads nothing. With `means_to_coordinator` in the
    plan, the wrapped strategy gets each mean as if one node had sent it. So strategies that need
    only the mean work unchanged, such as FedAvg, FedAdam and FedYogi.
    """

    def __init__(self, inner: Strategy, folder: Path | str | None = None) -> None:
        """`folder`: plan.toml, kit/, keys/, passphrase. Default: $SECURE_FL_COORDINATOR."""
        from secure_fl.integrations.hub import Folder, coordinator_path

        self._inner, self._folder = inner, Folder(coordinator_path(folder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Lead all rounds, and return what the server may know: without means, no arrays."""
        from secure_fl.integrations.hub import MessageHub

        algorithm = self._folder.algorithm
        _require_mean_only(self._inner, opened=algorithm.means_to_coordinator)
        if num_rounds != algorithm.rounds:
            raise SettingsError(
                f"num_rounds is {num_rounds}, and the plan has {algorithm.rounds} rounds; "
                "nothing was sent",
                fix="use the number of the plan, which the sites approve",
                field="algorithm.rounds",
            )
        rounds = WrappedRounds(self._inner, grid, initial_arrays, train_config, evaluate_fn)
        rounds.sends_models = algorithm.means_to_coordinator
        carried = MessageHub(FlowerCarrier(grid, rounds.messages), algorithm, rounds)
        self._folder.lead(carried, patience=timeout)
        return rounds.result


def _require_mean_only(inner: Strategy, *, opened: bool) -> None:
    """Refuse a strategy that needs more than the mean, or changes a mean that it cannot read."""
    name, key = type(inner).__name__, getattr(inner, "weighted_by_key", WEIGHT)
    if key != WEIGHT:
        raise SettingsError(
            f"sites are weighted by {key!r}, and sealed sums weight by {WEIGHT!r}",
            fix=f"omit weighted_by_key, and return {WEIGHT!r} from training",
        )
    owners = [cls for cls in type(inner).__mro__ if "aggregate_train" in vars(cls)]
    theirs = next(cls for cls in owners if cls.__module__.startswith("flwr."))
    if theirs.__name__ not in MEAN_ONLY:
        raise SettingsError(
            f"{name} needs the update of each site, and sealed sums open only the mean",
            fix=f"use one of {', '.join(MEAN_ONLY)}",
        )
    if not opened and owners[0] is not FedAvg:
        what = f"{name} changes the mean at the server, and the plan opens means to sites alone"
        fix = "use FedAvg or FedProx, or set means_to_coordinator = true in the plan"
        raise SettingsError(what, fix=fix, field="algorithm.means_to_coordinator")


class WrappedRounds:
    """The rounds of a wrapped strategy, at the server."""

    def __init__(
        self,
        inner: Strategy,
        grid: Grid,
        initial: ArrayRecord,
        config: ConfigRecord | None,
        evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self._inner, self._grid, self._arrays = inner, grid, initial
        self._config, self._evaluate = config or ConfigRecord(), evaluate
        self._names, self._configured = set(initial), 0
        self.sends_models = True  # in all rounds; otherwise in the first
        self.result = Result()
        self._judge(0)

    def messages(self, round: int) -> list[Message]:
        """Let the strategy configure the training of a round."""
        self._configured = max(round, self._configured)  # a late site may train an earlier one
        arrays = self._arrays if self.sends_models or round == 1 else ArrayRecord()
        return list(self._inner.configure_train(round, arrays, self._config, self._grid))

    def take(self, round: int, mean: Mapping[str, Any]) -> None:
        """Give a mean to the strategy, as the only reply."""
        numbers = {n: float(v) for n, v in mean.items() if n not in self._names}
        arrays = _record({n: v for n, v in mean.items() if n in self._names})
        if self._configured >= round:
            metrics = MetricRecord({WEIGHT: 1, **numbers})
            content = RecordDict({"arrays": arrays, "metrics": metrics})
            reply = Message(content, dst_node_id=0, message_type=TRAIN)
            made, found = self._inner.aggregate_train(round, [reply])
            if found is not None:
                self.result.train_metrics_clientapp[round] = found
            arrays = arrays if made is None else made
        self._arrays = self.result.arrays = arrays  # of a continued run: the mean itself
        self._judge(round)

    def _judge(self, round: int) -> None:
        if self._evaluate is not None:
            found = self._evaluate(round, self._arrays)
            if found is not None:
                self.result.evaluate_metrics_serverapp[round] = found


class FlowerCarrier:
    """Requests as messages of Flower's grid, and the replies."""

    def __init__(self, grid: Grid, messages: Callable[[int], list[Message]]) -> None:
        """`messages`: the wrapped strategy's messages of a round."""
        self._grid, self._messages = grid, messages

    def nodes(self) -> Collection[Node]:
        """Return the connected nodes."""
        return frozenset(self._grid.get_node_ids())

    def ask(
        self, requests: Mapping[Node, Request], timeout: float, round: int = 0
    ) -> Iterator[tuple[Node, Reply]]:
        """Send requests and yield replies as they arrive."""
        configured = self._messages(round) if round else []
        contents = {one.metadata.dst_node_id: one.content for one in configured}
        common = configured[0].content if configured else RecordDict()
        sent = []
        for node, request in requests.items():
            content = RecordDict(dict(contents.get(node, common)))
            content[RECORD] = ConfigRecord({BYTES: encode(request)})
            sent.append(Message(content, dst_node_id=node, message_type=TRAIN, group_id=str(round)))
        waiting = set(self._grid.push_messages(sent))
        until = time.monotonic() + timeout
        while waiting and time.monotonic() < until:
            for message in self._grid.pull_messages(waiting):
                waiting.discard(message.metadata.reply_to_message_id)
                yield message.metadata.src_node_id, _reply(message)
            if waiting:
                time.sleep(POLL)


def _reply(message: Message) -> Reply:
    if message.has_error():
        return Failure(f"flower-{message.error.code}")
    record = message.content.config_records.get(RECORD)
    if record is None:
        return Failure("not-sealed")
    try:
        return read_reply(record[BYTES])
    except SecureFLError as error:
        return Failure(error.code)
