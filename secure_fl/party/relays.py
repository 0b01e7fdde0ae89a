"""Messages between parties, which the coordinator forwards and cannot read."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from secure_fl.errors import CohortError, Disagreement
from secure_fl.party.exchange import ask
from secure_fl.party.members import Members
from secure_fl.protocol import messages
from secure_fl.protocol.arrays import pack, unpack
from secure_fl.protocol.frames import cut
from secure_fl.protocol.ports import EnvelopeLayer, TranscriptLayer

Values = dict[str, NDArray[Any]]


class Relays:
    """Values in envelopes, and proofs of equal state; each is bound to its position in the run."""

    def __init__(
        self, members: Members, envelopes: EnvelopeLayer, transcript: TranscriptLayer
    ) -> None:
        self._members, self._envelopes, self._transcript = members, envelopes, transcript
        self._relayed = 0  # values forwarded in this run: an old one cannot be replayed
        self._agreed = 0  # proofs requested: an old one cannot be replayed

    async def broadcast(self, value: Mapping[str, Any] | None) -> Values:
        """See `Cohort.broadcast`."""
        host = self._members.host
        if host is None:
            raise CohortError(
                "nobody can broadcast: no party has the role host", party=self._members.me
            )
        if (value is not None) != self._members.is_host:
            raise CohortError("the host passes the value of a broadcast, and no other party does")
        context = self._context("broadcast", self._next(), host)
        bulk = b"" if value is None else self._envelopes.seal(pack(value), context)
        answer, data = await ask(messages.Broadcast(), messages.Relayed, bulk)
        if answer.senders != (host,):
            raise CohortError("the broadcast did not come from the host", party=host)
        plain = self._envelopes.open(data, context)
        self._transcript.saw(plain, context, host=True)
        return unpack(plain)

    async def share(self, values: Mapping[str, Any]) -> dict[str, Values]:
        """See `Cohort.share`."""
        number = self._next()
        context = self._context("share", number, self._members.me)
        bulk = self._envelopes.seal(pack(values), context)
        answer, data = await ask(messages.Share(), messages.Relayed, bulk)
        # The coordinator cannot omit a sender without dropping it.
        self._members.confirm_members(answer.senders)
        received: dict[str, Values] = {}
        for sender, part in zip(answer.senders, cut(data, answer.sizes), strict=True):
            context = self._context("share", number, sender)
            plain = self._envelopes.open(part, context)
            self._transcript.saw(plain, context, host=True)
            received[sender] = unpack(plain)
        return received

    async def agree(self, fingerprint: bytes, about: str) -> None:
        """See `Cohort.agree`."""
        number = self._agreed = self._agreed + 1

        def digest(of: str) -> bytes:
            return self._envelopes.fingerprint(fingerprint, f"{number} {about} {of}".encode())

        answer, _ = await ask(messages.Agree(digest(""), digest(self._members.me)), messages.Agreed)
        self._members.confirm_members(tuple(answer.proofs))
        for party, proof in answer.proofs.items():
            if not hmac.compare_digest(proof, digest(party)):
                raise Disagreement(
                    f"{about} differs between parties, or the coordinator changed their statements",
                    fix="compare settings, labels, models and library versions with this party",
                    party=party,
                )

    def _next(self) -> int:
        self._relayed += 1
        return self._relayed - 1

    @staticmethod
    def _context(kind: str, number: int, sender: str) -> bytes:
        return f"{kind} {number} {sender}".encode()
