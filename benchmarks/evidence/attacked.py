"""A cell's federation with all views recorded, and what attacks find in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from secure_fl.algorithms.base import Algorithm
from secure_fl.audits import suite
from secure_fl.audits.attacks import token_bag
from secure_fl.audits.matrix import matrix
from secure_fl.audits.session import Audit
from secure_fl.config.build import RunSettings, Settings
from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.data import splits
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.settings import Section

Leakage = dict[str, dict[str, str]]  # by what an attack looks for and by role


def leakage(
    silos: Sequence[Silo], algorithm: Algorithm, sections: Mapping[str, Section], seed: int
) -> Leakage:
    """Record one round and run the attacks that take seconds: reading and moved token rows."""
    once = algorithm.model_copy(update={"rounds": 1})
    with recorded(silos, once, sections, seed) as (_, audit):
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


@contextmanager
def recorded(
    silos: Sequence[Silo], algorithm: Algorithm, sections: Mapping[str, Section], seed: int
) -> Iterator[tuple[Result, Audit]]:
    """Run the federation in a temporary folder with all views recorded.

    An audit repeats the run without protection, from its settings, so records go through files.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        public = silos[0].public
        parties = PartyData(
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
        settings = Settings(
            run=RunSettings(seed=seed, record=True),
            data=parties,
            algorithm=algorithm,
            **dict(sections),  # type: ignore[arg-type]
        )
        yield Federation.of(settings, folder / "run").run(), Audit(folder / "run")


def _file(examples: Sequence[Example], file: Path) -> str:
    file.parent.mkdir(exist_ok=True)
    splits.write(examples, file)
    return str(file)
