"""A site's own records under the name that a plan uses for them."""

from __future__ import annotations

from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.config.silos import read
from secure_fl.crypto.roster import Member
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError
from secure_fl.policy.file import SiteFile
from secure_fl.policy.rules import Plan


def records_of(site: SiteFile, me: Member, plan: Plan) -> Silo:
    """Read this site's files; nobody else learns where they are, or what is in them."""
    found = site.sets.get(plan.dataset)
    if found is None:
        raise DataError(
            f"this site has no records called {plan.dataset!r}",
            fix=f'add [[data.set]] with name = "{plan.dataset}" to {site.file.name}',
            party=me.name,
        )
    mine = PartyFiles(
        name=me.name,
        train=found.train,
        dev=found.dev,
        test=found.test,
        role=me.role,
        tier=me.tier,
    )
    data = PartyData(party=(mine,), public=found.public, format=found.format, columns=found.columns)
    (silo,) = read(data, plan.task, plan.run.seed)
    return silo
