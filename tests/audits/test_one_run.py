"""The one-run audit finds planted bugs of DP-SGD, and accuses neither a sound build nor a null."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secure_fl import corpora
from secure_fl.audits.audit_statistics import one_run_epsilon, one_run_gaussian_epsilon
from secure_fl.audits.findings import AuditFinding, AuditTrial, Prior, PublicView, Verdict
from secure_fl.audits.selftest import one_run
from secure_fl.learning.tasks import make_task
from secure_fl.settings import DPSettings, TaskSettings, TrainingSettings
from tests.support.readings import prior_of

VIEW = PublicView("public", nn.Identity(), ("model/1",))


@cache
def prior(epsilon: float | None = 1.0, **fields: Any) -> Prior:
    records = corpora.make("ade", parties=1, seed=1, size=120)[0].train
    task = make_task(TaskSettings(labels=("no-ade", "ade"), max_length=48))
    dp = None if epsilon is None else DPSettings(epsilon=epsilon, accountant="rdp", **fields)
    training = TrainingSettings(learning_rate=1.5e-3, batch_size=64, device="cpu", dp=dp)
    own, others = {"north": records[:20]}, records[20:]
    return prior_of(own, training, task=task, public=others, layers=1, seed=1)


@cache
def audit(build: one_run.Build) -> AuditFinding:
    return one_run.one_run(VIEW, prior(), build)


def test_missing_noise_is_found_and_a_sound_build_holds():
    control, deployed, null = map(audit, (one_run.LITTLE_NOISE, one_run.SOUND, one_run.BLIND))
    assert control.value is not None and control.value > 2 * control.threshold
    assert AuditTrial(control, deployed, null).verdict is Verdict.HOLDS
    assert control.evidence == ("model/1",)


def test_missing_clipping_is_found():
    assert audit(one_run.UNCLIPPED).succeeded


def test_the_claim_is_the_accountants():
    assert audit(one_run.SOUND).threshold == pytest.approx(1.0, abs=0.01)
    assert audit(one_run.LITTLE_NOISE).threshold == audit(one_run.SOUND).threshold
    given = prior(50.0, noise_multiplier=1.0)
    finding = one_run.one_run(VIEW, given, count=100)
    assert 1 < finding.threshold < 50  # what this much noise costs, not the budget


def test_a_blind_audit_finds_no_missing_noise():
    assert not audit(replace(one_run.LITTLE_NOISE, blind=True)).succeeded


def test_the_value_is_what_the_guesses_disprove():
    finding = audit(one_run.LITTLE_NOISE)
    m, r, v = (finding.details[name] for name in ("canaries", "guesses", "right"))
    assert (m, r) == (1000, 400)
    assert finding.value == one_run_epsilon(m, r, v, 1e-5)
    assert finding.details["most_it_could_disprove"] == one_run_epsilon(m, r, r, 1e-5) > 1
    gaussian = finding.details["gaussian_epsilon"]
    assert gaussian == one_run_gaussian_epsilon(m, r, v, 1e-5) > finding.value
    sound = audit(one_run.SOUND)
    assert sound.details["gaussian_epsilon"] < sound.threshold


def test_the_same_seed_gives_the_same_finding():
    given = prior(50.0, noise_multiplier=1.0)  # to find σ takes much longer than to train
    one = one_run.one_run(VIEW, given, count=80)
    torch.rand(1)
    assert one == one_run.one_run(VIEW, given, count=80)


def test_guesses_are_the_extremes_and_as_many_as_was_fixed():
    guesses = one_run.guess_coins(np.array([5.0, 1.0, 3.0, 4.0, 2.0]), share=0.4)
    assert guesses.tolist() == [1, -1, 0, 1, -1]
    assert one_run.right_guesses(guesses, np.array([True, False, True, False, True])) == 2


def test_without_a_claim_there_is_nothing_to_audit():
    finding = one_run.one_run(VIEW, prior(None))
    assert finding.value is None
    assert finding.note


def test_patients_and_ghost_clipping_are_audited_too():
    for fields in ({"unit": "patient"}, {"clipping": "ghost"}):
        finding = one_run.one_run(VIEW, prior(1.0, **fields), one_run.LITTLE_NOISE, count=300)
        assert finding.succeeded
