"""What every attacker knows of a federation before it sees anything."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.audits.findings import Prior, Truth
from secure_fl.config.load import Settings
from secure_fl.data.silo import Silo
from secure_fl.federation.federation import Federation
from secure_fl.learning.learning_rates import with_rate
from secure_fl.learning.models import load_model, load_tokenizer
from secure_fl.learning.tasks import make_task


def prior_of(settings: Settings, members: Sequence[Silo]) -> Prior:
    """What is public about a federation, and the records that guesses are scored by."""
    made = Federation.of(settings)
    every = [record for silo in members for record in (*silo.train, *silo.dev, *silo.test)]
    task = next(iter(made.tasks.values()))
    if made.local_heads:  # heads stay at home; whoever guesses counts with all labels there are
        task = make_task(settings.task, every)
    spec = settings.algorithm.trains(settings.model)[0]
    tokenizer = load_tokenizer(spec)
    own = {s.name: Truth(s.name, tuple(s.train)) for s in members if s.role != "host"}
    others = [record for silo in members for record in (*silo.dev, *silo.test)]
    known = {record.text for truth in own.values() for record in truth.records
             if hasattr(record, "text")}  # fmt: skip
    return Prior(
        lambda: load_model(spec, task, tokenizer, settings.run.seed),
        tokenizer,
        task,
        with_rate(settings.training, spec, task.kind),
        settings.algorithm,
        settings.run.seed,
        own,
        tuple(record for record in others if getattr(record, "text", None) not in known),
    )
