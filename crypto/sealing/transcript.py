"""What a party keeps from sum to sum: what it has seen in common with others, and its scales.

A coordinator that shows one party the true model and all others a dead one, from which nothing can
be learned, reads that party's update off the next sum (Pasquini, Francati, Ateniese: Eluding Secure
Aggregation via Model Inconsistency, CCS 2022). A host could do so by its broadcasts. So the stream
of every mask names what its party has seen: masks between two who saw different things do not
cancel, whoever lies to them, and the sum stays noise.

What counts: opened sums and over whom, what a host broadcasts, what parties share or are handed
over, who is there, and who is said to contribute what.

Not everybody is sent everything: a host opens sums of its own, and large models have layers that
small ones lack. So there is a chain of digests for each audience. A sum, its tags and all its masks
are bound to the chains that all who contribute to it, or read it, have in common; the mask between
two of them also to those that these two have.

A scale is a public bound, or follows from sums that all parties opened, so it is equal everywhere
and tells nothing about one party. What a sum that carries could not represent is added to the next
vector of that name (error feedback), so rounding and clipping do not add up over rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.primitives import digest_of
from secure_fl.crypto.sealing.packing import BLOCK, Codec
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.crypto.sealing.segments import (
    CLIP_IN_RMS,
    EXACT_BITS,
    HOST_BITS,
    SMALL,
    Field,
    Layout,
    squared_norm,
)
from secure_fl.errors import CohortError
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import Group, Rule, Vector

ALL, PARTIES = "\nall", "\nparties"  # with the host, and without; no list of names looks so
CONTEXT = b"secure-fl seen"
NORM = "|"  # prefix of the names under which unknown scales are summed first
WIDE = 1024.0  # the clip of values without a scale: a step of 24 bits is 0.0001, rest is carried


class Transcript:
    """What a party has seen, its scales and the state of its rounding: saved with each round."""

    def __init__(self, bits: int, rng: np.random.Generator) -> None:
        self.seen, self.scales, self.rng = SeenHistory(), Scales(bits), rng

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        """Bind all later sums to what all parties, or all with the host, were sent."""
        self.seen.note(ALL if host else PARTIES, context, what)

    def turn(self) -> None:
        """A round is over: it is saved with what was seen in it."""
        self.seen.turn()

    def common(self) -> Mapping[str, Any]:
        """The scales, which all parties know alike, and what all have seen."""
        return {"scales": self.scales.common(), "seen": self.seen.common()}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Begin with the others' scales, as if this party had seen what they have.

        Rounding starts with a fresh generator.
        """
        self.scales.adopt(common["scales"])
        self.seen.restore(common["seen"])

    def scaling(self) -> Mapping[str, Any]:
        """Scales and leftovers, to go back to."""
        own = {n.removeprefix(NORM): float(norm[0]) for n, norm in self.scales.own.items()}
        return {**self.scales.state(), "own": own}

    def rescale(self, before: Mapping[str, Any]) -> None:
        """Go back; all that was opened still binds later sums, and rounding draws anew."""
        self.scales.restore(before)

    def state(self) -> Mapping[str, Any]:
        """Scales, leftovers, the rounding generator, what was seen; never keys, drawn afresh."""
        return {
            "scales": self.scales.state(),
            "seen": self.seen.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.scales.restore(state["scales"])
        self.seen.restore(state["seen"])
        self.rng.bit_generator.state = state["rng"]


class SeenHistory:
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
        audiences = [*{**self._kept, **self._now}]
        self._kept = dict(zip(audiences, self._chains(audiences), strict=True))
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
        return digest_of(CONTEXT, *self._chains(sorted(audiences)))

    def _chains(self, audiences: Sequence[str]) -> list[bytes]:
        kept, now = self._kept, self._now
        return [
            digest_of(CONTEXT, one.encode(), kept.get(one, b""), now.get(one, b""))
            for one in audiences
        ]


def audience_of(readers: Collection[str], parties: Collection[str]) -> str:
    """What an audience is called: all parties that are here, or these."""
    return PARTIES if set(parties) <= set(readers) else "\n".join(sorted(readers))


def _energy(values: NDArray[np.float64]) -> float:
    """‖x‖², added in one order, so equal in all bits at all parties, whatever their processors."""
    parts = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return sum(float(np.cumsum(part * part)[-1]) for part in parts)


class Scales:
    """Scales and leftovers by name, over the sums of one run."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.rms: dict[str, float] = {}  # of one party's values, at the last sum that carried
        self.grid: dict[str, float] = {}  # squared norms of one party's vectors, in the same sum
        self.own: dict[str, Vector] = {}  # this party's, of vectors that had no scale yet
        self.leftovers: dict[str, Vector] = {}
        self._norms: dict[str, float] = {}  # squared, over all parties: for the next seal only

    def unknown(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        """The norms of vectors that have neither a bound nor a scale from an earlier sum."""
        if rule.bound is not None:
            return ()
        wanted = []
        for group in groups:
            norms = {
                NORM + name: np.array([squared_norm(self.whole(name, vector, rule))], np.float32)
                for name, vector in group.vectors.items()
                if vector.size > SMALL and not (rule.carry and name in self.rms)
            }
            if norms:
                self.own |= norms
                wanted.append(Group(group.owners, norms, group.readers))
        if wanted and rule.audience == Audience.HOST:
            raise CohortError(
                "a host sum needs a public bound of its values",
                fix="pass bound=..., for probabilities 1.0",
            )
        return wanted

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Remember the squared norms until the vectors themselves are sealed."""
        self._norms = {name.removeprefix(NORM): float(v[0]) for name, v in sums.items()}

    def lied_about(self, name: str, rule: Rule) -> bool:
        """Whether a vector's scale is unknown, and the norms just summed cannot be norms.

        A party may send any norm. Nobody can tell which of them did, so all do without.
        """
        known = rule.bound is not None or (rule.carry and name in self.rms)
        return not known and self._norms.get(name, 0.0) < 0

    def clip(self, name: str, size: int, owners: int, rule: Rule) -> float:
        """Where a vector of this name is clipped."""
        if rule.bound is not None:
            return rule.bound
        if self.lied_about(name, rule):
            return WIDE
        if not rule.carry:
            return sqrt(self._norms[name]) * (1 + 1e-5)  # no value of any party can be larger
        rms = self.rms.get(name)
        if rms is None:
            rms = sqrt(self._norms[name] / (owners * size))
        return rms * CLIP_IN_RMS[self._bits]

    def layout(self, group: Group, rule: Rule, parties: int) -> Layout:
        """How a group's vectors lie in slots, with head-room for so many parties."""
        lied_about = {name for name in group.vectors if self.lied_about(name, rule)}
        exact = rule.bound is None and (not rule.carry or lied_about)
        bits = EXACT_BITS if exact else self._bits
        if rule.audience == Audience.HOST and not rule.carry:
            bits = max(bits, HOST_BITS)
        extra = 0
        if rule.noise is not None:
            extra = max(0, int(rule.noise.reach).bit_length() + 1 - bits)
        fields = []
        for name, vector in group.vectors.items():
            small = vector.size <= SMALL and rule.noise is None
            if small or (name in lied_about and not rule.carry):  # what is not carried is short
                fields.append(Field(name, vector.size))
            else:
                clip = self.clip(name, vector.size, len(group.owners), rule)
                # A norm that was just summed is not summed again: if somebody left since, the two
                # would differ by that party's.
                norm = rule.carry and (rule.bound is not None or name in self.rms)
                fields.append(Field(name, vector.size, clip, norm=norm))
        return Layout(tuple(fields), Codec(bits, parties, COHORT.modulus, extra))

    def whole(self, name: str, vector: Vector, rule: Rule) -> Vector:
        """The vector with what is left over from the last one of its name."""
        leftover = self.leftovers.get(name) if rule.carry else None
        return vector if leftover is None or leftover.size != vector.size else vector + leftover

    def keep(self, names: Iterable[str], leftovers: Mapping[str, Vector]) -> None:
        """Replace what was left over of these names by what is left over now, if anything is."""
        for name in names:
            self.leftovers.pop(name, None)
        self.leftovers |= leftovers

    def opened(
        self,
        layout: Layout,
        values: Mapping[str, NDArray[np.float64]],
        norms: Mapping[str, float],
        owners: int,
        rule: Rule,
    ) -> list[str]:
        """Take the next scales from a sum over so many, and the norms that came with it or before.

        Where those cannot be norms, all keep the scale that they have, by which the sum itself was
        sealed, or take one from the sum, whose norm is that of all parties' values if these are
        orthogonal, and larger if they agree. Returns the names of which that is so.
        """
        wrong = [field.name for field in layout.exact if self.lied_about(field.name, rule)]
        for field in layout.packed:
            name, norm = field.name, norms.get(field.name)
            if self.lied_about(name, rule):
                wrong.append(name)
                norm = _energy(values[name])
            elif rule.carry and field.clip is not None and not field.norm:
                self.rms[name] = field.clip / CLIP_IN_RMS[self._bits]
            elif norm is not None and norm < 0:
                wrong.append(name)
                norm = None
            if norm is not None:
                self.rms[name] = sqrt(norm / (owners * field.size))
            if rule.carry and name in self.rms:
                self.grid[name] = self.rms[name] ** 2 * field.size
        return wrong

    def common(self) -> Mapping[str, Any]:
        """What all parties have alike, in one order: whoever opened the sums knows these."""
        return {"rms": dict(sorted(self.rms.items())), "grid": dict(sorted(self.grid.items()))}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Begin with the others' scales, and with nothing left over."""
        self.rms, self.grid, self.leftovers = dict(common["rms"]), dict(common["grid"]), {}

    def state(self) -> Mapping[str, Any]:
        """For checkpoints."""
        return {
            "rms": dict(self.rms),
            "grid": dict(self.grid),
            "leftovers": dict(self.leftovers),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.rms, self.leftovers = dict(state["rms"]), dict(state["leftovers"])
        self.grid = dict(state.get("grid", {}))  # older checkpoints have none
