"""From a site's key files to what its half of a sum needs."""

from __future__ import annotations

from secure_fl.crypto import secret
from secure_fl.crypto.hostkey import read_host_key
from secure_fl.crypto.keyring import KeyRing
from secure_fl.crypto.secure_sum import PartyKeys
from secure_fl.roster import Roster


def site_keys(ring: KeyRing, roster: Roster, host_key: bytes | None = None) -> PartyKeys:
    """Open this site's keys for a run under a roster that everybody has signed.

    `host_key` is the host's signed public key, which a run with sealed host sums needs.
    """
    identity, cohort = ring.identity(), ring.cohort(roster)
    is_host = roster.host is not None and roster.host.name == identity.name
    public = None
    if host_key is not None:
        public = secret.HostPublicKey.from_bytes(read_host_key(roster, host_key))
    return PartyKeys(
        identity,
        {member.name: member.identity for member in roster.members},
        secret.SecretKey.from_bytes(cohort.secret),
        cohort.tag_key,
        cohort.channel_key,
        public,
        secret.HostSecretKey.from_bytes(ring.host(roster)) if is_host and public else None,
    )
