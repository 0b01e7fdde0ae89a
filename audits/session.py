"""One audit: a recorded run, its unprotected control, every attack, and the document.

    document = audit(Path("runs/study"))

What an audit makes (the control run, the probe of hospitals of many sizes) is kept in RUN/audit,
so that the same run audited again gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from secure_fl.audits import code_trials, public_trials, roles, suite
from secure_fl.audits.attacks.reading import ONE, Sent
from secure_fl.audits.controls import recorded, unprotected
from secure_fl.audits.findings import AuditTrial, Prior
from secure_fl.audits.metadata_trials import metadata_trials
from secure_fl.audits.priors import prior_of
from secure_fl.audits.trial_cache import KeptTrials
from secure_fl.capture import readings
from secure_fl.capture.opening import RecordedRun
from secure_fl.config.load import Settings, dump, load, silos
from secure_fl.data.silo import Silo
from secure_fl.errors import RunError
from secure_fl.runs.result_document import SCHEMA
from secure_fl.settings import Protection

AUDIT, CONTROL = "audit", "control"

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
            raise RunError(
                "this run is not finished", fix=fix, file=self.folder, reason="unfinished"
            )
        try:
            document: Any = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise RunError(
                f"this does not read as a result: {error}",
                fix="give the folder of a run as `secure-fl train` left it",
                file=file,
                reason="malformed",
            ) from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            fix = "audit it with the version that it was trained with, or train it again"
            raise RunError(
                f"this is no result as {SCHEMA} describes it",
                fix=fix,
                file=file,
                reason="malformed",
            )
        found: dict[str, Any] = document
        return found

    @cached_property
    def run(self) -> RecordedRun:
        """Its views."""
        return RecordedRun(self.folder)

    @property
    def round(self) -> int:
        """The round that attacks work on: the first, when models move most."""
        return self.run.first_round

    @cached_property
    def bound(self) -> int:
        """How many hospitals may collude with the coordinator, and learn a sum alone."""
        stated = self.result["protection"]["collusion_bound"]["honest_coordinator"]
        return roles.bound_of(self.run, stated, self.round)

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
        return recorded(settings, self.place / CONTROL, until=1)

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


def trials(audit: Audit, tell: Tell = lambda done, total, label: None) -> tuple[AuditTrial, ...]:
    """Run every attack, one after the other; what an audit that was stopped has run, it has."""
    steps = list(_steps(audit))
    kept = KeptTrials(audit.folder, audit.place)
    found: list[AuditTrial] = []
    for done, (label, step) in enumerate(steps):
        tell(done, len(steps), label)
        part = kept.get(label)
        if part is None:
            part = tuple(step())
            kept.put(label, part)
        found += part
    tell(len(steps), len(steps), "")
    kept.drop()
    return tuple(found)


Step = tuple[str, Callable[[], Sequence[AuditTrial]]]


def _steps(audit: Audit) -> Iterator[Step]:
    holder: list[suite.AttackEvidence] = []

    def evidence() -> suite.AttackEvidence:
        if not holder:
            holder.append(audit.evidence())
        return holder[0]

    yield ONE, lambda: suite.reading_trials(evidence(), audit.prior)
    for name, entry in suite.RECONSTRUCTION.items():
        if not (audit.quick and entry.slow):
            yield name, partial(_reconstruction, name, entry, evidence, audit.prior)
    if not audit.quick:
        yield "sizes and timing", lambda: metadata_trials(audit.settings, audit.place)
        yield from public_trials.steps(audit)
    if audit.code:
        yield from code_trials.steps(audit)


def _reconstruction(
    name: str,
    entry: suite.ReconstructionAttack,
    evidence: Callable[[], suite.AttackEvidence],
    prior: Prior,
) -> tuple[AuditTrial, ...]:
    return suite.reconstruction_trials(name, entry, evidence(), prior)


def steps_left_out(audit: Audit) -> tuple[str, ...]:
    """What this audit does not run."""
    left = [] if audit.code else ["the code's own noise, clipping, masks and refusals"]
    if audit.quick:
        left += [name for name, entry in suite.RECONSTRUCTION.items() if entry.slow]
        left += ["sizes and timing", "membership and all else about the released model"]
    return tuple(left)


def sent_in(run: RecordedRun) -> Sent:
    """What every hospital really sent in the round under attack."""
    return {party: readings.given(run, party, run.first_round) for party in run.parties}
