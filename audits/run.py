"""`audit(folder)`: a recorded run in, its document out."""

from __future__ import annotations

from pathlib import Path

from secure_fl.audits import code_trials, public_trials, suite
from secure_fl.audits.attacks import metadata, reading
from secure_fl.audits.building import build
from secure_fl.audits.document import AuditDocument
from secure_fl.audits.session import Audit, Tell, trials

ABOUT = {
    reading.ONE: reading.ABOUT_ONE,
    reading.SUM: reading.ABOUT_SUM,
    reading.COUNTS: reading.ABOUT_COUNTS,
    metadata.SIZES: metadata.ABOUT_SIZES,
    metadata.TIMING: metadata.ABOUT_TIMING,
    **{name: entry.about for name, entry in suite.RECONSTRUCTION.items()},
    **public_trials.ABOUT,
    **code_trials.ABOUT,
}


def audit(
    folder: Path,
    *,
    quick: bool = False,
    code: bool = True,
    work: Path | None = None,
    tell: Tell = lambda done, total, label: None,
) -> AuditDocument:
    """Attack what each role saw of a recorded run.

    What it makes on the way is kept in the run's folder (or in `work`, for audits of runs that
    differ in protection alone), so a second audit is quicker and says the same. `quick` leaves out
    what takes minutes, `code=False` what does not depend on the run; the document says what.
    """
    session = Audit(folder, quick, code, work)
    session.run, session.result  # noqa: B018 - what is missing is said before anything is run
    return build(session, trials(session, tell), ABOUT)
