"""Keys and the party's half of sums, by the protection mode of the settings.

`crypto.sealing.blind_sum` makes the coordinator's half: its process never loads this file, which
can use secret keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.keys.identity import Identity
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.clear_sum import ClearEnvelopes, ClearSums, ClearTranscript
from secure_fl.crypto.sealing.envelopes import Envelopes, PartyKeys
from secure_fl.crypto.sealing.secure_sum import SecureSums
from secure_fl.crypto.sealing.transcript import Transcript
from secure_fl.protocol.ports import PrivacyLayer
from secure_fl.seeds import seed_for
from secure_fl.settings import Protection, ProtectionSettings


def make_keys(mode: Protection, members: Sequence[str], host: str | None) -> dict[str, PartyKeys]:
    """Generate keys for a federation in one process; hospitals get theirs in a key ceremony."""
    identities = {name: Identity.generate(name) for name in members}
    cards = {name: identity.public for name, identity in identities.items()}
    cohort = secret.generate() if mode == "he+secagg" else None
    tag_key, channel_key = os.urandom(32), os.urandom(32)
    return {
        name: PartyKeys(identities[name], cards, cohort, tag_key, channel_key) for name in members
    }


def privacy_layer(
    protection: ProtectionSettings,
    keys: PartyKeys,
    rules: CoordinatorRules,
    *,
    run: bytes,
    seed: int,
) -> PrivacyLayer:
    """Make the party's half of all sums of a run, with its envelopes and its transcript."""
    name = keys.identity.name
    if protection.mode == "none":
        return PrivacyLayer(ClearSums(name), ClearEnvelopes(name), ClearTranscript())
    if protection.mode == "secagg":
        keys = replace(keys, cohort=None)  # a ceremony deals one in every mode
    rng = np.random.Generator(np.random.PCG64(seed_for(seed, "rounding", name)))
    envelopes, transcript = Envelopes(keys, run), Transcript(protection.bits, rng)
    sums = SecureSums(
        keys, run, transcript, envelopes.digest_key, host=rules.host, threshold=rules.threshold
    )
    return PrivacyLayer(sums, envelopes, transcript)
