"""A silo at work: the place where a party program trains, measures and delivers models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.data.examples import Example
from secure_fl.data.public import HOW, digest, overlap
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError
from secure_fl.events import EventLog, Warned
from secure_fl.learning.builtin import few_threads
from secure_fl.learning.randomness import Randomness
from secure_fl.learning.scores import SPLITS, Metric, Scores
from secure_fl.learning.shelf import Shelf
from secure_fl.party.rounds import Round
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings, TrainingSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from secure_fl.crypto.privacy.training_account import DpAccount
    from secure_fl.learning.fetching import Attention
    from secure_fl.learning.tasks import Encoded, Task
    from secure_fl.learning.together import Together
    from secure_fl.learning.training import Objective

AT_ONCE = 64  # records that a model only looks at: evaluated or predicted together


@dataclass(frozen=True, slots=True)
class Delivery:
    """A model that a run produced."""

    model: torch.nn.Module
    shared: bool


class Site:
    """A silo at work: what a party program may use besides the cohort.

    It owns the party's randomness: results depend on the seed and the party's name, never on
    which other party computed before it in the same process.
    """

    def __init__(
        self,
        silo: Silo,
        task: Task,
        model: ModelSettings,
        training: TrainingSettings,
        seed: int,
        recorder: EventLog,
        hospitals: Sequence[Silo] | None = None,
        privacy: DpAccount | None = None,
        *,
        local_head: bool = False,
        max_batch: int | None = None,
        metrics: Mapping[str, Metric] | None = None,
        shelf: Shelf | None = None,
        together: Together | None = None,
        share_scores: bool = False,
        balances: bool = False,
    ) -> None:
        from secure_fl.learning.training import knows_bfloat16, pick_device

        self.name, self.silo, self.task = silo.name, silo, task
        self.shared_model_settings, self.model_settings = model, silo.model or model
        self.training, self.seed, self.recorder = training, seed, recorder
        self.hospitals = (silo,) if hospitals is None else tuple(hospitals)  # who is measured
        self.device = pick_device(training.device)
        asked = training.precision == "bfloat16"
        self.halves = asked and knows_bfloat16(self.device)  # else products are of float32
        if asked and not self.halves:
            text = "this processor has no instructions for bfloat16, so it trains in float32"
            recorder.event(Warned(code="no bfloat16", text=text))
        self.local_head = local_head  # the parties' label sets differ: heads are never sent
        self.max_batch = max_batch  # records in memory at once, by the site's policy; None: any
        self.share_scores = share_scores  # whether other members of an evaluation learn its own
        self.privacy = privacy  # what DP-SGD may spend; None: nothing is trained by it
        self.delivered: dict[str, Delivery] = {}
        self.balances = balances  # whether classes count alike where settings say nothing
        self.findings: dict[str, Any] = {}  # what a program found beside scores, equal at all
        self.scored: dict[str, torch.nn.Module] = {}  # by label, as they were scored last
        self._together = together  # trains other sites of this process beside; None: by itself
        if together is not None:
            together.join(self)
        self._shelf = shelf or Shelf()  # what other sites in this process begin with, too
        self._rng = Randomness(seed_for(seed, silo.name), self.device)
        self.scores = Scores(task, recorder, by_label=not local_head, metrics=metrics)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of this party's model."""
        from secure_fl.learning.models import load_tokenizer

        made: PreTrainedTokenizerBase = self._shelf.take(
            self.model_settings, lambda: load_tokenizer(self.model_settings)
        )
        return made

    @cached_property
    def train(self) -> Encoded:
        """The training records, tokenised once, and weighted as the settings ask for."""
        return self.weighed(self._encode(self.silo, "train"))

    def weighed(self, encoded: Encoded) -> Encoded:
        """Records that count in the loss as the settings, or else the algorithm, would have it."""
        given, dp = self.training.class_weights, self.training.dp
        usual = self.balances and dp is None and self.task.positive is not None
        weighs = given == "balanced" or (given is None and usual)
        return self.task.balanced(encoded) if weighs else encoded

    @cached_property
    def public(self) -> Encoded:
        """The public records, tokenised once by this party's tokenizer; without labels."""
        silo = self.silo
        if not silo.public:
            what = "there are no public records, and this algorithm distils over them"
            fix = f"give all members the same: {HOW}"
            raise DataError(what, fix=fix, party=self.name, split="public")
        if count := overlap((*silo.train, *silo.dev, *silo.test), silo.public):
            records = f"{count} public record{'s are' if count != 1 else ' is'}"
            text = f"{records} not only public: its own records contain the same text"
            self.recorder.event(Warned(code="public overlap", text=text))
        return self._encode(silo, "public", labelled=False)

    @property
    def public_digest(self) -> bytes:
        """A digest of the public records, which all members must have alike."""
        return digest(self.silo.public)

    @property
    def records(self) -> float:
        """Count the training records. The number is private: it only ever enters sums."""
        return float(len(self.silo.train))

    def model(
        self,
        settings: ModelSettings | None = None,
        *,
        attention: Attention = "sdpa",
    ) -> PreTrainedModel:
        """A fresh model on this party's device; equal settings give equal weights everywhere."""
        settings = settings or self.model_settings
        cut = settings.layers is not None and settings.pretrained and settings.name != "tiny"
        if cut and settings.pooling == "cls" and self.task.head == "sequence":
            text = (
                "a cut checkpoint that is read at its first token learns late: set pooling = "
                '"attentive"'
            )
            self.recorder.event(Warned(code="cut read by cls", text=text))
        with self.recorder.phase("load model"):
            key = (self.model_settings, settings, self.task, attention)
            model = self._shelf.take(key, lambda: self._load(settings, attention))
        return model.to(self.device)

    def _load(self, settings: ModelSettings, attention: Attention) -> PreTrainedModel:
        """A model that is ready to be trained, on the CPU."""
        from secure_fl.learning.anatomy import freeze_embeddings
        from secure_fl.learning.fetching import seeded
        from secure_fl.learning.models import load_model, recompute
        from secure_fl.learning.rehearsal import require_savable

        with seeded(self.seed):  # whether it is made here or for another site must not show
            model = load_model(
                settings, self.task, self.tokenizer, self.seed, attn_implementation=attention
            )
        if settings.freeze_embeddings:
            freeze_embeddings(model)
        require_savable(model, self.tokenizer)
        if self.training.checkpointing:
            recompute(model)
        return model

    def fit(
        self,
        model: torch.nn.Module,
        epochs: int,
        round: Round,
        *,
        objective: Objective | None = None,
        steps: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> float:
        """Train on the local records; return the mean loss (DP-SGD: NaN).

        `objective` takes the place of the task's loss, `steps` that of whole passes, `optimizer`
        that of a fresh one: for what never leaves this party.
        """
        from secure_fl.learning.dp.training import fit_privately
        from secure_fl.learning.training import fit

        with self.recorder.phase("train"):
            if self.training.dp is None:
                if self._together is not None and objective is None and optimizer is None:
                    loss = self._together.fit(self, model, epochs, round, steps)
                    if loss is not None:
                        return loss
                return fit(self, model, epochs, round, objective, steps, optimizer)
            return fit_privately(self, model, epochs, round, objective, steps, optimizer)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """An optimiser of a model that never leaves, for who keeps it through the run."""
        from secure_fl.learning.training import make_optimizer

        return make_optimizer(model, self.training, alone=True)

    def score(self, model: torch.nn.Module | None, round: int, label: str = "") -> None:
        """Evaluate on the dev and test records and write the metrics down, here.

        Counts wait for the round's end, where they are summed over the hospitals: who has no model
        of this label, or no records, counts nothing.
        """
        from secure_fl.learning.training import autocast

        self.scores.begin(label)
        if model is None:
            return
        self.scored[label] = model
        for (hospital, split), encoded in self._measured.items():
            with self.recorder.phase("evaluate"), autocast(self):
                outcomes = self.task.outcomes(model, encoded, self.at_once())
            whose = {} if hospital == self.name else {"party": hospital}
            records = self._records[hospital, split]
            self.scores.measure(label, split, round, outcomes, records, **whose)

    def losses(self, label: str) -> NDArray[np.float64]:
        """The losses of the own dev records under the model of this label, as it is now."""
        from secure_fl.learning.training import autocast

        dev = self._measured[self.name, "dev"]
        with self.recorder.phase("evaluate"), autocast(self):
            logits, batches = self.task.outcomes(self.scored[label], dev, self.at_once())
        pairs = zip(logits, batches, strict=True)
        each = [self.task.loss(z, batch, reduction="none").double().numpy() for z, batch in pairs]
        return np.concatenate(each)

    def forget(self, round: int) -> None:
        """Drop what was measured in a round that is undone."""
        self.scores.take_counts()
        history = self.recorder.history
        history[:] = [entry for entry in history if entry["round"] != round]

    def at_once(self, wanted: int = AT_ONCE) -> int:
        """How many records may be in memory together, of so many that would be."""
        return wanted if self.max_batch is None else min(wanted, self.max_batch)

    def deliver(self, model: torch.nn.Module, name: str = "model", *, shared: bool = True) -> None:
        """Name a model as what this run produced: the same for all parties, or this party's."""
        self.delivered[name] = Delivery(model, shared)

    def fingerprint(self) -> bytes:
        """Digest what all parties need alike before they can share a model."""
        import json

        labels = None if self.local_head else list(self.task.labels)
        shared = [self.task.kind, labels, self.task.max_length]
        return json.dumps([*shared, self.model_settings.model_dump()]).encode()

    @property
    def batches_rng(self) -> torch.Generator:
        """The generator that orders training batches."""
        return self._rng.batches

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Use this party's random state (dropout!) inside, and the process's own outside."""
        with self._rng.active(), few_threads(self.model_settings.name):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Random state and history, for checkpoints."""
        state = {"rng": self._rng.state(), "history": list(self.recorder.history)}
        return state if self.privacy is None else state | {"privacy": self.privacy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._rng.restore(state["rng"])
        self.recorder.history[:] = state["history"]
        if self.privacy is not None:
            self.privacy.load_state_dict(state["privacy"])

    @property
    def _records(self) -> dict[tuple[str, str], Sequence[Example]]:
        """The records models are measured on: own ones, or every hospital's."""
        return {
            (hospital.name, split): getattr(hospital, split)
            for hospital in self.hospitals
            for split in SPLITS
            if getattr(hospital, split)
        }

    @cached_property
    def _measured(self) -> dict[tuple[str, str], Encoded]:
        """The records models are measured on, tokenised once: own ones, or every hospital's."""
        return {
            (hospital.name, split): self._encode(hospital, split)
            for hospital in self.hospitals
            for split in SPLITS
            if getattr(hospital, split)
        }

    def _encode(self, silo: Silo, split: str, *, labelled: bool = True) -> Encoded:
        with self.recorder.phase("tokenise"):
            try:
                return self.task.encode(getattr(silo, split), self.tokenizer, labelled=labelled)
            except DataError as error:
                error.at(party=silo.name, split=split)
                raise
