"""The demo's runs: the same hospitals alone, together unprotected, sealed, and by FedKD.

All four runs have the same settings but for the algorithm and the protection. The three joint
runs that give the scores are also attacked. In `ALONE`, no update leaves a hospital.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from secure_fl.audits.attacks.reading import ONE, SUM
from secure_fl.audits.document import BAG, AuditDocument
from secure_fl.audits.report.page import write_page, write_report
from secure_fl.audits.report.report_tables import of_coordinator
from secure_fl.audits.run import audit
from secure_fl.config.load import Settings, loads
from secure_fl.display.run_history import RunHistory, read_run_history

Progress = Callable[[str], None]  # receives a line on the current step

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
freeze_embeddings = false  # trained and sent, they reveal words to a reader of the update
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
STUDENT = "student_layers = 1  # of two: as exact here as two layers, and a sixth less to send\n"


class DemoRun(NamedTuple):
    """One run of the demo: its folder, its title, and its difference from the others."""

    folder: str
    title: str
    algorithm: str
    mode: str

    def settings(self, seed: int = 0, rounds: int = ROUNDS, *, record: bool = False) -> Settings:
        """Make the settings of the run."""
        given = {"seed": seed, "record": str(record).lower(), "rounds": rounds}
        text = SETTINGS.format(**self._asdict(), **given)
        return loads(text + STUDENT * (self.algorithm == "fedkd"))


ALONE = DemoRun("alone", "each alone", "local", "he+secagg")
NAMES = {"fedavg": "FedAvg", "fedadam": "FedAdam"}


def together(algorithm: str = "fedavg") -> tuple[DemoRun, DemoRun, DemoRun]:
    """List the federated runs: unprotected, the same sealed, and FedKD with its defaults."""
    name = NAMES[algorithm]
    return (
        DemoRun("clear", f"{name} in the clear", algorithm, "none"),
        DemoRun("sealed", f"{name} sealed", algorithm, "he+secagg"),
        DemoRun("fedkd", "FedKD sealed", "fedkd", "he+secagg"),
    )


def attack(
    folders: Sequence[Path],
    out: Path,
    unaudited: Sequence[Path] = (),
    progress: Progress = lambda line: None,
) -> list[AuditDocument]:
    """Audit recorded runs, and write one page of these and of `unaudited` runs."""
    documents = []
    for folder in folders:

        def step(done: int, total: int, label: str, name: str = folder.name) -> None:
            progress(f"attacking {name}: {label or 'report'} ({done} of {total})")

        code = folder is folders[-1]  # the installed code is the same for all
        document = audit(folder, quick=True, code=code, controls=out / "controls", progress=step)
        write_report(document, folder)
        documents.append(document)
    write_page(documents, out, titled(folders), unaudited=titled(unaudited))
    return documents


def titled(folders: Sequence[Path]) -> list[RunHistory]:
    """Read runs' folders, and name them by their titles."""
    histories = [read_run_history(folder) for folder in folders]
    return [replace(history, name=history.settings["run"]["name"]) for history in histories]


def summary(documents: Sequence[AuditDocument]) -> list[dict[str, Any]]:
    """Summarise the audits for the demo's JSON."""
    return [
        {
            "name": document.run.name,
            "status": document.status,
            "accuracy": document.points[0].accuracy,
            "words_recovered": _reached(document, BAG),
            "words_guessed": _guessed(document),
            "update_read": _reached(document, ONE),
            "sum_read": _reached(document, SUM),
        }
        for document in documents
    ]


def _reached(document: AuditDocument, attack: str) -> float:
    """Look up what an attack by the coordinator reached in a run; 0: nothing."""
    finding = of_coordinator(document, attack)
    return (finding.value or 0.0) if finding is not None else 0.0


def _guessed(document: AuditDocument) -> float:
    """Look up how many of the words a guess from public notes finds."""
    finding = of_coordinator(document, BAG)
    return finding.chance if finding is not None else 0.0
