"""Audits a recorded run: every attack, and the document of its results.

    document = audit(Path("runs/study"))

The control run and the probe federation that an audit makes are kept in RUN/audit. So the same run
audited again gives the same bytes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import msgspec

from secure_fl.audits import code_trials, metadata_trials, public_trials, suite
from secure_fl.audits.attacks import reading
from secure_fl.audits.audited_run import AuditedRun
from secure_fl.audits.build_document import build
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.findings import AuditTrial
from secure_fl.learning.builtin import few_threads

ABOUT = {
    reading.ONE: reading.ABOUT_ONE,
    reading.SUM: reading.ABOUT_SUM,
    reading.COUNTS: reading.ABOUT_COUNTS,
    **metadata_trials.ABOUT,
    **{name: attack.about for name, attack in suite.RECONSTRUCTION.items()},
    **public_trials.ABOUT,
    **code_trials.ABOUT,
}

Progress: TypeAlias = Callable[[int, int, str], None]  # steps done, steps in all, the next step
Step: TypeAlias = tuple[str, Callable[[], Sequence[AuditTrial]]]


def audit(
    folder: Path,
    *,
    quick: bool = False,
    code: bool = True,
    controls: Path | None = None,
    progress: Progress = lambda done, total, label: None,
) -> AuditDocument:
    """Attack what each role saw of a recorded run.

    Runs that the audit makes are kept in RUN/audit, or in `controls` for audits of runs that
    differ in protection alone. So a second audit is quicker, with the same results. `quick` skips
    what takes minutes, `code=False` what does not depend on the run; the document lists both.
    """
    audited = AuditedRun(folder, quick, code, controls)
    audited.run, audited.result, audited.silos  # noqa: B018 - errors come before any attack
    with few_threads(audited.settings.model.name):
        trials = run_trials(audited, progress)
        return build(audited, trials, ABOUT, steps_left_out(audited))


def run_trials(audited: AuditedRun, progress: Progress) -> tuple[AuditTrial, ...]:
    """Run every attack; attacks that an interrupted audit has finished are not repeated."""
    steps = list(_steps(audited))
    cache = TrialCache(audited.folder, audited.controls_folder, quick=audited.quick)
    trials: list[AuditTrial] = []
    for done, (label, step) in enumerate(steps):
        progress(done, len(steps), label)
        known = cache.get(label)
        if known is None:
            known = tuple(step())
            cache.put(label, known)
        trials += known
    progress(len(steps), len(steps), "")
    cache.drop()
    return tuple(trials)


def _steps(audited: AuditedRun) -> Iterator[Step]:
    yield reading.ONE, lambda: suite.reading_trials(audited.evidence, audited.prior)
    for name, attack in suite.RECONSTRUCTION.items():
        if not (audited.quick and attack.slow):
            yield name, partial(_reconstruct, audited, name)
    if not audited.quick:
        settings, place = audited.settings, audited.controls_folder
        yield "sizes and timing", lambda: metadata_trials.metadata_trials(settings, place)
        yield from public_trials.steps(audited)
    if audited.code:
        yield from code_trials.steps(audited)


def _reconstruct(audited: AuditedRun, name: str) -> tuple[AuditTrial, ...]:
    attack = suite.RECONSTRUCTION[name]
    return suite.reconstruction_trials(attack, audited.evidence, audited.prior)


def steps_left_out(audited: AuditedRun) -> tuple[str, ...]:
    """List what this audit skips."""
    skipped = [] if audited.code else ["the code's own noise, clipping, masks and refusals"]
    if audited.quick:
        skipped += [name for name, attack in suite.RECONSTRUCTION.items() if attack.slow]
        skipped += ["sizes and timing", "membership and everything else about the released model"]
    return tuple(skipped)


class TrialCache:
    """Trials of an interrupted audit, which the next audit of the same run continues.

    They are dropped when an audit ends, so a further audit repeats every attack.
    """

    def __init__(self, run: Path, place: Path, *, quick: bool) -> None:
        state = sha256(f"{version('sealed-federation')} {quick}".encode())  # steps have two sizes
        for name in ("settings.toml", "result.json"):
            state.update((run / name).read_bytes())
        self._folder = place / "kept" / state.hexdigest()[:16]  # `place` may serve several runs

    def get(self, step: str) -> tuple[AuditTrial, ...] | None:
        """Read the trials of a finished step; None: they are missing or damaged."""
        try:
            data = self._file(step).read_bytes()
            return msgspec.msgpack.decode(data, type=tuple[AuditTrial, ...])
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, step: str, trials: Sequence[AuditTrial]) -> None:
        """Write a step's trials, if there is room and they can be encoded; no audit needs them."""
        with suppress(OSError, TypeError):
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._file(step)
            new = file.with_suffix(".new")
            new.write_bytes(msgspec.msgpack.encode(tuple(trials)))
            new.replace(file)

    def drop(self) -> None:
        """Delete all trials: the audit is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()

    def _file(self, step: str) -> Path:
        return self._folder / f"{re.sub(r'[^a-z0-9]+', '-', step.lower())}.msgpack"
