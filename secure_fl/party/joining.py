"""The handover of the shared state to a party without the newest round.

Each holder of the round signs a keyed digest of its state. The first holder by name sends the state
in an envelope that the coordinator cannot open, and the newcomer compares it with every proof. So
it detects a holder that sends another state, and a coordinator that names false newcomers. A state
that one hospital and the coordinator invent lacks the signatures of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secure_fl.errors import CohortError, Disagreement, TooFewParties
from secure_fl.protocol.ports import EnvelopeLayer
from secure_fl.thresholds import quorum


@dataclass(frozen=True, slots=True)
class Handover:
    """A handover of the state after one round, from its holders to newcomers."""

    after: int
    members: tuple[str, ...]
    newcomers: tuple[str, ...]
    host: str | None
    threshold: int

    def __post_init__(self) -> None:
        strangers = set(self.newcomers) - set(self.members)
        if strangers or not self.after or len(set(self.newcomers)) < len(self.newcomers):
            raise CohortError("the coordinator names newcomers that cannot join", round=self.after)
        self.require_quorum(self.members)

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that have the round; the host opens other sums, so it does not vouch."""
        return tuple(m for m in self.members if m not in (*self.newcomers, self.host))

    @property
    def donor(self) -> str:
        """The holder that sends the state."""
        return self.holders[0]

    @property
    def seal(self) -> bytes:
        """The context of the envelope; the run's key binds it to the run."""
        return f"{self._about()} from {self.donor}".encode()

    def require_quorum(self, members: tuple[str, ...]) -> None:
        """Refuse a state for which too few parties vouch."""
        parties = [m for m in self.members if m != self.host]
        vouching = [m for m in self.holders if m in members]
        needed = quorum(len(parties), self.threshold)
        if len(vouching) < needed:
            raise TooFewParties(
                f"only {len(vouching)} of {len(parties)} parties hold round {self.after}; "
                f"{needed} must agree on the state that {', '.join(self.newcomers)} would receive",
                fix="restart more of the parties that took part, or let fewer join at a time",
                round=self.after,
            )

    def digest(self, envelopes: EnvelopeLayer, state: bytes, of: str) -> bytes:
        """Digest a state for the signature of one party; for "", the same at all holders."""
        return envelopes.fingerprint(state, f"{self._about()} of {of}".encode())

    def check(
        self,
        proofs: Mapping[str, bytes],
        members: tuple[str, ...],
        state: bytes,
        source: str,
        envelopes: EnvelopeLayer,
    ) -> None:
        """Refuse the state of `source` unless all remaining holders prove to have the same."""
        self.require_quorum(members)
        if set(proofs) != set(self.holders) & set(members):
            raise CohortError(
                "the coordinator forwards other proofs than those of the holders",
                round=self.after,
            )
        wrong = sorted(
            party
            for party, proof in proofs.items()
            if not envelopes.vouched(party, self.digest(envelopes, state, party), proof)
        )
        if wrong:
            # A single party that differs is to blame; between two, it remains unknown.
            fit = len(proofs) - len(wrong)
            alone = wrong if len(wrong) < fit else [source] if len(wrong) > fit else []
            raise Disagreement(
                f"the state after round {self.after} that {source} has is not the one that "
                f"{', '.join(p for p in wrong if p != source) or source} proved to have",
                fix="check the checkpoints of the party that differs; if they are damaged, delete "
                "them there and resume: it then receives the others' state",
                party=alone[0] if len(alone) == 1 else None,
            )

    def _about(self) -> str:
        parts = (",".join(self.members), ",".join(self.newcomers))
        return f"handover {self.after} {' '.join(parts)}"
