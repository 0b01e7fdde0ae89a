"""The part of a run's page about personal models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_fl.display.figures import number
from secure_fl.display.html import paragraph, table
from secure_fl.events import metric_name
from secure_fl.features.personal.comparison import sentence

MODELS = {"model": "shared", "personal": "personal", "alone": "alone"}


def personal_part(document: Mapping[str, Any], *, shared: bool = False) -> str:
    """Render the votes, and unless the page is shared, each hospital's scores and choice."""
    section = document["personal"]
    votes, why = section["votes"], section["no_votes"]
    said = sentence(votes) if votes else f"no votes were counted: {why}" if why else ""
    body = paragraph(said and f"{said[0].upper()}{said[1:]}.")
    if found := section["thresholds"]:
        body += paragraph(
            f"For a coverage of {100 * found['coverage']:g} %, the threshold over the dev records "
            f"of all hospitals is a probability of {found['pooled']:.3f}."
        )
    if shared:
        return body
    rows = [_row(name, one) for name, one in section["party"].items()]
    metric = metric_name(document["main_metric"], document.get("scored_class"))
    heads = ["hospital", "serves", *(f"{split} {metric}, {name}" for split in ("dev", "test")
                                     for name in MODELS.values())]  # fmt: skip
    body += table("Models of each hospital", [*heads, "served − alone, dev", "threshold"], rows)
    return body + "".join(
        paragraph(f"{name}: {one['problem']}.")
        for name, one in section["party"].items()
        if one["problem"]
    )


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    scores = [
        number((one[split] or {}).get(model)) for split in ("dev", "test") for model in MODELS
    ]
    apart = (one["differences"].get("dev") or {}).get("served - alone")
    interval = "-"
    if apart is not None:
        low, high = apart["interval"]
        interval = f"{apart['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
    threshold = one["threshold"]
    at = "-" if threshold is None else f"{threshold['own']:.3f}"
    return [name, MODELS[one["use"]], *scores, interval, at]
