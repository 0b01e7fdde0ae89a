"""The table of optional features.

The core imports nothing from the folders below: it looks features up here, by the kind of thing
that they add, and imports them on first use. To remove a feature, delete its folder and its entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The places where one feature joins the program: "module:name", "module", or "" for none."""

    doc: str  # its page, in docs/
    run: str = ""  # a `federation.run_feature.RunFeature`: checks and hooks of a run
    policy: str = ""  # a `policy.site_rules.SiteRules`: fields of [site], and their rules
    algorithm: str = ""  # an `algorithms.base.Entry`
    model_part: str = ""  # a `learning.models.ModelPart`
    transport: str = ""  # a `cli.transports.Transport`: another way to the coordinator
    settings: Mapping[str, str] = field(default_factory=dict)  # a section's name -> its class
    pages: Mapping[str, str] = field(default_factory=dict)  # a section of result.json -> its page
    parts: Mapping[str, str] = field(default_factory=dict)  # such a section -> a part of the page
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name -> place, help
    exports: Mapping[str, str] = field(default_factory=dict)  # a name in `secure_fl` -> its place


FEATURES: Mapping[str, Feature] = {
    "guard": Feature(
        doc="threat-model.md",
        run="secure_fl.features.guard.feature:GUARD",
        policy="secure_fl.features.guard.feature:GUARD_RULES",
        settings={"guard": "secure_fl.features.guard.settings:GuardSettings"},
    ),
    "pooled_scores": Feature(
        doc="protocol.md",
        run="secure_fl.features.pooled_scores.feature:POOLED_SCORES",
        policy="secure_fl.features.pooled_scores.feature:SCORE_RULES",
    ),
    "personal": Feature(
        doc="personal.md",
        run="secure_fl.features.personal.feature:PERSONAL_FEATURE",
        policy="secure_fl.features.personal.feature:PERSONAL_RULES",
        settings={"personal": "secure_fl.features.personal.settings:PersonalSettings"},
        parts={"personal": "secure_fl.features.personal.page:personal_part"},
    ),
    "evaluation": Feature(
        doc="evaluation.md",
        run="secure_fl.features.evaluation.feature:EVALUATION",
        policy="secure_fl.features.evaluation.feature:EVALUATION_RULES",
        algorithm="secure_fl.features.evaluation.algorithm:ENTRY",
        pages={"evaluation": "secure_fl.features.evaluation.page:evaluation_page"},
        commands={
            "evaluate": (
                "secure_fl.features.evaluation.command:evaluate",
                "Score models, without training.",
            )
        },
        exports={
            "Evaluation": "secure_fl.features.evaluation.evaluation:Evaluation",
            "evaluate": "secure_fl.features.evaluation.evaluation:evaluate",
        },
    ),
    "statistics": Feature(
        doc="statistics.md",
        run="secure_fl.features.statistics.feature:STATISTICS",
        policy="secure_fl.features.statistics.feature:STATISTICS_RULES",
        algorithm="secure_fl.features.statistics.codebook:ENTRY",
        pages={"statistics": "secure_fl.features.statistics.page:statistics_page"},
        commands={
            "stats": (
                "secure_fl.features.statistics.command:stats",
                "Count records in the tables of a codebook.",
            )
        },
        exports={
            "Codebook": "secure_fl.features.statistics.codebook:Codebook",
            "Tables": "secure_fl.features.statistics.opening:Tables",
            "open_codebook": "secure_fl.features.statistics.opening:open_codebook",
        },
    ),
    "scripts": Feature(
        doc="scripts.md",
        policy="secure_fl.features.scripts.policy:SCRIPT_RULES",
        algorithm="secure_fl.features.scripts.algorithm:ENTRY",
        commands={
            "serve": (
                "secure_fl.integrations.command:serve",
                "Answer for a site that trains in another engine.",
            )
        },
        exports={
            "FederatedCallback": "secure_fl.features.scripts.hf:FederatedCallback",
            "Script": "secure_fl.features.scripts.algorithm:Script",
            "ScriptCohort": "secure_fl.features.scripts.cohort:ScriptCohort",
            "join": "secure_fl.features.scripts.joining:join",
            "audit_script": "secure_fl.features.scripts.audit:audit_script",
            "simulate": "secure_fl.features.scripts.simulation:simulate",
        },
    ),
    "adapters": Feature(
        doc="models.md",
        run="secure_fl.features.adapters.feature:ADAPTERS",
        model_part="secure_fl.features.adapters.part",
    ),
    "batched_simulation": Feature(
        doc="benchmarks.md",
        exports={
            "BatchedTraining": "secure_fl.features.batched_simulation.trainer:BatchedTraining"
        },
    ),
    "tuning": Feature(
        doc="evaluation.md",
        commands={
            "tune": (
                "secure_fl.features.tuning.command:tune",
                "Find settings that learn, by short trials.",
            )
        },
        exports={"tune": "secure_fl.features.tuning.tuning:tune"},
    ),
    "export": Feature(
        doc="models.md",
        run="secure_fl.features.export.feature:EXPORT",
        commands={
            "push": (
                "secure_fl.features.export.command:push",
                "Publish a run's model with its model card.",
            )
        },
    ),
    "air_gap": Feature(
        doc="operations.md",
        transport="secure_fl.features.air_gap.command:FOLDER_TRANSPORT",
        commands={
            "courier": (
                "secure_fl.features.air_gap.command:courier",
                "Relay messages for an offline training machine.",
            )
        },
    ),
}


def load(kind: str) -> dict[str, Any]:
    """Import the objects of one kind, such as "run", by feature or name, in the table's order."""
    found: dict[str, Any] = {}
    for name, feature in FEATURES.items():
        own = getattr(feature, kind)
        named = {name: own} if isinstance(own, str) else own
        found |= {key: resolve(place) for key, place in named.items() if place}
    return found


def places(kind: str) -> dict[str, Any]:
    """Collect the entries of one kind that has names, such as "commands", without imports."""
    return {name: place for f in FEATURES.values() for name, place in getattr(f, kind).items()}


def resolve(place: str) -> Any:
    """Import a module, or an object of one by "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)
