"""State that a party keeps from sum to sum: the history that it shares with others, and its scales.

Specified in docs/protocol-bytes.md 5.5 and 5.8.

The stream of every mask depends on its party's history (Pasquini, Francati, Ateniese, CCS 2022):
masks between two parties with different histories do not cancel, and the sum stays noise. Each
audience has its own chain of digests. A sum, its tags and all its masks depend on the chains common
to all its contributors and readers; the mask between two also depends on those common to these two.

A scale is a public bound, or follows from sums that all parties opened, so it is equal everywhere
and reveals nothing about one party.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.keys.identity import digest_of
from secure_fl.crypto.sealing.packing import (
    BLOCK,
    CLIP_IN_RMS,
    EXACT_BITS,
    HOST_BITS,
    SMALL,
    WIDEST,
    Codec,
    Field,
    Layout,
    squared_norm,
)
from secure_fl.crypto.sealing.scheme import COHORT
from secure_fl.errors import CohortError
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.ports import (
    NO_ARRAYS,
    Arrays,
    Group,
    Rule,
    ScaleLayer,
    TranscriptLayer,
    Vector,
)
from secure_fl.protocol.sum_names import SCALES

ALL, PARTIES = "\nall", "\nparties"  # with and without the host; differ from any list of names
CONTEXT = b"secure-fl seen"
LEAST = 1 / WIDEST  # the smallest exact number above 0
COARSE = 2.0**-24  # squared norms below it are summed again: the clip has a margin of 10^-5
WIDE = 1024.0  # clip of values without a scale: a step of 24 bits is 0.0001


class Transcript(TranscriptLayer):
    """A party's history, scales and rounding state: saved with each round."""

    scales: Scales

    def __init__(self, bits: int, rng: np.random.Generator) -> None:
        self.seen, self.scales, self.rng = SeenHistory(), Scales(bits), rng

    def saw(self, what: bytes, context: bytes, *, host: bool) -> None:
        self.seen.note(ALL if host else PARTIES, context, what)

    def turn(self) -> None:
        self.seen.turn()

    def common(self) -> Mapping[str, Any]:
        return {"scales": self.scales.common(), "seen": self.seen.common()}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Adopt the scales and the history of the others.

        Rounding starts with a fresh generator.
        """
        self.scales.adopt(common["scales"])
        self.seen.restore(common["seen"])

    def scaling(self) -> Mapping[str, Any]:
        own = {n.removeprefix(SCALES): float(norm[0]) for n, norm in self.scales.own.items()}
        return {**self.scales.state(), "own": own}

    def rescale(self, before: Mapping[str, Any]) -> None:
        self.scales.restore(before)

    def state(self) -> Mapping[str, Any]:
        return {
            "scales": self.scales.state(),
            "seen": self.seen.state(),
            "rng": self.rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.scales.restore(state["scales"])
        self.seen.restore(state["seen"])
        self.rng.bit_generator.state = state["rng"]


class SeenHistory:
    """Chains of digests by audience: of saved rounds, and since then."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._now: dict[str, bytes] = {}

    def note(self, audience: str, *what: bytes) -> None:
        """Add data that was sent to a whole audience; the order is the same everywhere."""
        self._now[audience] = digest_of(CONTEXT, self._now.get(audience, b""), *what)

    def by(self, readers: Collection[str], *, host: bool) -> bytes:
        """Return the common history of these readers; with `host`, of the host, too."""
        return digest_of(CONTEXT, *self._chains(sorted(self._of(readers, host=host))))

    def beyond(
        self, me: str, peers: Collection[str], readers: Collection[str], *, host: bool
    ) -> dict[str, bytes]:
        """Return the history shared with a single peer, for peers with which it exceeds `by`."""
        common, salts = self._of(readers, host=host), {}
        if len(common) < len({*self._kept, *self._now}):
            for peer in peers:
                both = self._of((me, peer), host=False)
                if both != common:
                    salts[peer] = digest_of(CONTEXT, *self._chains(sorted(both)))
        return salts

    def turn(self) -> None:
        """Add the history of the finished round to the saved one."""
        audiences = [*{**self._kept, **self._now}]
        self._kept = dict(zip(audiences, self._chains(audiences), strict=True))
        self._now = {}

    def common(self) -> dict[str, str]:
        """Return the saved history for newcomers: it must be equal at all parties."""
        if not {ALL, PARTIES}.issuperset(self._kept):
            raise CohortError(
                "no party can join any more: sums over some of the parties were opened, which "
                "newcomers do not know",
                fix="start a new run with all parties",
            )
        return self.state()

    def state(self) -> dict[str, str]:
        """Return the saved history, for checkpoints."""
        return {audience: chain.hex() for audience, chain in sorted(self._kept.items())}

    def restore(self, state: Mapping[str, str]) -> None:
        """Restore the saved history; the history of this session stays."""
        self._kept = {audience: bytes.fromhex(chain) for audience, chain in state.items()}

    def _of(self, readers: Collection[str], *, host: bool) -> frozenset[str]:
        """Return the audiences that contain all of these readers."""
        wanted = set(readers)
        return frozenset(
            audience
            for audience in (*self._kept, *self._now)
            if audience == ALL
            or (not host and (audience == PARTIES or wanted <= set(audience.split("\n"))))
        )

    def _chains(self, audiences: Sequence[str]) -> list[bytes]:
        kept, now = self._kept, self._now
        return [
            digest_of(CONTEXT, one.encode(), kept.get(one, b""), now.get(one, b""))
            for one in audiences
        ]


def audience_of(readers: Collection[str], parties: Collection[str]) -> str:
    """Return the name of an audience: all present parties, or these readers."""
    return PARTIES if set(parties) <= set(readers) else "\n".join(sorted(readers))


def _energy(values: NDArray[np.float64]) -> float:
    """Compute ‖x‖² in a fixed order: equal in all bits at all parties, on every processor."""
    parts = (values[start : start + BLOCK] for start in range(0, values.size, BLOCK))
    return sum(float(np.cumsum(part * part)[-1]) for part in parts)


def _norms(group: Group, units: Mapping[str, float], most: float = inf) -> Group:
    """Return a group with the norms of these names only, in units and within the exact range.

    A norm that is not 0 stays above 0: a clip of 0 would represent all values by 0.
    """
    norms = {}
    for name in filter(units.__contains__, group.vectors):
        norm = float(group.vectors[name][0]) / units[name]
        norm = max(norm, LEAST) if norm > 0 else norm
        norms[name] = np.array([min(norm, most)], np.float32)
    return Group(group.owners, norms, group.readers)


class Scales(ScaleLayer):
    """Scales and leftovers by name, over the sums of one run."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.rms: dict[str, float] = {}  # of one party's values, in the last carried sum
        self.grid: dict[str, float] = {}  # squared norm of one party's vector, in the same sum
        self.own: dict[str, Vector] = {}  # this party's norms of vectors without a scale
        self.leftovers: dict[str, Vector] = {}
        self._clipped: list[str] = []  # vectors of which a sum cut off more than half
        self._norms: dict[str, float] = {}  # squared, over all parties: for the next sum only

    def unknown(self, groups: Sequence[Group], rule: Rule) -> Sequence[Group]:
        # The norms of vectors with neither a bound nor a scale from an earlier sum.
        if rule.bound is not None:
            return ()
        wanted = []
        for group in groups:
            norms = {
                SCALES + name: np.array([squared_norm(self.whole(name, vector, rule))], np.float32)
                for name, vector in group.vectors.items()
                if vector.size > SMALL and not self._scaled(name, rule)
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

    def capped(self, groups: Sequence[Group], *, partial: bool = False) -> Sequence[Group]:
        most = inf if partial else WIDEST
        return [_norms(group, dict.fromkeys(group.vectors, 1.0), most) for group in groups]

    def beyond(
        self, groups: Sequence[Group], sums: Mapping[str, NDArray[np.float64]]
    ) -> Sequence[Group]:
        units = {
            name: WIDEST if norm[0] >= WIDEST else LEAST
            for name, norm in sums.items()
            if norm[0] >= WIDEST or 0 < norm[0] < COARSE
        }
        found = [_norms(group, units) for group in groups]
        return [group for group in found if group.vectors]

    def learn(
        self,
        sums: Mapping[str, NDArray[np.float64]],
        again: Mapping[str, NDArray[np.float64]] = NO_ARRAYS,
    ) -> None:
        self._norms = {name.removeprefix(SCALES): float(v[0]) for name, v in sums.items()}
        for name, norm in again.items():
            known, second = name.removeprefix(SCALES), float(norm[0])
            if (first := self._norms[known]) >= WIDEST:
                self._norms[known] = max(first, second * WIDEST)  # whatever one party sent
            else:
                self._norms[known] = second * LEAST

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self.rms.pop(name, None)

    def leftover(self, name: str) -> Vector | None:
        return self.leftovers.pop(name, None)

    def postpone(self, me: str, groups: Sequence[Group], rule: Rule) -> Arrays:
        if not rule.carry:
            return super().postpone(me, groups, rule)
        for group in groups:
            if me in group.owners:
                self.leftovers |= {n: self.whole(n, v, rule) for n, v in group.vectors.items()}
        return {n: np.zeros(v.size) for group in groups for n, v in group.vectors.items()}

    def clipped(self) -> Sequence[str]:
        names, self._clipped = self._clipped, []
        return names

    def _scaled(self, name: str, rule: Rule) -> bool:
        """Return True if an earlier carried sum gave a scale."""
        return rule.carry and name in self.rms

    def lied_about(self, name: str, rule: Rule) -> bool:
        """Return True if a vector's scale is unknown, and its summed norm is invalid.

        A party may send any norm. Nobody can tell which party did, so all parties do without.
        """
        known = rule.bound is not None or self._scaled(name, rule)
        return not known and self._norms.get(name, 0.0) < 0

    def clip(self, name: str, size: int, owners: int, rule: Rule) -> float:
        """Return the clip of a vector of this name."""
        if rule.bound is not None:
            return rule.bound
        if self.lied_about(name, rule):
            return WIDE
        if not rule.carry:
            return sqrt(self._norms[name]) * (1 + 1e-5)  # bound of every party's values
        rms = self.rms.get(name)
        if rms is None:
            rms = sqrt(self._norms[name] / (owners * size))
        return rms * CLIP_IN_RMS[self._bits]

    def layout(self, group: Group, rule: Rule, parties: int) -> Layout:
        """Return the layout of a group's vectors, with head-room for so many parties."""
        invalid = {name for name in group.vectors if self.lied_about(name, rule)}
        exact = rule.bound is None and (not rule.carry or invalid)
        bits = EXACT_BITS if exact else self._bits
        if rule.audience == Audience.HOST and not rule.carry:
            bits = max(bits, HOST_BITS)
        extra = 0
        if rule.noise is not None:
            extra = max(0, int(rule.noise.reach).bit_length() + 1 - bits)
        fields = []
        for name, vector in group.vectors.items():
            small = vector.size <= SMALL and rule.noise is None
            if small or (name in invalid and not rule.carry):  # such vectors are short
                fields.append(Field(name, vector.size))
            else:
                clip = self.clip(name, vector.size, len(group.owners), rule)
                # Do not sum a norm twice: if a party left between, the difference is its norm.
                norm = rule.carry and (rule.bound is not None or self._scaled(name, rule))
                fields.append(Field(name, vector.size, clip, norm=norm))
        return Layout(tuple(fields), Codec(bits, parties, COHORT.modulus, extra))

    def whole(self, name: str, vector: Vector, rule: Rule) -> Vector:
        """Return the vector plus the leftover of the last one of its name."""
        leftover = self.leftovers.get(name) if rule.carry else None
        return vector if leftover is None or leftover.size != vector.size else vector + leftover

    def keep(self, names: Iterable[str], leftovers: Mapping[str, Vector]) -> None:
        """Replace the leftovers of these names."""
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
        """Derive the next scales from an opened sum and its norms; return names with invalid norms.

        With an invalid norm all parties keep the scale that sealed this sum, or take one from the
        sum. Its norm is that of all parties' values if these are orthogonal, and larger if they
        agree.
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
            if norm is not None and rule.bound is None and field.norm:
                clip = field.clip or 0.0
                self._clipped += [name] if norm > (2 * clip) ** 2 * owners * field.size else []
            if norm is not None:
                self.rms[name] = sqrt(norm / (owners * field.size))
            if rule.carry and name in self.rms:
                self.grid[name] = self.rms[name] ** 2 * field.size
        return wrong

    def common(self) -> Mapping[str, Any]:
        """Return the scales that all parties know, in one order."""
        return {"rms": dict(sorted(self.rms.items())), "grid": dict(sorted(self.grid.items()))}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Adopt the others' scales, without leftovers."""
        self.rms, self.grid, self.leftovers = dict(common["rms"]), dict(common["grid"]), {}

    def state(self) -> Mapping[str, Any]:
        """Return the state for checkpoints."""
        return {"rms": dict(self.rms), "grid": dict(self.grid), "leftovers": dict(self.leftovers)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.rms, self.leftovers = dict(state["rms"]), dict(state["leftovers"])
        self.grid = dict(state.get("grid", {}))  # older checkpoints have none
