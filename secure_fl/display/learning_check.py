"""Check of a result: a sentence about a model that has not learned, or is below a probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from secure_fl.display.figures import ALL, LOCAL, confusion_rows, counted, number, of_round

ROW = "of "  # before a class in the names of counts, as in learning.metric_counts
FEW_FOUND = 0.25  # share of the entities; models that find fewer have barely learned
GUESSING = {  # the metric that shows guessing, and its value, by the kind of task
    "classification": ("mcc", 0.0),
    "pair": ("mcc", 0.0),
    "regression": ("pearson", 0.0),
    "ranking": ("auc", 0.5),
}


def not_learned(
    document: Mapping[str, Any], model: str | None = None, *, pooled: bool = False
) -> str | None:
    """Describe a model that has not learned, with what to try; None if it has learned.

    `model`: its name in the result's splits; None: the recommended one. `pooled`: use only scores
    over all hospitals' records. Without those, a hospital's result uses its own.
    """
    problem = guesses(document, model, pooled=pooled) or below_probe(document, model)
    if problem is None or document.get("evaluation"):
        return problem
    return f"{problem} Try: {'; '.join(advice(document))}."


def guesses(
    document: Mapping[str, Any], model: str | None = None, *, pooled: bool = False
) -> str | None:
    """Describe a model that answers one class or guesses; None if it has learned."""
    found = _measured(document, model, pooled=pooled)
    if found is None:
        return None
    split, counts, scores, intervals = found
    kind = document["task"]["kind"]
    records = f"{counts['loss'][0]:.0f} {split} records"
    if kind == "ner":
        return _entities(counts, intervals, records)
    if kind == "multilabel":
        return _labels(counts, intervals, records)
    answers = _answers(document, counts)
    given = [name for name, count in answers.items() if count]
    if len(given) == 1 and sum(answers.values()) > 1:
        return f"The model has not learned: it answers {given[0]!r} for all {records}."
    metric, value = GUESSING.get(kind, ("", 0.0))
    known = value if scores.get(metric) == value else 1.0  # if all records agree: no interval
    low, high = intervals.get(metric, (known, known))
    if low > value:
        return None
    return (
        f"The model has not learned, by {records}: the 95 % interval of its {metric}, "
        f"{number(low)} to {number(high)}, contains {value:g}, which guessing gives."
    )


def below_probe(document: Mapping[str, Any], model: str | None = None) -> str | None:
    """Describe a model with a lower dev score than a probe's; None if no probe's is known."""
    probe, metric = document.get("probe"), document.get("main_metric", "")
    pooled = of_round(document, "delivered").get("pooled", {})
    scores = (pooled.get(f"{name}dev", {}).get(metric) for name in _names(document, model))
    score = next((score for score in scores if score is not None), None)
    if probe is None or score is None or score >= probe:
        return None
    return (
        f"The model is below a probe: its dev {metric} is {number(score)}, and a linear model on "
        f'the fixed encoder reaches {number(probe)} (algorithm "probe", in one sum).'
    )


def advice(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may help the run of a result to learn."""
    yield f"more rounds (algorithm.rounds, now {document['rounds']})"
    yield "another learning rate (`secure-fl tune` searches)"
    if document.get("privacy"):
        yield "a larger epsilon (training.dp.epsilon) or more records, because noise can hide them"
    if document.get("noise"):
        yield "a larger epsilon (protection.noise.epsilon) or more hospitals"
    model = document["model"]
    if model["freeze_embeddings"] and not model.get("adapter"):
        yield (
            "model.freeze_embeddings = false, which shows other hospitals which words occur in "
            "the records"
        )


def _measured(
    document: Mapping[str, Any], model: str | None, *, pooled: bool
) -> tuple[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]] | None:
    """Find (split, counts, scores, intervals) of the saved round, of test records if possible."""
    chosen, names = of_round(document, "delivered"), _names(document, model)
    sources: list[Mapping[str, Any]] = [chosen.get("counts", {})]
    if not pooled and len(document.get("parties", ())) == 1:
        sources.append(_own_counts(document, chosen.get("round")))
    for counts in sources:
        for split in ("test", "dev"):
            for name in names:
                found = counts.get(name + split)
                if found and found.get("loss", (0,))[0]:  # noised counts have no losses
                    at = name + split
                    scores, limits = (
                        chosen.get(k, {}).get(at, {}) for k in ("pooled", "intervals")
                    )
                    return split, found, scores, limits
    return None


def _names(document: Mapping[str, Any], model: str | None) -> list[str]:
    """List names of models before a split, the one to use first."""
    use = document.get("use")
    return [model] if model is not None else [f"{use}/" if use else "", "", LOCAL]


def _own_counts(document: Mapping[str, Any], round: int | None) -> dict[str, Any]:
    return {
        "/".join(filter(None, (line.get("model"), line["split"]))): line["counts"]
        for line in document.get("history", ())
        if line["round"] == round and "pooled" not in line and "counts" in line
    }


def _answers(
    document: Mapping[str, Any], counts: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Count the model's answers by class, from the confusion matrix or from outcomes."""
    if rows := confusion_rows(document, counts):
        return {name: sum(row[k] for row in rows.values()) for k, name in enumerate(rows)}
    return {
        name.removeprefix(ROW): row[0] + row[1]
        for name, row in counts.items()
        if name.startswith(ROW)
    }


def _labels(
    counts: Mapping[str, Sequence[float]], intervals: Mapping[str, Any], records: str
) -> str | None:
    """Describe a model that is no better than the best answer that is the same for all records."""
    rows = [row for name, row in counts.items() if name.startswith(ROW)]
    support = sorted((row[0] + row[2] for row in rows), reverse=True)
    total, n = sum(support), counts["loss"][0]
    if not total:
        return None
    best = max(2 * sum(support[:k]) / (k * n + total) for k in range(1, len(rows) + 1))
    found = 1.0 if any(row[0] for row in rows) else 0.0
    low, high = intervals.get("micro_f1", (found, found))
    if low > best:
        return None
    return (
        f"The model has not learned, by {records}: the 95 % interval of its micro_f1, {number(low)}"
        f" to {number(high)}, is not above {number(best)}, the best of the same labels for all."
    )


def _entities(
    counts: Mapping[str, Sequence[float]], intervals: Mapping[str, Any], records: str
) -> str | None:
    rows = [row for name, row in counts.items() if name == ALL or name.startswith(ROW)]
    hits, false, missed = (round(sum(cells)) for cells in zip(*rows, strict=True))
    if not hits + missed:
        return None
    entities = counted(hits + missed, "entity").replace("entitys", "entities")
    if not hits + false:
        return f"The model has not learned: it finds no entity; {records} contain {entities}."
    low, high = intervals.get("recall", (1.0, 1.0))
    if high > FEW_FOUND:
        return None
    return (
        f"The model has barely learned: it finds {100 * hits / (hits + missed):.0f} % of "
        f"{entities} in {records} (95 % interval {100 * low:.0f} % to {100 * high:.0f} %)."
    )
