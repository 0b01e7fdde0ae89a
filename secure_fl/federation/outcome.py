"""What a finished federation hands over: its document, its models, and folders of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fl.algorithms.public_coins import round_up
from secure_fl.crypto.privacy.noise_ledger import NoiseLedger
from secure_fl.crypto.privacy.noise_ledger import document as noise_document
from secure_fl.crypto.privacy.training_account import document as privacy_document
from secure_fl.crypto.sealing.blind_sum import MASKED
from secure_fl.federation.result import Result
from secure_fl.federation.run_feature import run_features
from secure_fl.federation.validation import statement, statement_of_some, unshared
from secure_fl.learning.site import Site
from secure_fl.learning.tasks import Task
from secure_fl.party.hooks import RoundHook
from secure_fl.runs.result_document import SCHEMA, crossed, machine, summarise, to_use, versions
from secure_fl.thresholds import CollusionBound, collusion_bound

if TYPE_CHECKING:
    from secure_fl.coordinator.sum_steps import CoordinatorRules
    from secure_fl.federation.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Outline:
    """What a result says of a run beside what its sites measured."""

    spec: RunSpec
    rules: CoordinatorRules
    tasks: Mapping[str, Task]
    parties: tuple[str, ...]  # whose results these are
    members: int  # that sums are over, the host not counted
    local_heads: bool = False
    whole: bool = False  # these are the results of all parties, in one process
    roster: str = ""  # its fingerprint; empty: there is none in one process


def document_of(
    run: Outline,
    sites: Sequence[Site],
    seconds: Mapping[str, Any],
    accounts: Mapping[str, NoiseLedger],
    bytes_before: Mapping[str, Any] | None = None,
    *,
    hooks: Sequence[RoundHook] = (),
) -> dict[str, Any]:
    """What result.json holds. `bytes_before`: those of sessions that this one goes on from."""
    recorders = [site.recorder for site in sites]
    task = next(iter(run.tasks.values()))
    noise = run.spec.protection.noise
    dp = run.spec.training.dp
    releasing = {name: found for name, found in accounts.items() if name != run.rules.host}
    metrics = summarise(recorders, task.metric, task.pooled if run.whole else None, task)
    # Where a run waits for better scores, its models are those of the best round.
    delivered = metrics.get("last" if run.spec.training.patience is None else "best", {})
    spending = {site.name: site.privacy for site in sites if site.privacy is not None}
    return {
        "schema": SCHEMA,
        "status": "finished",
        "algorithm": run.spec.algorithm.name,
        "algorithm_settings": run.spec.algorithm.model_dump(mode="json"),
        "protection": protection_of(run),
        "privacy": privacy_document(dp, spending) if dp else None,
        "noise": noise_document(noise, releasing) if noise else None,
        **{feature.section: None for feature in run_features() if feature.section},
        **{title: part for hook in hooks for title, part in hook.report().items()},
        "task": run.spec.task.model_dump(mode="json"),
        "model": run.spec.model.model_dump(mode="json"),
        "parties": list(run.parties),
        "records": records_of(sites) if run.whole else None,
        "roster": run.roster or None,
        "seed": run.spec.seed,
        "rounds": run.spec.algorithm.rounds,
        "main_metric": task.metric,
        "local_heads": run.local_heads,
        "metrics": metrics,
        "use": to_use(sites[0].delivered, delivered, task.metric),
        "history": [{"party": r.party} | entry for r in recorders for entry in r.history],
        "model_round": delivered.get("round"),
        "values": _values(sites),
        "bytes": crossed(recorders, bytes_before),
        "seconds": seconds,
        "versions": dict(versions()),
        "machine": dict(machine()),
    }


def _values(sites: Sequence[Site]) -> int | None:
    """How many values a party trained in its largest model: what plain FedAvg would send."""
    counts = [
        sum(p.numel() for p in delivery.model.parameters() if p.requires_grad)
        for site in sites
        for delivery in site.delivered.values()
    ]
    return max(counts, default=None)


def records_of(sites: Sequence[Site]) -> dict[str, int]:
    """How many records all parties have together, in each split."""
    silos = [site.silo for site in sites]
    return {name: sum(len(getattr(s, name)) for s in silos) for name in ("train", "dev", "test")}


def protection_of(run: Outline) -> dict[str, Any]:
    """Against whom the run was protected, in figures and in a sentence."""
    parties = run.members
    bound = collusion_bound(parties, run.rules.threshold)
    mode, some = run.spec.protection.mode, run.spec.entry.partial_sums
    honest, lying, of_drawn = among_drawn(run, parties, bound)
    masked = run_features() if mode in MASKED else ()
    said = [
        unshared(run.spec.entry) or statement(mode, bound.sentence()),
        statement_of_some(mode, run.rules.min_cohort) if some else "",
        of_drawn if mode in MASKED else "",
        *(feature.statement(run.spec, run.rules, parties) for feature in masked),
        run.spec.algorithm.caveat,
    ]
    return run.spec.protection.model_dump(mode="json") | {
        "parties": parties,
        "threshold": run.rules.threshold,
        "collusion_bound": {
            "honest_coordinator": honest,
            "lying_coordinator": lying,
        },
        "statement": " ".join(filter(None, said)),
    }


def among_drawn(run: Outline, parties: int, bound: CollusionBound) -> tuple[int, int, str]:
    """The bound where a round's sums are over some that are drawn, and what else draws tell.

    All know who is drawn, and that the others add zeros: colluders need only the drawn ones' parts.
    """
    share = run.spec.algorithm.demands(run.spec.training, 0).drawn
    spare = parties - run.rules.threshold
    drawn = min(parties, max(round_up(share * parties), run.rules.min_cohort + spare))
    honest, lying = min(bound.honest, drawn - 2), min(bound.lying, drawn - spare - 2)
    if drawn == parties:
        return bound.honest, bound.lying, ""
    said = (
        f"In each round {drawn} of the {parties} parties are drawn, and the others add nothing: "
        f"sums over the drawn ones hold against {honest} colluders, and against {lying} if the "
        "coordinator lies about who dropped out."
    )
    return honest, lying, said


def deliver(sites: Sequence[Site], document: Mapping[str, Any]) -> Result:
    """The result: one shared model of each name, and each party's own beside them."""
    models: dict[str, Any] = {}
    tokenizers: dict[str, Any] = {}
    tasks: dict[str, Task] = {}
    for site in sites:
        for name, delivery in site.delivered.items():
            key = name if delivery.shared else f"{site.name}/{name}"
            models.setdefault(key, delivery.model)
            tokenizers.setdefault(key, site.tokenizer)
            tasks.setdefault(key, site.task)
    return Result(document, models, tasks, tokenizers)


def export_to(run: Path, sites: Sequence[Site]) -> None:
    """Write every model once: the shared ones, and each party's own into its folder."""
    from secure_fl.learning.exporting import export
    from secure_fl.learning.models import model_parts

    shared: set[str] = set()
    for site in sites:
        for name, delivery in site.delivered.items():
            if delivery.shared and name in shared:
                continue
            shared |= {name} if delivery.shared else set()
            folder = run / name if delivery.shared else run / "parties" / site.name / name
            export(delivery.model, site.tokenizer, folder, site.task)
            if site.model_settings.adapter is not None and site.model_settings.adapter.merge:
                export(
                    model_parts()["adapter"].merged(delivery.model),
                    site.tokenizer,
                    folder / "merged",
                    site.task,
                )
