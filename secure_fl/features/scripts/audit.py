"""The audit of a script: what each role can read of its sums.

The same script runs twice, protected and unprotected. An attack counts only if it succeeds on the
unprotected run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secure_fl.audits import roles, suite
from secure_fl.audits.attacks import reading
from secure_fl.audits.audited_run import sent_in
from secure_fl.audits.findings import AuditTrial, Prior
from secure_fl.capture.opening import RecordedRun
from secure_fl.errors import SettingsError
from secure_fl.features.scripts.simulation import Main, simulate
from secure_fl.settings import ProtectionSettings

CLEAR = ProtectionSettings(mode="none")


def audit_script(
    main: Main, sites: int | Sequence[str] = 3, **options: Any
) -> tuple[AuditTrial, ...]:
    """Simulate a script with recorded views, and try to read single sites and sums.

    Args:
        main: The script, as for `simulate`.
        sites: The number of sites, or their names.
        options: Options of `simulate`, such as `rounds` and `protection`, except those of folders.

    Returns:
        One trial for each attack and role, with its `verdict`: "holds" or "leaks".

    """
    if own := {"folder", "record", "resume"} & options.keys():
        raise SettingsError(
            f"an audit has folders of its own, and found {min(own)}", fix=f"omit {min(own)}"
        )
    with tempfile.TemporaryDirectory(prefix="secure-fl-") as place:
        protected, clear = Path(place, "protected"), Path(place, "clear")
        done = simulate(main, sites, **options, folder=protected, record=True)
        simulate(main, sites, **{**options, "protection": CLEAR}, folder=clear, record=True)
        stated = done.document["protection"]["collusion_bound"]["honest_coordinator"]
        return _trials(RecordedRun(protected), RecordedRun(clear), stated)


def _trials(run: RecordedRun, control: RecordedRun, stated: int) -> tuple[AuditTrial, ...]:
    prior = Prior(lambda: None, None, None, None, None, 0)  # type: ignore[arg-type,return-value]
    wires = roles.coordinator(control, {}, control.first_round)
    bound = roles.bound_of(run, stated, run.first_round)
    evidence = suite.AttackEvidence(
        roles.views(run, {}, run.first_round, bound),
        sent_in(run),
        wires,
        sent_in(control),
        roles.shuffled(wires, prior),
    )
    trials = suite.reading_trials(evidence, prior)
    return tuple(trial for trial in trials if trial.attack != reading.COUNTS)
