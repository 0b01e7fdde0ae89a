"""Before a run: an invitation, and an id that nobody alone can choose.

Every key stream and every proof of a run is bound to its id. A coordinator that could repeat an id
would repeat masks, so each party puts in a nonce of its own and computes the id itself:

    run = H(roster, plan, who takes part, nonce of each)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from secure_fl.crypto.roster import Roster

NONCE = RUN = 16


def run_id(roster: Roster, plan: str, nonces: Mapping[str, bytes]) -> bytes:
    """The id of the run that these members begin under this plan."""
    parts = [b"secure_fl/1 run", roster.canonical(), plan.encode()]
    for name in sorted(nonces):
        parts += [name.encode(), nonces[name]]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()[:RUN]
