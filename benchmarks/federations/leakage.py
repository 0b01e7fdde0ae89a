"""Success of membership attacks over ε: the same federation with several budgets.

    python -m benchmarks leakage --pages FOLDER

Shadow models, the control and the null depend on the settings without [training.dp] alone, so that
one set serves all runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Grid, Report, Target
from secure_fl import Federation
from secure_fl.audits.attacks import membership
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.build_document import build
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.findings import AuditTrial
from secure_fl.audits.public_trials import PublicTrials
from secure_fl.audits.report import trade_off
from secure_fl.audits.report.page import write_page, write_report
from secure_fl.audits.run import ABOUT, steps_left_out
from secure_fl.config.load import loads
from secure_fl.display.charts import standalone

EPSILONS = (1.0, 4.0, 16.0, None)  # None: without differential privacy
SIZE, ROUNDS, EPOCHS = 40, 4, 6
MODELS = (membership.SHADOWS, membership.REFERENCES)
SETTINGS = """\
[run]
name = "{name}"
record = true
[task]
max_length = 32
[data]
corpus = "ade"
parties = 3
size = {size}
[model]
layers = 1
freeze_embeddings = false
[training]
learning_rate = 3e-3
schedule = "constant"
batch_size = 16
device = "cpu"
{dp}
[algorithm]
name = "fedavg"
rounds = {rounds}
epochs = {epochs}
"""
DP = "[training.dp]\nepsilon = {most}\ntarget_epsilon = {epsilon}\ndelta = 1e-3\n"


def measure(
    *,
    epsilons: Sequence[float | None] = EPSILONS,
    size: int = SIZE,
    rounds: int = ROUNDS,
    epochs: int = EPOCHS,
    models: tuple[int, int] = MODELS,
    pages: Path | None = None,
) -> Report:
    """Train with each ε, attack each model, and draw one page of all."""
    with tempfile.TemporaryDirectory() as place:
        folder = pages or Path(place)
        documents = audited(folder, epsilons, size, rounds, epochs, models)
        write_page(documents, folder)
        if (plot := trade_off.plot(documents, "epsilon")) is not None:
            (folder / "epsilon.svg").write_text(standalone(plot), encoding="utf-8")
    found = trade_off.successes(documents)
    shown = trade_off.table(documents)
    beyond = max((one.interval[0] - one.allowed for one in found if one.interval), default=0.0)
    return Report(
        "leakage",
        {"size": size, "rounds": rounds, "epochs": epochs, "models": list(models)},
        0,
        {"successes": [one._asdict() for one in found]},
        [Grid(shown.caption, shown.header, list(shown.rows))],
        [Target("lower ends of AUC over what ε allows", 0.0, beyond)],
    )


def audited(
    folder: Path,
    epsilons: Sequence[float | None],
    size: int,
    rounds: int,
    epochs: int,
    models: tuple[int, int],
) -> list[AuditDocument]:
    """Run the federation with each ε and audit membership in its released model.

    The shadows of both attacks, the control and the null have no ε, so they are trained once.
    """
    documents: list[AuditDocument] = []
    shadows: list[Any] = []
    for epsilon in epsilons:
        name = "no DP" if epsilon is None else f"ε = {epsilon:g}"
        dp = "" if epsilon is None else DP.format(most=2 * epsilon, epsilon=epsilon)
        text = SETTINGS.format(name=name, size=size, rounds=rounds, epochs=epochs, dp=dp)
        run = folder / ("none" if epsilon is None else f"epsilon-{epsilon:g}")
        Federation.of(loads(text), run).run()
        audited_run = AuditedRun(run, quick=True, code=False)
        public = PublicTrials(audited_run)
        if not documents:
            control, null = public.control, public.null
            shadows = [
                membership.shadows_for(public.prior, public.pool, count, name)
                for name, count in zip((membership.LIRA, membership.RMIA), models, strict=True)
            ]
        assert public.released is not None  # noqa: S101 - FedAvg releases its model
        trials = []
        for attack, own in zip((membership.lira, membership.rmia), shadows, strict=True):
            views = (control, public.released, null)
            first, deployed, last = (attack(view, public.prior, shadows=own) for view in views)
            trials.append(AuditTrial(first, deployed, last))
        documents.append(build(audited_run, trials, ABOUT, steps_left_out(audited_run)))
        write_report(documents[-1], run)
    return documents
