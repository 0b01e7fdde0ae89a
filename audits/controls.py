"""The runs that an audit makes beside the one it is about: where attacks must work."""

from __future__ import annotations

import shutil
from pathlib import Path

from secure_fl.algorithms.fedkd import FedKD
from secure_fl.capture.opening import RecordedRun
from secure_fl.config.data import CorpusData
from secure_fl.config.load import Settings, dump
from secure_fl.federation.federation import Federation
from secure_fl.settings import ModelSettings, ProtectionSettings, TaskSettings, TrainingSettings

PROBE_SIZES = (8, 12, 18, 27, 40, 60, 90, 135)  # records of each hospital
PROBE_LENGTH = 48  # tokens


def unprotected(settings: Settings) -> Settings:
    """The same federation as it is commonly run: no protection, no noise, all weights sent.

    With adapters these are all that is trained, in the control too.
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


def probe_settings(settings: Settings, *, ranks: bool = False) -> Settings:
    """Hospitals of many sizes, on built-in notes, in the run's own way; `ranks`: as FedKD prints.

    What a hospital's factors cost to send depends on its ranks, so sizes then tell them apart; most
    clearly after plain gradient steps, for AdamW makes the ranks of all much alike.
    """
    from secure_fl.algorithms.registry import entry_of

    algorithm = FedKD(rounds=1, factors="per_party") if ranks else settings.algorithm
    host = entry_of(algorithm).has_host
    data = CorpusData(
        corpus="ade",
        parties=len(PROBE_SIZES),
        size=PROBE_SIZES,
        public=16 if host else 0,
        labelled=8 if host else 0,
    )
    protection = ProtectionSettings(mode=settings.protection.mode, bits=settings.protection.bits)
    return Settings(
        run=settings.run.model_copy(update={"record": True, "folder": None}),
        task=TaskSettings(max_length=PROBE_LENGTH),
        data=data,
        model=ModelSettings(layers=settings.model.layers and max(2, settings.model.layers)),
        training=TrainingSettings(
            optimizer="sgd" if ranks else "adamw",
            learning_rate=0.1 if ranks else 1e-3,
            batch_size=8,
            device="cpu",
        ),
        protection=protection,
        algorithm=algorithm,
    )


def recorded(settings: Settings, folder: Path, *, until: int) -> RecordedRun:
    """Run a federation with its views recorded, or take the one that lies there."""
    text = dump(settings)
    finished = (folder / "result.json").exists()
    if not finished or (folder / "settings.toml").read_text() != text:
        shutil.rmtree(folder, ignore_errors=True)
        made = Federation.of(settings, folder, progress=False)  # the audit tells how far it is
        made.until = until
        made.run()
    return RecordedRun(folder)
