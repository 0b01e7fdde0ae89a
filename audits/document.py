"""The audit's document, `audit.json`, from which every page is rendered.

`secure-fl docs audit-schema` prints its JSON schema. The document contains no times and no random
digests of the audit, so the same run, audited twice, gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from secure_fl.errors import RunError

SCHEMA = "secure-fl/audit/1"

Status = Literal["within policy", "beyond policy", "inconclusive"]
EXIT: dict[Status, int] = {"within policy": 0, "beyond policy": 3, "inconclusive": 4}
Access = Literal["everything", "of a sum", "sizes", "nothing", "own", "not tested", "inconclusive"]

BAG = "token bag"  # the name of the attack that finds words
ENTITIES = "of each entity type"  # in a finding's details: the share of its words


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all parts."""


class FindingPart(DocumentPart, frozen=True):
    """One attack on one view (`audits.findings.AuditFinding`)."""

    target: str
    measure: str
    value: float | None
    chance: float
    threshold: float
    samples: int
    succeeded: bool
    interval: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()  # "wire/17": the 17th frame that the coordinator carried
    details: dict[str, Any] = {}
    note: str = ""
    could_run: bool = True  # false: values reached the role, and the attack could not use them


class TrialPart(DocumentPart, frozen=True):
    """One attack through the control gate (`audits.findings.AuditTrial`)."""

    id: str  # "token-bag/coordinator": anchors on the page
    attack: str
    role: str
    verdict: Literal["holds", "leaks", "inconclusive", "not tested"]
    about: str  # a description of the attack, and the meaning of success
    control: FindingPart | None = None  # of the same settings, unprotected
    deployed: FindingPart | None = None
    null: FindingPart | None = None  # where there is nothing to find
    reason: str = ""  # why a finding is missing


class CellPart(DocumentPart, frozen=True):
    """One role's access to one kind of information."""

    role: str
    access: Access
    evidence: tuple[str, ...] = ()  # ids of trials
    note: str = ""


class RowPart(DocumentPart, frozen=True):
    """One kind of information, for every role."""

    what: str
    cells: tuple[CellPart, ...]


class RunPart(DocumentPart, frozen=True):
    """The audited run."""

    name: str
    algorithm: str
    mode: str  # of protection
    statement: str  # of its protection
    parties: tuple[str, ...]
    threshold: int
    min_cohort: int
    rounds: int
    seed: int
    model: str
    task: str
    metric: str
    settings: str  # the resolved TOML
    versions: dict[str, str]
    machine: dict[str, Any]


class PrivacyPart(DocumentPart, frozen=True):
    """A differential-privacy statement, in the words of NIST SP 800-226."""

    unit: str  # "record", "patient" or "hospital"
    adjacency: str
    trust_model: str
    mechanism: str
    epsilon: float | None  # None: no bound
    delta: float | None
    budget: float | None
    assumptions: tuple[str, ...] = ()
    facts: dict[str, Any] = {}  # further figures: signal, noise, releases


class PointPart(DocumentPart, frozen=True):
    """Accuracy and leakage of one federation, as one point."""

    label: str  # "FedAvg of all weights, unprotected"
    accuracy: float | None  # of the released model, on test records
    leakage: float | None  # the best recovery; None: no attack came to a verdict
    measure: str  # of the recovery
    deployed: bool = False


class SeriesPart(DocumentPart, frozen=True):
    """A curve: budget over rounds, or a spectrum."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


class RocPart(DocumentPart, frozen=True):
    """True against false positives of a membership attack."""

    label: str
    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


class AuditDocument(DocumentPart, frozen=True):
    """The results of an audit, with everything that a report shows."""

    run: RunPart
    status: Status
    reasons: tuple[str, ...]  # why the status is not better; empty: within policy
    matrix: tuple[RowPart, ...]
    privacy: tuple[PrivacyPart, ...]
    trials: tuple[TrialPart, ...]
    accuracy: dict[str, float | None]  # "last test", "best test", ...
    points: tuple[PointPart, ...]
    budget: tuple[SeriesPart, ...]  # ε over rounds, a curve for each ledger
    spectra: tuple[SeriesPart, ...]  # cumulative energy over the share of singular values
    roc: tuple[RocPart, ...]
    bytes: dict[str, int]
    untested: tuple[str, ...]  # what was not tested, and why
    policy: dict[str, Any]
    schema: Literal["secure-fl/audit/1"] = "secure-fl/audit/1"


def encode(document: AuditDocument) -> bytes:
    """Encode as JSON: the same bytes for the same document."""
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def read(file: Path) -> AuditDocument:
    """Read an audit's document of this schema."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=AuditDocument)
    except FileNotFoundError:
        fix = "audit the run first: secure-fl audit RUN"
        raise RunError(
            "this run has not been audited", fix=fix, file=file.parent, reason="missing"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        fix = "audit the run again with this version"
        raise RunError(
            f"this audit does not have the schema {SCHEMA}: {error}",
            fix=fix,
            file=file,
            reason="malformed",
        ) from None


def json_schema() -> dict[str, Any]:
    """Generate the document's JSON schema."""
    return msgspec.json.schema(AuditDocument)
