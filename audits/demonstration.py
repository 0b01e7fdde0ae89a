"""The demo's federations: the same hospitals alone, together in the clear, sealed, and by FedKD.

All four have the same settings but for the algorithm and the protection. What they learn and what
attacks find in them comes from the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from secure_fl.audits.document import AuditDocument, FindingPart
from secure_fl.audits.report import keep, write_pages
from secure_fl.audits.run import audit
from secure_fl.config.load import Settings, loads
from secure_fl.display.run_history import RunHistory, read_run_history
from secure_fl.federation.federation import Federation

Tell = Callable[[str], None]  # what happens now

ROUNDS = 5
SETTINGS = """\
[run]
name = "{title}"
seed = {seed}
record = {record}
[task]
max_length = 64
[data]
corpus = "ade"
parties = 3
size = 240
[model]
layers = 2
freeze_embeddings = false  # trained and sent, they tell words to who can read an update
[training]
learning_rate = 1.5e-3
schedule = "constant"
batch_size = 16
device = "cpu"
[protection]
mode = "{mode}"
[algorithm]
name = "{algorithm}"
rounds = {rounds}
epochs = 3
"""
STUDENT = (
    "student_layers = 1  # of two: as exact here as one of two layers, and a sixth less to send\n"
)


class Way(NamedTuple):
    """A way to learn: its folder, what it is called, and how it differs from the others."""

    folder: str
    title: str
    algorithm: str
    mode: str

    def settings(self, seed: int = 0, rounds: int = ROUNDS, *, record: bool = False) -> Settings:
        """The settings of its run."""
        text = SETTINGS.format(
            title=self.title,
            seed=seed,
            record=str(record).lower(),
            mode=self.mode,
            algorithm=self.algorithm,
            rounds=rounds,
        )
        return loads(text + STUDENT * (self.algorithm == "fedkd"))


ALONE = Way("alone", "each alone", "local", "he+secagg")
NAMES = {"fedavg": "FedAvg", "fedadam": "FedAdam"}


def together(algorithm: str = "fedavg") -> tuple[Way, Way, Way]:
    """The ways to learn together: in the clear, the same sealed, and FedKD as it is shipped."""
    name = NAMES[algorithm]
    return (
        Way("clear", f"{name} in the clear", algorithm, "none"),
        Way("sealed", f"{name} sealed", algorithm, "he+secagg"),
        Way("fedkd", "FedKD sealed", "fedkd", "he+secagg"),
    )


def demonstrate(seed: int, out: Path, tell: Tell = lambda now: None) -> list[AuditDocument]:
    """Train and record all three ways together; attack them; write one page over all."""
    folders = []
    for way in together():
        tell(f"{way.title}: training")
        folders.append(out / way.folder)
        Federation.of(way.settings(seed, record=True), folders[-1], progress=False).run()
    return attack(folders, out, tell=tell)


def attack(
    folders: Sequence[Path], out: Path, beside: Sequence[Path] = (), tell: Tell = lambda now: None
) -> list[AuditDocument]:
    """Audit recorded runs; write one page of all, and of those that were trained `beside` them."""
    documents = []
    for folder in folders:

        def step(done: int, total: int, label: str, name: str = folder.name) -> None:
            tell(f"attacking {name}: {label or 'report'} ({done} of {total})")

        code = folder is folders[-1]  # what is shipped is the same for all
        document = audit(folder, quick=True, code=code, work=out / "controls", tell=step)
        keep(document, folder)
        documents.append(document)
    write_pages(documents, out, told(folders), beside=told(beside))
    return documents


def told(folders: Sequence[Path]) -> list[RunHistory]:
    """What runs' folders tell, under their titles."""
    stories = [read_run_history(folder) for folder in folders]
    return [replace(story, name=story.settings["run"]["name"]) for story in stories]


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
