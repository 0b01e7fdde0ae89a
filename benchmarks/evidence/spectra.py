"""Energy of updates over their singular values, round by round (FedKD's Figures 6 and 7).

It is measured on the mean update of all parties, in a recorded run without protection and factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.report import Grid
from secure_fl.capture import readings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from secure_fl.audits.session import Audit

Spectra = dict[str, list[dict[str, float]]]  # of each kind, in each round, means over the layers

ENERGY = 0.95  # that "needed" singular values hold together
FIRST = 0.1  # of the singular values, the largest; "held" is their part of the energy
KINDS: Mapping[str, str] = {  # the paper's four, by the names that BERT's modules have
    "attention.self.query.weight": "W_Q",
    "attention.self.key.weight": "W_K",
    "attention.self.value.weight": "W_V",
    "intermediate.dense.weight": "W",
    "output.dense.weight": "W",
}
ELSEWHERE = "attention.output.dense.weight"  # ends like the second of the feed-forward network


def spectra(audit: Audit, rounds: int) -> Spectra:
    """Decompose the mean update of every round."""
    found: Spectra = {}
    for read in readings.of_all(audit.run, audit.shapes, rounds):
        each: dict[str, list[tuple[float, float]]] = {}
        for name, update in read.values.items():
            if kind := kind_of(name):
                each.setdefault(kind, []).append(concentration(update))
        for kind, layers in each.items():
            needed, held = map(fmean, zip(*layers, strict=True))
            found.setdefault(kind, []).append({"needed": needed, "held": held})
    return found


def kind_of(name: str) -> str | None:
    """Return the paper's name for a weight's kind of matrix, if it has one."""
    if name.endswith(ELSEWHERE):
        return None
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), None)


def concentration(update: NDArray[np.floating]) -> tuple[float, float]:
    """Compute the share of singular values that holds ENERGY, and the energy of the FIRST share.

    Eigenvalues of the smaller Gram matrix are the squares of singular values.
    """
    low = update if update.shape[0] <= update.shape[1] else update.T
    low = low.astype(np.float64)
    squares = np.linalg.eigvalsh(low @ low.T)[::-1].clip(min=0)
    share = np.cumsum(squares) / max(squares.sum(), 1e-300)
    needed = (int(np.searchsorted(share, ENERGY)) + 1) / len(share)
    return min(needed, 1.0), float(share[max(1, round(FIRST * len(share))) - 1])


def markdown(found: Sequence[Spectra]) -> Iterator[str]:
    """Lay out the means over seeds in percent, one line for each kind of matrix."""
    heads, lines = ["matrix"], []
    for kind, first in found[0].items():
        rounds = range(len(first))
        needed, held = (
            [100 * fmean(seed[kind][at][what] for seed in found) for at in rounds]
            for what in ("needed", "held")
        )
        heads = ["matrix", *(f"needed, round {at + 1}" for at in rounds)]
        heads += ["held, round 1", f"held, round {len(rounds)}"]
        lines.append([kind, *(f"{v:.0f}" for v in (*needed, held[0], held[-1]))])
    yield ""
    yield (
        f"Percent of the singular values of the mean update that hold {100 * ENERGY:.0f} % of its "
        f"energy, and percent of the energy in the first {100 * FIRST:.0f} % of them; W: both "
        "matrices of the feed-forward network."
    )
    yield ""
    yield from Grid("", heads, lines).markdown()
