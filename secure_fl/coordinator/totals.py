"""The coordinator's half of all sums of a run, by protection mode: nothing here can open one."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.coordinator.step import Rules
from secure_fl.crypto import public
from secure_fl.crypto.blind_sum import ClearTotal, ProtectedTotal
from secure_fl.crypto.scheme import COHORT
from secure_fl.protocol.ports import Audience, BlindTotal, NewTotal, Offered, require_masks
from secure_fl.settings import ProtectionSettings

ENCRYPTED = ("he", "he+secagg")
MASKED = ("secagg", "he+secagg")


def blind_totals(
    protection: ProtectionSettings, members: Sequence[str], rules: Rules, run: bytes
) -> NewTotal:
    """The coordinator's half: how each sum of a run is added up."""
    numbers = {name: number for number, name in enumerate(sorted(members), 1)}
    masks, encrypted = protection.mode in MASKED, protection.mode in ENCRYPTED
    # Preparing a context costs as much as adding a few ciphertexts: once a run is enough.
    context = public.load(public.context_bytes(COHORT)) if encrypted else None

    def new_total(audience: Audience, offered: Offered) -> BlindTotal:
        if protection.mode == "none":
            return ClearTotal()
        require_masks(audience, masks=masks)
        return ProtectedTotal(
            COHORT.modulus,
            context if audience == "parties" else None,
            masks=masks,
            offered=offered,
            numbers=numbers,
            host=rules.host,
            threshold=rules.threshold,
            run=run,
        )

    return new_total
