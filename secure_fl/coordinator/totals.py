"""The coordinator's half of all sums of a run, by protection mode: nothing here can open one."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.coordinator.step import Rules
from secure_fl.crypto import public
from secure_fl.crypto.blind_sum import ClearTotal, ProtectedTotal
from secure_fl.crypto.scheme import COHORT, HOST
from secure_fl.protocol.ports import Audience, BlindTotal, NewTotal, Offered
from secure_fl.settings import ProtectionSettings

ENCRYPTED = ("he", "he+secagg")
MASKED = ("secagg", "he+secagg")


def blind_totals(
    protection: ProtectionSettings, members: Sequence[str], rules: Rules, run: bytes
) -> NewTotal:
    """The coordinator's half: how each sum of a run is added up."""
    numbers = {name: number for number, name in enumerate(sorted(members), 1)}
    masks, encrypted = protection.mode in MASKED, protection.mode in ENCRYPTED
    schemes = (COHORT, *([HOST] if rules.host else [])) if encrypted else ()
    # Preparing a context costs as much as adding a few ciphertexts: once a run is enough.
    contexts = {scheme: public.load(public.context_bytes(scheme)) for scheme in schemes}

    def new_total(audience: Audience, offered: Offered) -> BlindTotal:
        if protection.mode == "none":
            return ClearTotal()
        for_host = audience == "host"
        sealed = encrypted and not (for_host and masks and protection.host_sums == "masks")
        scheme = HOST if for_host and sealed else COHORT
        context = contexts[scheme] if sealed else None
        return ProtectedTotal(
            scheme.modulus,
            context,
            masks=masks,
            offered=offered,
            numbers=numbers,
            host=rules.host,
            threshold=rules.threshold,
            run=run,
        )

    return new_total
