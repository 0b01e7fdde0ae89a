"""The party program of statistics, question by question.

1. All refuse or none: how many sites refuse, and for which reasons, is a sealed sum.
2. The cells are summed. Members see these sums, the coordinator does not.
3. The strictest site's rules decide, at every member alike, which blocks of cells may leave.
4. The atoms of this and all earlier answers are counted; a small one refuses the answer.
5. What may leave is noted, and then it is an answer. All prove that theirs is the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from secure_fl.party.cohort import Cohort
from secure_fl.statistics import answers, atoms, differences, rules
from secure_fl.statistics.answers import Answer, Sums
from secure_fl.statistics.atoms import Release
from secure_fl.statistics.columns import column, patients
from secure_fl.statistics.counting import Counted, selected
from secure_fl.statistics.exact import exact_sum
from secure_fl.statistics.noise import release_of, share
from secure_fl.statistics.questions import Duplicates, Question, Vocabulary, described
from secure_fl.statistics.site import REASONS, StatisticsSite
from secure_fl.statistics.suppression import WITHHELD, blocks

Integers = NDArray[np.int64]
ROWS = 3  # of a sketch that must tell records apart: (share of full buckets)³ are taken for others


def words_of(text: Any) -> Any:
    """Return the distinct lower-case words of all texts."""
    words = text.dropna().astype(str).str.lower().str.findall(r"\w+").explode()
    return words.dropna().drop_duplicates()


def records_of(text: Any) -> Any:
    """Return the distinct texts, ignoring case and spacing."""
    plain = text.dropna().astype(str).str.lower().str.split().str.join(" ")
    return plain[plain != ""]


def buckets_of(values: Any, count: int, key: bytes, row: int = 0) -> Integers:
    """Return the bucket of each value."""
    if not len(values):
        return np.zeros(0, np.int64)
    from hashlib import sha256

    own = sha256(key + bytes([row])).hexdigest()[:16]
    hashed = pd.util.hash_array(np.asarray(values, dtype=object), hash_key=own, categorize=False)
    return np.asarray(hashed % np.uint64(count), np.int64)


def bitmap(buckets: Integers, count: int) -> Integers:
    """1 where something is, 0 elsewhere."""
    return (np.bincount(buckets, minlength=count) > 0).astype(np.int64)


def distinct(total: NDArray[Any]) -> tuple[float, float]:
    """How many different values filled these buckets, and the standard error (linear counting).

    n = -m ln V, where V of the m buckets are empty (Whang et al., ACM TODS 15, 1990).
    """
    m, empty = total.size, int((total == 0).sum())
    if not empty:
        return math.inf, math.inf
    count = -m * math.log(empty / m)
    load = count / m
    return count, math.sqrt(m * max(math.exp(load) - load - 1, 0.0))


def elsewhere(own: Sequence[Integers], totals: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of a site's own records some other site holds: all of their buckets are of two."""
    held = [totals[row][buckets] > 1 for row, buckets in enumerate(own)]
    return np.asarray(np.logical_and.reduce(held))


LEFT = "a hospital left while it was asked"
TOO_FEW = "fewer than {} {} are behind it"
TOO_FINE = "too fine, with what was answered before, to see what it would tell: ask more coarsely"
DIFFERENCE = "with what was answered before, it would tell of fewer than {} {}"


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of all questions of a run, equal at all members."""

    least: int  # patients behind a number
    rounding: int
    unit: str
    records: int  # of one patient, at most
    key: bytes  # of sketches; the coordinator does not know it


async def answer(cohort: Cohort, site: StatisticsSite, questions: Sequence[Question]) -> None:
    """Answer all questions; `site.answers` holds what may leave."""
    await cohort.agree(described(questions).encode(), "what is asked")
    await cohort.agree(site.note.fingerprint(), "the note of what was answered before")
    terms = await _terms(cohort, site)
    for question in questions:
        site.answers.append(await _answer(cohort, site, question, terms))
    told = json.dumps([one.to_json() for one in site.answers], sort_keys=True)
    await cohort.agree(told.encode(), "the answers")


async def _terms(cohort: Cohort, site: StatisticsSite) -> Terms:
    own = np.frombuffer(os.urandom(16), np.uint8)
    whose = [site.unit == "patients", site.most_records]
    said = {"rules": rules.told(site.rules), "key": own, "whose": np.array(whose, np.int64)}
    told = await cohort.share(said)
    least, rounding = rules.strictest([one["rules"] for one in told.values()])
    parts = b"".join(told[name]["key"].astype(np.uint8).tobytes() for name in sorted(told))
    known = all(one["whose"][0] for one in told.values())
    records = max(int(one["whose"][1]) for one in told.values())
    key = hashlib.sha256(parts).digest()
    return Terms(least, rounding, "patients" if known else "records", records, key)


async def _answer(cohort: Cohort, site: StatisticsSite, question: Question, terms: Terms) -> Answer:
    hospitals = cohort.parties
    counted = site.counted(question, hospitals)
    refused = await exact_sum(cohort, {"refused": np.array(site.votes(question))}, planes=1)
    base = Answer(
        question.name,
        question.kind,
        "withheld",
        (TOO_FEW.format(terms.least, terms.unit),),
        hospitals=len(hospitals),
        unit=terms.unit,
        question=json.loads(question.model_dump_json()),
    )
    reasons = [
        text.format(int(votes))
        for votes, (_, text) in zip(refused["refused"], REASONS, strict=True)
        if votes
    ]
    if reasons or counted is None:
        return _refused(base, *reasons)
    if set(cohort.survivors) != set(hospitals):  # the note says that it was over all of them
        return _refused(base, LEFT)
    if question.epsilon is not None:
        return await _noised(cohort, question, counted, terms, base)
    opened = await exact_sum(cohort, counted.counts, planes=2, together=True)
    if opened and counted.moments.size:
        more = await exact_sum(cohort, {"moments": counted.moments}, together=True)
        opened = opened | more if more else {}
    if not opened:
        return _refused(base, LEFT)
    chosen = blocks(question, opened["patients"], terms.least)
    if (chosen == WITHHELD).all():
        return base
    found = await _sketch(cohort, site, question, terms)
    if found is None:
        return _refused(base, LEFT)
    release = Release(question, chosen, int(opened["patients"].sum()))
    if why := await _difference(cohort, site, release, terms):
        return _refused(base, why)
    site.note.release(release)
    whole = terms.rounding == 1 and not (chosen == WITHHELD).any()
    moments = opened["moments"] if whole and "moments" in opened else np.zeros(0, np.int64)
    sums = Sums(opened["records"], chosen, moments, terms.rounding)
    plain = _saying(base, _rules_said(sums, terms))
    if isinstance(question, Vocabulary):
        return answers.sketched(plain, sums, *distinct(found["words"]))
    if isinstance(question, Duplicates):
        few = 0 < found["twice"][0] < terms.least
        twice = None if few else sums.rounded(found["twice"][0])
        filled = np.mean([np.mean(row > 0) for row in found["records"]])
        chance = float(filled**ROWS) * int(opened["records"].sum())
        return answers.twice(base if few else plain, sums, twice, chance)
    return answers.answered(question, sums, plain)


async def _noised(
    cohort: Cohort, question: Question, counted: Counted, terms: Terms, base: Answer
) -> Answer:
    """One record of each patient, and noise of which every site adds its share."""
    release = release_of(question)
    noise = share(release, counted.records.size, len(cohort.parties), cohort.threshold)
    noised = {"records": counted.records + noise}
    opened = await exact_sum(cohort, noised, planes=2, together=True)
    if not opened:
        return _refused(base, LEFT)
    records = np.maximum(opened["records"], 0)
    chosen = np.where(records >= terms.least, np.arange(records.size), WITHHELD)
    sums = Sums(records, chosen, np.zeros(0, np.int64), terms.rounding, noised=True)
    said = (
        f"one record of each of the {terms.unit}, with noise of standard deviation "
        f"{release.mu**0.5:.3g} or more on each cell",
        f"ε = {question.epsilon:g} at δ = {question.delta:g} for each, in every hospital's ledger",
    )
    return answers.answered(question, sums, _saying(base, said))


async def _sketch(
    cohort: Cohort, site: StatisticsSite, question: Question, terms: Terms
) -> dict[str, Integers] | None:
    """Open the sums of a question's sketches; None: a party left."""
    if not isinstance(question, Vocabulary | Duplicates):
        return {}
    text = column(site.table, "text")[selected(question, site.written)]
    if isinstance(question, Vocabulary):
        buckets = buckets_of(words_of(text), question.buckets, terms.key)
        own = {"words": bitmap(buckets, question.buckets)}
        return await exact_sum(cohort, own, planes=1, together=True) or None
    records = records_of(text)
    rows = [buckets_of(records, question.buckets, terms.key, row) for row in range(ROWS)]
    maps = np.stack([bitmap(row, question.buckets) for row in rows])
    opened = await exact_sum(cohort, {"records": maps}, planes=1, together=True)
    if not opened:
        return None
    found = elsewhere(rows, opened["records"])
    twice = await exact_sum(cohort, {"twice": np.array([found.sum()])}, together=True)
    return opened | twice if twice else None


async def _difference(cohort: Cohort, site: StatisticsSite, release: Release, terms: Terms) -> str:
    """Explain why an answer, with earlier ones, describes too few patients; "": it does not."""
    if terms.least == 1:
        return ""  # no number of patients is too few
    releases = [*site.note.releases, release]
    places = [site.placed(one.question) for one in releases]
    own = atoms.summed(releases, places, patients(site.table))
    opened = await exact_sum(cohort, {"atoms": own}, together=True)
    if not opened:
        return LEFT
    found = atoms.opened(opened["atoms"], releases)
    if found is None:
        return TOO_FINE
    few = differences.tells_of_few(found, terms.least, records=terms.records)
    return DIFFERENCE.format(terms.least, terms.unit) if few else ""


def _rules_said(sums: Sums, terms: Terms) -> tuple[str, ...]:
    said = []
    if (sums.blocks == WITHHELD).any():
        said.append(f"cells of fewer than {terms.least} {terms.unit} are withheld together")
    if terms.rounding > 1:
        said.append(f"counts are multiples of {terms.rounding}")
    return tuple(said)


def _saying(base: Answer, said: tuple[str, ...]) -> Answer:
    return Answer(**{**vars(base), "said": said})


def _refused(base: Answer, *why: str) -> Answer:
    return Answer(**{**vars(base), "status": "refused", "said": why})
