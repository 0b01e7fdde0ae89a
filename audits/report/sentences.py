"""The report's sentences, made from the document, the same on the page and in Markdown."""

from __future__ import annotations

import math

from secure_fl.audits.document import ENTITIES, AuditDocument, FindingPart, PrivacyPart, TrialPart
from secure_fl.audits.report.terms import STATUS, VERDICTS, count, listing, number

MODES = {
    "none": "none; the coordinator reads every update",
    "secagg": "masks (secagg): only sums can be read",
    "he": "encryption (he): the coordinator reads nothing, holders of the key read all",
    "he+secagg": "encryption and masks (he+secagg)",
}

NO_PRIVACY = (
    "There is no differential privacy in this run: ε has no bound. Protection hides what parties "
    "send; nothing limits what the released model tells about the records that it learned from."
)
UNPROTECTED = (
    "This run was not protected. It exists to be compared with: nothing in it was hidden from the "
    "coordinator."
)
ASKED = (
    "Hospitals made up by the audit were asked about their records and evaluated a model, with the "
    "protection of this run. Counts of one hospital are to be read by nobody else; hospitals are "
    "meant to read sums. Differences are what answers tell when they are subtracted: unprotected "
    "means that the rules for small numbers were off."
)
CONTRADICTION = "This document contradicts itself. Do not rely on it before this is explained:"
ALL_TESTED = (
    "The audit lists nothing as untested. No audit tests everything: an attack that is not among "
    "the trials was not tried."
)
NO_TRIALS = "No attack was run, so nothing is shown by this audit."
NO_MATRIX = "The audit says nothing about who can see what."
SIDE_BY_SIDE = (
    "Each kind of information has one line for each run. Where the runs differ for a role, all of "
    "its fields are marked with ≠ and say so."
)
OVER_EPSILON = (
    "AUC of telling members from others: 0.5 is guessing. No attack can exceed the dashed line, if "
    "the promised ε is kept; one that stays far below shows how this attack does, not how the best "
    "one would. What came to no verdict is in the table and is not drawn."
)
NO_CURVE = (
    "No membership attack came to a verdict on a run that promises an ε, so there is no plot."
)
ALONE = "One run is one point: a report of several draws them."
WITHOUT = {
    "accuracy": "Accuracy and leakage were not measured together, so there is no plot.",
    "asked": "This audit asked nothing: it left out what does not depend on the run.",
    "roc": "No membership attack gave a curve, so there is no plot.",
    "budget": "No ledger recorded any spending over rounds, so there is no plot.",
    "traffic": "Bytes were not recorded by round, so there is no plot.",
    "spectra": "No update was taken apart into singular values, so there is no plot.",
}


def in_short(document: AuditDocument) -> str:
    """What ran, in two sentences."""
    run = document.run
    return (
        f"{count(len(run.parties), 'party', 'parties')} ({listing(run.parties)}) trained the model "
        f"{run.model} together, for the task {run.task}, in {count(run.rounds, 'round')} with "
        f"{run.algorithm}. Protection: {MODES.get(run.mode, run.mode)}."
    )


def measured(document: AuditDocument) -> str:
    """What accuracy and leakage are, wherever they stand side by side."""
    metric = document.run.metric
    accuracy = "" if metric == "accuracy" else f"Accuracy is {metric} here. "
    return (
        f"{accuracy}Scores are on test records. Leakage is how much the best attack "
        "recovers, from 0 to 1; the table says of what."
    )


def standing(document: AuditDocument) -> str:
    """What the status means here: never that all was tested where something was not."""
    meaning = STATUS[document.status].meaning
    if document.status != "within policy":
        return meaning
    verdicts = [verdict(trial) for trial in document.trials]
    open_ = sum(one in ("not tested", "inconclusive") for one in verdicts)
    said = [meaning]
    if open_:
        said = [
            "Every limit of the policy that was tested is kept. "
            f"{count(open_, 'trial')} came to no verdict; below is what was not tested, and why."
        ]
    if leaks := verdicts.count("leaks"):
        said.append(
            f"{count(leaks, 'trial')} found what the policy allows a role to see, such as the sum "
            "for those who hold its key; they are marked as leaks all the same."
        )
    return " ".join(said)


def tally(document: AuditDocument) -> str:
    """How the trials ended, all kinds named, none left out."""
    verdicts = [verdict(trial) for trial in document.trials]
    kinds = listing(f"{verdicts.count(kind)} {VERDICTS[kind].word}" for kind in VERDICTS)
    return (
        "The audit attacked this run, the same settings without protection, and a null in which "
        f"there is nothing to be found. {count(len(verdicts), 'trial')}: {kinds}. A trial counts "
        "only if its attack works without protection and fails on the null."
    )


def verdict(trial: TrialPart) -> str:
    """The verdict, judged again: no control, no verdict, whatever the document says."""
    if trial.control is None or trial.deployed is None or trial.null is None:
        return "not tested"
    if not trial.control.succeeded or trial.null.succeeded:
        return "inconclusive"
    return "leaks" if trial.deployed.succeeded else "holds"


def outcome(trial: TrialPart) -> str:
    """What the three findings say together, in a sentence."""
    here, control, null = trial.deployed, trial.control, trial.null
    if here is None or control is None or null is None:
        missing = {"unprotected run": control, "deployed run": here, "null": null}
        lacking = listing(name for name, finding in missing.items() if finding is None)
        return f"There is no finding on the {lacking}. {trial.reason}".strip()
    if not control.succeeded:
        return (
            f"Even without protection {_reached(control)}, below the threshold of "
            f"{number(control.threshold)}. What it found here shows nothing."
        )
    if null.succeeded:
        return (
            f"Where there is nothing to be found {_reached(null)}, which counts as success. "
            "What it found here shows nothing."
        )
    if here.value is None:
        return f"Without protection {_reached(control)}. Here {_reached(here)}. {here.note}".strip()
    side = "at or above" if here.succeeded else "below"
    return (
        f"Without protection {_reached(control)}. Here {_reached(here)}, {side} the threshold of "
        f"{number(here.threshold)}; guessing gives {number(here.chance)}.{_by_entity(here)}"
    )


def _by_entity(finding: FindingPart) -> str:
    """What it got of each entity type, where records hold entities."""
    shares = finding.details.get(ENTITIES)
    said = [f"{name} {100 * share:.0f} %" for name, share in sorted((shares or {}).items())]
    return f" Words of entities that it names, by type: {', '.join(said)}." if said else ""


def _reached(finding: FindingPart) -> str:
    if finding.value is None:
        return "the attack had nothing to work on"
    return f"it reached {number(finding.value)} ({finding.measure})"


def in_words(part: PrivacyPart) -> str:
    """What ε and δ mean, for a reader who meets them for the first time."""
    if part.epsilon is None or part.delta is None:
        return (
            f"There is no bound on how much what is released can tell about one {part.unit}. "
            "This is not a differential-privacy guarantee."
        )
    factor = math.exp(min(part.epsilon, 700))
    times = f"{factor:.3g}" if factor < 1e6 else f"10^{math.floor(part.epsilon / math.log(10))}"
    return (
        f"Between two data sets that differ in one {part.unit}, no outcome is more than {times} "
        f"times as likely with one as with the other (e^ε), except with probability "
        f"{number(part.delta)} (δ)."
    )


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
