"""The scales that all parties round to, and what rounding left over at this one.

A scale is a public bound, or follows from sums that all parties opened, so it is equal everywhere
and tells nothing about one party. What a sum that carries could not represent is added to the next
vector of that name (error feedback), so rounding and clipping do not add up over rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.layout import CLIP_IN_RMS, SMALL, Layout, squared_norm
from secure_fl.errors import CohortError
from secure_fl.protocol.ports import Group, Rule, Vector

NORM = "|"  # prefix of the names under which unknown scales are summed first


class Scales:
    """Scales and leftovers by name, over the sums of one run."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self.rms: dict[str, float] = {}  # of one party's values, at the last sum that carried
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
                wanted.append(Group(group.owners, norms, group.readers))
        if wanted and rule.audience == "host":
            raise CohortError(
                "a host sum needs a public bound of its values",
                fix="pass bound=..., for probabilities 1.0",
            )
        return wanted

    def learn(self, sums: Mapping[str, NDArray[np.float64]]) -> None:
        """Remember the squared norms until the vectors themselves are sealed."""
        self._norms = {name.removeprefix(NORM): float(v[0]) for name, v in sums.items()}

    def clip(self, name: str, size: int, owners: int, rule: Rule) -> float:
        """Where a vector of this name is clipped."""
        if rule.bound is not None:
            return rule.bound
        if not rule.carry:
            return sqrt(self._norms[name]) * (1 + 1e-5)  # no value of any party can be larger
        rms = self.rms.get(name)
        if rms is None:
            rms = sqrt(self._norms[name] / (owners * size))
        return rms * CLIP_IN_RMS[self._bits]

    def whole(self, name: str, vector: Vector, rule: Rule) -> Vector:
        """The vector with what is left over from the last one of its name."""
        leftover = self.leftovers.get(name) if rule.carry else None
        return vector if leftover is None or leftover.size != vector.size else vector + leftover

    def keep(self, names: Iterable[str], leftovers: Mapping[str, Vector]) -> None:
        """Replace what was left over of these names by what is left over now, if anything is."""
        for name in names:
            self.leftovers.pop(name, None)
        self.leftovers |= leftovers

    def opened(self, layout: Layout, norms: Mapping[str, float], owners: int, rule: Rule) -> None:
        """Take the next scales from the norms that came with a sum over so many, or just before."""
        for field in layout.packed:
            if rule.carry and field.clip is not None and not field.norm:
                self.rms[field.name] = field.clip / CLIP_IN_RMS[self._bits]
            elif field.name in norms:
                self.rms[field.name] = sqrt(norms[field.name] / (owners * field.size))

    def common(self) -> Mapping[str, Any]:
        """What all parties have alike, in one order: whoever opened the sums knows these."""
        return {"rms": dict(sorted(self.rms.items()))}

    def adopt(self, common: Mapping[str, Any]) -> None:
        """Begin with the others' scales, and with nothing left over."""
        self.rms, self.leftovers = dict(common["rms"]), {}

    def state(self) -> Mapping[str, Any]:
        """For checkpoints."""
        return {"rms": dict(self.rms), "leftovers": dict(self.leftovers)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.rms, self.leftovers = dict(state["rms"]), dict(state["leftovers"])
