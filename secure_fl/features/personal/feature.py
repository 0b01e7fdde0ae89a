"""Personal models as a feature: training, comparison and votes, and a site's policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from secure_fl.errors import SettingsError, TrainingError
from secure_fl.events import ExtensionEvent, Warned, metric_name
from secure_fl.features.personal.settings import PersonalSettings
from secure_fl.federation.run_feature import RunFeature, SiteLimits
from secure_fl.federation.run_spec import RunSpec
from secure_fl.learning.scores import SPLITS
from secure_fl.policy.site_rules import SiteRules
from secure_fl.policy.violations import Violation, at_most
from secure_fl.seeds import seed_for
from secure_fl.settings import AdapterSettings, ModelSettings, Section

if TYPE_CHECKING:
    from torch import nn

    from secure_fl.features.personal.answers import Answers
    from secure_fl.features.personal.comparison import Vote
    from secure_fl.learning.site import Site
    from secure_fl.party.cohort import Cohort
    from secure_fl.policy.plan import Plan

SHARED, PERSONAL, ALONE = "model", "personal", "alone"  # names of delivered models
NAMES = {SHARED: "shared", PERSONAL: "personal", ALONE: "trained alone"}  # in sentences
FINDING = "personal"
OF_DP = "DP-SGD does not cover the models that the votes are about"
NOT_COUNTED = "a hospital left before the votes were summed, or a ballot was false"
NO_DEV = "this hospital has no dev records: it compares nothing, and has no vote"


class HospitalsCompared(ExtensionEvent, frozen=True, tag="personal"):
    """The votes of all hospitals on the served model, or the reason why there are none."""

    LEVEL: ClassVar[int] = logging.INFO

    votes: dict[str, int] | None


class ModelChosen(ExtensionEvent, frozen=True, tag="personal_choice"):
    """The model that this hospital serves; `text` is empty, since each hospital writes another."""

    LEVEL: ClassVar[int] = logging.INFO

    reason: str

    def sentence(self) -> str:
        """Give the reason."""
        return self.reason


class PersonalFeature(RunFeature):
    """The personal models of a run that has a [personal] section."""

    section = "personal"

    def check(self, spec: RunSpec) -> None:
        """Refuse algorithms and tasks that the feature does not fit."""
        cfg, entry = settings_of(spec), spec.entry
        if cfg is None:
            return
        if not entry.own_labels or entry.sums_nothing or entry.partial_sums:
            raise SettingsError(
                f"[personal] does not work with {spec.algorithm.name}: it needs one shared model "
                "of which hospitals can keep parts",
                fix="remove [personal], or use fedavg, fedadam or fedkd",
                field="personal",
            )
        require_curves(spec, cfg)

    def hook(self, spec: RunSpec, site: Site, limits: SiteLimits) -> None:
        """Warn before the first round if this hospital has nothing to compare models on."""
        if settings_of(spec) is not None and not site.silo.dev:
            fix = "give it dev records, or it serves the shared model"
            site.recorder.event(Warned(code="no dev records", text=f"{NO_DEV}. Fix: {fix}"))

    async def after_rounds(self, spec: RunSpec, cohort: Cohort, site: Site) -> None:
        """Train this hospital's own models, compare them, and vote."""
        cfg = settings_of(spec)
        if cfg is None:
            return
        own = Comparison(problem=None if site.silo.dev else NO_DEV)
        if site.silo.dev:
            models, own.problem = candidates(site, spec, cfg)
            own.measure(site, models, spec.seed)
            own.vote = "undecided" if cfg.alone and own.vote is None else own.vote
        site.recorder.event(ModelChosen(reason=own.reason(site)))
        found = await together(cohort, site, spec, cfg, own)
        site.findings[FINDING] = found | {"own": own.document(site)}

    def report(self, spec: RunSpec, sites: Sequence[Site]) -> Mapping[str, Any]:
        """Return the votes, each hospital's comparison, and the folders of the served models."""
        from secure_fl.features.personal.answers import options_of

        cfg = settings_of(spec)
        found = {site.name: dict(site.findings.get(FINDING, {})) for site in sites}
        if cfg is None or not all(found.values()):
            return {}
        party = {name: one.pop("own") for name, one in found.items()}
        section = {"settings": cfg.model_dump(mode="json"), **found[sites[0].name], "party": party}
        return {
            self.section: section,
            "serves": {
                site.name: use if site.delivered[use].shared else f"parties/{site.name}/{use}"
                for site in sites
                for use in [party[site.name]["use"]]
            },
            "answers": {n: options_of(one) for n, one in party.items()} if cfg.curves else None,
            "stays": [PERSONAL, ALONE] if spec.training.dp is not None else None,
        }


def require_curves(spec: RunSpec, cfg: PersonalSettings) -> None:
    """Refuse temperatures and thresholds for a task or a protection that they do not fit."""
    names = [name for name in ("coverage", "calibrate") if getattr(cfg, name)]
    if not names:
        return
    given = " and ".join(f"personal.{name}" for name in names)
    from secure_fl.features.personal.curves import KINDS

    if spec.task.kind not in KINDS:
        raise SettingsError(
            f"temperatures and thresholds are for {', '.join(KINDS)}, and this task is "
            f"{spec.task.kind}",
            fix=f"remove {given}",
            field=f"personal.{names[0]}",
        )
    if spec.training.dp is not None:
        raise SettingsError(
            "temperatures and thresholds come from sums over dev records without noise, and this "
            "run is under DP-SGD",
            fix=f"remove {given}, or training.dp",
            field=f"personal.{names[0]}",
        )


def settings_of(spec: RunSpec) -> PersonalSettings | None:
    """Return the [personal] section of a run, if it has one."""
    section = spec.sections.get("personal")
    return section if isinstance(section, PersonalSettings) else None


def candidates(
    site: Site, spec: RunSpec, cfg: PersonalSettings
) -> tuple[dict[str, nn.Module], str | None]:
    """Train this hospital's own models; return them after the model of the run.

    A model that diverges is missing, and the second value says so: the run is paid for.
    """
    from secure_fl.features.personal.candidates import alone_model, personal_model

    shared = site.delivered[SHARED].model
    models, problems = {SHARED: shared}, list[str]()
    trainings: dict[str, Callable[[], nn.Module]] = {
        PERSONAL: lambda: personal_model(site, shared, cfg)
    }
    if cfg.alone:
        trainings[ALONE] = lambda: alone_model(site, spec, cfg)
    for name, train in trainings.items():
        try:
            with site.recorder.phase("train"):
                models[name] = train()
        except TrainingError as error:
            problems.append(f"the model {NAMES[name]!r} cannot be compared: {error.what}")
            continue
        site.deliver(models[name], name, shared=False)
    return models, "; ".join(problems) or None


@dataclass(slots=True)
class Comparison:
    """One hospital's comparison of its models."""

    use: str = SHARED
    served: str = SHARED  # the better one of the shared and the personal model
    vote: Vote | None = None
    problem: str | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # split -> model -> metric
    differences: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # by split
    answers: Answers | None = None

    def measure(self, site: Site, models: Mapping[str, nn.Module], seed: int) -> None:
        """Score all models, choose the one to serve, and compare it with training alone."""
        import numpy as np

        from secure_fl.features.personal.comparison import Difference, draws, resampled, vote_on

        for split in SPLITS:
            if not (records := getattr(site.silo, split)):
                continue
            drawn = draws(len(records), np.random.default_rng(seed_for(seed, site.name, split)))
            losses, rows = {}, {}
            for name, model in models.items():
                outcomes = site.outcomes(model, split)
                values = site.task.score(*outcomes)
                self.scores.setdefault(split, {})[name] = values[site.task.metric]
                losses[name] = values["loss"]
                rows[name] = site.task.rows(*outcomes)
            samples = dict(zip(rows, resampled(site.task, [*rows.values()], drawn), strict=True))
            if split == "dev":
                own = self.scores[split]
                self.use = self.served = max(
                    [name for name in (SHARED, PERSONAL) if name in models],
                    key=lambda name: (own[name], -losses[name]),
                )
            pairs = {
                "personal - shared": (PERSONAL, SHARED),
                "shared - alone": (SHARED, ALONE),
                "personal - alone": (PERSONAL, ALONE),
                "served - alone": (self.served, ALONE),
            }
            apart = {
                name: Difference.of(samples[a], samples[b])
                for name, (a, b) in pairs.items()
                if {a, b} <= models.keys()
            }
            self.differences[split] = {name: one.document() for name, one in apart.items()}
            if split == "dev" and ALONE in models:
                self.vote = vote_on(apart["served - alone"], len(records))
                self.use = ALONE if self.vote == "worse" else self.served

    def reason(self, site: Site) -> str:
        """Describe the choice in a sentence."""
        if not self.scores:
            return f"{self.problem}; it serves the shared model"
        dev = ", ".join(f"{NAMES[name]} {x:.4f}" for name, x in self.scores["dev"].items())
        metric = metric_name(site.task.metric, site.task.scored_class)
        served = f"this hospital serves the model {NAMES[self.use]!r}; dev {metric}: {dev}"
        return served if self.problem is None else f"{served}; {self.problem}"

    def document(self, site: Site) -> dict[str, Any]:
        """Return the comparison as result.json has it."""
        return {
            "use": self.use,
            "vote": self.vote,
            "problem": self.problem,
            "metric": site.task.metric,
            **{split: self.scores.get(split) for split in SPLITS},
            "differences": self.differences,
            "temperature": self.answers and self.answers.temperature,
            "threshold": self.answers and self.answers.threshold,
        }


async def together(
    cohort: Cohort, site: Site, spec: RunSpec, cfg: PersonalSettings, own: Comparison
) -> dict[str, Any]:
    """Form the sums of all hospitals: the votes and the risk curves."""
    from secure_fl.features.personal.comparison import count_votes, sentence, voters_of

    found: dict[str, Any] = dict.fromkeys(("votes", "no_votes", "temperatures", "thresholds"))
    if spec.training.dp is not None:
        found["no_votes"] = OF_DP
    elif cfg.alone or cfg.curves:
        voters = await voters_of(cohort, bool(site.silo.dev))
        if voters < cohort.min_cohort:
            found["no_votes"] = (
                f"{voters} hospitals have dev records, and min_cohort is {cohort.min_cohort}: "
                "a sum over so few would show their votes"
            )
        else:
            if cfg.alone:
                found["votes"] = await count_votes(cohort, own.vote, voters)
                found["no_votes"] = None if found["votes"] else NOT_COUNTED
            if cfg.curves:
                found |= await answer(cohort, site, own, cfg)
    if cfg.alone:
        votes = found["votes"]
        text = sentence(votes) if votes else f"no votes were counted: {found['no_votes']}"
        site.recorder.event(HospitalsCompared(votes=votes, text=text))
    return found


async def answer(
    cohort: Cohort, site: Site, own: Comparison, cfg: PersonalSettings
) -> dict[str, Any]:
    """Set the temperature and the threshold of the served model; return the pooled ones."""
    from secure_fl.features.personal.answers import answers_of, options_of

    own.answers = await answers_of(cohort, site, own.use, cfg)
    delivery = site.delivered[own.use]
    if not delivery.shared:  # hospitals answer differently with the shared model's one folder
        task = replace(site.task, **options_of(asdict(own.answers)))
        site.delivered[own.use] = replace(delivery, task=task)
    return {"temperatures": own.answers.temperatures, "thresholds": own.answers.thresholds}


PERSONAL_FEATURE = PersonalFeature()


class PersonalFields(Section):
    """The field of [site] about personal models."""

    compares: bool = True
    """This site may train models of its own after a run. Its vote on the served model, and its
    losses at grids of thresholds and temperatures, may enter sums."""


class PersonalRules(SiteRules[PersonalFields]):
    """The rule of a site about plans with [personal]."""

    fields = PersonalFields

    def broken(self, policy: PersonalFields, plan: Plan) -> Iterator[Violation]:
        """Check that models are compared only where the site allows it, and within its limits."""
        asked, site = cast(Any, plan).personal, cast(Any, policy)
        if asked is None:
            return
        if not policy.compares:
            fix = "set compares = true in [site]"
            yield Violation("site.compares", "[personal]", "no comparison with own models", fix)
        yield from at_most("site.max_epochs", asked.epochs, site.max_epochs)
        if asked.curves and not getattr(site, "pooled_scores", True):  # of another feature
            fix = "set pooled_scores = true in [site]"
            what = "sums of losses, for coverage or calibrate in [personal]"
            yield Violation("site.pooled_scores", what, "scores that stay here", fix)

    def trains(self, plan: Plan) -> Iterator[ModelSettings]:
        """Give the shared model with the second adapter, for methods that add one."""
        asked = cast(Any, plan).personal
        if asked is not None and asked.method == "adapter":
            adapter = AdapterSettings(rank=asked.rank, targets="linear")
            for model in plan.algorithm.trains(plan.model):
                yield model.model_copy(update={"adapter": adapter})

    def sentences(self, policy: PersonalFields) -> Iterator[str]:
        """Describe whether the site compares models."""
        yield (
            "It may train models of its own after a run, and vote on whether the served one is "
            "better than training alone."
            if policy.compares
            else "It compares no models of its own with shared ones."
        )


PERSONAL_RULES = PersonalRules()
