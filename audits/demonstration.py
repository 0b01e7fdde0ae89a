"""Three small federations that differ in protection alone, recorded and attacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from secure_fl.audits.document import AuditDocument, FindingPart
from secure_fl.audits.report import keep, write_pages
from secure_fl.audits.run import audit
from secure_fl.config.load import loads
from secure_fl.federation.federation import Federation

Tell = Callable[[str], None]  # what happens now

SETTINGS = """\
[run]
name = "{title}"
seed = {seed}
record = true
[task]
max_length = 64
[data]
corpus = "ade"
parties = 3
size = 120
[model]
layers = 2
freeze_embeddings = {frozen}
[training]
learning_rate = 1.5e-3
batch_size = 16
device = "cpu"
[protection]
mode = "{mode}"
[algorithm]
name = "{algorithm}"
rounds = 3
epochs = 3
"""
RUNS = (
    ("as commonly run", "fedavg", "none", False),
    ("FedKD, unprotected", "fedkd", "none", True),
    ("FedKD, protected", "fedkd", "he+secagg", True),
)


def demonstrate(seed: int, out: Path, tell: Tell = lambda now: None) -> list[AuditDocument]:
    """Record and attack three federations; write one report over all of them."""
    documents = []
    for title, algorithm, mode, frozen in RUNS:
        tell(f"{title}: training")
        fields = {"title": title, "algorithm": algorithm, "mode": mode}
        text = SETTINGS.format(seed=seed, frozen=str(frozen).lower(), **fields)
        Federation.of(loads(text), folder := out / folder_of(title)).run()

        def step(done: int, total: int, label: str, title: str = title) -> None:
            tell(f"{title}: {label or 'report'} ({done} of {total})")

        document = audit(folder, quick=True, code=mode != "none", work=out / "controls", tell=step)
        keep(document, folder)
        documents.append(document)
    write_pages(documents, out)
    return documents


def folder_of(title: str) -> str:
    """What a federation's folder is called."""
    return title.replace(",", "").replace(" ", "-").lower()


def summary(documents: Sequence[AuditDocument]) -> list[dict[str, Any]]:
    """What the audits came to, for the demo's JSON."""
    return [
        {
            "name": document.run.name,
            "status": document.status,
            "accuracy": document.points[0].accuracy,
            "words_recovered": _value(found(document, "token bag")),
            "update_read": _value(found(document, "reading one hospital")),
            "sum_read": _value(found(document, "reading a sum")),
        }
        for document in documents
    ]


def found(document: AuditDocument, attack: str, role: str = "coordinator") -> FindingPart | None:
    """What an attack of the coordinator came to in a run."""
    for trial in document.trials:
        if (trial.attack, trial.role) == (attack, role):
            return trial.deployed
    return None


def _value(finding: FindingPart | None) -> float:
    return 0.0 if finding is None or finding.value is None else finding.value
