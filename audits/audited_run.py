"""A recorded run under audit, with what attackers know about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from secure_fl.audits import roles, suite
from secure_fl.audits.attacks.reading import Sent
from secure_fl.audits.findings import Prior, Truth
from secure_fl.audits.one_hospital import imitation_of
from secure_fl.capture import readings
from secure_fl.capture.opening import RecordedRun
from secure_fl.capture.recording import digest_of_records
from secure_fl.config import toml
from secure_fl.config.load import Settings, dump, load, silos
from secure_fl.data.examples import Example, Tagged, Text
from secure_fl.data.silo import Silo
from secure_fl.errors import RunError
from secure_fl.federation.federation import Federation
from secure_fl.learning.learning_rates import with_rate
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task
from secure_fl.runs.result_document import SCHEMA
from secure_fl.settings import Protection, ProtectionSettings


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


def require_records(run: RecordedRun, members: Sequence[Silo]) -> None:
    """Refuse records other than those that a run was recorded with: attacks would seem to fail."""
    now = {silo.name: digest_of_records(silo) for silo in members}
    for session in run.sessions:
        for name in now.keys() & session.records.keys():
            if session.records[name] != now[name]:
                raise RunError(
                    f"{name}'s records are not those that this run was recorded with",
                    fix="restore the files that it read, or train it again with --record; delete "
                    f"it if it is in a folder {AUDIT}",
                    file=run.folder,
                    reason="changed",
                )


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
    known = {_content(record) for one in truth.values() for record in one.records}
    steps = settings.algorithm.step_rate is not None
    return Prior(
        lambda: load_model(spec, task, tokenizer, settings.run.seed),
        tokenizer,
        task,
        with_rate(settings.training, spec, task.kind),
        settings.algorithm,
        settings.run.seed,
        truth,
        tuple(record for record in others if _content(record) not in known),
        imitation_of(settings, members[0].public) if steps else None,
    )


def _content(record: Example) -> tuple[object, ...]:
    """Return the fields that make two records the same for an attacker, without labels and ids."""
    if isinstance(record, Text):
        return (record.text,)
    if isinstance(record, Tagged):
        return record.tokens
    return record.history, record.candidates


AUDIT, CONTROL = "audit", "control"


@dataclass(frozen=True)
class AuditedRun:
    """A recorded run, the options of its audit, and what attackers know about the run."""

    folder: Path
    quick: bool = False  # skip what takes minutes
    code: bool = True  # also test the installed code, which does not depend on the run
    controls: Path | None = None  # the folder of runs that the audit makes; None: RUN/audit

    @property
    def controls_folder(self) -> Path:
        """The folder of runs that the audit makes."""
        return self.controls or self.folder / AUDIT

    @cached_property
    def settings(self) -> Settings:
        """The run's settings, as resolved."""
        file = self.folder / "settings.toml"
        if file.exists() and "data" not in toml.parse(file.read_text(), str(file)):
            raise RunError(
                "this run was made in Python, and its settings name no records",
                fix="audit a run of `secure-fl train`; for a script, call secure_fl.audit_script",
                file=file,
                reason="missing",
            )
        return load(file)

    @cached_property
    def result(self) -> dict[str, Any]:
        """The run's result.json."""
        file = self.folder / "result.json"
        if not file.exists():
            fix = "finish it first: secure-fl train ... --resume"
            raise RunError(
                "this run is not finished", fix=fix, file=self.folder, reason="unfinished"
            )
        try:
            document: Any = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise RunError(
                f"this is not a readable result: {error}",
                fix="give the folder of a run as `secure-fl train` wrote it",
                file=file,
                reason="malformed",
            ) from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            fix = "audit it with the version that trained it, or train it again"
            raise RunError(
                f"this result does not have the schema {SCHEMA}",
                fix=fix,
                file=file,
                reason="malformed",
            )
        return document

    @cached_property
    def run(self) -> RecordedRun:
        """The recorded views."""
        return RecordedRun(self.folder)

    @property
    def round(self) -> int:
        """The round under attack: the first, when models move most."""
        return self.run.first_round

    @cached_property
    def bound(self) -> int:
        """The number of hospitals that may collude with the coordinator, and learn only a sum."""
        stated = self.result["protection"]["collusion_bound"]["honest_coordinator"]
        return roles.bound_of(self.run, stated, self.round)

    @property
    def mode(self) -> Protection:
        """The protection of the run's sums."""
        return self.settings.protection.mode

    @cached_property
    def silos(self) -> tuple[Silo, ...]:
        """All members' records, which score guesses: those of the run."""
        members = tuple(silos(self.settings))
        require_records(self.run, members)
        return members

    @cached_property
    def prior(self) -> Prior:
        """The prior knowledge of attackers."""
        return prior_of(self.settings, self.silos)

    @cached_property
    def shapes(self) -> roles.Shapes:
        """The shapes of the model's weights by name."""
        return roles.shapes_of(self.prior)

    def control(self) -> RecordedRun:
        """Run the same federation unprotected, with embeddings that are trained and sent."""
        settings = unprotected(self.settings)
        if dump(settings) == dump(self.settings):
            return self.run  # it is its own control
        control = recorded(settings, self.controls_folder / CONTROL, until=1)
        require_records(control, self.silos)
        return control

    @cached_property
    def evidence(self) -> suite.AttackEvidence:
        """Every role's view, of the run and of its control."""
        control = self.control()
        wires = roles.coordinator(control, self.shapes, control.first_round)
        return suite.AttackEvidence(
            roles.views(self.run, self.shapes, self.round, self.bound),
            sent_in(self.run),
            wires,
            sent_in(control),
            roles.shuffled(wires, self.prior),
        )


def sent_in(run: RecordedRun) -> Sent:
    """Collect what every hospital really sent up to the round under attack."""
    return {party: readings.given(run, party, run.first_round) for party in run.parties}
