"""A party without the newest round is given what is equal at all parties, or told who disagrees.

Those who hold the round each sign a keyed digest of what they hold. The first of them by name
sends it in an envelope that the coordinator cannot open; the newcomer compares it with every proof,
so a holder that sends something else is found, and so is a coordinator that names false newcomers.
A state that one hospital makes up with the coordinator lacks the others' signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.protocol.ports import EnvelopeLayer
from secure_fl.thresholds import quorum


@dataclass(frozen=True, slots=True)
class Handover:
    """Who is given the state after which round."""

    after: int
    members: tuple[str, ...]
    newcomers: tuple[str, ...]
    host: str | None
    threshold: int

    def __post_init__(self) -> None:
        strangers = set(self.newcomers) - set(self.members)
        if strangers or not self.after or len(set(self.newcomers)) < len(self.newcomers):
            raise CohortError("the coordinator names newcomers that cannot be", round=self.after)
        self.require_quorum(self.members)

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that have the round; the host, which opens other sums, does not vouch."""
        return tuple(m for m in self.members if m not in (*self.newcomers, self.host))

    @property
    def donor(self) -> str:
        """Who sends it."""
        return self.holders[0]

    @property
    def seal(self) -> bytes:
        """What the envelope is bound to; the run's key binds it to the run."""
        return f"{self._about()} from {self.donor}".encode()

    def require_quorum(self, members: tuple[str, ...]) -> None:
        """Refuse a state that too few parties vouch for."""
        parties = [m for m in self.members if m != self.host]
        vouching = [m for m in self.holders if m in members]
        needed = quorum(len(parties), self.threshold)
        if len(vouching) < needed:
            raise TooFewParties(
                f"only {len(vouching)} of {len(parties)} parties hold round {self.after}; "
                f"{needed} must agree on what {', '.join(self.newcomers)} would be given",
                fix="bring more of those back that took part, or let fewer join at a time",
                round=self.after,
            )

    def digest(self, envelopes: EnvelopeLayer, state: bytes, of: str) -> bytes:
        """What a party signs that it holds; `of` nobody: equal at all that hold the same."""
        return envelopes.fingerprint(state, f"{self._about()} of {of}".encode())

    def check(
        self,
        proofs: Mapping[str, bytes],
        members: tuple[str, ...],
        state: bytes,
        source: str,
        envelopes: EnvelopeLayer,
    ) -> None:
        """Refuse a state, of `source`, unless all holders that are left prove to have the same."""
        self.require_quorum(members)
        if set(proofs) != set(self.holders) & set(members):
            raise CohortError(
                "the coordinator passes on other proofs than those of the holders",
                round=self.after,
            )
        wrong = sorted(
            party
            for party, proof in proofs.items()
            if not envelopes.vouched(party, self.digest(envelopes, state, party), proof)
        )
        if wrong:
            # Who stands alone is to blame; of two, nobody can tell which.
            fit = len(proofs) - len(wrong)
            alone = wrong if len(wrong) < fit else [source] if len(wrong) > fit else []
            raise Disagreement(
                f"the state after round {self.after} that {source} has is not the one that "
                f"{', '.join(p for p in wrong if p != source) or source} proved to have",
                fix="look at the checkpoints of the party that stands alone; delete them there "
                "if they are damaged, and resume: it is given the others' state",
                party=alone[0] if len(alone) == 1 else None,
            )

    def _about(self) -> str:
        parts = (",".join(self.members), ",".join(self.newcomers))
        return f"handover {self.after} {' '.join(parts)}"
