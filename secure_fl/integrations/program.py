"""The half of an integration in the engine's program at a site: values for a turn of the run."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from secure_fl.errors import SecureFLError, SettingsError, TrainingError
from secure_fl.integrations.site_messages import (
    MOST_TEXT,
    Ask,
    Failure,
    Give,
    Reply,
    Request,
    SiteClient,
    Turn,
    arrays,
    vectors,
)

SITE = "SECURE_FL_SITE"  # environment variable with the path of the site's socket

Arrays = Mapping[str, Any]


class Trained(NamedTuple):
    """The outcome of local training."""

    arrays: Arrays
    weight: float
    start: Arrays  # the arrays that training began with
    numbers: Mapping[str, float] = {}  # metrics; only those that the plan names are summed
    settings: bytes = b""  # digest of what the server sent to the training beside the arrays


Train = Callable[[Turn], Trained]


def site_client(node: Mapping[str, Any] | None = None) -> SiteClient:
    """Return the way to this site's service, which the site sets in its environment.

    `node`: the node's own settings; the path may name them in braces, as in {partition-id}.
    """
    path = os.environ.get(SITE, "")
    for name, value in (node or {}).items():
        path = path.replace(f"{{{name}}}", str(value))
    if not path:
        raise SettingsError(
            f"{SITE} is not set, so this site has no keys for a sealed sum; nothing was sent",
            fix=f"start `secure-fl serve`, and set {SITE} to its socket where the engine's "
            "program starts",
        )
    return SiteClient(Path(path))


def answer(find: Callable[[], SiteClient], request: Request, train: Train | None = None) -> Reply:
    """Answer the coordinator's request; if values are due, train and give them to the service.

    Every error is printed here, in the log of the site, and the server learns only its code: the
    text of an error in the training function can quote records.
    """
    try:
        site = find()
        reply = site.ask(request)
        if isinstance(reply, Turn) and train is not None and isinstance(request, Ask):
            reply = site.ask(_values(request, train(reply), reply))
    except SecureFLError as error:
        reply = Failure(error.code, str(error)[:MOST_TEXT])
    except Exception:
        traceback.print_exc()
        reply = Failure(TrainingError.code, "the training function failed; nothing was sent")
    if isinstance(reply, Failure):
        print(f"secure_fl: {reply.what}", file=sys.stderr, flush=True)
        return Failure(reply.code)
    return Turn(reply.round, mean=reply.mean) if isinstance(reply, Turn) else reply


def model_of(turn: Turn, given: Arrays) -> Arrays:
    """Return the model to train: the server's, or after the first round the last mean."""
    return given if turn.opened or not turn.vectors else arrays(turn.vectors)


def _values(request: Ask, done: Trained, turn: Turn) -> Give:
    numbers = {name: value for name, value in done.numbers.items() if name in turn.planned}
    values = vectors({**done.arrays, **numbers})
    return Give(request, values, float(done.weight), vectors(done.start), done.settings)
