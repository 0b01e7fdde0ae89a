"""Ask hospitals in one process: their sessions, a coordinator that is blind, sealed sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secure_fl.capture.capture import Capture, NoCapture
from secure_fl.coordinator.assembly import lead_run
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.errors import SecureFLError, SettingsError
from secure_fl.events import EventLog, Listener
from secure_fl.federation.assembly import COORDINATOR, PartyContext, connect, join_run
from secure_fl.federation.keys import make_keys
from secure_fl.learning.dp.scope import open_ledger
from secure_fl.party.cohort import Cohort
from secure_fl.party.session import LocalEngine, Program
from secure_fl.settings import ProtectionSettings
from secure_fl.statistics import exact
from secure_fl.statistics.answers import Answer
from secure_fl.statistics.noise import NoiseBudget, unit_of
from secure_fl.statistics.note import NOTE, Note
from secure_fl.statistics.program import answer
from secure_fl.statistics.questions import Question, load
from secure_fl.statistics.rules import StatisticsRules
from secure_fl.statistics.site import StatisticsSite
from secure_fl.statistics.tables import tables_from
from secure_fl.thresholds import default_threshold


class Asked(list[Answer]):
    """Answers in the order of the questions, and why sites refused: theirs alone to know."""

    def __init__(self, sites: Sequence[StatisticsSite]) -> None:
        super().__init__(sites[0].answers)
        self.refusals = {
            (site.name, question): error
            for site in sites
            for question, error in site.refusals.items()
        }


def ask(
    questions: Sequence[Question] | str | Path,
    hospitals: Mapping[str, Any] | Sequence[Any],
    *,
    rules: StatisticsRules | Mapping[str, StatisticsRules] | None = None,
    protection: ProtectionSettings | None = None,
    notes: Path | str | None = None,
    listener: Listener | None = None,
) -> Asked:
    """Ask about the tables (frames, `datasets`, silos) of these hospitals, all in this process.

    `questions`: a file, or what `questions.load` gives. `rules`: all hospitals', or each one's;
    None: the defaults. `notes`: where each keeps what was opened, and its ledger; None: nowhere,
    so that answers are held against each other in this call only.
    """
    if isinstance(questions, str | Path):
        questions = load(questions)
    tables = tables_from(hospitals)
    own = rules if isinstance(rules, Mapping) else dict.fromkeys(tables, rules)
    place = None if notes is None else Path(notes)
    sites = [
        _site(name, table, own.get(name) or StatisticsRules(), place)
        for name, table in sorted(tables.items())
    ]
    run(sites, questions, protection or ProtectionSettings(), listener)
    return Asked(sites)


def run(
    sites: Sequence[StatisticsSite],
    questions: Sequence[Question],
    protection: ProtectionSettings,
    listener: Listener | None = None,
    capture: Capture | None = None,
) -> None:
    """Ask these sites the questions; `capture` records views for an audit."""
    capture = capture or NoCapture()
    sealed = exact.sealed(protection)
    names = [site.name for site in sites]
    if len(names) < sealed.min_cohort:
        raise SettingsError(
            f"{len(names)} hospitals are fewer than min_cohort = {sealed.min_cohort}",
            fix="ask more hospitals: a sum over one hospital IS that hospital",
            field="protection.min_cohort",
        )
    rules = CoordinatorRules(
        None, sealed.min_cohort, sealed.threshold or default_threshold(len(names))
    )
    keys = make_keys(sealed.mode, names, None)
    wires = connect(keys)
    capture.begin(sealed.mode, None, tuple(names), wires.run)
    sessions = {
        site.name: join_run(
            _program(site, questions),
            PartyContext(
                keys[site.name],
                wires.parties[site.name],
                rules,
                sealed,
                recorder=EventLog(site.name, listener),
                capture=capture,
            ),
        )
        for site in sites
    }
    log = EventLog(COORDINATOR, listener)
    try:
        engine = capture.engine(LocalEngine(sessions))
        lead_run(wires.coordinator, engine, rules, sealed, recorder=log).run()
    except SecureFLError as error:  # on one machine, errors that a site would only log
        own = sessions.get(str(error.where.get("party", "")))
        if own is not None and own.error is not None and not own.stopped:
            raise own.error from own.error.__cause__
        raise


def _program(site: StatisticsSite, questions: Sequence[Question]) -> Program:
    async def program(cohort: Cohort) -> None:
        await answer(cohort, site, questions)

    return program


def _site(name: str, table: Any, rules: StatisticsRules, place: Path | None) -> StatisticsSite:
    if place is None:
        return StatisticsSite(name, table, rules)
    own = place / name
    budget = NoiseBudget(name, unit_of(table), open_ledger(own, name))
    return StatisticsSite(name, table, rules, Note(own / NOTE), budget)
