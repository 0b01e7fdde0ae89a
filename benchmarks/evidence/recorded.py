"""A cell's federation run once more, or at once, in a folder of its own with all views recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from secure_fl.algorithms.base import Algorithm
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.config.build import RunSettings, Settings
from secure_fl.config.data import PartyData, PartyFiles
from secure_fl.data import splits as data
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.federation.result import Result
from secure_fl.settings import Section


@contextmanager
def recorded(
    silos: Sequence[Silo], algorithm: Algorithm, found: Mapping[str, Section], seed: int
) -> Iterator[tuple[Result, AuditedRun]]:
    """Run it, and give its result and its views, which are gone afterwards.

    An audit repeats its run without protection, from its settings; so records go through files.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = Settings(
            run=RunSettings(seed=seed, record=True),
            data=_files(silos, folder),
            algorithm=algorithm,
            **dict(found),  # type: ignore[arg-type]
        )
        yield Federation.of(settings, folder / "run").run(), AuditedRun(folder / "run")


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
