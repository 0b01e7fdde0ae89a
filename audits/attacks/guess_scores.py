"""Choice of readings and scores of guesses, for all reconstruction attacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from secure_fl.audits.audit_statistics import clopper_pearson
from secure_fl.audits.findings import AuditFinding, Prior, Reading
from secure_fl.data.examples import Example
from secure_fl.learning.tasks.batches import packed

RECALL = "token recall"  # the measure with an interval, that of a rate


@dataclass(frozen=True, slots=True)
class GuessScore:
    """The score of one guess, and of a guess by chance."""

    value: float
    chance: float
    samples: int
    details: dict[str, Any]


def choose(
    readings: Iterable[Reading], prior: Prior, usable: Callable[[Reading], bool]
) -> tuple[Reading, ...]:
    """Choose usable readings of the earliest round: single parties, or else the smallest sum."""
    known = [r for r in readings if r.of and set(r.of) <= set(prior.truth) and usable(r)]
    if not known:
        return ()
    first = min(reading.round for reading in known)
    early = sorted((r for r in known if r.round == first), key=lambda r: (len(r.of), r.of))
    singles = {r.of: r for r in reversed(early) if len(r.of) == 1}
    return tuple(singles[of] for of in sorted(singles)) or (early[0],)


def target_of(readings: Sequence[Reading]) -> str:
    """Name the owners of readings."""
    if len(readings) != 1:
        return f"{len(readings)} hospitals, each separately"
    of = readings[0].of
    return of[0] if len(of) == 1 else f"the sum of {len(of)}"


def records_of(reading: Reading, prior: Prior) -> tuple[Example, ...]:
    """Collect the records behind a reading, for scoring only."""
    return tuple(record for party in reading.of for record in prior.truth[party].records)


def sequences(records: Sequence[Example], prior: Prior) -> list[tuple[int, ...]]:
    """Encode each record (ranking: each title; long texts: each window) to token ids.

    A completion is as private as its prompt.
    """
    if not records:
        return []
    labelled = prior.task.kind == "completion"
    encoded = prior.task.encode(records, prior.tokenizer, labelled=labelled)
    batch = packed(encoded.batch(range(len(encoded))))
    lengths = batch["attention_mask"].sum(-1).tolist()
    rows = zip(batch["input_ids"].tolist(), lengths, strict=True)
    return [tuple(row[:length]) for row, length in rows]


def specials(prior: Prior) -> frozenset[int]:
    """List the ids of special tokens, which are neither guessed nor scored."""
    return frozenset(prior.tokenizer.all_special_ids)


def tokens(records: Sequence[Example], prior: Prior) -> frozenset[int]:
    """Collect the distinct tokens of records, without specials."""
    return frozenset(t for row in sequences(records, prior) for t in row) - specials(prior)


def halfway(chance: float) -> float:
    """Compute the threshold of these attacks: halfway from guessing to a perfect score."""
    return (1 + chance) / 2


def f1(precision: float, recall: float) -> float:
    """Compute the harmonic mean; 0 if nothing was hit."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def set_scores(guess: AbstractSet[int], truth: AbstractSet[int]) -> tuple[float, float]:
    """Compute precision and recall of a guessed set."""
    hits = len(guess & truth)
    return hits / max(1, len(guess)), hits / max(1, len(truth))


def frequent(prior: Prior, count: int) -> frozenset[int]:
    """List the most frequent words of public records: the best guess of this size by chance."""
    rows, banned = sequences(prior.outsiders, prior), specials(prior)
    seen = Counter(token for row in rows for token in row if token not in banned)
    ranked = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    return frozenset(token for token, _ in ranked[:count])


def rouge(guess: Sequence[int], truth: Sequence[int], n: int) -> float:
    """Compute ROUGE-n as F1 of n-grams (Lin: ROUGE, Text Summarization Branches Out, 2004)."""
    grams = [[tuple(row[at : at + n]) for at in range(len(row) - n + 1)] for row in (guess, truth)]
    hits = sum((Counter(grams[0]) & Counter(grams[1])).values())
    return f1(*(hits / max(1, len(rows)) for rows in grams))


def best_rouge(guesses: Sequence[Sequence[int]], truths: Sequence[Sequence[int]], n: int) -> float:
    """Compute the mean over true texts of the best guess's ROUGE-n."""
    if not truths:
        return 0.0
    return fmean(max((rouge(one, truth, n) for one in guesses), default=0.0) for truth in truths)


def finding(
    attack: str,
    role: str,
    measure: str,
    chosen: Sequence[Reading],
    scores: Sequence[GuessScore],
    note: str = "",
) -> AuditFinding:
    """Make one finding from the scores of readings: means, and sums of counts."""
    chance = fmean(score.chance for score in scores)
    samples = sum(score.samples for score in scores)
    details = _merged_details([score.details for score in scores])
    interval = None
    if "hits" in details and samples:
        interval = clopper_pearson(details["hits"], samples)
        details["recall_interval"] = list(interval)  # of all tokens in one pool
    return AuditFinding(
        attack=attack,
        role=role,
        target=target_of(chosen),
        measure=measure,
        value=fmean(score.value for score in scores),
        chance=chance,
        threshold=halfway(chance),
        samples=samples,
        interval=interval if measure == RECALL and len(scores) == 1 else None,
        evidence=tuple(dict.fromkeys(e for reading in chosen for e in reading.evidence)),
        details=details | {"round": chosen[0].round, "readings": len(chosen)},
        note=note,
    )  # fmt: skip


def nothing(attack: str, role: str, measure: str, note: str) -> AuditFinding:
    """Make a finding without a value: there was nothing to work on."""
    return AuditFinding(
        attack=attack, role=role, target="nobody", measure=measure, value=None, chance=0.0,
        threshold=halfway(0.0), samples=0, note=note,
    )  # fmt: skip


def _merged_details(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in details for name in one)
    return {name: _merged([one[name] for one in details if name in one]) for name in names}


def _merged(values: Sequence[Any]) -> Any:
    """Add up counts, average other figures, and list what is no number."""
    if all(isinstance(value, Mapping) for value in values):
        return _merged_details(values)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return sum(values)
    if all(isinstance(value, float) for value in values):
        return fmean(values)
    return list(values) if len(values) > 1 else values[0]
