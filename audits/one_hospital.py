"""Comparison models of algorithms whose rounds are single steps, by their own program.

Probes and FedSGD do not train by local passes. So a comparison model is the result of the run's own
program at one hospital that holds all of the records, without protection and noise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import nn

from secure_fl.capture.recording import NoCapture
from secure_fl.config.load import Settings
from secure_fl.coordinator.sum_steps import CoordinatorRules
from secure_fl.data.examples import Example
from secure_fl.data.silo import Silo
from secure_fl.events import EventLog
from secure_fl.federation.assembly import COORDINATOR
from secure_fl.federation.federation import RunSegment
from secure_fl.federation.prepared import Prepared
from secure_fl.federation.run_spec import RunSpec
from secure_fl.learning.site import Site
from secure_fl.learning.site_context import ModelCache, SiteContext, SiteSpec
from secure_fl.party.context import Checkpoints
from secure_fl.party.session import LocalEngine
from secure_fl.settings import ProtectionSettings

SITES = 1000  # that share the encoded public texts; more than an audit makes


def imitation_of(settings: Settings, public: Sequence[Example]) -> Callable[[Site], nn.Module]:
    """Return a function that runs the program of these settings on the records of one site."""
    student = {"student_layers": None}  # it is not attacked if there is a model
    spec = RunSpec(
        settings.algorithm.model_copy(update=student),
        settings.task,
        settings.model,
        settings.training.model_copy(update={"dp": None}),
        ProtectionSettings(mode="none"),
        settings.run.seed,
    )
    cache, rules = ModelCache(SITES), CoordinatorRules(None, 1, 1)

    def run(records: Site) -> nn.Module:
        name = re.sub(r"[^A-Za-z0-9]+", "-", records.name).strip("-")  # as sites may be named
        silo = Silo(name, records.silo.train, public=tuple(public))
        known = SiteSpec(records.task, spec.model, spec.training, spec.seed)
        site = Site(silo, known, SiteContext(EventLog(name), cache=cache))
        site.tokenizer, site.train = records.tokenizer, records.train
        party = Prepared(spec, rules, site, Checkpoints(), None)
        segment = RunSegment(spec, {name: party}, rules)
        segment.train(LocalEngine, NoCapture(), EventLog(COORDINATOR))
        return site.delivered["model"].model

    return run
