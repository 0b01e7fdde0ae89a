"""A partial sum: parties declare the names they contribute or read, and are told who has which."""

from __future__ import annotations

from collections.abc import Mapping

from secure_fl.errors import DISTRUST, CohortError
from secure_fl.party.exchange import ask
from secure_fl.party.members import Members
from secure_fl.protocol import messages
from secure_fl.protocol.messages import Audience, Name
from secure_fl.protocol.ports import Group, PrivacyLayer, Rule, Vector

Vectors = Mapping[str, Vector]


async def declare(
    who: Members,
    layer: PrivacyLayer,
    gives: Vectors,
    reads: Vectors,
    rule: Rule,
    at: messages.SumId,
) -> tuple[tuple[Group, ...], bool]:
    """Groups of names with the same contributors and readers; and if somebody lacks scales.

    docs/protocol.md, "Partial sums".
    """
    sums = layer.sums
    if set(gives) & set(reads) or (reads and rule.audience == Audience.HOST):
        raise CohortError("a party contributes a name or reads it, and nobody reads a host sum")
    every = dict(sorted({**gives, **reads}.items()))
    unscaled = [name for name in every if sums.unscaled((Group((), {name: every[name]}),), rule)]
    message = messages.Declare(tuple(gives), tuple(reads), tuple(unscaled), at)
    answer, _ = await ask(message, messages.Owners)
    layer.transcript.saw(answer.plain(), b"owners", host=True)
    _check_members(who, answer)
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


def _check_members(who: Members, told: messages.Owners) -> None:
    """Refuse contributors or readers who are not there: scales are worked out by their number."""
    for table, known in ((told.owners, set(who.parties)), (told.readers, set(who.here))):
        for name, parties in table.items():
            if not known.issuperset(parties) or len(set(parties)) < len(parties):
                raise CohortError(
                    f"the coordinator names contributors or readers of {name[:80]!r} who are not "
                    "in this run, or names them twice",
                    fix=DISTRUST,
                    party=who.me,
                    field="owners",
                )
