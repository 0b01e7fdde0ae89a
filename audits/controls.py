"""Runs that an audit trains itself, and the prior knowledge of their attackers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from secure_fl.audits.findings import Prior, Truth
from secure_fl.capture.opening import RecordedRun
from secure_fl.config.load import Settings, dump
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.learning.learning_rates import with_rate
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.settings import ProtectionSettings


def unprotected(settings: Settings) -> Settings:
    """Remove protection and noise, and send all weights, as common federations do.

    With adapters only these are trained, in the control too.
    """
    clear = ProtectionSettings(
        mode="none",
        min_cohort=settings.protection.min_cohort,
        threshold=settings.protection.threshold,
    )
    return settings.model_copy(
        update={
            "run": settings.run.model_copy(update={"record": True}),
            "model": settings.model.model_copy(
                update={"freeze_embeddings": settings.model.adapter is not None}
            ),
            "training": settings.training.model_copy(update={"dp": None}),
            "protection": clear,
        }
    )


def recorded(settings: Settings, folder: Path, *, until: int) -> RecordedRun:
    """Run a federation with its views recorded, unless this folder has that run already."""
    text = dump(settings)
    finished = (folder / "result.json").exists()
    if not finished or (folder / "settings.toml").read_text() != text:
        shutil.rmtree(folder, ignore_errors=True)
        made = Federation.of(settings, folder, progress=False)  # the audit has its own progress
        made.until = until
        made.run()
    return RecordedRun(folder)


def prior_of(settings: Settings, members: Sequence[Silo]) -> Prior:
    """Collect what is public about a federation, and the records that score guesses."""
    made = Federation.of(settings)
    every = [record for silo in members for record in (*silo.train, *silo.dev, *silo.test)]
    task = next(iter(made.tasks.values()))
    if made.local_heads:  # heads are never sent, so an attacker reckons with all labels
        task = make_task(settings.task, every)
    spec = settings.algorithm.trains(settings.model)[0]
    tokenizer = load_tokenizer(spec)
    truth = {s.name: Truth(s.name, tuple(s.train)) for s in members if s.role != "host"}
    others = [record for silo in members for record in (*silo.dev, *silo.test)]
    known = {record.text for one in truth.values() for record in one.records
             if hasattr(record, "text")}  # fmt: skip
    return Prior(
        lambda: load_model(spec, task, tokenizer, settings.run.seed),
        tokenizer,
        task,
        with_rate(settings.training, spec, task.kind),
        settings.algorithm,
        settings.run.seed,
        truth,
        tuple(record for record in others if getattr(record, "text", None) not in known),
    )
