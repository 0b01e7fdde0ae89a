"""What a party brings to a sum: flat vectors, in groups that the same parties contribute to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from secure_fl.errors import DISTRUST, CohortError, TrainingError
from secure_fl.party.exchange import ask
from secure_fl.party.members import Members
from secure_fl.protocol import frames, messages
from secure_fl.protocol.messages import Name
from secure_fl.protocol.ports import Audience, Group, PartySum, Rule, Vector

Vectors = Mapping[str, Vector]


def flat(name: str, value: Any, me: str) -> Vector:
    """The value as a vector; nothing that is not finite ever leaves."""
    vector = np.ascontiguousarray(np.asarray(value, dtype=np.float32)).reshape(-1)
    if not np.isfinite(vector).all():
        raise TrainingError(
            f"{name} holds NaN or infinity, so nothing was sent",
            fix="lower the learning rate, set max_grad_norm, or look at this party's data",
            party=me,
        )
    return vector


def whole(who: Members, gives: Vectors, reads: Vectors, audience: Audience) -> tuple[Group, ...]:
    """One group of all parties."""
    if reads:
        raise CohortError("every party contributes to a whole sum: nobody only reads it")
    _require_names(who, gives, audience)
    return (Group(who.parties, gives),) if gives else ()


async def declared(
    who: Members, sums: PartySum, gives: Vectors, reads: Vectors, rule: Rule, at: messages.SumId
) -> tuple[tuple[Group, ...], bool]:
    """Groups of names with the same contributors and readers; and if somebody lacks scales."""
    if set(gives) & set(reads) or (reads and rule.audience == "host"):
        raise CohortError("a party contributes a name or reads it, and nobody reads a host sum")
    every = dict(sorted({**gives, **reads}.items()))
    _require_names(who, every, rule.audience)
    unscaled = [name for name in every if sums.unscaled((Group((), {name: every[name]}),), rule)]
    message = messages.Declare(tuple(gives), tuple(reads), tuple(unscaled), at)
    answer, _ = await ask(message, messages.Owners)
    sums.saw(answer.plain(), b"owners", host=True)
    for name in {*every, *answer.owners, *answer.readers}:
        owners, readers = answer.owners.get(name, ()), answer.readers.get(name, ())
        contributes = name in gives and not who.is_host
        reads_it = name in reads and bool(owners)
        if (who.me in owners) != contributes or (who.me in readers) != reads_it:
            raise CohortError(
                f"the coordinator gives {name!r} the wrong contributors", fix=DISTRUST
            )
    alike: dict[tuple[tuple[Name, ...], ...], dict[str, Vector]] = {}
    for name, vector in every.items():
        owners, readers = answer.owners.get(name, ()), answer.readers.get(name, ())
        if owners or name in gives:  # of what nobody contributes there is nothing to read
            alike.setdefault((owners, readers), {})[name] = vector
    sums.forget(answer.unscaled)  # what not all know is summed again, by all
    groups = tuple(
        Group(owners, part, readers) for (owners, readers), part in sorted(alike.items())
    )
    return groups, bool(answer.unscaled) and not who.is_host


def outline(groups: Sequence[Group], survivors: Sequence[str]) -> str:
    """A digest of what is summed and over whom: the same when a round is repeated."""
    alive = set(survivors)
    lines = sorted(
        f"{name} {vector.size} {' '.join(sorted(alive.intersection(group.owners)))}"
        for group in groups
        for name, vector in group.vectors.items()
    )
    return frames.digest("\n".join(lines).encode()).hex()


def _require_names(who: Members, vectors: Vectors, audience: Audience) -> None:
    if bool(vectors) == (who.is_host and audience == "parties"):
        raise CohortError(
            "the host passes {} to a sum for the parties; otherwise values must have names",
            party=who.me,
        )
