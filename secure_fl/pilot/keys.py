"""From a site's key files to what its half of a sum needs."""

from __future__ import annotations

from secure_fl.crypto import secret
from secure_fl.crypto.keyring import KeyRing
from secure_fl.crypto.party_keys import PartyKeys
from secure_fl.crypto.roster import Roster


def site_keys(ring: KeyRing, roster: Roster) -> PartyKeys:
    """Open this site's keys for a run under a roster that everybody has signed."""
    identity, cohort = ring.identity(), ring.cohort(roster)
    return PartyKeys(
        identity,
        {member.name: member.identity for member in roster.members},
        secret.SecretKey.from_bytes(cohort.secret),
        cohort.tag_key,
        cohort.channel_key,
    )
