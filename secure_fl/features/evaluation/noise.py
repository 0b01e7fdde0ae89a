"""Noise on the counts of an evaluation, so that no single test record can be recognised.

Who proposes an evaluation chooses its models, and so decides which records fall into one cell. No
rule about small cells helps against that: a model can add known records to a cell, and two models
can differ in one record. So each hospital adds a share of discrete noise before its counts are
sealed, and nobody ever holds exact ones.

Proof. A record is in at most k cells of a model (`cells_of`), with 1 in each, which `require_bound`
checks. For M models, adding or removing it changes up to kM cells by 1 each. A sum
opens over at least t hospitals, so without one colluder's share it has at least t - 1 honest ones,
each of variance μ/(t - 1): Skellam noise of variance μ or more. What follows from the sum is
post-processing. These are kM releases of one cell, whose ε is exact (`privacy.accounting`), and
the ledger composes all evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.privacy.accounting import SkellamRelease
from secure_fl.crypto.privacy.ledger import Account, Budget
from secure_fl.crypto.privacy.noise import counts_release, skellam
from secure_fl.errors import CryptoError, SettingsError
from secure_fl.learning.metric_counts import MAX_CROSSED, ROW, SCORED, TRULY, Contributions, Counts
from secure_fl.learning.noised_counts import coarsen

if TYPE_CHECKING:
    from secure_fl.learning.site import Site
    from secure_fl.learning.tasks import Task

DELTA = 1e-6
TOTAL = 8.0  # ε of all evaluations of one site's test records, unless its rules say otherwise
KINDS = ("classification", "pair")


def reserve(site: Site, release: SkellamRelease, run: str) -> None:
    """Spend a release from the site's ledger, if it has one, or raise BudgetError."""
    if site.ledger is not None:
        account = Account(f"{site.name}, test records", "record")
        total = float(site.options.get("total_evaluation_epsilon", TOTAL))
        site.ledger().reserve(release, account, Budget(total, DELTA), run=run)


def require_kind(kind: str) -> None:
    """Refuse noise on scores of a task whose records may add any number."""
    if kind not in KINDS:
        raise SettingsError(
            f"noise on scores is for tasks with one class per record, not for {kind}",
            fix="remove epsilon: the scores are then exact, and each site of a pilot must allow "
            "that (exact_evaluations = true in [site])",
            field="algorithm.epsilon",
        )


def cells_of(labels: tuple[str, ...]) -> int:
    """Return in how many cells of one model a record counts at most."""
    confusion = 1 if len(labels) <= MAX_CROSSED else 2  # a miss, and a false alarm
    return confusion + (len(labels) == 2)


def release_of(epsilon: float, cells: int) -> SkellamRelease:
    """Find the least noise on so many cells of each record that stays within ε."""
    return counts_release(epsilon, DELTA, releases=cells, change=1.0)


def noised(task: Task, rows: Mapping[str, Contributions], variance: float) -> Counts:
    """Count one model's records, with this site's share of the noise on every cell."""
    kept = {name: row for name, row in rows.items() if name.startswith((TRULY, ROW))}
    if len(task.labels) == 2:
        kept |= {name: row for name, row in rows.items() if name.startswith(SCORED)}
    require_bound(kept, cells_of(task.labels))
    counts: dict[str, NDArray[Any]] = {
        name: coarsen(row.total()) if name.startswith(SCORED) else row.total()
        for name, row in kept.items()
    }
    return {name: cells + skellam(variance, len(cells)) for name, cells in counts.items()}


def require_bound(rows: Mapping[str, Contributions], cells: int) -> None:
    """Check in integers that every record adds 1 to so many cells at most."""
    records = max(row.records for row in rows.values())
    added = np.zeros(records, np.int64)
    for row in rows.values():
        added += np.bincount(row.record, minlength=records)
        if not np.array_equal(row.value, np.ones_like(row.value)):
            raise CryptoError("a record adds more than 1 to a cell, so noise is not sized for it")
    if records and added.max() > cells:
        raise CryptoError("a record is in more cells than the noise is sized for")
