"""Adapters' updates give texts away, word for word, if they are read; sealed ones do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fl import FedAvg, Federation
from secure_fl.audits import suite
from secure_fl.audits.attacks.guess_scores import sequences
from secure_fl.audits.attacks.layer_inputs import with_factors
from secure_fl.audits.attacks.simulated_training import best_case
from secure_fl.audits.attacks.span_check import FULL, guess_texts, span_check
from secure_fl.audits.attacks.whole_texts import recovered, whole_texts
from secure_fl.audits.audited_run import AuditedRun, unprotected
from secure_fl.audits.findings import AuditTrial, CoordinatorView, Prior, Reading, Verdict
from secure_fl.config.load import dump, loads
from secure_fl.learning.anatomy import adapted
from secure_fl.learning.models import load_model
from secure_fl.settings import AdapterSettings, ModelSettings
from tests.support.readings import ADE, outsiders, permuted, sgd, tokenizer
from tests.support.sampling import mostly_slow


def step(rank: int, at: int = 0, records: int = 1, kind: Any = "lora") -> tuple[Any, Prior]:
    """What one plain step on public records moves, and what everybody knows."""
    spec = ModelSettings(layers=2, adapter=AdapterSettings(kind=kind, rank=rank))
    prior = Prior(
        lambda: load_model(spec, ADE, tokenizer(), 0),
        tokenizer(),
        ADE,
        sgd(),
        FedAvg(),
        0,
        {},
        outsiders()[at:],
    )
    return best_case(prior, records)


def texts_of(prior: Prior) -> tuple[tuple[int, ...], ...]:
    (truth,) = prior.truth.values()
    return tuple(row[1:-1] for row in sequences(truth.records, prior))


@pytest.mark.parametrize(
    ("kind", "rank", "records"), [("lora", 16, 1), ("ffa", 16, 1), ("lora", 32, 2)]
)
def test_spans_of_an_adapter_tell_texts_word_for_word(kind: Any, rank: int, records: int) -> None:
    view, prior = step(rank, records=records, kind=kind)
    found = span_check(view, prior)
    assert found.succeeded and (found.value, found.details["rouge_2"]) == (1.0, 1.0)
    assert set(guess_texts(view.readings[0].values, prior).texts) >= set(texts_of(prior))
    assert not span_check(permuted(view), prior).succeeded


def test_fewer_rows_than_tokens_are_full() -> None:
    found = span_check(*step(8))
    assert found.value == 0.0 and found.note == FULL


def products(view: CoordinatorView, prior: Prior) -> CoordinatorView:
    """The same step, as who sums products sends it."""
    (reading,), layers = view.readings, adapted(prior.model())
    values = {n: v for n, v in reading.values.items() if ".lora_" not in n}
    for name, layer in layers.items():
        B = reading.values[f"{name}.lora_B.default.weight"]
        A = layer.lora_A["default"].weight.detach().numpy()
        values[f"{name}.base_layer.weight"] = layer.scaling["default"] * B @ A
    return CoordinatorView(view.role, (Reading(reading.of, 1, values),))


def test_products_tell_what_factors_tell() -> None:
    view, prior = step(16)
    seen = products(view, prior)
    found = with_factors(seen.readings[0].values, prior.model())
    for name, move in view.readings[0].values.items():
        if "lora_B" in name:
            np.testing.assert_allclose(found[name], move, atol=1e-6)
    assert span_check(seen, prior).value == 1.0
    (reading,) = seen.readings
    factors = {
        f"{n}|B": np.linalg.qr(np.random.default_rng(0).normal(size=(len(v), 48)))[0].T @ v
        for n, v in reading.values.items()
        if n.endswith("base_layer.weight")
    }
    assert span_check(replace(seen, readings=(replace(reading, values=factors),)), prior).succeeded


def test_a_search_tells_what_spans_of_few_rows_do_not() -> None:
    view, prior = step(8, at=2)
    assert not guess_texts(view.readings[0].values, prior).texts
    assert recovered(view.readings[0].values, prior) == texts_of(prior)


@pytest.mark.slow
def test_most_texts_are_told_by_a_step_of_rank_eight() -> None:
    found = [whole_texts(*step(8, at)) for at in range(8)]
    assert sum(f.succeeded for f in found) >= 6
    assert sum(f.details["exact"] for f in found) >= 5
    assert not whole_texts(permuted(step(8)[0]), step(8)[1]).succeeded


STUDY = """
run = {{record = true}}
data = {{corpus = "ade", parties = 3, size = 1}}
task = {{max_length = 24, labels = ["ade", "no-ade"]}}
model = {{layers = 2, adapter = {{kind = "{kind}", rank = 32}}}}
protection = {{mode = "{mode}"}}
algorithm = {{name = "fedavg", rounds = 1}}
[training]
optimizer = "sgd"
schedule = "constant"
learning_rate = 0.1
weight_decay = 0.0
device = "cpu"
"""


def trials(folder: Path, mode: str, kind: str, attack: str) -> dict[str, AuditTrial]:
    """One attack on every role of hospitals with one record each, which make one step."""
    Federation.of(loads(STUDY.format(mode=mode, kind=kind)), folder).run()
    audit = AuditedRun(folder, code=False)
    entry = suite.RECONSTRUCTION[attack]
    found = suite.reconstruction_trials(entry, audit.evidence, audit.prior)
    return {trial.role: trial for trial in found}


ATTACKS = ("span check", pytest.param("whole texts", marks=pytest.mark.slow))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", mostly_slow(["lora", "exact"], "exact"))
def test_in_the_clear_texts_are_read_and_sealed_they_are_not(
    tmp_path: Path, kind: str, attack: str
) -> None:
    clear = trials(tmp_path / "clear", "none", kind, attack)
    assert clear["coordinator"].verdict is Verdict.LEAKS
    sealed = trials(tmp_path / "sealed", "he+secagg", kind, attack)
    for role in ("coordinator", "one hospital", "coordinator + 1 hospital"):
        trial = sealed[role]
        assert trial.control is not None and trial.control.succeeded, role  # the attack works
        assert trial.verdict is Verdict.HOLDS, role
    opened = sealed["one hospital"].deployed
    assert opened is not None and opened.target == "the sum of 2" and opened.value is not None


def test_the_control_of_adapters_is_adapters_in_the_clear() -> None:
    control = unprotected(loads(STUDY.format(mode="he+secagg", kind="lora")))
    assert control.protection.mode == "none" and control.model.adapter is not None
    assert loads(dump(control)) == control
