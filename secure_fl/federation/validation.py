"""Checks of the members, labels and settings of a federation before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from secure_fl.algorithms.registry import Entry
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.crypto.privacy.shared_planning import SharedPlan
from secure_fl.data.examples import HOW, first_unlabelled
from secure_fl.data.rows import named, shown
from secure_fl.data.silo import Silo
from secure_fl.data.splits import PARTS
from secure_fl.display.figures import counted
from secure_fl.errors import DataError, SettingsError, TooFewParties
from secure_fl.features import places
from secure_fl.federation.run_feature import rounds_of, run_features
from secure_fl.federation.run_spec import RunSpec
from secure_fl.learning.dp.scope import (
    dropouts_of,
    require_noise_sources,
    require_predictions,
    require_private,
    require_shared,
    sampling_units,
)
from secure_fl.learning.tasks import Task, labels_of, make_task
from secure_fl.settings import LABELLED, ModelSettings, ProtectionSettings, TaskSettings
from secure_fl.thresholds import default_threshold, require_maskable


def check_spec(spec: RunSpec) -> None:
    """Refuse settings that contradict each other, or that would only seem to protect."""
    name, entry = spec.algorithm.name, spec.entry
    if unknown := spec.sections.keys() - places("settings").keys():
        what = f"this installation has no feature for [{min(unknown)}]"
        fix = "remove the section, or install a version with the feature"
        raise SettingsError(what, fix=fix, field=min(unknown))
    if spec.training.dp is not None and not entry.trains_nothing:
        why = entry.without_dp
        require_private(spec.task.kind, name, through_fit=entry.dp_covers_all, why=why)
        if spec.training.dp.noise == "shared":
            steps = spec.algorithm.step_rate is not None
            require_shared(name, spec.protection.mode, steps=steps)
    if spec.protection.noise is not None:
        require_predictions(name, noised=entry.opens_predictions)
    spec.algorithm.check_task(spec.task, spec.training)
    check_model(spec, spec.model)
    for feature in run_features():
        feature.check(spec)
    if spec.training.patience is not None and not any(f.stops_early(spec) for f in run_features()):
        raise SettingsError(
            "a run can wait for a better score only if it sums the scores of all hospitals: "
            "not with a host, with noise on predictions, or if the algorithm sums nothing",
            fix="remove training.patience, and set training.pooled_scores = true if it is not",
            field="training.patience",
        )


def check_model(spec: RunSpec, model: ModelSettings) -> None:
    """Refuse a party's model that the algorithm or a feature of the run cannot work with."""
    spec.algorithm.check_model(model, spec.model)
    for feature in run_features():
        feature.check_model(spec, model)


def check_members(
    spec: RunSpec,
    tiers: Mapping[str, str | None],
    rules: CoordinatorRules,
    *,
    resumed: bool = False,
) -> None:
    """Refuse parties that are too few for the run's noise, its tiers or a feature.

    `tiers`: the tier of each party but the host; None: by its name.
    """
    dp, parties = spec.training.dp, len(tiers)
    spec.algorithm.check_tiers(tiers, spec.model, rules.min_cohort)
    if dp is not None and dp.noise == "shared":
        require_noise_sources(dp, parties, rules.threshold, resumed=resumed)
    for feature in run_features():
        feature.check_members(spec, parties, rules.min_cohort)


def noise_plan(
    spec: RunSpec, hospitals: int, units: int, threshold: int, *, resumed: bool = False
) -> SharedPlan:
    """Make the plan of steps with shared noise; refuse settings without enough noise."""
    dp, algorithm, rate = spec.training.dp, spec.algorithm, spec.algorithm.step_rate
    assert dp is not None  # noqa: S101 - checked by the caller
    require_shared(algorithm.name, spec.protection.mode, steps=rate is not None)
    require_noise_sources(dp, hospitals, threshold, resumed=resumed)
    return SharedPlan(
        dp,
        hospitals=hospitals,
        dropouts=dropouts_of(dp, hospitals, threshold),
        units=units,
        rate=rate or 1.0,
        steps=rounds_of(spec),
        probe=algorithm.name == "probe",
    )


def noise_warning(spec: RunSpec, silo: Silo, hospitals: int, threshold: int) -> str | None:
    """Describe shared noise that is too large, as far as one hospital of a pilot can know it."""
    dp = spec.training.dp
    if dp is None or dp.noise != "shared" or silo.role == "host" or spec.entry.trains_nothing:
        return None
    units = len(sampling_units(silo.train, dp, silo.name))
    plan = noise_plan(spec, hospitals, hospitals * units, threshold, resumed=True)
    text = plan.warning()
    return text and f"if each hospital has {units} {dp.unit}s, as this one has: {text}"


def statement(mode: str, sentence: str) -> str:
    """Describe the protection of a mode; `sentence` describes the collusion bound."""
    if mode == "none":
        return "UNPROTECTED: the coordinator can read every update."
    return sentence


def unshared(entry: Entry) -> str:
    """Describe an algorithm that forms no sums; return "" for the others."""
    if entry.pools_data:
        return "All records are in one place, and nothing is protected."
    return "Nothing is shared, and no sum is formed." if entry.sums_nothing else ""


def statement_of_some(mode: str, min_cohort: int) -> str:
    """Describe the weaker protection of partial sums, whose contributors are not proved."""
    if mode not in ("secagg", "he+secagg"):
        return ""
    return (
        f"Sums over some of the hospitals only (tiers) hold against {max(0, min_cohort - 2)} of "
        f"them if the coordinator lies about who contributes; what fewer than {min_cohort} of one "
        "tier sum with other tiers holds against none."
    )


def pooled(silos: Sequence[Silo]) -> Silo:
    """Pool the training records of all silos in one; it is a host if one of them is."""
    everything = tuple(example for silo in silos for example in silo.train)
    first = next((silo for silo in silos if silo.role == "host"), silos[0])
    return replace(first, name="all-records", train=everything, dev=(), test=())


def require_trainable(silos: Sequence[Silo], entry: Entry) -> None:
    """Refuse a hospital without training records, if the algorithm trains."""
    for silo in silos:
        if silo.table is None and not silo.train and not entry.trains_nothing:
            what = "the training split is empty"
            fix = "give training records; with test records alone it can be evaluated"
            raise DataError(what, fix=fix, party=silo.name, field="train")


def require_silos(silos: object) -> None:
    """Refuse anything but a list of hospitals."""
    listed = silos if isinstance(silos, list | tuple) else ()
    odd = next((silo for silo in listed if not isinstance(silo, Silo)), None)
    if odd is None and isinstance(silos, list | tuple):
        return
    what = f"found {type(silos if odd is None else odd).__name__} instead of hospitals"
    fix = "give a list of Silo(name, train, dev, test), or of Silo.from_pandas(...)"
    raise SettingsError(what, fix=fix, field="silos")


def rules_of(
    silos: Sequence[Silo], protection: ProtectionSettings, entry: Entry
) -> CoordinatorRules:
    """Return host, smallest cohort and threshold, or raise if these parties cannot federate."""
    names = [silo.name for silo in silos]
    if len(set(names)) != len(names):
        raise SettingsError(
            f"two parties have the same name: {sorted(names)}", fix="give each another name"
        )
    host = _host_of(silos, entry)
    parties = len(silos) - (host is not None)
    if parties < protection.min_cohort and not entry.sums_nothing:
        raise TooFewParties(
            f"{counted(parties, 'hospital')} can never form a sum over "
            f"min_cohort = {protection.min_cohort}",
            fix="add hospitals, or set protection.min_cohort lower knowingly: in a sum over two, "
            "each sees the other's update",
        )
    if protection.mode != "none":
        require_maskable(parties)
    threshold = protection.threshold or default_threshold(parties)
    if not parties / 2 < threshold <= parties:
        raise SettingsError(
            f"a threshold of {threshold} does not fit {parties} parties",
            fix=f"take {parties // 2 + 1} to {parties}: with half or fewer, a coordinator that "
            "lies about dropouts could unmask everybody",
            field="protection.threshold",
        )
    return CoordinatorRules(None if host is None else host.name, protection.min_cohort, threshold)


def _host_of(silos: Sequence[Silo], entry: Entry) -> Silo | None:
    """Return the host if the algorithm has one; check its labels and the public records."""
    hosts = [silo for silo in silos if silo.role == "host"]
    if len(hosts) > 1:
        names = ", ".join(host.name for host in hosts)
        raise SettingsError(f"there can be one host, not {len(hosts)} ({names})")
    if not entry.has_host:
        if hosts:
            what = f"{hosts[0].name} is a host, and this algorithm has none"
            fix = 'give it the role "party"'
            raise SettingsError(what, fix=fix, field="role")
        return None
    if not hosts:
        raise SettingsError(
            "this algorithm needs a host: a member with labelled records and the central model",
            fix='in Python, add Silo(..., role="host", public=...); in a settings file, give one '
            '[[data.party]] role = "host"; or with a corpus, public = 240 and labelled = 60; or '
            "with a source, public = 0.5 and labelled = 0.1",
            field="data",
        )
    _check_public(silos)
    _check_labels(hosts[0])
    return hosts[0]


def require_ready(silo: Silo, entry: Entry, settings: TaskSettings) -> None:
    """Refuse records or settings that one site alone can recognise as unfit."""
    labelled = settings.kind in LABELLED and not entry.records
    if settings.labels is None and labelled:
        what = "a plan must declare all labels, because no hospital sees the records of the others"
        fix = "list them in task.labels of the plan"
        raise SettingsError(what, fix=fix, field="task.labels")
    require_trainable([silo], entry)
    if entry.pools_data:
        raise SettingsError(
            "this algorithm puts all records in one place", fix="choose another algorithm"
        )
    if entry.has_host:
        _check_public([silo])
    if silo.role == "host":
        _check_labels(silo)


def _check_public(silos: Sequence[Silo]) -> None:
    lacking = [silo.name for silo in silos if not silo.public]
    if lacking:
        whose = f"with {', '.join(lacking)}" if len(lacking) < len(silos) else "anywhere"
        what = f"there are no public records {whose}, and this algorithm distils over them"
        fix = f"give all members the same: {HOW}"
        raise DataError(what, fix=fix, field="data.public")


def _check_labels(host: Silo) -> None:
    """Refuse a host's record without a label: it can neither train nor measure a model."""
    for split in ("train", "dev", "test"):
        row = first_unlabelled(getattr(host, split))
        if row is not None:
            what = "the label is missing, and a host needs all"
            fix = "label its records; records without labels belong to the public ones"
            raise DataError(what, fix=fix, party=host.name, split=split, record=row + 1)


def tasks_of(settings: TaskSettings, silos: Sequence[Silo], entry: Entry) -> dict[str, Task]:
    """Return each party's task, with one label set for all or with local heads.

    NER parties may have different label sets, because a corpus may not annotate some entity types.
    In other tasks a label that is missing at one hospital is still a class of the shared head.
    """
    if entry.records:  # no text has a label
        settings = TaskSettings(kind="completion")
        return {silo.name: make_task(settings) for silo in silos}
    may_differ = entry.own_labels and (entry.sums_nothing or settings.kind == "ner")
    if settings.declared is None and not may_differ:
        sets = {silo.name: labels_of(settings.kind, silo.train) for silo in silos}
        if len(set(sets.values())) > 1:
            every = set().union(*sets.values())
            lacking = "; ".join(
                f"{name} lacks {named([*map(shown, sorted(every - set(labels)))])}"
                for name, labels in sets.items()
                if set(labels) != every
            )
            fix = (
                "declare all labels in task.labels; only NER has local heads, in algorithms that "
                "allow them"
            )
            if len({tuple(sorted(map(_folded, labels))) for labels in sets.values()}) == 1:
                fix = "the labels differ by their spelling only: write them alike"
            raise DataError(
                f"the parties have different label sets, and this algorithm needs one: {lacking}",
                fix=fix,
                field="task.labels",
            )
    return {silo.name: make_task(settings, silo.train) for silo in silos}


def _folded(label: str) -> str:
    """Return a form that different spellings of a class share, such as Yes and yes."""
    text = label.lower().removesuffix(".0")
    return {"true": "1", "false": "0"}.get(text, text)


def require_labels(silos: Sequence[Silo], tasks: Mapping[str, Task]) -> None:
    """Refuse a record whose label is missing or is not the task's, before anything is computed."""
    for silo in silos:
        for split in PARTS:
            try:
                tasks[silo.name].check_labels(getattr(silo, split))
            except DataError as error:
                error.at(party=silo.name, split=split)
                raise


def local_heads(tasks: Mapping[str, Task]) -> bool:
    """Return true if the parties' label sets differ, so that each party keeps its own head."""
    return len({task.labels for task in tasks.values()}) > 1
