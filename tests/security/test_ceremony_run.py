"""From key files to a protected sum: a signed roster, a ceremony, and a run with its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from secure_fl.crypto.keys.keyring import KeyRing
from secure_fl.crypto.keys.roster import Roster
from secure_fl.crypto.sealing import secret
from secure_fl.crypto.sealing.envelopes import PartyKeys
from secure_fl.errors import KeyringError, SecureFLError
from secure_fl.party.cohort import Cohort
from secure_fl.pilot.site_memory import site_keys
from secure_fl.protocol.messages import Audience
from secure_fl.testing.harness import Program, federate
from tests.support.key_sites import CHEAP, signed, site
from tests.support.raising import raises

NAMES = ("east", "hub-host", "north", "west")
HOST = "hub-host"


def ceremony(folder: Path, roster: Roster) -> dict[str, PartyKeys]:
    rings = {}
    for name in roster.names:
        rings[name] = KeyRing(folder / name, f"passphrase of {name}", CHEAP)
        rings[name].create(site(name))
    bundles = rings["east"].ceremony(roster, secret.generate().to_bytes())
    for name, ring in rings.items():
        ring.accept(roster, bundles[name])
    return {name: site_keys(ring, ring.identity(), roster) for name, ring in rings.items()}


async def shared(cohort: Cohort) -> Any:
    return await cohort.sum({} if cohort.is_host else {"x": np.full(20, 0.25)})


def program(name: str) -> Program:
    async def run(cohort: Cohort) -> Any:
        values = {"x": np.full(20, 0.25)}
        shared = await cohort.sum({} if name == HOST else values)
        hosted = await cohort.sum(values, reveal=Audience.HOST, bound=1.0)
        return shared, hosted

    return run


def test_a_run_with_keys_of_a_ceremony(tmp_path: Path) -> None:
    keys = ceremony(tmp_path, signed(*NAMES, host=HOST))
    out = federate({n: program(n) for n in NAMES}, mode="he+secagg", host=HOST, keys=keys)
    np.testing.assert_allclose(out.results["north"][0]["x"], 0.75, atol=1e-3)
    np.testing.assert_allclose(out.results[HOST][1]["x"], 0.75, atol=1e-3)


def test_keys_of_two_ceremonies_do_not_mix(tmp_path: Path) -> None:
    roster = signed(*NAMES, host=HOST)
    mixed = ceremony(tmp_path / "one", roster) | {
        "north": ceremony(tmp_path / "two", roster)["north"]
    }
    out = federate(
        dict.fromkeys(NAMES, shared), mode="he+secagg", host=HOST, keys=mixed, catch=True
    )
    assert isinstance(out.error, SecureFLError) and out.results == {}


def test_keys_need_the_roster_they_were_made_for(tmp_path: Path) -> None:
    roster = signed(*NAMES, host=HOST)
    ceremony(tmp_path, roster)
    ring = KeyRing(tmp_path / "north", "passphrase of north", CHEAP)
    with raises(KeyringError, reason="other-roster"):
        site_keys(ring, ring.identity(), signed(*NAMES, host=HOST, version=2))
