"""What a party was sent in common with others: a digest that goes into the masks of its next sum.

A coordinator that shows one party the true model and all others a dead one, from which nothing can
be learned, reads that party's update off the next sum (Pasquini, Francati, Ateniese: Eluding Secure
Aggregation via Model Inconsistency, CCS 2022). A host could do so by its broadcasts. So the place
of every mask names what its party has seen: masks between two who saw different things do not
cancel, whoever lies to them, and the sum stays noise.

What counts: opened sums and over whom, what a host broadcasts, what parties share or are handed
over, who is there, and who is said to contribute what.

Not everybody is sent everything: a host opens sums of its own, and large models have layers that
small ones lack. So there is a chain of digests for each audience. A sum, its tags and all its masks
are bound to the chains that all who contribute to it, or read it, have in common; the mask between
two of them also to those that these two have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from secure_fl.crypto.primitives import digest_of
from secure_fl.errors import CohortError
from secure_fl.protocol.messages import Salt

ALL, PARTIES = "\nall", "\nparties"  # with the host, and without; no list of names looks so
CONTEXT = b"secure-fl seen"


class Seen:
    """Chains of digests by audience: those of earlier rounds, and what has come since."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._now: dict[str, bytes] = {}

    def note(self, audience: str, *what: bytes) -> None:
        """Add what everybody of an audience was sent; in the same order everywhere."""
        self._now[audience] = digest_of(CONTEXT, self._now.get(audience, b""), *what)

    def by(self, readers: Collection[str], *, host: bool) -> bytes:
        """What these have all seen; with `host`, what the host has seen too."""
        return self._digest(self._of(readers, host=host))

    def beyond(
        self, me: str, peers: Collection[str], readers: Collection[str], *, host: bool
    ) -> dict[str, bytes]:
        """What this party and a peer have both seen, for peers with which it is more than `by`."""
        everybody, found = self._of(readers, host=host), {}
        if len(everybody) < len({*self._kept, *self._now}):
            for peer in peers:
                both = self._of((me, peer), host=False)
                if both != everybody:
                    found[peer] = self._digest(both)
        return found

    def turn(self) -> None:
        """A round is over: what came in it belongs to what is kept."""
        self._kept = {a: self._chain(a) for a in (*self._kept, *self._now)}
        self._now = {}

    def common(self) -> dict[str, str]:
        """What is kept, for newcomers: it has to be equal at all parties."""
        if not {ALL, PARTIES}.issuperset(self._kept):
            raise CohortError(
                "nobody can join any more: sums over some of the parties were opened, of which "
                "newcomers know nothing",
                fix="start a new run with all parties",
            )
        return self.state()

    def state(self) -> dict[str, str]:
        """What is kept, for checkpoints."""
        return {audience: chain.hex() for audience, chain in sorted(self._kept.items())}

    def restore(self, state: Mapping[str, str]) -> None:
        """Take back what was kept; what came since this session began stays."""
        self._kept = {audience: bytes.fromhex(chain) for audience, chain in state.items()}

    def _of(self, readers: Collection[str], *, host: bool) -> frozenset[str]:
        """The audiences that all of these belong to."""
        wanted = set(readers)
        return frozenset(
            audience
            for audience in (*self._kept, *self._now)
            if audience == ALL
            or (not host and (audience == PARTIES or wanted <= set(audience.split("\n"))))
        )

    def _digest(self, audiences: Collection[str]) -> bytes:
        return digest_of(CONTEXT, *(self._chain(a) for a in sorted(audiences)))

    def _chain(self, audience: str) -> bytes:
        kept, now = self._kept.get(audience, b""), self._now.get(audience, b"")
        return digest_of(CONTEXT, audience.encode(), kept, now)


def audience_of(readers: Collection[str], parties: Collection[str]) -> str:
    """What an audience is called: all parties that are here, or these."""
    return PARTIES if set(parties) <= set(readers) else "\n".join(sorted(readers))


def listed(by_peer: Mapping[str, bytes], peers: Collection[str]) -> tuple[Salt, ...]:
    """The same for the wire, where most often all peers have seen the same."""
    named: dict[bytes, list[str]] = {}
    for peer, digest in sorted(by_peer.items()):
        named.setdefault(digest, []).append(peer)
    if len(named) == 1 and len(by_peer) == len(peers):
        return (Salt(next(iter(named))),)
    return tuple(Salt(digest, tuple(names)) for digest, names in named.items())


def salt_of(salts: Sequence[Salt], peer: str) -> bytes | None:
    """The digest that is listed for this peer."""
    found = (salt.digest for salt in salts if not salt.peers or peer in salt.peers)
    return next(found, None)
