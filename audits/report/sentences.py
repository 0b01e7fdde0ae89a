"""Terms, formats and sentences of the report.

Each term has an icon of its own shape, so a page printed in black and white loses nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from secure_fl.audits.attacks.reading import CODEBOOKS, EVALUATION
from secure_fl.audits.conclusions import METADATA
from secure_fl.audits.document import (
    ENTITIES,
    AuditDocument,
    FindingPart,
    PrivacyPart,
    TrialPart,
    encode,
)
from secure_fl.audits.findings import verdict_of
from secure_fl.audits.roles import CODE
from secure_fl.display.figures import counted


class Term(NamedTuple):
    """One term of the report, with its icon and its meaning."""

    icon: str  # the shape's name in icons.html.j2
    word: str
    meaning: str


ACCESS: Mapping[str, Term] = {
    "everything": Term("full", "everything", "readable, in full or in large part"),
    "of a sum": Term("half", "only a sum", "readable only added up over several hospitals"),
    "sizes": Term("quarter", "sizes only", "sizes, counts and timing; no content"),
    "nothing": Term("empty", "nothing", "attacks find nothing, but work without protection"),
    "own": Term("own", "its own", "the role's own data, or what it makes itself"),
    "not tested": Term("untried", "not tested", "no attack was run, so nothing is claimed"),
    "inconclusive": Term("doubt", "inconclusive", "attacks ran, but their controls failed"),
}
ABSENT = Term("dash", "not stated", "the audit says nothing about it")

VERDICTS: Mapping[str, Term] = {
    "holds": Term("empty", "holds", "the attack works without protection, and not here"),
    "leaks": Term("full", "leaks", "the attack works here"),
    "inconclusive": Term("doubt", "inconclusive", "a control failed: this shows nothing"),
    "not tested": Term("untried", "not tested", "the attack was not run on all three"),
}

STATUS: Mapping[str, Term] = {
    "within policy": Term("check", "kept", "Every limit is kept."),
    "beyond policy": Term("cross", "exceeded", "At least one limit is exceeded."),
    "inconclusive": Term(
        "doubt", "not shown", "The audit could not show that every limit is kept."
    ),
}


def number(value: float | None) -> str:
    """Format a figure with three significant digits, and whole numbers in full."""
    if value is None:
        return "none"
    if not math.isfinite(value):
        return "∞" if value == math.inf else "not a number"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1:
        return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return re.sub(r"e([+-])0*", lambda power: f"e{power[1].strip('+')}", f"{value:.3g}")


def epsilon(value: float | None) -> str:
    """Format a privacy loss; None means that there is no bound."""
    return "∞ (no bound)" if value is None or value == math.inf else number(value)


def plain(value: Any) -> str:
    """Format any JSON value as short text."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(v)}" for key, v in ordered(value)) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(plain(v) for v in value) or "none"
    return json.dumps(value, sort_keys=True)


def capital(text: str) -> str:
    """Capitalise the first letter, and leave the others."""
    return text[:1].upper() + text[1:]


def ordered(items: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Sort names and values by name, as the document's file does."""
    return sorted(items.items())


def shortened(text: str, longest: int = 600) -> str:
    """Cut a long text, and say where the rest is."""
    return text if len(text) <= longest else f"{text[:longest]} ... (all of it is in audit.json)"


def positions(evidence: Iterable[str]) -> str:
    """List places of evidence, with neighbours merged: "wire/17 to 19, model/0"."""
    places: list[str] = []
    last: tuple[str, int] | None = None
    for item in evidence:
        cut = re.fullmatch(r"(.*/)(\d{1,15})", item, re.DOTALL)
        here = (cut[1], int(cut[2])) if cut else None
        if here and last and here == (last[0], last[1] + 1):
            places[-1] = f"{places[-1].split(' to ')[0]} to {here[1]}"
        else:
            places.append(item)
        last = here
    return shortened(", ".join(places)) or "none"


def listing(items: Iterable[str]) -> str:
    """Join items as a sentence does: "a, b and c"."""
    *most, last = list(items) or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


# --- sentences ------------------------------------------------------------------------------------

MODES = {
    "none": "none; the coordinator reads every update",
    "secagg": "masks; only sums can be read, and only by hospitals",
    "he+secagg": "encryption and masks; only sums can be read, and only by hospitals",
}

NO_PRIVACY = (
    "None was set (no differential privacy). Protection hides the updates that hospitals send. It "
    "does not limit what the finished model reveals about its training records."
)
UNPROTECTED = (
    "This run was not protected. It exists for comparison: the coordinator could read everything "
    "in it."
)
COUNTED = (
    "The audit made up hospitals, opened a codebook over their records and had them evaluate a "
    "model, with the protection of this run. Nobody else may read one hospital's counts; hospitals "
    "may read sums. Released tables were attacked by linear programs: here unprotected means that "
    "the rules for small numbers were off."
)
ALL_TESTED = (
    "The audit lists nothing as untested. No audit tests everything: an attack that is not among "
    "the trials was not tried."
)
NO_TRIALS = "No attack was run, so this audit shows nothing."
NO_MATRIX = "The audit says nothing about who can see what."
UPDATES = (
    "An update is what a hospital sends after it has trained: its changes to the model. A "
    "correlation of 1 is the update itself; a correlation near 0 is noise."
)
SIDE_BY_SIDE = (
    "Each kind of information has one line for each run. Where the runs differ for a role, all of "
    "its fields are marked with ≠."
)
OVER_EPSILON = (
    "The AUC measures how well an attack distinguishes members from others: 0.5 is guessing. If "
    "the promised ε is kept, no attack can exceed the dashed line. An attack far below the line "
    "shows how this attack does, not how the best one would. Trials without a verdict are in the "
    "table and are not drawn."
)
NO_CURVE = (
    "No membership attack came to a verdict on a run that promises an ε, so there is no plot."
)
ALONE = "One run is one point: a report of several runs draws them."
WITHOUT = {
    "accuracy": "Accuracy and leakage were not measured together, so there is no plot.",
    "counted": "This audit opened no codebook: it skipped the tests that do not depend on the run.",
    "roc": "No membership attack gave a curve, so there is no plot.",
    "budget": "No ledger recorded spending over two or more rounds, so there is no plot.",
    "spectra": "No update was decomposed into singular values, so there is no plot.",
}


def in_short(document: AuditDocument) -> str:
    """Describe the run in two sentences."""
    run = document.run
    return (
        f"{counted(len(run.parties), 'hospital')} ({listing(run.parties)}) trained the model "
        f"{run.model} together, for the task {run.task}, in {counted(run.rounds, 'round')} with "
        f"{run.algorithm}. Protection: {MODES.get(run.mode, run.mode)}."
    )


def scored(document: AuditDocument) -> str:
    """Describe the finished model's accuracy."""
    known = [p.accuracy for p in document.points if p.deployed and p.accuracy is not None]
    if not known:
        return "It was not recorded."
    if document.run.metric == "accuracy":
        return f"{100 * known[0]:.1f} % of the test records are classified correctly."
    return f"The score on test records is {number(known[0])} ({document.run.metric})."


def budget(document: AuditDocument) -> str:
    """Describe the privacy budget, and what was spent of it."""
    parts = []
    for part in document.privacy:
        spent = "no bound" if part.epsilon is None else f"ε = {number(part.epsilon)}"
        limit = "" if part.budget is None else f" of at most {number(part.budget)}"
        parts.append(f"{spent}{limit} per {part.unit}. {in_words(part)}")
    return " ".join(parts) or NO_PRIVACY


def digest(document: AuditDocument) -> str:
    """Compute the SHA-256 of the document's file, which a signature refers to."""
    return sha256(encode(document)).hexdigest()


def measured(document: AuditDocument) -> str:
    """Explain accuracy and leakage."""
    metric = document.run.metric
    accuracy = "" if metric == "accuracy" else f"Accuracy is {metric} here. "
    return (
        f"{accuracy}Scores are on test records. Leakage is how much the best attack "
        "recovers, from 0 to 1; the table says of what."
    )


def standing(document: AuditDocument) -> str:
    """Explain the status; it never claims that all was tested where something was not."""
    meaning = STATUS[document.status].meaning
    if document.status != "within policy":
        return meaning
    verdicts = [verdict(trial) for trial in document.trials]
    undecided = sum(one in ("not tested", "inconclusive") for one in verdicts)
    parts = [meaning]
    if undecided:
        parts = [
            "Every limit that was tested is kept. "
            f'{counted(undecided, "attack")} gave no answer; "What was not tested" has the reasons.'
        ]
    if leaks := verdicts.count("leaks"):
        parts.append(
            f"{counted(leaks, 'attack')} found what the limits allow, such as the sum that "
            "hospitals open; the matrix shows it all the same."
        )
    return " ".join(parts)


def tally(document: AuditDocument) -> str:
    """Count the attacks on this run, and those on anything else, by verdict."""
    elsewhere = [trial for trial in document.trials if _elsewhere(trial)]
    here = [trial for trial in document.trials if not _elsewhere(trial)]
    return (
        f"The audit ran {counted(len(here), 'attack')} three times each, for each role: on this "
        "run, on the same settings without protection, and where there is nothing to find. "
        f"{_verdicts(here)} It also tested the installed code and made-up hospitals in "
        f"{counted(len(elsewhere), 'attack')}. {_verdicts(elsewhere)} An attack counts only if it "
        "succeeds without protection and fails where there is nothing to find."
    )


def _elsewhere(trial: TrialPart) -> bool:
    """True if a trial uses the code alone, or hospitals that the audit made up."""
    task = trial.attack.partition(":")[0]
    return trial.role == CODE or task in (*METADATA, CODEBOOKS, EVALUATION)


def _verdicts(trials: Sequence[TrialPart]) -> str:
    """Count trials by verdict, every verdict named."""
    count = Counter(verdict(trial) for trial in trials)
    held = [t.deployed for t in trials if verdict(t) == "holds"]
    blank = sum(finding is not None and finding.value is None for finding in held)
    return (
        f"{count['holds']} failed ({blank} of them had nothing to work on), {count['leaks']} "
        f"succeeded, {count['inconclusive']} gave no answer and {count['not tested']} could not "
        "be run."
    )


def verdict(trial: TrialPart) -> str:
    """Judge a trial again: without controls there is no verdict, whatever the document says."""
    return verdict_of(trial.control, trial.deployed, trial.null).value


def outcome(trial: TrialPart) -> str:
    """Summarise the three findings of a trial."""
    here, control, null = trial.deployed, trial.control, trial.null
    if here is None or control is None or null is None:
        findings = {"unprotected run": control, "deployed run": here, "null": null}
        missing = listing(name for name, finding in findings.items() if finding is None)
        return f"There is no finding on the {missing}. {trial.reason}".strip()
    failed = next((finding for finding in (control, here, null) if not finding.could_run), None)
    if failed is not None:
        return f"The attack could not run, so it shows nothing. {failed.note}".strip()
    if not control.succeeded:
        return (
            f"Even without protection {_reached(control)}, below the threshold of "
            f"{number(control.threshold)}. What it found here shows nothing."
        )
    if null.succeeded:
        return (
            f"Where there is nothing to find {_reached(null)}, which counts as success. "
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
    """List the share of words recovered for each entity type, where records have entities."""
    shares = finding.details.get(ENTITIES) or {}
    types = [f"{name} {100 * share:.0f} %" for name, share in sorted(shares.items())]
    return f" Words of entities that it names, by type: {', '.join(types)}." if types else ""


def _reached(finding: FindingPart) -> str:
    if finding.value is None:
        return "the attack had nothing to work on"
    return f"it reached {number(finding.value)} ({finding.measure})"


def in_words(part: PrivacyPart) -> str:
    """Explain ε and δ to a reader who meets them for the first time."""
    if part.epsilon is None or part.delta is None:
        return (
            f"There is no bound on how much the release can reveal about one {part.unit}. "
            "This is not a differential-privacy guarantee."
        )
    factor = math.exp(min(part.epsilon, 700))
    times = f"{factor:.3g}" if factor < 1e6 else f"10^{math.floor(part.epsilon / math.log(10))}"
    return (
        f"Between two data sets that differ in one {part.unit}, no outcome is more than {times} "
        f"times as likely with one as with the other (e^ε), except with probability "
        f"{number(part.delta)} (δ)."
    )
