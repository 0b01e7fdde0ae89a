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
    if found := section["temperatures"]:
        body += paragraph(
            f"A temperature of {found['pooled']:.2f} calibrates the probabilities over the dev "
            "records of all hospitals."
        )
    if found := section["thresholds"]:
        body += paragraph(
            f"For a coverage of {100 * found['coverage']:g} %, the threshold over the dev records "
            f"of all hospitals is a probability of {found['pooled']:.3f}."
        )
    if shared:
        return body
    metric = metric_name(document["main_metric"], document.get("scored_class"))
    return body + _models(section["party"], metric) + _answers(section["party"])


def _models(parties: Mapping[str, Any], metric: str) -> str:
    """Render each hospital's scores, choice and problem."""
    rows = [
        [name, MODELS[one["use"]], *_scores(one["dev"]), _interval(one["differences"])]
        for name, one in parties.items()
    ]
    heads = ["hospital", "serves", *MODELS.values(), "served − alone (95 %)"]
    body = paragraph(
        "Each hospital compares three models on its own dev records: the shared model of all "
        "hospitals, its personal one, and one that it trained alone. It serves the better of the "
        "shared and the personal model, or the one trained alone if that is clearly better."
    ) + table(f"Models of each hospital, dev {metric}", heads, rows)
    tested = [[name, *_scores(one["test"])] for name, one in parties.items() if one["test"]]
    body += table(f"Models of each hospital, test {metric}", ["hospital", *MODELS.values()], tested)
    return body + "".join(
        paragraph(f"{name}: {one['problem']}.") for name, one in parties.items() if one["problem"]
    )


def _answers(parties: Mapping[str, Any]) -> str:
    """Render each hospital's temperature and threshold, and their effects on its test records."""
    curves = any(one["temperature"] or one["threshold"] for one in parties.values())
    text = "The fewer dev records a hospital has, the nearer its values are to the common ones."
    return paragraph(text if curves else "") + "".join(
        _curves(parties, name, effect, without)
        for name, effect, without in (
            ("temperature", "test_loss", "uncalibrated"),
            ("threshold", "test_coverage", "pooled"),
        )
    )


def _curves(parties: Mapping[str, Any], name: str, effect: str, without: str) -> str:
    """Render one value of each hospital; `effect`: a score with it and with a common one."""
    found = {party: one[name] for party, one in parties.items() if one[name]}
    shown = effect.replace("_", " ")
    heads = ["hospital", name, "weight of own dev records", f"{shown}, {without}", f"{shown}, own"]
    rows = [
        [party, *map(number, (at["own"], at["weight"], *(scores.get(n) for n in (without, "own"))))]
        for party, at in found.items()
        for scores in [at.get(effect, {})]
    ]
    return table(f"{name.capitalize()}s", heads, rows)


def _scores(scores: Mapping[str, float] | None) -> list[str]:
    return [number((scores or {}).get(model)) for model in MODELS]


def _interval(differences: Mapping[str, Any]) -> str:
    apart = (differences.get("dev") or {}).get("served - alone")
    if apart is None:
        return "-"
    low, high = apart["interval"]
    return f"{apart['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
