"""What each role could find out in a cell's run: its first round, recorded and audited."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from secure_fl import data
from secure_fl.algorithms.base import Algorithm
from secure_fl.audits import suite
from secure_fl.audits.attacks import token_bag
from secure_fl.audits.matrix import matrix
from secure_fl.audits.session import Audit
from secure_fl.config import federation
from secure_fl.config_build import RunSettings, Settings
from secure_fl.config_data import PartyData, PartyFiles
from secure_fl.examples import Example
from secure_fl.settings import Section
from secure_fl.silo import Silo

Leakage = dict[str, dict[str, str]]  # what is looked for, in which role's hands: what came of it


def leakage(
    silos: Sequence[Silo], algorithm: Algorithm, found: Mapping[str, Section], seed: int
) -> Leakage:
    """Run one round of this federation with all views recorded, and attack them.

    An audit repeats its run without protection, from its settings; so records go through files.
    Of the attacks, those that take seconds with any model: reading, and words by moved rows.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = Settings(
            run=RunSettings(seed=seed, record=True),
            data=_files(silos, folder),
            algorithm=algorithm.model_copy(update={"rounds": 1}),
            **dict(found),  # type: ignore[arg-type]
        )
        federation(settings, folder / "run").run()
        audit = Audit(folder / "run")
        evidence, words = audit.evidence(), suite.RECONSTRUCTION[token_bag.NAME]
        trials = (
            *suite.reading_trials(evidence, audit.prior),
            *suite.reconstruction_trials(token_bag.NAME, words, evidence, audit.prior),
        )
    roles = list(dict.fromkeys(trial.role for trial in trials))
    return {
        row.what: {cell.role: f"{cell.access}: {cell.note}".strip(": ") for cell in row.cells}
        for row in matrix(trials, roles)
    }


def _files(silos: Sequence[Silo], folder: Path) -> PartyData:
    public = silos[0].public
    return PartyData(
        party=tuple(
            PartyFiles(
                name=silo.name,
                train=_file(silo.train, folder / silo.name / "train.jsonl"),
                dev=_file(silo.dev, folder / silo.name / "dev.jsonl") if silo.dev else 0.0,
                test=_file(silo.test, folder / silo.name / "test.jsonl") if silo.test else 0.0,
                role=silo.role,
                tier=silo.tier,
                model=silo.model,
            )
            for silo in silos
        ),
        public=_file(public, folder / "public.jsonl") if public else None,
    )


def _file(examples: Sequence[Example], file: Path) -> str:
    file.parent.mkdir(exist_ok=True)
    data.write(examples, file)
    return str(file)
