"""A host in a pilot: what only it may open is sealed to the key that its kit gave everybody."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secure_fl.algorithms.fedid import FedID
from secure_fl.cli.pilot import PROGRAM, _free_port
from secure_fl.crypto import secret
from secure_fl.crypto.hostkey import sign_host_key
from secure_fl.crypto.keyring import KeyRing
from secure_fl.crypto.vault import Cost
from secure_fl.errors import CohortError, KeyringError
from secure_fl.pilot.keys import require_host_key, site_keys
from secure_fl.pilot.kits import HOST_KEY, load_kit
from secure_fl.settings import ProtectionSettings, TrainingSettings
from tests.support.clinic import HUB, PASSPHRASE, Clinic
from tests.support.hospitals import HOST
from tests.support.town import plan_of

MODES: list[dict[str, Any]] = [{}, {"host_sums": "sealed"}, {"mode": "he"}]  # {}: as it comes


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Clinic]]:
    made: list[Clinic] = []

    def make(protection: dict[str, Any], **options: Any) -> Clinic:
        training = TrainingSettings(learning_rate=2e-3, batch_size=8, device="cpu")
        plan = plan_of(
            FedID(rounds=1), protection=ProtectionSettings(**protection), training=training
        )
        made.append(Clinic(tmp_path, plan, **options))
        return made[-1]

    yield make
    for clinic in made:
        clinic.close()


@pytest.mark.parametrize("protection", MODES, ids=["default", "sealed", "he"])
def test_fedid_runs_with_what_is_in_the_kits(opened, protection):
    clinic = opened(protection)
    clinic.run()
    assert all(seat.done for seat in clinic.seats.values())
    for name in clinic.roster.names:
        result = json.loads((clinic.folder / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"


def test_without_the_host_s_key_masks_do_and_seals_are_refused_before_the_run(opened):
    clinic = opened({"host_sums": "sealed"}, with_key=False)
    with pytest.raises(CohortError, match=r"refuses the plan \(keyring\)"):
        clinic.run()
    refused = [event for event in clinic.events if "why" in event]
    assert {event["party"] for event in refused} == set(clinic.roster.names)
    assert all("keys host roster.json" in e["why"] and HOST_KEY in e["why"] for e in refused)
    assert not (clinic.folder / "hospital-1" / "runs").exists()
    keys = clinic.seats["hospital-1"]._keys
    for protection, has_host in (
        (ProtectionSettings(), True),
        (ProtectionSettings(mode="none", min_cohort=3), True),
        (ProtectionSettings(mode="secagg", host_sums="sealed"), True),
        (ProtectionSettings(mode="he"), False),
    ):
        require_host_key(keys, protection, has_host=has_host)
    with pytest.raises(KeyringError):
        require_host_key(keys, ProtectionSettings(mode="he"), has_host=True)


def test_a_key_that_the_host_did_not_sign_is_not_sealed_to(opened):
    """Whoever writes kits could otherwise give everybody a key of their own, and open the sums."""
    clinic = opened({})
    file = clinic.folder / "kits" / "hospital-1" / HOST_KEY
    genuine, ours = file.read_bytes(), secret.generate_host().public().to_bytes()
    card = clinic.roster.member(HOST).identity
    host = KeyRing(clinic.folder / HOST / "keys", PASSPHRASE, Cost(log_n=10)).identity()
    assert card == host.public
    signed = sign_host_key(host, clinic.roster, ours)
    for forged in (ours, signed[:-64] + genuine[-64:], genuine[:-1], b""):
        file.write_bytes(forged)
        with pytest.raises(KeyringError) as caught:
            load_kit(file.parent)
        assert caught.value.where["file"] == file
    file.write_bytes(signed)
    assert load_kit(file.parent).host_key == signed


def test_a_host_whose_pair_was_made_anew_hears_of_it_before_a_run(opened):
    clinic = opened({})
    ring = KeyRing(clinic.folder / HOST / "keys", PASSPHRASE, Cost(log_n=10))
    kit = load_kit(clinic.folder / "kits" / HOST)
    assert site_keys(ring, clinic.roster, kit.host_key).host_secret is not None
    pair = secret.generate_host()
    ring.install_host(pair.to_bytes(), pair.public().to_bytes(), clinic.roster)
    with pytest.raises(KeyringError, match="not of the pair"):
        site_keys(ring, clinic.roster, kit.host_key)


@pytest.mark.slow
def test_fedid_in_processes_over_flare(opened):
    clinic = opened({"mode": "he"}, port=_free_port())
    processes = {}
    for name in (HUB, *clinic.roster.names):
        kit = ["--kit", f"../kits/{name}", "--passphrase-file", "passphrase"]
        arguments = ["join", "site.toml", *kit]
        if name == HUB:
            arguments = ["coordinate", "plan.toml", *kit, "--out", "run"]
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=clinic.folder / name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        for process in processes.values():
            said, _ = process.communicate(timeout=200)
            assert process.returncode == 0, said
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    for name in clinic.roster.names:
        result = json.loads((clinic.folder / name / "runs" / "run" / "result.json").read_text())
        assert result["status"] == "finished"
