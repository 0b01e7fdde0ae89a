"""Who is shown to have lied is not asked any more: the others end the run, and all see who."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import structs

from secure_fl.algorithms.fedavg import FedAvg
from secure_fl.crypto.blame.evidence import FalseShare
from secure_fl.crypto.keys.identity import PublicIdentity
from secure_fl.crypto.sealing.step_keys import StepKeys
from secure_fl.pilot.plan import write_plan
from secure_fl.pilot.progress import progress
from secure_fl.protocol.messages import UnmaskShares
from tests.support.local_pilot import local_pilot, plan_of

LIAR = "hospital-2"


def test_the_others_end_the_run_and_the_evidence_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = StepKeys.reveal

    def reveal(
        keys: StepKeys, signatures: Mapping[str, bytes], signers: Mapping[str, PublicIdentity]
    ) -> UnmaskShares:
        shares = honest(keys, signatures, signers)
        false = {"hospital-1": bytes(17)} if keys.me == LIAR and keys.index > 1 else {}
        return structs.replace(shares, seeds={**shares.seeds, **false})

    monkeypatch.setattr(StepKeys, "reveal", reveal)
    made = local_pilot(tmp_path, plan_of(FedAvg(rounds=3)), count=4)
    made.lead(patience=0).run()
    assert LIAR in made.connected()  # it is there all the time, and not gathered again
    assert made.finished() == (set(made.members) - {LIAR})
    made.processes[LIAR].close()  # it waits for a coordinator that asks it no more
    (named,), gathered = made.seen("convicted"), made.seen("gathered")
    assert named["parties"] == [LIAR] and len(gathered) == 1
    FalseShare.read(named["evidence"]).check({m.name: m.identity for m in made.roster.members})

    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "settings.toml").write_text(write_plan(made.plan))
    lines = [json.dumps(event) for event in (*gathered, named)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    told = progress(folder)
    assert told["members"][LIAR]["state"] == "convicted" and LIAR in told["notes"][-1]
