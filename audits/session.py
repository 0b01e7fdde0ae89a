"""One audit: a recorded run, its unprotected control, every attack, and the document.

    document = audit(Path("runs/study"))

What an audit makes (the control run, the probe of hospitals of many sizes) is kept in RUN/audit,
so that the same run audited again gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from secure_fl.audits import code_trials, public_trials, roles, suite
from secure_fl.audits.attacks import metadata
from secure_fl.audits.attacks.reading import ONE, Sent
from secure_fl.audits.base import Prior, Reading, Truth
from secure_fl.audits.controls import probe_settings, unprotected
from secure_fl.audits.gate import Trial
from secure_fl.config import Settings, dump, federation, load, silos
from secure_fl.errors import RunError
from secure_fl.models import load_model, load_tokenizer
from secure_fl.settings import Protection
from secure_fl.silo import Silo
from secure_fl.views import readings
from secure_fl.views.opening import RecordedRun

AUDIT, CONTROL, PROBE, PROBE_CONTROL = "audit", "control", "probe", "probe-control"
ROUNDS = 1  # that attacks work on: the first, when models move most

Tell = Callable[[int, int, str], None]  # steps done, steps in all, what comes next


@dataclass(frozen=True)
class Audit:
    """A recorded run, and what attacks need to know about it."""

    folder: Path
    quick: bool = False
    code: bool = True  # also what does not depend on the run: the code's own noise and refusals
    work: Path | None = None  # where its own runs are kept; None: in RUN/audit

    @property
    def place(self) -> Path:
        """Where its own runs are kept."""
        return self.work or self.folder / AUDIT

    @cached_property
    def settings(self) -> Settings:
        """As they were resolved."""
        return load(self.folder / "settings.toml")

    @cached_property
    def result(self) -> dict[str, Any]:
        """The run's result.json."""
        file = self.folder / "result.json"
        if not file.exists():
            fix = "finish it first: secure-fl train ... --resume"
            raise RunError("this run is not finished", fix=fix, file=self.folder)
        document: dict[str, Any] = json.loads(file.read_text())
        return document

    @cached_property
    def run(self) -> RecordedRun:
        """Its views."""
        return RecordedRun(self.folder)

    @property
    def mode(self) -> Protection:
        """How its sums were protected."""
        return self.settings.protection.mode

    @cached_property
    def silos(self) -> tuple[Silo, ...]:
        """All members' records: what guesses are scored by."""
        return tuple(silos(self.settings))

    @cached_property
    def prior(self) -> Prior:
        """What attackers know of this run."""
        return prior_of(self.settings, self.silos)

    @cached_property
    def shapes(self) -> roles.Shapes:
        """The weights that travel."""
        return roles.shapes_of(self.prior)

    def control(self) -> RecordedRun:
        """The same federation, unprotected, with embeddings that are trained and sent."""
        settings = unprotected(self.settings)
        if dump(settings) == dump(self.settings):
            return self.run  # it is its own control
        return recorded(settings, self.place / CONTROL, until=ROUNDS)

    def evidence(self) -> suite.Evidence:
        """Every role's view, of the run and of its control."""
        control = self.control()
        wires = roles.coordinator(control, self.shapes, ROUNDS)
        return suite.Evidence(
            roles.views(self.run, self.shapes, ROUNDS),
            sent_in(self.run, self.shapes),
            wires,
            sent_in(control, self.shapes),
            roles.shuffled(wires, self.prior),
        )


def trials(audit: Audit, tell: Tell = lambda done, total, label: None) -> tuple[Trial, ...]:
    """Run every attack, one after the other."""
    steps = list(_steps(audit))
    found: list[Trial] = []
    for done, (label, step) in enumerate(steps):
        tell(done, len(steps), label)
        found += step()
    tell(len(steps), len(steps), "")
    return tuple(found)


Step = tuple[str, Callable[[], Sequence[Trial]]]


def _steps(audit: Audit) -> Iterator[Step]:
    holder: list[suite.Evidence] = []

    def evidence() -> suite.Evidence:
        if not holder:
            holder.append(audit.evidence())
        return holder[0]

    yield ONE, lambda: suite.reading_trials(evidence(), audit.prior)
    for name, entry in suite.RECONSTRUCTION.items():
        if not (audit.quick and entry.slow):
            yield name, partial(_reconstruction, name, entry, evidence, audit.prior)
    if not audit.quick:
        yield "sizes and timing", lambda: metadata_trials(audit)
        yield from public_trials.steps(audit)
    if audit.code:
        yield from code_trials.steps(audit)


def _reconstruction(
    name: str, entry: suite.Entry, evidence: Callable[[], suite.Evidence], prior: Prior
) -> tuple[Trial, ...]:
    return suite.reconstruction_trials(name, entry, evidence(), prior)


def steps_left_out(audit: Audit) -> tuple[str, ...]:
    """What this audit does not run."""
    left = [] if audit.code else ["the code's own noise, clipping, masks and refusals"]
    if audit.quick:
        left += [name for name, entry in suite.RECONSTRUCTION.items() if entry.slow]
        left += ["sizes and timing", "membership and all else about the released model"]
    return tuple(left)


def metadata_trials(audit: Audit) -> tuple[Trial, ...]:
    """What sizes and times tell, of a federation of hospitals of many sizes."""
    deployed = recorded(probe_settings(audit.settings), audit.place / PROBE, until=ROUNDS)
    leaky = probe_settings(audit.settings, ranks=True)
    control = recorded(leaky, audit.place / PROBE_CONTROL, until=ROUNDS)
    found = []
    for attack in (metadata.sizes, metadata.timing):
        findings = []
        for run, settings in ((control, leaky), (deployed, probe_settings(audit.settings))):
            prior = prior_of(settings, tuple(silos(settings)))
            view = roles.coordinator(run, {}, 0)
            findings.append(attack(view, prior))
        null = metadata.null(findings[0], prior)
        found.append(Trial(findings[0], findings[1], null))
    return tuple(found)


def recorded(settings: Settings, folder: Path, *, until: int) -> RecordedRun:
    """Run a federation with its views recorded, or take the one that lies there."""
    text = dump(settings)
    finished = (folder / "result.json").exists()
    if not finished or (folder / "settings.toml").read_text() != text:
        shutil.rmtree(folder, ignore_errors=True)
        made = federation(settings, folder)
        made.until = until
        made.run()
    return RecordedRun(folder)


def prior_of(settings: Settings, members: Sequence[Silo]) -> Prior:
    """What is public about a federation, and the records that guesses are scored by."""
    made = federation(settings)
    task = next(iter(made.tasks.values()))
    layers = getattr(settings.algorithm, "student_layers", settings.model.layers)
    spec = settings.model.model_copy(update={"layers": layers})
    tokenizer = load_tokenizer(spec)
    own = {s.name: Truth(s.name, tuple(s.train)) for s in members if s.role != "host"}
    others = [record for silo in members for record in (*silo.dev, *silo.test)]
    known = {record.text for truth in own.values() for record in truth.records
             if hasattr(record, "text")}  # fmt: skip
    return Prior(
        lambda: load_model(spec, task, tokenizer, settings.run.seed),
        tokenizer,
        task,
        settings.training,
        settings.algorithm,
        settings.run.seed,
        own,
        tuple(record for record in others if getattr(record, "text", None) not in known),
    )


def sent_in(run: RecordedRun, shapes: roles.Shapes) -> Sent:
    """What every hospital really put into the sums of the rounds under attack."""
    return {
        (read.round, party): Reading(read.of, read.round, read.values, read.evidence)
        for party in run.parties
        for read in readings.given(run, party, shapes, ROUNDS)
    }
