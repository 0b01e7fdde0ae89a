"""The outcome of a run: its result.json, its models, and their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secure_fl.algorithms.public_coins import round_up
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.privacy.noise_ledger import document as noise_document
from secure_fl.crypto.privacy.training_account import document as privacy_document
from secure_fl.events import OF_ONE_CLASS
from secure_fl.federation.prepared import Prepared
from secure_fl.federation.result import Result
from secure_fl.federation.run_feature import run_features
from secure_fl.federation.run_spec import RunSpec
from secure_fl.federation.validation import statement, statement_of_some, unshared
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.runs.result_document import SCHEMA, crossed, machine, summarise, to_use, versions
from secure_fl.thresholds import CollusionBound, collusion_bound


@dataclass(frozen=True, slots=True)
class ResultContext:
    """The facts of a result that its sites do not measure."""

    spec: RunSpec
    rules: CoordinatorRules
    tasks: Mapping[str, Task]
    parties: tuple[str, ...]  # whose results these are
    members: int  # number of parties in a sum, without the host
    local_heads: bool = False
    whole: bool = False  # these are the results of all parties, in one process
    roster: str = ""  # its fingerprint; empty in one process, which has no roster


def document_of(
    run: ResultContext,
    parties: Sequence[Prepared],
    seconds: Mapping[str, Any],
    bytes_before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the content of result.json. `bytes_before`: bytes of earlier sessions of the run."""
    sites, spec = [party.site for party in parties], run.spec
    return {
        "schema": SCHEMA,
        "status": "finished",
        "algorithm": spec.algorithm.name,
        "algorithm_settings": spec.algorithm.model_dump(mode="json"),
        **_protection(run, parties),
        "task": spec.task.model_dump(mode="json"),
        "model": spec.model.model_dump(mode="json"),
        "parties": list(run.parties),
        "records": _records(sites) if run.whole and not _noised(sites) else None,
        "roster": run.roster or None,
        "seed": spec.seed,
        "rounds": spec.algorithm.rounds,
        **_measurements(run, parties),
        "bytes": crossed([site.recorder for site in sites], bytes_before),
        "seconds": seconds,
        "versions": dict(versions()),
        "machine": dict(machine()),
    }


def _protection(run: ResultContext, parties: Sequence[Prepared]) -> dict[str, Any]:
    """Make the sections about protection, privacy budgets and optional features."""
    dp, noise = run.spec.training.dp, run.spec.protection.noise
    sites = [party.site for party in parties]
    spending = {p.site.name: p.site.privacy for p in parties if p.site.privacy is not None}
    releasing = {
        p.site.name: p.noise
        for p in parties
        if p.noise is not None and p.site.name != run.rules.host
    }
    return {
        "protection": protection_of(run),
        "differing_sums": parties[0].site.recorder.differences.pairs,
        "privacy": privacy_document(dp, spending) if dp else None,
        "noise": noise_document(noise, releasing) if noise else None,
        "serves": None,
        "answers": None,
        "stays": None,
        **{feature.section: None for feature in run_features() if feature.section},
        **{name: part for hook in parties[0].hooks for name, part in hook.report().items()},
        **{name: part for f in run_features() for name, part in f.report(run.spec, sites).items()},
    }


def _measurements(run: ResultContext, parties: Sequence[Prepared]) -> dict[str, Any]:
    """Make the sections about metrics and models."""
    sites = [party.site for party in parties]
    recorders, task = [site.recorder for site in sites], next(iter(run.tasks.values()))
    # A run that waits for a better score delivers the models of its best round.
    best = next((hook.delivers for hook in parties[0].hooks if hook.delivers is not None), None)
    pool = task.pooled if run.whole else None
    own = not (run.whole and _noised(sites))  # exact figures of single hospitals
    metrics = summarise(recorders, task.metric, pool, task, best=best, own=own)
    if len({one.scored_class for one in run.tasks.values()}) > 1:
        for scores in (one for found in metrics.values() for one in found["mean"].values()):
            for name in OF_ONE_CLASS:  # of different classes: they have no mean
                scores.pop(name, None)
    delivered = metrics.get("last" if best is None else "best", {})
    return {
        "main_metric": task.metric,
        "scored_class": task.scored_class,
        "probe": run.spec.training.probe_score,
        "local_heads": run.local_heads,
        "metrics": metrics,
        "use": to_use(sites[0].delivered, delivered, task.metric),
        "history": [
            {"party": r.party} | entry
            for r in recorders
            for entry in r.history
            if own or "pooled" in entry
        ],
        "model_round": delivered.get("round", best),
        "values": _values(sites),
        "layers": sites[0].findings.get("layers"),
    }


def _noised(sites: Sequence[Site]) -> bool:
    """Return true if scores are released with noise, so that nobody has exact ones."""
    return "noise" in sites[0].findings


def _values(sites: Sequence[Site]) -> int | None:
    """Count the trained values of a party's largest model, which plain FedAvg would send."""
    counts = [
        sum(p.numel() for p in delivery.model.parameters() if p.requires_grad)
        for site in sites
        for delivery in site.delivered.values()
    ]
    return max(counts, default=None)


def _records(sites: Sequence[Site]) -> dict[str, int]:
    """Count the records of all parties together, in each split."""
    silos = [site.silo for site in sites]
    return {name: sum(len(getattr(s, name)) for s in silos) for name in ("train", "dev", "test")}


def protection_of(run: ResultContext) -> dict[str, Any]:
    """Describe the protection of a run, in figures and in sentences."""
    parties, spec = run.members, run.spec
    bound = collusion_bound(parties, run.rules.threshold)
    mode, some = spec.protection.mode, spec.entry.partial_sums
    honest, lying, of_drawn = _among_drawn(run, parties, bound)
    sentences = [
        unshared(spec.entry) or statement(mode, bound.sentence()),
        statement_of_some(mode, run.rules.min_cohort) if some else "",
    ]
    if mode != "none":
        features = (feature.statement(spec, run.rules, parties) for feature in run_features())
        sentences += [of_drawn, *features]
    return spec.protection.model_dump(mode="json") | {
        "parties": parties,
        "threshold": run.rules.threshold,
        "collusion_bound": {"honest_coordinator": honest, "lying_coordinator": lying},
        "statement": " ".join(filter(None, [*sentences, spec.algorithm.caveat])),
    }


def _among_drawn(run: ResultContext, parties: int, bound: CollusionBound) -> tuple[int, int, str]:
    """Return the bounds and a sentence for an algorithm that draws parties in each round.

    All parties know the drawn ones, and that the others add zeros, so colluders need only the
    values of the drawn ones.
    """
    share = run.spec.algorithm.demands(run.spec.training, 0).drawn
    spare = parties - run.rules.threshold
    drawn = min(parties, max(round_up(share * parties), run.rules.min_cohort + spare))
    honest, lying = min(bound.honest, drawn - 2), min(bound.lying, drawn - spare - 2)
    if drawn == parties:
        return bound.honest, bound.lying, ""
    sentence = (
        f"In each round {drawn} of the {parties} parties are drawn, and the others add nothing: "
        f"sums over the drawn ones hold against {honest} colluders, and against {lying} if the "
        "coordinator lies about who dropped out."
    )
    return honest, lying, sentence


def deliver(sites: Sequence[Site], document: Mapping[str, Any]) -> Result:
    """Make the result: shared models once, and each party's own models under its name."""
    models: dict[str, Any] = {}
    tokenizers: dict[str, Any] = {}
    tasks: dict[str, Task] = {}
    for site in sites:
        for name, delivery in site.delivered.items():
            key = name if delivery.shared else f"{site.name}/{name}"
            models.setdefault(key, delivery.model)
            tokenizers.setdefault(key, site.tokenizer)
            tasks.setdefault(key, delivery.task or site.task)
    return Result(document, models, tasks, tokenizers)


def export_to(run: Path, sites: Sequence[Site]) -> None:
    """Write each model once: shared models, and each party's own models into its folder."""
    if not any(site.delivered for site in sites):
        return  # without the imports, which take seconds
    from secure_fl.learning.exporting import export
    from secure_fl.learning.models import model_parts

    shared: set[str] = set()
    for site in sites:
        for name, delivery in site.delivered.items():
            if delivery.shared and name in shared:
                continue
            shared |= {name} if delivery.shared else set()
            folder = run / name if delivery.shared else run / "parties" / site.name / name
            task = delivery.task or site.task
            export(delivery.model, site.tokenizer, folder, task)
            if site.model_settings.adapter is not None and site.model_settings.adapter.merge:
                merged = model_parts()["adapter"].merged(delivery.model)
                export(merged, site.tokenizer, folder / "merged", task)
