"""From a site's key files to what its half of a sum needs."""

from __future__ import annotations

import numpy as np

from secure_fl.coordinator.totals import ENCRYPTED, MASKED
from secure_fl.crypto import secret
from secure_fl.crypto.hostkey import read_host_key
from secure_fl.crypto.keyring import KeyRing
from secure_fl.crypto.party_keys import PartyKeys
from secure_fl.crypto.roster import Roster
from secure_fl.errors import KeyringError
from secure_fl.settings import ProtectionSettings

HOW = (
    "at the host: `secure-fl keys host roster.json`; its file then goes into every kit as "
    "host.public (`secure-fl pilot init --host-key`)"
)


def site_keys(ring: KeyRing, roster: Roster, host_key: bytes | None = None) -> PartyKeys:
    """Open this site's keys for a run under a roster that everybody has signed.

    `host_key` is the host's signed public key, which a run with sealed host sums needs.
    """
    identity, cohort = ring.identity(), ring.cohort(roster)
    is_host = roster.host is not None and roster.host.name == identity.name
    public: secret.HostPublicKey | None = None
    own: secret.HostSecretKey | None = None
    if host_key is not None:
        public = secret.HostPublicKey.from_bytes(read_host_key(roster, host_key))
        if is_host:
            own = secret.HostSecretKey.from_bytes(ring.host(roster))
            _require_pair(own, public)
    return PartyKeys(
        identity,
        {member.name: member.identity for member in roster.members},
        secret.SecretKey.from_bytes(cohort.secret),
        cohort.tag_key,
        cohort.channel_key,
        public,
        own,
    )


def require_host_key(keys: PartyKeys, protection: ProtectionSettings, *, has_host: bool) -> None:
    """Refuse a run whose host sums are sealed to a key that this site was not given."""
    encrypted, masked = protection.mode in ENCRYPTED, protection.mode in MASKED
    sealed = encrypted and (not masked or protection.host_sums == "sealed")
    if has_host and sealed and keys.host_public is None:
        raise KeyringError(
            "sums for the host are sealed to its key in this run, and this site has none of it",
            fix=f'{HOW}. Or the plan takes mode = "he+secagg" with host_sums = "masks"',
            party=keys.identity.name,
        )


def _require_pair(own: secret.HostSecretKey, public: secret.HostPublicKey) -> None:
    """Refuse a public half of another pair: every sum would open to nonsense."""
    probe = np.arange(1, 9, dtype=np.uint64)
    if np.any(secret.open_host(own, secret.seal_to_host(public, probe), probe.size) != probe):
        raise KeyringError(
            "the host's public key is not of the pair in this site's key folder",
            fix=f"{HOW}. A pair that was made anew needs new files at all",
        )
