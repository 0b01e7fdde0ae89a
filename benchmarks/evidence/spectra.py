"""How the energy of updates is spread over their singular values, round by round.

FedKD's Figure 6 shows it for the kinds of matrices that a transformer has, at the beginning and at
the end of training, and its Figure 7 how many singular values hold 95 % of it. Here it is that of
the mean update of all parties: read off the views of a run without protection and without factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from secure_fl.capture import readings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from secure_fl.audits.audited_run import AuditedRun

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


def spectra(audit: AuditedRun, rounds: int) -> Spectra:
    """Take every round's mean update apart."""
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
    """Which of the paper's kinds of matrices a weight is, if any."""
    if name.endswith(ELSEWHERE):
        return None
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), None)


def concentration(update: NDArray[np.floating]) -> tuple[float, float]:
    """The part of its singular values that hold ENERGY, and the energy of the FIRST part of them.

    Eigenvalues of the smaller Gram matrix are the squares of singular values.
    """
    low = update if update.shape[0] <= update.shape[1] else update.T
    low = low.astype(np.float64)
    squares = np.linalg.eigvalsh(low @ low.T)[::-1].clip(min=0)
    share = np.cumsum(squares) / max(squares.sum(), 1e-300)
    needed = (int(np.searchsorted(share, ENERGY)) + 1) / len(share)
    return min(needed, 1.0), float(share[max(1, round(FIRST * len(share))) - 1])


def lines(found: list[Spectra]) -> Iterator[list[str]]:
    """One line for each kind of matrix: means over seeds, in percent."""
    for kind in found[0]:
        rounds = range(len(found[0][kind]))
        needed, held = (
            [100 * fmean(seed[kind][at][what] for seed in found) for at in rounds]
            for what in ("needed", "held")
        )
        yield [kind, *(f"{value:.0f}" for value in needed), f"{held[0]:.0f}", f"{held[-1]:.0f}"]
