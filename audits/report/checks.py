"""What a document may not say: claims that its own trials do not bear out."""

from __future__ import annotations

from secure_fl.audits.document import AuditDocument
from secure_fl.audits.report.sentences import verdict


def contradictions(document: AuditDocument) -> list[str]:
    """Sentences that stand at the top of the report, as loud as its status."""
    verdicts = {trial.id: verdict(trial) for trial in document.trials}
    found = [
        f'Trial {trial.id} is recorded as "{trial.verdict}"; its findings say '
        f'"{verdicts[trial.id]}", and so does this report.'
        for trial in document.trials
        if trial.verdict != verdicts[trial.id]
    ]
    if len(verdicts) < len(document.trials):
        found.append("Several trials have the same id; evidence may point at the wrong one.")
    for row in document.matrix:
        for cell in row.cells:
            place = f"{row.what}, {cell.role}"
            lost = [one for one in cell.evidence if one not in verdicts]
            if lost:
                found.append(f"{place}: the evidence names {', '.join(lost)}, which is no trial.")
            known = [verdicts[one] for one in cell.evidence if one in verdicts]
            if cell.access != "nothing" or not cell.evidence:
                continue
            if "leaks" in known:
                found.append(f'{place}: "nothing" is claimed, and a trial named there leaks.')
            elif "holds" not in known:
                found.append(f'{place}: "nothing" is claimed, and no trial named there holds.')
    return found
