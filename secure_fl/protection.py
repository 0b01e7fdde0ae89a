"""From the settings' protection mode to keys, and to the two halves of a sum."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from secure_fl.coordinator import Rules
from secure_fl.crypto import public, secret
from secure_fl.crypto.blind_sum import ClearTotal, ProtectedTotal
from secure_fl.crypto.clear_sum import ClearSum
from secure_fl.crypto.identity import Identity
from secure_fl.crypto.scheme import COHORT, HOST
from secure_fl.crypto.secure_sum import PartyKeys, SecureSum
from secure_fl.protocol import Audience, BlindTotal, NewTotal, Offered, PartySum
from secure_fl.seeds import seed_for
from secure_fl.settings import Protection, ProtectionSettings

ENCRYPTED = ("he", "he+secagg")
MASKED = ("secagg", "he+secagg")


def make_keys(mode: Protection, members: Sequence[str], host: str | None) -> dict[str, PartyKeys]:
    """Fresh keys for a federation in one process; hospitals bring theirs from a key ceremony."""
    identities = {name: Identity.generate(name) for name in members}
    cards = {name: identity.public for name, identity in identities.items()}
    cohort = secret.generate() if mode in ENCRYPTED else None
    host_secret = secret.generate_host() if mode in ENCRYPTED and host else None
    host_public = host_secret.public() if host_secret else None
    tag_key, channel_key = os.urandom(32), os.urandom(32)
    return {
        name: PartyKeys(
            identities[name],
            cards,
            cohort,
            tag_key,
            channel_key,
            host_public,
            host_secret if name == host else None,
        )
        for name in members
    }


def party_sum(
    protection: ProtectionSettings, keys: PartyKeys, rules: Rules, *, run: bytes, seed: int
) -> PartySum:
    """The party's half of all sums of a run."""
    name = keys.identity.name
    if protection.mode == "none":
        return ClearSum(name)
    return SecureSum(
        keys,
        run,
        host=rules.host,
        threshold=rules.threshold,
        bits=protection.bits,
        masks=protection.mode in MASKED,
        host_sums=protection.host_sums,
        rng=np.random.Generator(np.random.PCG64(seed_for(seed, "rounding", name))),
    )


def blind_totals(
    protection: ProtectionSettings, members: Sequence[str], rules: Rules, run: bytes
) -> NewTotal:
    """The coordinator's half: how each sum of a run is added up."""
    numbers = {name: number for number, name in enumerate(sorted(members), 1)}
    masks, encrypted = protection.mode in MASKED, protection.mode in ENCRYPTED

    def new_total(audience: Audience, offered: Offered) -> BlindTotal:
        if protection.mode == "none":
            return ClearTotal()
        for_host = audience == "host"
        sealed = encrypted and not (for_host and masks and protection.host_sums == "masks")
        scheme = HOST if for_host and sealed else COHORT
        context = public.load(public.context_bytes(scheme)) if sealed else None
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
