"""What hospitals' decoders are taught is told by their updates, prompt and completion, if read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl import FedAvg, Federation, TaskSettings
from secure_fl.audits import suite
from secure_fl.audits.attacks.guess_scores import sequences
from secure_fl.audits.attacks.simulated_training import best_case
from secure_fl.audits.attacks.span_check import guess_texts, span_check
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.findings import AuditTrial, Prior, Verdict
from secure_fl.config.load import loads
from secure_fl.data.examples import Text
from secure_fl.learning.models import load_model
from secure_fl.learning.tasks import make_task
from secure_fl.settings import AdapterSettings, ModelSettings
from tests.support.readings import outsiders, permuted, sgd, tokenizer

TASK = make_task(TaskSettings(kind="completion", max_length=32))
STUDY = """
run = {{record = true}}
task = {{kind = "completion", max_length = 32}}
data = {{corpus = "summaries", parties = 3, size = 1}}
model = {{layers = 2}}
protection = {{mode = "{mode}"}}
algorithm = {{name = "fedavg", rounds = 1}}
[training]
optimizer = "sgd"
schedule = "constant"
learning_rate = 0.1
weight_decay = 0.0
device = "cpu"
"""


@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=32)])
def test_spans_tell_prompt_and_completion_word_for_word(adapter: Any) -> None:
    spec = ModelSettings(layers=2, adapter=adapter)
    knows = Prior(
        lambda: load_model(spec, TASK, tokenizer(), 0),
        tokenizer(), TASK, sgd(), FedAvg(), 0, {}, outsiders("summaries"),
    )  # fmt: skip
    view, prior = best_case(knows, 1)
    (truth,) = prior.truth.values()
    (text,) = sequences(truth.records, prior)
    decoded = tokenizer().decode(text, skip_special_tokens=True)
    (record,) = truth.records
    assert isinstance(record, Text) and record.pair is not None
    assert decoded.endswith(tokenizer().decode(tokenizer()(record.pair)["input_ids"][1:-1]))
    finding = span_check(view, prior)
    assert finding.succeeded and (finding.value, finding.details["rouge_2"]) == (1.0, 1.0)
    assert text[1:-1] in guess_texts(view.readings[0].values, prior).texts
    assert not span_check(permuted(view), prior).succeeded


def trials(folder: Path, mode: str) -> dict[str, AuditTrial]:
    Federation.of(loads(STUDY.format(mode=mode)), folder).run()
    audit = AuditedRun(folder, code=False)
    entry = suite.RECONSTRUCTION["span check"]
    finding = suite.reconstruction_trials(entry, audit.evidence, audit.prior)
    return {trial.role: trial for trial in finding}


def test_in_the_clear_completions_are_read_and_sealed_they_are_not(tmp_path: Path) -> None:
    assert trials(tmp_path / "clear", "none")["coordinator"].verdict is Verdict.LEAKS
    sealed = trials(tmp_path / "sealed", "he+secagg")
    for role in ("coordinator", "coordinator + 1 hospital"):
        trial = sealed[role]
        assert trial.control is not None and trial.control.succeeded, role  # the attack works
        assert trial.verdict is Verdict.HOLDS, role
    opened = sealed["one hospital"].deployed  # of one note each, a sum over two tells much
    assert opened is not None and opened.target == "the sum of 2" and opened.value is not None
