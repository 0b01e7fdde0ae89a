"""Audit documents of three runs, as audits write them: the figures are made up, but fit together.

The same trials on a run without protection, one with encryption alone, and one with the default.
"""

from __future__ import annotations

from typing import Any

from secure_fl.audits.document import (
    Access,
    AuditDocument,
    CellPart,
    FindingPart,
    PointPart,
    PrivacyPart,
    RocPart,
    RowPart,
    RunPart,
    SeriesPart,
    Status,
    TrialPart,
)

PARTIES = ("north", "south", "west")
ROLES = ("coordinator", "one hospital", "coordinator + 1 hospital", "the public")
BYTES = {"none": 1_210_000, "secagg": 4_650_000, "he+secagg": 4_920_000}
SETTINGS = """[algorithm]
name = "fedavg"
rounds = 8

[protection]
mode = "{mode}"

[training.dp]
epsilon = 8.0
delta = 1e-5
"""


def finding(value: float | None, *, n: int = 4096, **changes: Any) -> FindingPart:
    """One finding of a token attack, with an interval around its value."""
    threshold = changes.pop("threshold", 0.2)
    known = {
        "target": "the update of north",
        "measure": "token recall",
        "value": value,
        "chance": 0.031,
        "threshold": threshold,
        "samples": n,
        "succeeded": value is not None and value >= threshold,
        "interval": None if value is None else (max(0.0, value - 0.02), min(1.0, value + 0.02)),
        "evidence": tuple(f"wire/{place}" for place in (12, 13, 14, 31, 32)),
        "details": {"precision": 0.9, "layers": ["query", "key"]},
    }
    return FindingPart(**known | changes)


def trial(
    attack: str,
    role: str,
    control: FindingPart | None,
    deployed: FindingPart | None,
    null: FindingPart | None,
    **more: Any,
) -> TrialPart:
    """A trial with the verdict that its findings ask for."""
    verdict: Any = "not tested"
    if control and deployed and null:
        verdict = "leaks" if deployed.succeeded else "holds"
        verdict = verdict if control.succeeded and not null.succeeded else "inconclusive"
    about = f"The {attack} attack guesses the records' words from what the {role} saw."
    name = f"{attack}/{role}".replace(" ", "-")
    made = {"id": name, "attack": attack, "role": role, "verdict": verdict, "about": about}
    return TrialPart(**made | {"control": control, "deployed": deployed, "null": null} | more)


def trials(mode: str) -> tuple[TrialPart, ...]:
    """Five trials: one that tells the modes apart at the coordinator, one among colluders."""
    coordinator = {"none": 0.984, "secagg": 0.029, "he+secagg": 0.033}[mode]
    together = {"none": 0.984, "secagg": 0.981, "he+secagg": 0.035}[mode]
    rate: dict[str, Any] = {
        "measure": "true positives at 1 % false positives",
        "n": 1200,
        "threshold": 0.05,
    }
    rate |= {"chance": 0.01, "target": "the released model", "evidence": ("model/0",)}
    return (
        trial("token bag", ROLES[0], finding(0.984), finding(coordinator), finding(0.03)),
        trial("token bag", ROLES[2], finding(0.984), finding(together), finding(0.03)),
        trial("span check", ROLES[1], finding(0.11), finding(0.02), finding(0.02)),
        trial(
            "LiRA", ROLES[3], finding(0.31, **rate), finding(0.018, **rate), finding(0.011, **rate)
        ),
        trial("gradient matching", ROLES[0], None, None, None, reason="It was left out: too slow."),
    )


def matrix(mode: str) -> tuple[RowPart, ...]:
    """Three kinds of information for four roles."""
    seen: dict[str, tuple[Access, Access, Access]] = {
        "none": ("everything", "inconclusive", "everything"),
        "secagg": ("nothing", "inconclusive", "everything"),
        "he+secagg": ("nothing", "inconclusive", "nothing"),
    }
    first, second, third = seen[mode]
    bag, together, span, lira = (one.id for one in trials(mode)[:4])
    sums: Access = "of a sum" if mode == "none" else "nothing"
    return (
        RowPart(
            what="one hospital's update",
            cells=(
                CellPart(role=ROLES[0], access=first, evidence=(bag,)),
                CellPart(role=ROLES[1], access=second, evidence=(span,)),
                CellPart(role=ROLES[2], access=third, evidence=(together,)),
                CellPart(role=ROLES[3], access="not tested"),
            ),
        ),
        RowPart(
            what="a sum of updates",
            cells=(
                CellPart(role=ROLES[0], access=sums, evidence=(bag,)),
                CellPart(role=ROLES[1], access="of a sum", note="that is its purpose"),
                CellPart(role=ROLES[2], access="of a sum", note="minus the hospital's own share"),
                CellPart(role=ROLES[3], access="nothing", evidence=(lira,)),
            ),
        ),
        RowPart(
            what="the number of records that a hospital sends along",
            cells=(
                CellPart(role=ROLES[0], access="sizes"),
                CellPart(role=ROLES[1], access="own"),
                CellPart(role=ROLES[2], access="of a sum"),
                CellPart(role=ROLES[3], access="not tested"),
            ),
        ),
    )


def privacy() -> tuple[PrivacyPart, ...]:
    """DP-SGD at every hospital."""
    return (
        PrivacyPart(
            unit="record",
            adjacency="add or remove one record of one hospital",
            trust_model="each hospital trusts itself only; noise is added where records are",
            mechanism="DP-SGD (Poisson sampling, Gaussian noise), accountant RDP",
            epsilon=3.2,
            delta=1e-5,
            budget=8.0,
            assumptions=(
                "No record is held by two hospitals.",
                "The number of records is not secret.",
            ),
            facts={"noise multiplier": 1.1, "clip": 1.0},
        ),
    )


def curve(strength: float) -> RocPart:
    """The ROC curve TPR = FPR^(1 - strength), known at multiples of 1/1200."""
    hits = (0, 1, 2, 4, 8, 12, 24, 60, 120, 300, 600, 900, 1200)
    fpr = tuple(hit / 1200 for hit in hits)
    tpr = tuple(x ** (1 - strength) if x else 0.0 for x in fpr)
    return RocPart(label=f"LiRA, strength {strength}", fpr=fpr, tpr=tpr)


def energy(decay: float) -> tuple[float, ...]:
    """The cumulative energy of 64 singular values, each this much smaller than the one before."""
    complete = sum(decay ** (2 * k) for k in range(64))
    return tuple(sum(decay ** (2 * k) for k in range(held)) / complete for held in range(1, 65))


def document(mode: str = "he+secagg", **changes: Any) -> AuditDocument:
    """One run with this protection."""
    status: Status = {"none": "beyond policy", "secagg": "beyond policy"}.get(mode, "inconclusive")  # type: ignore[assignment]
    reasons = {
        "none": ("The coordinator reads single updates: token recall 0.984.",),
        "secagg": ("The coordinator and a hospital read single updates: token recall 0.981.",),
        "he+secagg": ("Span check by a hospital: it does not work without protection either.",),
    }[mode]
    rounds = tuple(float(r) for r in range(1, 9))
    leak = {"none": 0.984, "secagg": 0.981, "he+secagg": 0.035}[mode]
    private = mode == "he+secagg"
    run = RunPart(
        name=f"study-{mode.replace('+', '-')}",
        algorithm="FedAvg",
        mode=mode,
        statement="All of this holds against up to 1 of 3 hospitals that helps the coordinator.",
        parties=PARTIES,
        threshold=3,
        min_cohort=2,
        rounds=8,
        seed=11,
        model="builtin:tiny",
        task="classification",
        metric="macro F1",
        settings=SETTINGS.format(mode=mode),
        versions={"secure_fl": "0.1.0", "torch": "2.9.0", "python": "3.11.7"},
        machine={"cores": 2, "system": "Linux"},
    )
    made: dict[str, Any] = {
        "run": run,
        "status": status,
        "reasons": reasons,
        "matrix": matrix(mode),
        "privacy": privacy() if private else (),
        "trials": trials(mode),
        "accuracy": {"last test": 0.801 if private else 0.834, "best test": 0.836},
        "points": (
            PointPart(
                label="FedAvg of all weights, unprotected",
                accuracy=0.841,
                leakage=0.984,
                measure="coordinator, token recall",
            ),
            PointPart(
                label="one hospital alone", accuracy=0.741, leakage=0.0, measure="nothing is sent"
            ),
            PointPart(
                label=f"FedAvg, {mode}",
                accuracy=0.801 if private else 0.834,
                leakage=leak,
                measure="coordinator and a hospital, token recall",
                deployed=True,
            ),
        ),
        "budget": tuple(
            SeriesPart(label=party, x=rounds, y=tuple(step * r**0.5 for r in rounds))
            for party, step in zip(PARTIES, (1.13, 0.94, 0.71), strict=True)
        )
        if private
        else (),
        "spectra": tuple(
            SeriesPart(label=name, x=tuple(k / 64 for k in range(1, 65)), y=energy(decay))
            for name, decay in (("query", 0.93), ("value", 0.96), ("feed forward", 0.85))
        ),
        "roc": (curve(0.1 if private else 0.3),),
        "bytes": {"north": BYTES[mode], "south": BYTES[mode], "west": BYTES[mode] - 20_000},
        "untested": (
            "Gradient matching: too slow on this machine.",
            "Attacks on the machines themselves, and on what hospitals publish elsewhere.",
        ),
        "policy": {"token recall": 0.2, "true positives at 1 %": 0.05, "epsilon": 8.0},
    }
    return AuditDocument(**made | changes)


def three() -> list[AuditDocument]:
    """Without protection, with masks that fail, and as deployed."""
    return [document(mode) for mode in ("none", "secagg", "he+secagg")]
