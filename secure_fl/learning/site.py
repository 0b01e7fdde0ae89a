"""A silo at work: a party program trains, measures and delivers models through its `Site`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.data.examples import HOW, Example, digest, overlap
from secure_fl.data.silo import Silo
from secure_fl.errors import DataError
from secure_fl.events import Warned
from secure_fl.learning.builtin import few_threads
from secure_fl.learning.scores import SPLITS, SiteScores
from secure_fl.learning.site_context import RandomStates, SiteContext, SiteSpec, T
from secure_fl.party.rounds import Round
from secure_fl.seeds import seed_for
from secure_fl.settings import ModelSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from secure_fl.learning.fetching import Attention
    from secure_fl.learning.local_training import Objective
    from secure_fl.learning.tasks import Batch, Encoded, Task

AT_ONCE = 64  # records in a batch that is only evaluated or predicted


@dataclass(frozen=True, slots=True)
class Delivery:
    """A model that a run produced."""

    model: torch.nn.Module
    shared: bool
    task: Task | None = None  # with an own temperature and threshold; None: the run's task


class Site:
    """A silo at work: everything that a party program may use, except the cohort.

    It has random states of its own: results depend on the seed and the party's name, never on
    other parties that compute in the same process.
    """

    def __init__(self, silo: Silo, spec: SiteSpec, context: SiteContext) -> None:
        from secure_fl.learning.local_training import pick_device, supports_bfloat16

        self.name, self.silo, self.task = silo.name, silo, spec.task
        self.shared_model_settings, self.model_settings = spec.model, silo.model or spec.model
        self.training, self.seed, self.balances = spec.training, spec.seed, spec.balances
        self.local_head, self.measured = spec.local_head, spec.measured or (silo,)
        self.recorder, self.privacy = context.recorder, context.privacy
        self.max_batch = context.max_batch
        self.options, self.ledger = context.options, context.ledger
        self.device = pick_device(spec.training.device)
        wanted = spec.training.precision == "bfloat16"
        self.bfloat16 = wanted and supports_bfloat16(self.device)  # False: products in float32
        if wanted and not self.bfloat16:
            text = "this processor has no instructions for bfloat16, so it trains in float32"
            self.recorder.event(Warned(code="no bfloat16", text=text))
        self.delivered: dict[str, Delivery] = {}
        self.findings: dict[str, Any] = {}  # results besides scores
        self.scored: dict[str, torch.nn.Module] = {}  # the last scored model of each label
        self.scores = SiteScores(
            spec.task, self.recorder, by_label=not spec.local_head, metrics=spec.metrics
        )
        self._cache, self._trainer = context.cache, context.trainer
        self._random = RandomStates(seed_for(spec.seed, silo.name), self.device)
        if context.trainer is not None:
            context.trainer.join(self)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of this party's model."""
        from secure_fl.learning.models import load_tokenizer

        settings = self.model_settings
        made: PreTrainedTokenizerBase = self._cache.get(settings, lambda: load_tokenizer(settings))
        return made

    @cached_property
    def train(self) -> Encoded:
        """The training records, tokenised once, with the class weights of the settings."""
        return self.weighed(self._encode(self.silo, "train"))

    def weighed(self, encoded: Encoded) -> Encoded:
        """Add class weights where the settings, or else the algorithm, balance classes."""
        given, dp = self.training.class_weights, self.training.dp
        by_default = self.balances and dp is None and self.task.positive is not None
        weighs = given == "balanced" or (given is None and by_default)
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
        """A digest of the public records, which must be equal at all members."""
        return digest(self.silo.public)

    @property
    def records(self) -> float:
        """The number of training records. It is private: it only ever enters sums."""
        return float(len(self.silo.train))

    @cached_property
    def _train_digest(self) -> bytes:
        return digest(self.silo.train)

    def question(self, name: str, state: bytes = b"") -> str:
        """Digest what a sum over all training records depends on where no seed changes it.

        With other hospitals, the difference of two such sums would be what single hospitals hold,
        so sites open the answers to one question over the same hospitals only.
        """
        return sha256(name.encode() + b" " + self._train_digest + state).hexdigest()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` computes from public inputs, once for all sites of this process."""
        return self._cache.get((self.model_settings, self.task, key), make)

    def model(
        self, settings: ModelSettings | None = None, *, attention: Attention = "sdpa"
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
            model = self._cache.get(key, lambda: self._load(settings, attention))
        return model.to(self.device)

    def _load(self, settings: ModelSettings, attention: Attention) -> PreTrainedModel:
        """Load a model on the CPU, ready for training."""
        from secure_fl.learning.anatomy import freeze_embeddings
        from secure_fl.learning.exporting import require_savable
        from secure_fl.learning.fetching import seeded
        from secure_fl.learning.models import load_model, recompute

        with seeded(self.seed):  # the model must not depend on the site that loads it
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

        `objective` replaces the task's loss, `steps` the number of epochs, and `optimizer` a fresh
        one. Pass an optimizer that outlives a round only for a model that never leaves this party.
        """
        from secure_fl.learning.dp.dp_sgd import fit_privately
        from secure_fl.learning.local_training import fit

        with self.recorder.phase("train"):
            if self.training.dp is not None:
                return fit_privately(self, model, epochs, round, objective, steps, optimizer)
            if self._trainer is not None and objective is None and optimizer is None:
                loss = self._trainer.fit(self, model, epochs, round, steps)
                if loss is not None:
                    return loss
            return fit(self, model, epochs, round, objective, steps, optimizer)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """An optimizer for a model that never leaves this party, to keep for the whole run."""
        from secure_fl.learning.local_training import make_optimizer

        return make_optimizer(model, self.training, alone=True)

    def score(self, model: torch.nn.Module | None, round: int, label: str = "") -> None:
        """Evaluate on the dev and test records and log the metrics here.

        Counts are kept until the round's end, where they are summed over the hospitals. A site
        without a model of this label, or without records, counts zeros.
        """
        from secure_fl.learning.local_training import autocast

        self.scores.begin(label)
        if model is None:
            return
        self.scored[label] = model
        for (name, split), (records, encoded) in self._evaluated.items():
            with self.recorder.phase("evaluate"), autocast(self):
                outcomes = self.task.outcomes(model, encoded, self.at_once())
            party = {} if name == self.name else {"party": name}
            self.scores.measure(label, split, round, outcomes, records, **party)

    def losses(self, label: str) -> NDArray[np.float64]:
        """The losses of this site's dev records under the current model of this label."""
        outcomes = self.outcomes(self.scored[label], "dev")
        losses: NDArray[np.float64] = self.task.losses(*outcomes).double().numpy()
        return losses

    def outcomes(self, model: torch.nn.Module, split: str) -> tuple[list[Tensor], list[Batch]]:
        """The logits of a model on this site's own records of a split, and their batches."""
        from secure_fl.learning.local_training import autocast

        _, encoded = self._evaluated[self.name, split]
        with self.recorder.phase("evaluate"), autocast(self):
            return self.task.outcomes(model, encoded, self.at_once())

    def forget(self, round: int) -> None:
        """Drop the measurements of a round that is undone."""
        self.scores.take_counts()
        history = self.recorder.history
        history[:] = [entry for entry in history if entry["round"] != round]

    def at_once(self, wanted: int = AT_ONCE) -> int:
        """The number of records that may be in memory together, at most `wanted`.

        Every window of a text counts as a record.
        """
        allowed = wanted if self.max_batch is None else min(wanted, self.max_batch)
        return max(1, allowed // self.task.windows)

    def deliver(self, model: torch.nn.Module, name: str = "model", *, shared: bool = True) -> None:
        """Name a model as a product of this run: equal at all parties, or this party's own."""
        self.delivered[name] = Delivery(model, shared)

    def fingerprint(self) -> bytes:
        """Encode the settings that all parties must have alike before they share a model."""
        import json

        labels = None if self.local_head else list(self.task.labels)
        shared = [self.task.kind, labels, self.task.reading()]
        return json.dumps([*shared, self.model_settings.model_dump()]).encode()

    @property
    def batches_rng(self) -> torch.Generator:
        """The generator that orders training batches."""
        return self._random.batches

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Use this party's random states (dropout!) inside, and the process's states outside."""
        threads = self.training.threads
        with self._random.active(), few_threads(self.model_settings.name, threads):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Random states, history and pairs of sums that differ, for checkpoints."""
        state = {"rng": self._random.state(), "history": list(self.recorder.history)}
        state["differences"] = self.recorder.differences.state_dict()
        return state if self.privacy is None else state | {"privacy": self.privacy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._random.restore(state["rng"])
        self.recorder.history[:] = state["history"]
        self.recorder.differences.load_state_dict(state.get("differences", {}))
        if self.privacy is not None:
            self.privacy.load_state_dict(state["privacy"])

    @cached_property
    def _evaluated(self) -> dict[tuple[str, str], tuple[Sequence[Example], Encoded]]:
        """By hospital and split: the records that models are measured on, tokenised once."""
        return {
            (silo.name, split): (records, self._encode(silo, split))
            for silo in self.measured
            for split in SPLITS
            if (records := getattr(silo, split))
        }

    def _encode(self, silo: Silo, split: str, *, labelled: bool = True) -> Encoded:
        with self.recorder.phase("tokenise"):
            try:
                return self.task.encode(getattr(silo, split), self.tokenizer, labelled=labelled)
            except DataError as error:
                error.at(party=silo.name, split=split)
                raise
