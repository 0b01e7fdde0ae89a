"""The id of a run, which no member can choose alone, and its rules by the roster.

Specified in docs/protocol-bytes.md 3.6.

Every key stream and every proof of a run is bound to its id. A coordinator that could repeat an id
could repeat masks, so each party contributes a nonce and computes the id itself:

    run = H(roster, plan, members, nonce of each)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.roster import Roster
from secure_fl.errors import CohortError
from secure_fl.policy.plan import Plan
from secure_fl.thresholds import require_maskable

NONCE = RUN = 16
RESTARTED = "restarted"  # code of a site whose process restarted since it joined


def run_id(roster: Roster, plan: str, nonces: Mapping[str, bytes]) -> bytes:
    """Compute the id of the run of these members under this plan."""
    parts = [b"secure_fl/1 run", roster.canonical(), plan.encode()]
    for name in sorted(nonces):
        parts += [name.encode(), nonces[name]]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()[:RUN]


def rules_of_roster(roster: Roster, plan: Plan, members: tuple[str, ...]) -> CoordinatorRules:
    """Derive the run's rules from the signed roster, not from the coordinator."""
    host = roster.host.name if roster.host is not None else None
    parties, least = [name for name in members if name != host], plan.protection.min_cohort
    threshold = max(roster.t, plan.protection.threshold or 0)
    if len(parties) < max(threshold, least):
        raise CohortError(
            f"{len(parties)} parties accepted; sums need {threshold}, and at least {least}",
            fix="wait for the others",
        )
    if plan.protection.mode != "none":
        require_maskable(len(parties))
    return CoordinatorRules(host, least, threshold, goes_back=False, spares=True)
